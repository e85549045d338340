import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'

const model = DEMO
const messages = [{ role: 'user', content: 'aaaaaaaaaaaaaaaa' }]
const FOUND = 'root ::= a a a a a a a a\na ::= b{0,20}\nb ::= c{0,20}\nc ::= [a-z]? [0-9]?'
const pattern = { type: 'string', pattern: '^(([a-z]?[0-9]?){0,20}){0,20}$' }
const schema = { type: 'object', properties: { a: { type: 'array', items: pattern } }, required: ['a'] }
const hosted = { type: 'json_schema', json_schema: { name: 'a', schema } }
const tool = { type: 'function', function: { name: 'f', description: '', parameters: schema } }

const REQUESTS: [string, object][] = [
  ['/api/chat', { messages, options: { grammar: FOUND } }],
  ['/api/chat', { messages, format: schema }],
  ['/api/chat', { messages, tools: [tool] }],
  ['/api/chat', { messages, options: { json_schema: schema } }],
  ['/api/chat', { messages, options: { response_format: hosted } }],
  ['/api/generate', { prompt: 'a', options: { grammar: FOUND } }],
  ['/api/generate', { prompt: 'a', raw: true, options: { grammar: FOUND } }],
  ['/api/generate', { prompt: 'a', format: schema }],
  ['/ollama/api/chat', { messages, format: schema }],
  ['/v1/chat/completions', { messages, grammar: FOUND }],
  ['/v1/chat/completions', { messages, options: { grammar: FOUND } }],
  ['/v1/chat/completions', { messages, stream: true, response_format: hosted }],
  ['/v1/chat/completions', { messages, tools: [tool] }],
  ['/v1/chat/completions', { messages, functions: [tool.function] }],
  ['/v1/completions', { prompt: 'a', grammar: FOUND }],
  ['/v1/completions', { prompt: 'a', json_schema: schema }],
  ['/v1/responses', { input: 'a', grammar: FOUND }],
  ['/v1/responses', { input: 'a', text: { format: { type: 'json_schema', name: 'a', schema } } }],
  ['/v1/responses', { input: 'a', tools: [{ type: 'function', name: 'f', parameters: schema }] }],
  ['/v1/responses/input_tokens', { input: 'a', tools: [{ type: 'function', name: 'f', parameters: schema }] }],
  ['/v1/messages', { messages, max_tokens: 9, options: { grammar: FOUND } }],
  ['/v1/messages', { messages, max_tokens: 9, tools: [{ name: 'f', input_schema: schema }] }],
  ['/v1/messages', { messages, max_tokens: 9, output_config: { format: { type: 'json_schema', schema } } }],
  ['/v1/messages/count_tokens', { messages, tools: [{ name: 'f', input_schema: schema }] }]
]

t.test('no grammar or schema freezes a model', async t => {
  const corral = await startCorral(t, { config: 'defaults: { num_ctx: 2048, num_parallel: 2, max_tokens: 30 }' })
  for (const [path, fields] of REQUESTS) {
    const { status, body } = await corral.json(path, { model, ...fields })
    t.equal(status, 400, `${path} ${Object.keys(fields)}: ${JSON.stringify(body).slice(0, 200)}`)
    t.match(JSON.stringify(body), 'limits.grammar_repetition', path)
  }
  t.same(corral.enginePids(), [], 'no engine was started for any of them')

  const honest: object[] = [
    { grammar: 'root ::= [a-z]{1,500}' },
    { grammar: 'root ::= ("- " [^\\n]+ "\\n")+' },
    { json_schema: { type: 'array', maxItems: 100, items: { type: 'string', maxLength: 500 } } },
    { json_schema: { type: 'string', pattern: '^[a-z]{3,9}-[0-9]{2}$' } }
  ]
  for (const options of honest) {
    const { status, body } = await corral.json('/api/chat', { model, messages, stream: false, options })
    t.equal(status, 200, JSON.stringify(body))
    t.ok(body.message.content.length > 0)
  }
})

t.test('the configuration raises and lowers the grammar limit', thorough, async t => {
  const corral = await startCorral(t, {
    config: 'limits: { grammar_size: 100, grammar_repetition: 500 }\ndefaults: { max_tokens: 8 }'
  })
  const ask = (grammar: string) => corral.json('/api/chat', { model, messages, stream: false, options: { grammar } })
  t.equal((await ask('root ::= [a-z]* [a-z]*')).status, 200)
  t.match((await ask('root ::= [a-z]* [a-z]* [a-z]*')).body, { code: 'over_limit' })
  t.match((await ask(`root ::= "${'a'.repeat(100)}"`)).body, { code: 'over_limit', error: /limits\.grammar_size/ })
})
