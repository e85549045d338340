import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { callArguments } from '../../core/answers/call-arguments.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { DEMO, startCorral } from '../support/corral.ts'
import { readCases, readFixture } from '../support/fixture.ts'

const corral = await startCorral(t)
const user = { role: 'user', content: 'hi' }
const parameters = { type: 'object', properties: { a: { type: 'string' } } }
const tool = { type: 'function', function: { name: 'save', parameters } }
type Api = { path: string; short: object; tools: object; off?: object; history: object }
/** The history contains a call with these arguments. */
const APIS = readFixture<{ tool_apis: Api[] }>('service-cases.yaml').tool_apis.map(api => ({
  ...api,
  history: (given: unknown): object =>
    JSON.parse(JSON.stringify(api.history), (_, value) => (value === '$given' ? given : value))
}))

const DEEP = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`

t.test('arguments of earlier calls become the JSON text of an object', async t => {
  const cases: [given: unknown, text: string][] = [
    ...readCases<[unknown, string][]>('service-cases.yaml', 'call_arguments'),
    [undefined, '{}'],
    [null, '{}'],
    [DEEP, JSON.stringify({ arguments: DEEP })]
  ]
  for (const [given, text] of cases) t.equal(callArguments(given), text, String(given).slice(0, 40))
})

t.test('every API answers a history with malformed tool arguments', async t => {
  await corral.json('/api/chat', { model: DEMO, messages: [user], stream: false })
  const before = corral.enginePids()
  for (const { path, short, history } of APIS) {
    for (const given of ['', '{"city": "Os', '[1]', [1], 7, null, undefined, '{"a":"\\ud800"}', '{"a":1e999}']) {
      const { status, body } = await corral.json(path, { model: DEMO, ...short, ...history(given) })
      t.equal(status, 200, `${path} ${JSON.stringify(given)}: ${JSON.stringify(body).slice(0, 200)}`)
    }
    const { status } = await corral.json(path, { model: DEMO, ...short, ...history(DEEP) })
    t.equal(status, 400, `${path}: deeply nested arguments are only too long`)
  }
  t.same(corral.enginePids(), before, 'no engine crashed')
})

t.test('every API answers a history that ends with a call', async t => {
  for (const { path, short, history } of APIS) {
    const entries = Object.entries(history({})).map(([name, list]) => [name, (list as object[]).slice(0, -1)])
    const { status, body } = await corral.json(path, { model: DEMO, ...short, ...Object.fromEntries(entries) })
    t.equal(status, 200, `${path}: ${JSON.stringify(body).slice(0, 200)}`)
  }
})

t.test('a truncated call that the client answered stays in the history', async t => {
  const call = { type: 'function_call', status: 'incomplete', name: 'now', call_id: 'c', arguments: '{"a' }
  const output = { type: 'function_call_output', call_id: 'c', output: 'unreadable' }
  const renderPrompt = async (...items: object[]) => {
    const { body } = await corral.json('/v1/responses/input_tokens', { model: DEMO, input: [user, ...items, user] })
    return body.input_tokens as number
  }
  t.equal(await renderPrompt(call), await renderPrompt(), 'a call without output was never made')
  t.equal(await renderPrompt(call, output), await renderPrompt({ ...call, status: 'completed' }, output))
})

t.test('every API refuses tools for a model whose template does not support them', async t => {
  const model = 'plain'
  const template = "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}bot:"
  const made = await corral.json('/ollama/api/create', { model, from: DEMO, template, stream: false })
  t.equal(made.status, 200, JSON.stringify(made.body))
  for (const { path, short, tools, off } of APIS) {
    for (const stream of [false, true]) {
      const { status, body } = await corral.json(path, { model, ...short, ...tools, stream })
      t.equal(status, 400, path)
      t.match(JSON.stringify(body), /does not support tools/, path)
    }
    if (off) t.equal((await corral.json(path, { model, ...short, ...tools, ...off })).status, 200, `${path}: no choice`)
    t.equal((await corral.json(path, { model: DEMO, ...short, ...tools })).status, 200, `${path}: a model with tools`)
  }
  const { body } = await corral.json('/v1/chat/completions', { model, messages: [user], tools: [tool] })
  t.match(body, { error: { code: 'unsupported_capability', param: 'tools' } })
  const count = { model, messages: [user], tools: [{ name: 'save', input_schema: parameters }] }
  t.equal((await corral.json('/v1/messages/count_tokens', count)).status, 400)
})

t.test('a freeform tool obeys its grammar if that is regular and cheap', async t => {
  const { tools } = JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'agents', 'codex.json'), 'utf8'))
  const patch = tools.find(({ type }: { type: string }) => type === 'custom')
  const ask = async (format: object) => {
    const { status, body } = await corral.json('/v1/responses', {
      model: DEMO,
      input: 'Add a file.',
      tools: [{ ...patch, format }],
      tool_choice: { type: 'custom', name: patch.name },
      max_output_tokens: 120,
      temperature: 0
    })
    t.equal(status, 200, JSON.stringify(body).slice(0, 300))
    return body.output.find(({ type }: { type: string }) => type === 'custom_tool_call')?.input
  }
  t.match(await ask(patch.format), /^\*\*\* Begin Patch\n\*\*\* (Add|Delete|Update) File: ./)
  t.notMatch(await ask({ type: 'grammar', syntax: 'regex', definition: '(([a-z]?){0,30}){0,30}\\.' }), /^[a-z]*\.$/)
})
