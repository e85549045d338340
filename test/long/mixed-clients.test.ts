import { execFileSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { median, percentile, residentMemory } from '../../scripts/bench/measuring.ts'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { record } from './support.ts'

const MINUTES = Number(process.env.CORRAL_LONG_MINUTES ?? 20)
/** How long the honest clients are alone, so that there is something to compare with (milliseconds). */
const IDLE = 60_000
const HONEST = ['ann', 'ben', 'cem']

/** Makes a key with the real command line. */
function createKey(home: string, name: string): string {
  const main = join(packageRoot, 'dist', 'command-line', 'main.js')
  return execFileSync(process.execPath, [main, 'key', 'create', name, '--yes'], {
    env: { ...process.env, CORRAL_HOME: home, CORRAL_LLAMA_CPP: engineBuildFolder() },
    cwd: home,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit']
  }).trim()
}

/** What a hostile client does again and again, each in its own way; it gives the status or the code that it met. */
type Attack = (corral: Corral, headers: Record<string, string>, signal: AbortSignal) => Promise<string>

const codeOf = async (response: Awaited<ReturnType<Corral['send']>>) => {
  const text = await response.text()
  try {
    const body = JSON.parse(text)
    return String(body.code ?? body.error?.code ?? response.status)
  } catch {
    return String(response.status)
  }
}

const ask =
  (path: string, body: () => unknown): Attack =>
  async (corral, headers, signal) =>
    await codeOf(await corral.send(path, body(), { headers, signal }))

const chat = (more: object) => ({ model: DEMO, messages: [CAPITAL_QUESTION], ...more })

const GRAMMAR = 'root ::= a a a a a a a a\na ::= b{0,20}\nb ::= c{0,20}\nc ::= [a-z]? [0-9]?'
/** One whose repetitions are few enough to pass, and which takes the engine its time all the same. */
const SLY_GRAMMAR = 'root ::= a a a a a a\na ::= b? b? b? b? b?\nb ::= [a-z]? [0-9]? [a-z]? [0-9]?'

/** Made once: to make them would take the processor from the server. */
const BRACKETS = '['.repeat(20_000_000)
const COMMAS = `[${'0,'.repeat(10_000_000)}0]`

/** Sends bytes on a connection of its own and keeps it open for a while. */
async function hold(corral: Corral, text: string, signal: AbortSignal, reads = false): Promise<string> {
  const { hostname, port } = new URL(corral.url)
  const socket: Socket = connect(Number(port), hostname)
  socket.on('error', () => {
    // The server may close it whenever it likes.
  })
  socket.write(text)
  if (!reads) socket.pause()
  await sleep(20_000, undefined, { signal }).catch(() => {})
  socket.destroy()
  return 'held'
}

const post = (path: string, headers: Record<string, string>, body: string, length = Buffer.byteLength(body)) =>
  [
    `POST ${path} HTTP/1.1`,
    'host: localhost',
    'content-type: application/json',
    `content-length: ${length}`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    '',
    body
  ].join('\r\n')

const ATTACKS: Record<string, Attack> = {
  'reads nothing': (corral, headers, signal) =>
    hold(
      corral,
      post(
        '/v1/chat/completions',
        headers,
        JSON.stringify(chat({ stream: true, max_tokens: 4000, ignore_eos: true, logprobs: true, top_logprobs: 20 }))
      ),
      signal
    ),
  'endless answers': ask('/v1/chat/completions', () => chat({ max_tokens: -1, ignore_eos: true, stream: true })),
  'a hundred at once': async (corral, headers, signal) => {
    const one = () =>
      corral.send('/v1/chat/completions', chat({ max_tokens: 64, ignore_eos: true }), { headers, signal })
    const codes = await Promise.all(Array.from({ length: 100 }, async () => await codeOf(await one())))
    return codes.includes('200') ? 'some answered' : codes[0]!
  },
  'leaves early': async (corral, headers, signal) => {
    const early = AbortSignal.any([signal, AbortSignal.timeout(300)])
    const body = chat({ max_tokens: 3000, ignore_eos: true, stream: true })
    return await codeOf(await corral.send('/v1/chat/completions', body, { headers, signal: early })).catch(() => 'left')
  },
  'explosive grammar': ask('/v1/chat/completions', () => chat({ grammar: GRAMMAR, max_tokens: 200 })),
  'sly grammar': ask('/v1/chat/completions', () => chat({ grammar: SLY_GRAMMAR, max_tokens: 200 })),
  'nested schema': ask('/v1/chat/completions', () =>
    chat({
      max_tokens: 200,
      response_format: {
        type: 'json_schema',
        json_schema: {
          name: 'x',
          schema: {
            type: 'array',
            maxItems: 100,
            items: { type: 'array', maxItems: 100, items: { type: 'string', maxLength: 1000 } }
          }
        }
      }
    })
  ),
  'many prompts': ask('/v1/embeddings', () => ({ model: DEMO, input: Array.from({ length: 20_000 }, () => 'x') })),
  'as many prompts as it may': ask('/v1/embeddings', () => ({
    model: DEMO,
    input: Array.from({ length: 2000 }, (_, index) => `number ${index}`)
  })),
  'changing load options': ask('/api/chat', () => ({
    ...chat({ stream: false }),
    options: { num_ctx: Math.random() < 0.5 ? 1024 : 2048 + 256 * Math.ceil(Math.random() * 8), max_tokens: 4 }
  })),
  'a large context': ask('/api/chat', () => ({
    ...chat({ stream: false }),
    options: { num_ctx: 2_147_483_647, num_parallel: 256 }
  })),
  brackets: ask('/v1/chat/completions', () => BRACKETS),
  commas: ask('/v1/chat/completions', () => COMMAS),
  'wrong keys': async corral => {
    const headers = { authorization: `Bearer corral_${Math.random()}` }
    const codes = await Promise.all(
      Array.from({ length: 20 }, async () => await codeOf(await corral.send('/api/tags', undefined, { headers })))
    )
    return codes[0]!
  },
  'half a request': (corral, headers, signal) => hold(corral, post('/api/chat', headers, '{"model":', 5000), signal),
  'half a head': (corral, _, signal) => hold(corral, 'GET /api/tags HTTP/1.1\r\nhost: localhost\r\nx-', signal, true),
  'what only others may': async (corral, headers, signal) => {
    const codes: string[] = []
    for (const [path, body] of [
      ['/api/stop', { model: DEMO }],
      ['/api/runtimes/install', { archive: '/tmp/none.tar.gz' }],
      ['/api/import', { model: 'a/b', path: '/etc/passwd' }],
      ['/api/pull', { model: 'http://127.0.0.1:1/x.gguf' }]
    ] as const) {
      codes.push(await codeOf(await corral.send(path, body, { headers, signal })))
    }
    return [...new Set(codes)].join(' ')
  }
}

t.test(`honest clients beside ${Object.keys(ATTACKS).length} hostile ones for ${MINUTES} minutes`, async t => {
  const corral = await startCorral(t, {
    config: 'defaults:\n  num_parallel: 8\nlimits:\n  reader_stall: 10s\n  stuck_after: 5s\n'
  })
  const names = [...HONEST, ...Object.keys(ATTACKS).map(name => name.replaceAll(' ', '-'))]
  const keys = new Map(names.map(name => [name, createKey(corral.home, name)]))
  const headersOf = (name: string) => ({ authorization: `Bearer ${keys.get(name.replaceAll(' ', '-'))}` })
  await until('keys count', async () => (await corral.json('/api/tags')).status === 401)
  const end = new AbortController()
  const times: { idle: number[]; busy: number[] } = { idle: [], busy: [] }
  const failures = new Map<string, number>()
  const met = new Map<string, Map<string, number>>()
  /** How long answers that end with their context hold a slot, which nobody takes away from them. */
  const turns: number[] = []
  let phase: keyof typeof times = 'idle'

  async function honest(name: string): Promise<void> {
    const headers = headersOf(name)
    for (let turn = 0; !end.signal.aborted; turn++) {
      const began = performance.now()
      const during = phase
      const body = chat({ max_tokens: 16, stream: true, messages: [{ role: 'user', content: `${name} asks ${turn}` }] })
      const response = await corral.send('/v1/chat/completions', body, { headers })
      if (response.status === 200) {
        let first: number | undefined
        // The first bytes that are no comment hold the first token.
        for await (const chunk of response.body!) {
          if (Buffer.from(chunk).includes('data: ')) first ??= performance.now() - began
        }
        times[during].push(first!)
      } else {
        const code = await codeOf(response)
        failures.set(code, (failures.get(code) ?? 0) + 1)
      }
      await sleep(200)
    }
  }

  async function hostile(name: string, attack: Attack): Promise<void> {
    const outcomes = new Map<string, number>()
    met.set(name, outcomes)
    while (!end.signal.aborted) {
      const began = performance.now()
      const outcome = await attack(
        corral,
        headersOf(name),
        AbortSignal.any([end.signal, AbortSignal.timeout(30_000)])
      ).catch(() => 'cut')
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1)
      if (name === 'endless answers' && outcome === '200') turns.push(performance.now() - began)
      await sleep(100)
    }
  }

  const memory: number[] = []
  const descriptors: number[] = []
  async function watcher(): Promise<void> {
    while (!end.signal.aborted) {
      memory.push(residentMemory(corral.process.pid!))
      descriptors.push(readdirSync(`/proc/${corral.process.pid}/fd`).length)
      await sleep(1000)
    }
  }

  const working = HONEST.map(honest)
  await sleep(IDLE)
  phase = 'busy'
  working.push(watcher(), ...Object.entries(ATTACKS).map(([name, attack]) => hostile(name, attack)))
  await sleep(MINUTES * 60_000)
  end.abort()
  await Promise.all(working)

  for (const [name, outcomes] of met) t.comment(`${name}: ${JSON.stringify(Object.fromEntries(outcomes))}`)
  t.comment(`honest clients met ${JSON.stringify(Object.fromEntries(failures))}`)
  const [idle, busy] = [percentile(times.idle, 0.99), percentile(times.busy, 0.99)]
  t.same([...failures.keys()], [], 'honest clients get answers')
  t.ok(times.busy.length > MINUTES * 20, `${times.busy.length} answers to honest clients`)
  const text = `first tokens after ${idle.toFixed(0)} ms alone and ${busy.toFixed(0)} ms beside hostile clients (p99)`
  t.ok(busy < 3 * idle + median(turns), `${text}; a slot's turn is ${median(turns).toFixed(0)} ms`)
  const third = Math.floor(memory.length / 3)
  const thirds = (values: number[]) =>
    [median(values.slice(third, 2 * third)), median(values.slice(2 * third))] as const
  const [memoryBefore, memoryAfter] = thirds(memory)
  const [descriptorsBefore, descriptorsAfter] = thirds(descriptors)
  t.ok(
    memoryAfter < memoryBefore * 1.2 + 30,
    `memory: ${memoryBefore.toFixed(0)} MiB, then ${memoryAfter.toFixed(0)} MiB`
  )
  t.ok(descriptorsAfter < descriptorsBefore * 1.2 + 20, `descriptors: ${descriptorsBefore}, then ${descriptorsAfter}`)
  const errors = corral
    .log()
    .split('\n')
    .filter(line => /"level":50/.test(line) && !/the engine died|loading failed/.test(line))
  t.same(errors, [], 'the server found no fault of its own')
  await until('all slots are free', async () => {
    const { body } = await corral.json('/api/ps', undefined, { headers: headersOf(HONEST[0]!) })
    return body.models.every((model: any) => model.running === 0 && model.queued === 0)
  })
  t.equal(await corral.end('SIGTERM'), 0)

  record(t, 'Honest and hostile clients', {
    'minutes, honest clients, hostile ones': `${MINUTES}, ${HONEST.length}, ${Object.keys(ATTACKS).length}`,
    'answers to honest clients': times.busy.length,
    'their first token, median and p99': `${median(times.busy).toFixed(0)} and ${busy.toFixed(0)} ms; alone ${median(times.idle).toFixed(0)} and ${idle.toFixed(0)} ms`,
    'memory of the gateway': `${memoryBefore.toFixed(0)} MiB in the middle third, ${memoryAfter.toFixed(0)} MiB in the last`,
    'open file descriptors': `${descriptorsBefore} in the middle third, ${descriptorsAfter} in the last`,
    ...Object.fromEntries(
      [...met].map(([name, outcomes]) => [name, [...outcomes].map(([code, count]) => `${code} ${count}`).join(', ')])
    )
  })
})
