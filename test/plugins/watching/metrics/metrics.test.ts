import { request as httpRequest } from 'node:http'
import t from 'tap'
import { CAPITAL_QUESTION, type Corral, DEMO, endless, startCorral, until } from '../../../support/corral.ts'
import { thorough } from '../../../support/thorough.ts'
import { type Scrape, scrape } from './scrape.ts'

const chat = (more: object = {}) => ({
  model: DEMO,
  messages: [CAPITAL_QUESTION],
  stream: false,
  options: { temperature: 0 },
  ...more
})

/** Scrapes until the condition is true: a request counts once its connection has seen the end of the answer. */
async function scrapeWith(corral: Corral, what: string, has: (scrape: Scrape) => boolean): Promise<Scrape> {
  return await until(what, async () => {
    const found = await scrape(corral, { local: true })
    return has(found) ? found : undefined
  })
}

t.test('requests are counted by API, model, status and code, and measured once', async t => {
  const corral = await startCorral(t)
  const before = await scrape(corral)
  t.notOk(before.has('gen_ai_server_request_duration_seconds_count'), 'before the first request')
  t.equal(before.sum('corral_build_info'), 1)
  const leastDelay = before.sum('nodejs_eventloop_lag_min_seconds')
  t.ok(leastDelay > 0 && leastDelay < 60, 'the first scrape already measured the event loop')
  t.ok(before.sum('corral_memory_budget_bytes', { pool: 'host' }) >= 0)
  for (const name of ['requests_running', 'requests_waiting', 'slots_used_ratio']) {
    t.equal(before.samples.get(`corral_server_${name}`), 0, `${name} is present before any model is loaded`)
  }
  for (const name of ['num_requests_running', 'num_requests_waiting', 'kv_cache_usage_perc']) {
    const actual = before.samples.get(`vllm:${name}{model_name=""}`)
    t.equal(actual, 0, `${name} too: routers treat its absence as a broken server`)
  }

  t.equal((await corral.json('/api/chat', chat())).status, 200)
  const hosted = { model: DEMO, messages: [CAPITAL_QUESTION], stream: true, temperature: 0 }
  t.ok((await corral.events('/v1/chat/completions', hosted)).length > 2)
  t.equal((await corral.json('/api/chat', chat({ model: 'no/such' }))).status, 404)
  t.equal((await corral.json('/api/chat', chat({ options: { num_parallel: 256 } }))).status, 400)

  const after = await scrapeWith(
    corral,
    'four requests',
    found => found.sum('corral_requests_total', { surface: 'api-native' }) >= 3
  )
  const ok = { model: DEMO, key: '', status: '200', code: '' }
  t.equal(after.sum('corral_requests_total', { ...ok, surface: 'api-native' }), 1)
  t.equal(after.sum('corral_requests_total', { ...ok, surface: 'api-openai' }), 1)
  t.equal(after.sum('corral_requests_total', { surface: 'api-native', model: '', code: 'model_not_found' }), 1)
  t.equal(after.sum('corral_requests_total', { surface: 'api-native', model: DEMO, code: 'over_limit' }), 1)
  t.notMatch(after.text, 'no/such', 'invented names do not become labels')

  const of = { gen_ai_operation_name: 'chat', gen_ai_provider_name: 'corral', gen_ai_request_model: DEMO }
  t.equal(after.sum('gen_ai_server_request_duration_seconds_count', { ...of, error_type: '' }), 2)
  t.equal(after.sum('gen_ai_server_request_duration_seconds_count', { ...of, error_type: 'over_limit' }), 1)
  t.equal(after.sum('gen_ai_server_time_to_first_token_seconds_count', of), 2)
  t.equal(after.sum('gen_ai_server_time_per_output_token_seconds_count', of), 2)
  const firstToken = after.sum('gen_ai_server_time_to_first_token_seconds_sum', of)
  t.ok(firstToken > 0 && firstToken <= after.sum('gen_ai_server_request_duration_seconds_sum', of))
  t.equal(after.sum('corral_queue_wait_seconds_count', { model: DEMO }), 2)
  t.equal(after.sum('corral_overhead_seconds_count', { surface: 'api-native' }), 2)
  const output = after.sum('corral_tokens_total', { model: DEMO, type: 'output' })
  t.equal(after.sum('gen_ai_client_token_usage_sum', { ...of, gen_ai_token_type: 'output' }), output)
  const native = (await corral.json('/api/chat', chat())).body
  t.equal(output, 2 * native.eval_count, 'the counts of the engine, also for answers passed through as bytes')
  t.equal(after.sum('gen_ai_client_token_usage_count', { ...of, gen_ai_token_type: 'input' }), 2)

  t.equal(after.sum('corral_load_seconds_count', { model: DEMO }), 1)
  t.equal(after.sum('corral_model_loaded', { model: DEMO, mode: 'chat' }), 1)
  t.ok(after.sum('corral_slots_free', { model: DEMO }) === after.sum('corral_slots', { model: DEMO }))
  t.ok(after.sum('corral_model_memory_bytes', { model: DEMO, pool: 'host' }) > 0)
  t.equal(after.sum('corral_memory_reserved_bytes'), after.sum('corral_model_memory_bytes'))
  const [host] = (await corral.json('/api/ps')).body.memory
  t.match(host, { pool: 'host', reserved: after.sum('corral_memory_reserved_bytes', { pool: 'host' }) })
  t.equal(host.free, host.budget - host.reserved)
  t.equal(host.free, after.sum('corral_memory_free_bytes', { pool: 'host' }))
  const used = after.sum('corral_memory_used_bytes', { pool: 'host' })
  t.ok(used > 0 && used < host.total && host.used < host.total)
  const { samples } = (await corral.json('/api/history')).body
  t.match(samples.at(-1), { running: 0, queued: 0, reserved: host.reserved, used: Number })
  t.ok(samples.at(-1).tokens_per_second > 0, 'the answers so far')
  t.ok(after.sum('nodejs_eventloop_lag_p99_seconds') > 0)
  t.ok(after.sum('process_resident_memory_bytes') > 0)
  t.ok(after.sum('corral_prompt_cache_prompts_total') > 0)
  t.ok(after.sum('corral_disk_free_bytes') > 0)
})

t.test('running and waiting requests, disconnects and unloads are measured', async t => {
  const corral = await startCorral(t)
  const leaving = new AbortController()
  const options = { num_ctx: 32_000, num_parallel: 1 }
  let received = ''
  const streams = [1, 2, 3].map(async () => {
    try {
      const { body } = await corral.send('/api/chat', endless(DEMO, options), { signal: leaving.signal })
      for await (const chunk of body!) received += Buffer.from(chunk).toString()
    } catch {
      // The client disconnects.
    }
  })
  const busy = await scrapeWith(corral, 'one runs, two wait', found => {
    return found.sum('corral_requests_running') === 1 && found.sum('corral_requests_waiting') === 2
  })
  t.equal(busy.sum('corral_slots', { model: DEMO, mode: 'chat' }), 1)
  t.equal(busy.sum('corral_slots_free', { model: DEMO }), 0)
  t.ok(busy.sum('corral_queue_oldest_seconds', { model: DEMO }) > 0)
  t.equal(busy.sum('vllm:num_requests_running', { model_name: DEMO }), 1)
  t.equal(busy.sum('vllm:num_requests_waiting', { model_name: DEMO }), 2)
  t.equal(busy.sum('vllm:kv_cache_usage_perc', { model_name: DEMO }), 1)
  t.notOk(busy.has('vllm:num_requests_running', { model_name: '' }), 'which means that no model is in memory')
  t.match(busy.text, /^corral_server_requests_running 1$/m)
  t.match(busy.text, /^corral_server_requests_waiting 2$/m)
  t.match(busy.text, /^llamacpp:requests_processing 1$/m)
  t.match(busy.text, /^llamacpp:requests_deferred 2$/m)
  t.match(busy.text, /^corral_server_slots_used_ratio 1$/m)
  await until('something is generated', () => /"content":"[^"]/.test(received))
  leaving.abort()
  await Promise.all(streams)
  const left = await scrapeWith(
    corral,
    'the clients have disconnected',
    found => found.sum('corral_requests_total', { model: DEMO, status: '499' }) === 3
  )
  t.equal(left.sum('corral_queue_wait_seconds_count', { model: DEMO }), 3, 'requests without an engine have waited too')
  t.equal(left.sum('gen_ai_server_time_to_first_token_seconds_count'), 0, 'successful answers only')
  t.ok(left.sum('corral_tokens_total', { type: 'output' }) > 0, 'generated tokens count')

  t.equal((await corral.json('/api/stop', { model: DEMO })).status, 200)
  const stopped = await scrapeWith(corral, 'it is unloaded', found => found.sum('corral_unloads_total') === 1)
  t.equal(stopped.sum('corral_unloads_total', { model: DEMO, reason: 'stopped' }), 1)
  t.notOk(stopped.has('corral_model_loaded'))
  t.equal(stopped.sum('corral_memory_reserved_bytes', { pool: 'host' }), 0)

  await corral.json('/api/load', { model: DEMO })
  process.kill(corral.enginePids()[0]!, 'SIGKILL')
  const died = await scrapeWith(corral, 'it has crashed', found => found.sum('corral_engine_failures_total') === 1)
  t.equal(died.sum('corral_unloads_total', { model: DEMO, reason: 'failed' }), 1)
  t.match(died.text, /corral_engine_failures_total\{model="corral\/tiny-chat",cause="\w+"\} 1/)
})

t.test('/metrics requires a key except on its own local address', async t => {
  const key = 'k'.repeat(40)
  const corral = await startCorral(t, { config: 'metrics: { listen: "127.0.0.1:0" }', env: { CORRAL_API_KEYS: key } })
  const local = { local: true }
  const make = async (name: string, role: string) =>
    (await corral.json('/api/keys', { name, role }, local)).body.key as string
  const [user, operator] = [await make('reads-models', 'user'), await make('Prometheus_1@x.y', 'operator')]
  const by = (token: string, method = 'GET') => ({ method, headers: { authorization: `Bearer ${token}` } })
  t.equal((await corral.send('/metrics')).status, 401)
  t.match(await corral.json('/metrics', undefined, by(user)), { status: 403, body: { code: 'forbidden_role' } })
  const response = await corral.send('/metrics', undefined, by(operator))
  t.equal(response.status, 200)
  t.equal(response.headers.get('content-type'), 'text/plain; version=0.0.4; charset=utf-8')
  await response.text()
  const head = await corral.send('/metrics', undefined, by(operator, 'HEAD'))
  t.equal(head.status, 200)
  t.equal(await head.text(), '')
  t.equal((await corral.send('/metrics', '{}', by(operator, 'POST'))).status, 405)
  t.equal((await corral.json('/metrics', undefined, by('wrong'.repeat(10)))).status, 401)

  const [, own] = /Metrics are also served at (http:\/\/[\d.]+:\d+)/.exec(corral.log()) ?? []
  const there = async (path: string, headers: Record<string, string> = {}, method = 'GET') => {
    const reply = await fetch(own! + path, { method, headers })
    return { status: reply.status, text: await reply.text() }
  }
  const keyless = await there('/metrics')
  t.equal(keyless.status, 200, 'local programs need no key there')
  t.match(keyless.text, 'corral_requests_total{surface="metrics",model="",key="Prometheus_1@x.y",status="200",code=""}')
  t.equal((await there('/metrics?x=1')).status, 200)
  t.equal((await there('/metrics', { authorization: `Bearer ${'wrong'.repeat(10)}` })).status, 401)
  t.equal((await there('/metrics', { authorization: `Bearer ${user}` })).status, 403)
  t.equal((await there('/metrics', { origin: 'https://evil.example' })).status, 403)
  const rebound = await new Promise(resolve => {
    httpRequest(`${own}/metrics`, { headers: { host: 'evil.example' } }, ({ statusCode }) => resolve(statusCode)).end()
  })
  t.equal(rebound, 403, 'a name that an attacker pointed at this address')
  const paths = '/ /api/tags /api/pulls /metrics/x /nothing /api/health /ollama/api/tags /%2e/metrics/../api/tags'
  for (const path of paths.split(' ')) {
    t.equal((await there(path)).status, 404, path)
    t.equal((await there(path, { authorization: `Bearer ${key}` })).status, 404, `${path} with the key of an admin`)
  }
  t.equal((await there('/api/stop', {}, 'POST')).status, 404)
  t.equal((await corral.json('/api/tags')).status, 401, 'other routes still need a key')
})

t.test('/metrics, and nothing else, is public if configured', thorough, async t => {
  const corral = await startCorral(t, { config: 'metrics: { public: true }', env: { CORRAL_API_KEYS: 'k'.repeat(40) } })
  const headers = { authorization: 'Bearer wrong' }
  for (const init of [{}, { headers }]) t.equal((await corral.send('/metrics', undefined, init)).status, 200)
  t.equal((await corral.json('/api/tags')).status, 401)
})
