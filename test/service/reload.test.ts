import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral } from '../support/corral.ts'

const chat = { model: DEMO, messages: [CAPITAL_QUESTION], stream: false }

/** Writes the configuration anew and has the server read it. */
async function reload(corral: Corral, config: string) {
  corral.configure(config)
  return await corral.json('/api/reload', undefined, { method: 'POST', local: true })
}

const answered = async (corral: Corral, options: object = {}) =>
  (await corral.json('/api/chat', { ...chat, options })).body

t.test('what changed counts at once, and what needs a restart is named', async t => {
  const corral = await startCorral(t, { config: 'defaults: { max_tokens: 3, temperature: 0 }\n' })
  t.match(await answered(corral), { eval_count: 3 })
  const changed = await reload(
    corral,
    `defaults: { max_tokens: 4, temperature: 0 }\nport: 9\nhost: 127.0.0.9\nlimits: { n: 2 }\nhub: {}\n`
  )
  t.equal(changed.status, 200)
  t.strictSame(changed.body.applied, [
    { setting: 'defaults.max_tokens', from: 3, to: 4 },
    { setting: 'limits.n', from: 128, to: 2 }
  ])
  t.strictSame(changed.body.restart, [{ setting: 'host', from: '127.0.0.1', to: '127.0.0.9' }])
  t.strictSame(changed.body.overridden, [{ setting: 'port', by: 'flag --port' }], 'a flag goes before the file')
  t.match(changed.body.unknown, [{ where: /config\.yaml:5:1$/, message: /no setting "hub"/ }])
  t.match(await answered(corral), { eval_count: 4 })
  const many = await corral.json('/v1/chat/completions', { ...chat, n: 3 })
  t.match(many, { status: 400, body: { error: { code: 'over_limit' } } })

  const again = await reload(corral, `defaults: { max_tokens: 4, temperature: 0 }\nport: 9\nhost: 127.0.0.9\n`)
  t.strictSame(
    again.body.applied,
    [{ setting: 'limits.n', from: 2, to: 128 }],
    'what is left out has its default again'
  )
  t.strictSame(again.body.restart.length, 1, 'what waits for a restart goes on waiting')
  t.strictSame(again.body.overridden, [], 'and what has no effect is said once')
  const back = await reload(corral, `defaults: { max_tokens: 4, temperature: 0 }\n`)
  t.match(back.body, { applied: [], restart: [], unknown: [] })
})

t.test('an invalid file is refused with its line, and the old settings stay', async t => {
  const corral = await startCorral(t, { config: 'defaults: { max_tokens: 3 }\n' })
  const path = join(corral.home, 'config.yaml')
  const refused = async (what: string, { line, column }: { line?: number; column?: number } = {}) => {
    const { status, body } = await corral.json('/api/reload', undefined, { method: 'POST', local: true })
    t.match({ status, body }, { status: 409, body: { code: 'invalid_config' } }, what)
    t.match(body.error, /The settings stay as they were/)
    if (line) t.match(body.problems[0], { file: path, line, column })
    t.match(await answered(corral), { eval_count: 3 }, `${what}: nothing has changed`)
    return body
  }
  writeFileSync(path, 'defaults:\n  max_tokens: 5\n  top_p: many\nlimits: { n: 2 }\n')
  await refused('a wrong value', { line: 3, column: 10 })
  writeFileSync(path, 'defaults: { max_tokens: 7 }\nmodels: {"')
  await refused('half a file', { line: 2, column: 11 })
  writeFileSync(path, Buffer.from([0xff, 0xfe, 0]))
  await refused('no text')
  rmSync(path)
  t.match(await refused('no file'), { error: /it does not exist/ })
  t.match(corral.log(), /top_p must be/)
  t.match(corral.log(), /"level":50/)
})
