import { once } from 'node:events'
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { request as httpRequest } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../support/corral.ts'

/** A plugin that writes each request's record to a file when the request has ended. */
function observer(): { plugin: string; records: () => any[] } {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const list = join(folder, 'records')
  writeFileSync(list, '')
  writeFileSync(
    join(folder, 'observer.mjs'),
    `import { appendFileSync } from 'node:fs'
export default {
  name: 'observer', api: 1, options: { type: 'object', properties: {} },
  setup: () => ({
    hooks: Object.assign(async app => {
      app.onRequestEnd(() => { throw new Error('A fault of the observer') })
      app.onRequestEnd(({ url, record }) => {
        const { use, status, failure, tokens, waitBegan, leased, firstPiece, answered, ended, overhead } = record
        const { prompt, completion } = tokens
        const moments = [record.began, waitBegan, leased, firstPiece, answered, ended]
        const line = { url, ...use, status, code: failure?.code, prompt, completion, moments, overhead, received: record.received }
        appendFileSync(${JSON.stringify(list)}, JSON.stringify(line) + '\\n')
      })
    }, { [Symbol.for('skip-override')]: true })
  })
}`
  )
  const records = () =>
    readFileSync(list, 'utf8')
      .split('\n')
      // The last line may be incomplete.
      .slice(0, -1)
      .map(line => JSON.parse(line))
  return { plugin: join(folder, 'observer.mjs'), records }
}

const { plugin, records } = observer()
const corral = await startCorral(t, { config: `plugins: [${plugin}]` })

t.test('each request has a record of its operation, end and usage', async t => {
  const messages = [CAPITAL_QUESTION]
  const last = async (count: number) =>
    (await until(`record ${count}`, () => records().length >= count)) && records().at(-1)

  const whole = await corral.json('/v1/chat/completions', { model: DEMO, messages, max_tokens: 6 })
  const { usage } = whole.body
  const asked = { surface: 'api-openai', operation: 'chat', model: DEMO, status: 200 }
  const counts = { prompt: usage.prompt_tokens, completion: usage.completion_tokens }
  const record = await last(1)
  t.match(record, { ...asked, ...counts })
  const ordered = [...record.moments].sort((a: number, b: number) => a - b)
  t.same(ordered, record.moments, 'its times are in order')
  t.ok(record.overhead >= 0)

  await corral.events('/v1/chat/completions', { model: DEMO, messages, max_tokens: 6, stream: true })
  t.match(await last(2), { ...asked, ...counts }, 'also if bytes are passed on unchanged')

  const several = { model: DEMO, messages, max_tokens: 6, n: 3, stream: true }
  await corral.events('/v1/chat/completions', several)
  t.match(await last(3), { ...asked, prompt: counts.prompt, completion: 18 }, 'of all choices')

  const vectors = await corral.json('/v1/embeddings', { model: DEMO, input: ['one', 'two and three'] })
  t.match(await last(4), { operation: 'embeddings', prompt: vectors.body.usage.prompt_tokens, completion: 0 })

  await corral.json('/v1/chat/completions', { model: 'no/such', messages })
  t.match(await last(5), { status: 404, code: 'model_not_found', prompt: 0 })

  for (const path of ['/v1/chat/completions', '/api/chat']) {
    const before = records().length
    const leave = new AbortController()
    const endless = {
      model: DEMO,
      messages,
      stream: true,
      max_tokens: 5000,
      ignore_eos: true,
      options: { num_predict: 5000, ignore_eos: true }
    }
    const answer = await corral.send(path, endless, { signal: leave.signal })
    const reader = answer.body!.getReader()
    for (let chunk = 0; chunk < 20; chunk++) await reader.read()
    leave.abort()
    const left = await last(before + 1)
    t.match(left, { url: path, operation: 'chat', status: 499 }, 'a client that leaves')
    t.ok(left.completion >= 10 && left.completion < 5000, `${path}: tokens until then are counted`)
  }
  await until('the log says so too', () => corral.log().includes('POST /api/chat client left'))
  t.match(corral.log(), /A fault of the observer/, 'an observer that fails is logged, and stops no request')
})

t.test("the time a client takes to send its body is not counted as corral's work", async t => {
  const before = records().length
  const body = JSON.stringify({ model: DEMO, messages: [CAPITAL_QUESTION], max_tokens: 2 })
  const headers = { 'content-type': 'application/json', 'content-length': body.length, expect: '100-continue' }
  const asking = httpRequest(`${corral.url}/v1/chat/completions`, { method: 'POST', headers })
  asking.flushHeaders()
  // corral has the request now, and waits.
  await once(asking, 'continue')
  await sleep(200)
  asking.end(body)
  const [reply] = await once(asking, 'response')
  reply.resume()
  await once(reply, 'end')
  await until('the record', () => records().length > before)
  const record = records().at(-1)
  const [began, waitBegan, , , , ended] = record.moments
  t.ok(record.received >= began + 190, 'its body arrived later')
  t.ok(record.received <= waitBegan)
  t.ok(record.overhead <= ended - record.received, 'that time does not count')
})
