import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import type { FastifyReply, FastifyRequest } from 'fastify'
import t from 'tap'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { RequestRecord } from '../../../../core/http/request-record.ts'
import { createMetrics } from '../../../../plugins/watching/metrics/metrics.ts'
import { DEMO, endless, startCorral, until } from '../../../support/corral.ts'
import { readCases } from '../../../support/fixture.ts'
import { Scrape, scrape } from './scrape.ts'

const ODD = readCases<string[]>('people-cases.yaml', 'oddNames')

const LINE = /^(# (HELP|TYPE) [a-z_:][\w:]* .+|[a-z_:][\w:]*(\{.*\})? (NaN|[+-]Inf|[\d.e+-]+))$/i

function metricsOf(models: string[] = []) {
  const idle = { mode: 'chat' as const, isLoaded: true, isBlocked: false, slots: 2, freeSlots: 1, running: 1 }
  const engines = models.map((model, at) => ({
    ...idle,
    model,
    waiting: 1,
    longestWait: at,
    reserved: { host: 10 }
  }))
  return createMetrics(async () => ({
    engines,
    memory: { reserved: { host: 10 * models.length }, budget: { host: 1000 } },
    pulls: [{ state: 'failed' }],
    received: 5,
    conversions: { running: 0, finished: 1, failed: 2 },
    stored: [],
    freeSpace: undefined
  }))
}

/** The record of a finished request, as passed to an observer. */
function ended(
  model: string | undefined,
  key: string | undefined,
  failure?: CorralError
): [FastifyRequest, FastifyReply] {
  const record = new RequestRecord(() => {})
  Object.assign(record, { ended: record.began + 5, status: failure?.status ?? 200, failure })
  if (model !== undefined) {
    record.use = { surface: 'api-native', operation: 'chat', model, variant: {} as Model }
    Object.assign(record, { waitBegan: record.began, leased: record.began, firstPiece: record.began + 1 })
    record.tokens.usage({ promptTokens: 3, cachedTokens: 1, completionTokens: 2 }, 0)
  }
  const request = { record, caller: { name: key }, routeOptions: { config: { plugin: 'api-native' } } }
  return [request as unknown as FastifyRequest, {} as FastifyReply]
}

t.test('names with quotes, line breaks and other special characters cannot add or break a line', async t => {
  const metrics = metricsOf(ODD)
  for (const name of ODD) metrics.observe(...ended(name, name))
  const text = await metrics.text()
  for (const line of text.split('\n')) {
    if (line !== '') t.match(line, LINE)
  }
  t.equal(
    [...new Scrape(text).samples.keys()].filter(sample => sample.startsWith('corral_requests_total{')).length,
    ODD.length
  )
  const { status, stdout, stderr, error } = spawnSync('promtool', ['check', 'metrics'], {
    input: text,
    encoding: 'utf8'
  })
  // 3 means that promtool lints the names.
  if (!error) t.ok(status === 0 || status === 3, stdout + stderr)
})

t.test('number of series is limited for ten thousand models and keys, and no request is lost', async t => {
  const names = Array.from({ length: 10_000 }, (_, at) => `owner/model-${at}`)
  const metrics = metricsOf(names)
  for (const [at, name] of names.entries()) {
    metrics.observe(...ended(name, `key-${at % 3000}`))
    void metrics.hooks.modelLoaded?.({ model: name, mode: 'chat', milliseconds: 1 })
  }
  const refused = new CorralError('rate_limited', 'Too many.')
  for (let at = 0; at < 3000; at++) metrics.observe(...ended(undefined, `key-${at}`, refused))
  const found = new Scrape(await metrics.text())
  t.equal(found.sum('corral_requests_total'), 13_000)
  t.equal(found.sum('corral_requests_total', { code: 'rate_limited', status: '429' }), 3000)
  t.equal(found.sum('corral_tokens_total', { type: 'output' }), 20_000)
  t.equal(found.sum('corral_load_seconds_count'), 10_000)
  t.equal(found.sum('corral_requests_running'), 10_000)
  t.equal(found.sum('vllm:num_requests_waiting'), 10_000)
  t.equal(found.sum('corral_memory_reserved_bytes'), found.sum('corral_model_memory_bytes'))
  t.equal(found.sum('corral_queue_oldest_seconds', { model: 'other' }), 9.999, 'the longest wait, not the sum')
  t.ok(found.sum('corral_requests_total', { model: 'other' }) > 9000)
  t.ok(found.samples.size < 20_000, `${found.samples.size} samples`)
})

t.test('requests with missing or misordered times are counted without an error', async t => {
  const metrics = metricsOf()
  const [request, reply] = ended('a/b', undefined)
  for (const broken of [{ waitBegan: undefined }, { leased: undefined }, { answered: 0 }, { ended: Number.NaN }]) {
    const record = Object.assign(ended('a/b', undefined)[0].record, broken)
    metrics.observe({ ...request, record } as FastifyRequest, reply)
  }
  const text = await metrics.text()
  t.equal(new Scrape(text).sum('corral_requests_total'), 4)
  t.notMatch(text, /^(corral|gen_ai).* NaN$/m)
})

t.test('scrapes work beside 16 streams, concurrently, and with readers that stop reading', async t => {
  const corral = await startCorral(t)
  const streams = Array.from({ length: 16 }, () => corral.events('/api/chat', endless(DEMO, { max_tokens: 150 })))
  const { hostname, port } = new URL(corral.url)
  const deaf = connect(Number(port), hostname)
  await once(deaf, 'connect')
  deaf.on('error', () => {}).pause()
  deaf.write('GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'.repeat(200))
  const scraped: Scrape[] = []
  for (let round = 0; round < 10; round++) scraped.push(...(await Promise.all([scrape(corral), scrape(corral)])))
  t.ok(scraped.every(({ text }) => text.endsWith('\n') && text.includes('corral_build_info{')))
  for (const events of await Promise.all(streams)) t.match(events.at(-1), { done: true, eval_count: 150 })
  deaf.destroy()
  const after = await until('all are counted', async () => {
    const found = await scrape(corral)
    return found.sum('corral_requests_total', { model: DEMO, status: '200' }) === 16 ? found : undefined
  })
  t.equal(after.sum('corral_tokens_total', { type: 'output' }), 16 * 150)
  t.equal(after.sum('corral_requests_running'), 0)
})
