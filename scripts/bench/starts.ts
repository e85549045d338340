import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { linkSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { COMMAND, type Corral } from '../../test/support/corral.ts'
import { createClient } from './client.ts'
import { MODEL, withCorral } from './corral-server.ts'
import { estimate, median, percentile, REST, readStart, residentMemory, short } from './measuring.ts'

export type Row = [what: string, result: string]

async function runEmptyNode(): Promise<number> {
  const began = performance.now()
  await once(spawn(process.execPath, ['--eval', '0'], { stdio: 'ignore' }), 'exit')
  return performance.now() - began
}

/** Time from the start of the bundle until it listens, with an existing data directory, and its memory when idle. */
export async function measureStarts(home: string, turns: number, idleSeconds: number): Promise<Row[]> {
  const listening: number[] = []
  const emptyNode: number[] = []
  let idleMemory = Number.NaN
  for (let turn = 0; turn < turns; turn++) {
    emptyNode.push(await runEmptyNode())
    await withCorral(
      home,
      async (corral, startedIn) => {
        listening.push(startedIn)
        if (turn < turns - 1) return
        await sleep(idleSeconds * 1000)
        idleMemory = residentMemory(corral.process.pid!)
      },
      { program: COMMAND }
    )
  }
  return [
    ['start until it listens', `${short(median(listening))} ms (Node alone: ${short(median(emptyNode))} ms)`],
    ['memory when idle', `${short(idleMemory)} MiB`]
  ]
}

/** llama-server prints this when it is ready. corral waits for the same line. */
const READY = '"state":"ready"'

/** Starts llama-server as corral does, at its own address. @returns milliseconds until it is ready */
async function loadDirectly({ command, args, env }: ReturnType<typeof readStart>, folder: string): Promise<number> {
  const socketPath = join(folder, 'direct.sock')
  const own = args.map(argument => (argument.endsWith('engine.sock') ? socketPath : argument))
  const began = performance.now()
  const child = spawn(command, own, { env: { ...env, XDG_CONFIG_HOME: folder }, stdio: ['pipe', 'pipe', 'ignore'] })
  const exited = once(child, 'exit')
  try {
    for await (const line of createInterface(child.stdout)) {
      if (line.includes(READY)) return performance.now() - began
    }
    throw new Error(`llama-server ended before it was ready, with code ${child.exitCode}`)
  } finally {
    child.kill('SIGKILL')
    await exited
    rmSync(socketPath, { force: true })
  }
}

/**
 * Compares loads of an unloaded model: by llama-server alone, by `/api/load`, and by the first chat. The very first
 * load is separate, because corral then asks llama.cpp how much memory the model needs.
 */
export async function measureColdLoads(corral: Corral, turns: number): Promise<Row[]> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  const client = createClient({ origin: corral.url })
  const timed = async (path: string, more: object) => {
    const began = performance.now()
    const body = JSON.stringify({ model: MODEL, ...more })
    const headers = { 'content-type': 'application/json' }
    const { status, text } = await client.send({ method: 'POST', path, headers, body, stream: false })
    if (status !== 200) throw new Error(`POST ${path} was answered with ${status}: ${text}`)
    return performance.now() - began
  }
  const stop = () => timed('/api/stop', {})
  const messages = [{ role: 'user', content: 'Hello' }]
  const direct: number[] = []
  const times: Record<string, number[]> = { 'POST /api/load': [], 'the first chat': [] }
  try {
    const first = await timed('/api/load', {})
    const started = readStart(corral.enginePids()[0]!)
    await stop()
    for (let turn = 0; turn < turns; turn++) {
      direct.push(await loadDirectly(started, folder))
      times['POST /api/load']!.push(await timed('/api/load', {}))
      await stop()
      times['the first chat']!.push(await timed('/api/chat', { messages, options: { max_tokens: 1 }, stream: false }))
      await stop()
    }
    return [
      ['cold load, llama-server alone', `${short(median(direct))} ms`],
      ...Object.entries(times).map(([what, all]): Row => {
        const { median: added, low, high } = estimate(all.map((ms, turn) => ms - direct[turn]!))
        return [
          `cold load by ${what}`,
          `${short(median(all))} ms, added ${short(added)} (${short(low)} to ${short(high)})`
        ]
      }),
      ['the very first load of a model', `${short(first)} ms`]
    ]
  } finally {
    await client.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Copies the only model of a data directory under this many names, using hard links. */
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

/** A start caches the content of folders that have not changed for this long. Others are read again. */
const SETTLED_MS = 3000

/** Measures how a corral with this many models starts and lists them, and its memory afterwards. */
export async function measureManyModels(home: string, count: number, turns: number): Promise<Row[]> {
  await withCorral(home, async () => {})
  multiplyModel(home, count)
  await sleep(SETTLED_MS)
  let first = Number.NaN
  await withCorral(
    home,
    async (_, startedIn) => {
      first = startedIn
    },
    { program: COMMAND }
  )
  const listening: number[] = []
  const times: Record<string, number[]> = { '/api/tags': [], '/v1/models': [] }
  let size = 0
  let memory = 0
  let rested = 0
  for (let turn = 0; turn < turns; turn++) {
    await withCorral(
      home,
      async (corral, startedIn) => {
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
        await client.close()
        memory = residentMemory(corral.process.pid!)
        if (turn < turns - 1) return
        await sleep(REST)
        rested = residentMemory(corral.process.pid!)
      },
      { program: COMMAND }
    )
  }
  rmSync(join(home, 'models'), { recursive: true, force: true })
  const lists = Object.entries(times).map(
    ([path, all]): Row => [
      `GET ${path} of ${count}`,
      `${short(median(all))} ms p50, ${short(percentile(all, 0.99))} ms p99`
    ]
  )
  return [
    [`first start with ${count} copied models`, `${short(first)} ms`],
    [`start with ${count} models`, `${short(median(listening))} ms`],
    ...lists,
    [`size of the reply of /api/tags`, `${short(size / 1e6)} MB`],
    [`memory with ${count} models`, `${short(memory)} MiB after these lists, half a minute later ${short(rested)} MiB`]
  ]
}
