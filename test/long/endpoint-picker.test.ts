import { spawnSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { MANIFESTS } from '../kubernetes/manifests.ts'
import { type Corral, DEMO, endless, startCorral, until } from '../support/corral.ts'

/*
 * Runs the endpoint picker of the Gateway API's inference extension (and of llm-d) against real corrals: its own code,
 * with the configuration in packaging/kubernetes/llm-d. The first build takes minutes.
 */

t.setTimeout(3_000_000)

const skip =
  spawnSync('go', ['version']).status === 0 ? false : 'THE ENDPOINT PICKER IS NOT TESTED: no "go" is on the PATH.'
const folder = join(packageRoot, '.cache', 'endpoint-picker')
const program = join(folder, 'endpoint-picker')
const CONFIGURATION = join(MANIFESTS, 'llm-d', 'picker.yaml')

interface Figures {
  waiting: number
  running: number
  kvUsage: number
  isFresh: boolean
  error?: string
}

/** Reads the figures of a server whose pod has this engine label. */
function read(corral: Corral, engine: string): Figures {
  const words = [CONFIGURATION, engine, new URL(corral.url).host]
  const { status, stdout, stderr } = spawnSync(program, words, { encoding: 'utf8' })
  if (status !== 0) throw new Error(stderr)
  return JSON.parse(stdout)
}

t.before(() => {
  if (skip) return
  mkdirSync(folder, { recursive: true })
  const { status, stderr } = spawnSync('go', ['build', '-mod=readonly', '-o', program, '.'], {
    cwd: join(packageRoot, 'test', 'kubernetes', 'endpoint-picker'),
    encoding: 'utf8'
  })
  if (status !== 0) throw new Error(`The picker cannot be built, or its modules are not available: ${stderr}`)
})

t.test('the picker reads running and waiting requests from the first moment', { skip }, async t => {
  const corral = await startCorral(t, {
    config: 'metrics: { public: true }\ndefaults: { num_parallel: 1 }',
    env: { CORRAL_API_KEYS: 'k'.repeat(40) }
  })
  const idle = { waiting: 0, running: 0, kvUsage: 0, isFresh: true }
  t.same(read(corral, 'corral'), { server: new URL(corral.url).host, ...idle }, 'before anything is loaded')

  const leaving = new AbortController()
  const headers = { authorization: `Bearer ${'k'.repeat(40)}` }
  const streams = [1, 2, 3].map(async () => {
    const reply = await corral.send('/api/chat', endless(DEMO), { headers, signal: leaving.signal })
    await reply.text().catch(() => {})
  })
  const busy = await until('one is running, two are waiting', () => {
    const found = read(corral, 'corral')
    return found.waiting === 2 && found.running === 1 ? found : undefined
  })
  t.match(busy, { kvUsage: 1, isFresh: true, error: undefined })
  const asVllm = read(corral, 'vllm')
  t.match(asVllm, { waiting: 2, running: 1, kvUsage: 1, isFresh: true }, 'also with its default metric names')
  t.match(asVllm.error, /lora_requests_info/, 'it finds no LoRA metrics')
  leaving.abort()
  await Promise.allSettled(streams)
})

t.test('the picker is refused without the setting for it', { skip }, async t => {
  const corral = await startCorral(t, { env: { CORRAL_API_KEYS: 'k'.repeat(40) } })
  t.match(read(corral, 'corral'), { error: /status code.* 401/ })
})
