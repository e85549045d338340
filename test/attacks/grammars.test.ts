import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { readFixture } from '../support/fixture.ts'
import { thorough } from '../support/thorough.ts'

const model = DEMO
const messages = [{ role: 'user', content: 'aaaaaaaaaaaaaaaa' }]
const REQUESTS: [string, object][] = readFixture<any>('attack-cases.yaml').endlessGrammars

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
