import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { linkSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Corral } from '../../test/support/corral.ts'
import { createClient } from './client.ts'
import { MODEL, withCorral } from './corral-server.ts'
import { median, percentile, residentMemory, short, startOf } from './measuring.ts'

/** What was measured, and the result. */
export type Row = [what: string, result: string]

async function runEmptyNode(): Promise<number> {
  const began = performance.now()
  await once(spawn(process.execPath, ['--eval', '0'], { stdio: 'ignore' }), 'exit')
  return performance.now() - began
}

/** From the start of the process until corral listens on a data directory that exists, and its memory after a while. */
export async function measureStarts(home: string, turns: number, idleSeconds: number): Promise<Row[]> {
  const listening: number[] = []
  const emptyNode: number[] = []
  let idleMemory = Number.NaN
  for (let turn = 0; turn < turns; turn++) {
    emptyNode.push(await runEmptyNode())
    await withCorral(home, async (corral, startedIn) => {
      listening.push(startedIn)
      if (turn < turns - 1) return
      await sleep(idleSeconds * 1000)
      idleMemory = residentMemory(corral.process.pid!)
    })
  }
  return [
    ['start until it listens', `${short(median(listening))} ms (Node alone: ${short(median(emptyNode))} ms)`],
    ['memory when idle', `${short(idleMemory)} MiB`]
  ]
}

/** Starts llama-server as corral started it, at an address of its own; milliseconds until it is ready. */
async function loadDirectly({ command, args, env }: ReturnType<typeof startOf>, folder: string): Promise<number> {
  const socketPath = join(folder, 'direct.sock')
  const own = args.map(argument => (argument.endsWith('engine.sock') ? socketPath : argument))
  const began = performance.now()
  const child = spawn(command, own, { env: { ...env, XDG_CONFIG_HOME: folder }, stdio: ['pipe', 'ignore', 'ignore'] })
  const exited = once(child, 'exit')
  const client = createClient({ origin: 'http://localhost', socketPath })
  try {
    for (;;) {
      if (child.exitCode !== null) throw new Error(`llama-server ended at once with code ${child.exitCode}`)
      const status = await client.send({ method: 'GET', path: '/health', headers: {}, stream: true }).then(
        ({ status }) => status,
        // It does not listen yet.
        () => 0
      )
      if (status === 200) return performance.now() - began
      await sleep(5)
    }
  } finally {
    child.kill('SIGKILL')
    await exited
    await client.close()
    rmSync(socketPath, { force: true })
  }
}

/** Loads of a model that is not loaded: by llama-server alone, by `/api/load`, and by the first chat. */
export async function measureColdLoads(corral: Corral, turns: number): Promise<Row[]> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  const direct: number[] = []
  const load: number[] = []
  const firstChat: number[] = []
  const timed = async (path: string, body: object, times: number[]) => {
    const began = performance.now()
    await corral.json(path, { model: MODEL, ...body })
    times.push(performance.now() - began)
  }
  const stop = () => corral.json('/api/stop', { model: MODEL })
  const messages = [{ role: 'user', content: 'Hello' }]
  try {
    for (let turn = 0; turn < turns; turn++) {
      await timed('/api/load', {}, load)
      const started = startOf(corral.enginePids()[0]!)
      await stop()
      direct.push(await loadDirectly(started, folder))
      await timed('/api/chat', { messages, options: { max_tokens: 1 }, stream: false }, firstChat)
      await stop()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  const against = (ms: number) => `${short(ms)} ms (${(ms / median(direct)).toFixed(2)} of direct)`
  return [
    ['cold load, llama-server alone', `${short(median(direct))} ms`],
    ['cold load, POST /api/load', against(median(load))],
    ['first chat of a model not loaded', against(median(firstChat))]
  ]
}

/** Copies the one model of a data directory under so many other names; its files are hard links. */
function multiplyModel(home: string, count: number): void {
  const models = join(home, 'models')
  const original = join(models, 'corral', 'tiny-chat')
  const manifest = JSON.parse(readFileSync(join(original, 'manifest.json'), 'utf8'))
  const [{ revision }] = manifest.variants
  const files = readdirSync(join(original, revision))
  for (let index = 1; index < count; index++) {
    const owner = `owner-${index % 100}`
    const name = `model-${index}`
    const folder = join(models, owner, name)
    mkdirSync(join(folder, revision), { recursive: true })
    for (const file of files) linkSync(join(original, revision, file), join(folder, revision, file))
    writeFileSync(join(folder, 'manifest.json'), JSON.stringify({ ...manifest, owner, name }))
  }
}

/** How a corral with so many models starts, lists them, and what memory it has afterwards. */
export async function measureManyModels(home: string, count: number, turns: number): Promise<Row[]> {
  await withCorral(home, async () => {})
  multiplyModel(home, count)
  const listening: number[] = []
  const times: Record<string, number[]> = { '/api/tags': [], '/v1/models': [] }
  let size = 0
  let memory = 0
  for (let turn = 0; turn < turns; turn++) {
    await withCorral(home, async (corral, startedIn) => {
      listening.push(startedIn)
      const client = createClient({ origin: corral.url })
      for (let request = 0; request < 20; request++) {
        for (const [path, all] of Object.entries(times)) {
          const { total, text } = await client.send({ method: 'GET', path, headers: {}, stream: false })
          all.push(total)
          if (path !== '/api/tags') continue
          size = Buffer.byteLength(text)
          const listed = JSON.parse(text).models.length
          if (listed !== count) throw new Error(`${path} lists ${listed} models instead of ${count}`)
        }
      }
      memory = residentMemory(corral.process.pid!)
      await client.close()
    })
  }
  rmSync(join(home, 'models'), { recursive: true, force: true })
  const lists = Object.entries(times).map(
    ([path, all]): Row => [
      `GET ${path} of ${count}`,
      `${short(median(all))} ms p50, ${short(percentile(all, 0.99))} ms p99`
    ]
  )
  return [
    [`start with ${count} models`, `${short(median(listening))} ms`],
    ...lists,
    [`size of the reply of /api/tags`, `${short(size / 1e6)} MB`],
    [`memory with ${count} models`, `${short(memory)} MiB`]
  ]
}
