import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { demoModelWith } from '../../scripts/random-models.ts'
import { alive, CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral } from '../support/corral.ts'

const MIB = 2 ** 20
/** Endless loops that keep everything they write. */
const LOOPS = '{% for i in range(10000000) %}{% for j in range(10000000) %}x{% endfor %}{% endfor %}'
/** The same, but only for a certain conversation: loading the model is harmless. */
const LATER = `{% if messages[0].content == 'fill' %}${LOOPS}{% endif %}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>`
const CONFIG = 'limits: { stuck_after: 3s }'

const chat = (model: string, content = CAPITAL_QUESTION.content) => ({
  model,
  messages: [{ role: 'user', content }],
  stream: false,
  options: { temperature: 0, max_tokens: 30 }
})

/** The peak private memory of this server's engines while `going` is pending, in bytes. */
async function highest<T>(corral: Corral, going: Promise<T>): Promise<{ value: T; bytes: number }> {
  let bytes = 0
  let over = false
  const value = going.finally(() => {
    over = true
  })
  while (!over) {
    for (const pid of corral.enginePids()) {
      try {
        const size = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
        bytes = Math.max(bytes, Number(size ?? 0) * 1024)
      } catch {
        // The process has ended.
      }
    }
    await sleep(20)
  }
  return { value: await value, bytes }
}

async function make(corral: Corral, model: string, template: string): Promise<void> {
  const { status, body } = await corral.json('/api/create', { model, from: DEMO, template, stream: false })
  if (status !== 200) throw new Error(JSON.stringify(body))
}

t.test('a template that fills memory during the load ends that load', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  const template = `${LOOPS}{{ messages[0].content }}`
  const created = { model: 'evil/made', from: DEMO, template, stream: false }
  t.match(await corral.json('/api/create', created), { status: 400, body: { error: /took more than .* of memory/ } })
  const path = join(t.testdir(), 'model.gguf')
  writeFileSync(path, demoModelWith({ 'tokenizer.chat_template': template }))
  t.equal((await corral.json('/api/import', { model: 'evil/load', path })).status, 200)
  const { value, bytes } = await highest(corral, corral.json('/api/chat', chat('evil/load')))
  t.ok(value.status >= 400, `${value.status}`)
  t.ok(['over_memory', 'stuck'].includes(value.body.cause), value.body.error)
  t.ok(bytes < 3000 * MIB, `${Math.round(bytes / MIB)} MiB at most`)
  t.equal((await corral.json('/api/chat', chat(DEMO))).body.message.content, CAPITAL_ANSWER)
})

t.test('a template that fills memory on a request is stopped, then refused, and others are answered', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  await make(corral, 'evil/later', LATER)
  t.equal((await corral.json('/api/chat', chat('evil/later'))).status, 200)
  const [pid] = corral.enginePids()
  for (const _ of [1, 2]) {
    const { value, bytes } = await highest(corral, corral.json('/api/chat', chat('evil/later', 'fill')))
    t.same([value.status, value.body.code, value.body.cause], [500, 'engine_crashed', 'over_memory'])
    t.match(
      value.body.error,
      /more memory than the .* reserved for it.*the model's chat template, which is not tried again/
    )
    t.ok(bytes < 3000 * MIB, `${Math.round(bytes / MIB)} MiB at most`)
  }
  t.notOk(alive(pid!))
  const refused = await corral.json('/api/chat', chat('evil/later'))
  t.same([refused.status, refused.body.code], [400, 'input_blocked'])
  t.match(refused.body.error, /chat template of model "evil\/later".*far too much memory 2 times/)
  t.equal((await corral.json('/api/chat', chat(DEMO))).body.message.content, CAPITAL_ANSWER)
})

t.test('an engine stops when the client of such a request disconnects', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  await make(corral, 'evil/later', LATER)
  t.equal((await corral.json('/api/chat', chat('evil/later'))).status, 200)
  const [pid] = corral.enginePids()
  const leaving = new AbortController()
  const abandoned = corral
    .send('/api/chat', chat('evil/later', 'fill'), { signal: leaving.signal })
    .catch(() => 'abandoned')
  setTimeout(() => leaving.abort(), 150)
  const ends = async () => {
    await abandoned
    while (alive(pid!)) await sleep(50)
  }
  const { bytes } = await highest(corral, ends())
  t.ok(bytes < 3000 * MIB, `${Math.round(bytes / MIB)} MiB at most`)
})
