import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_QUESTION, type Corral, type CorralOptions, startCorral } from '../../../support/corral.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { newFolder } from '../../../support/folder.ts'
import { ggufBytes } from '../../../support/gguf-writer.ts'
import type { GeneratedFile } from '../../../support/hub-emulator/contents.ts'
import type { HubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'

export const TINY_CHAT = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
export const TINY_SAFETENSORS = join(packageRoot, 'test', 'fixtures', 'tiny-chat-safetensors')
export const MIB = 1024 * 1024

export const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex')

/** The bundled model in two quantizations, made by the engine build's own tool. */
export function quantizedModels(): { Q8_0: Buffer; Q4_K_M: Buffer } {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  try {
    const make = (type: string) => {
      const path = join(folder, `${type}.gguf`)
      execFileSync(join(engineBuildFolder(), 'llama-quantize'), [TINY_CHAT, path, type, '1'], { stdio: 'pipe' })
      return readFileSync(path)
    }
    return { Q8_0: make('Q8_0'), Q4_K_M: make('Q4_K_M') }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** A GGUF file of about this many bytes with one tensor, made as it is served. */
export function largeGguf(bytes: number, seed = 1): GeneratedFile {
  const weights = Math.floor(bytes / 4 / 8) * 8
  const whole = ggufBytes({
    metadata: { 'general.architecture': 'llama', 'llama.context_length': 4096, 'llama.embedding_length': 64 },
    tensors: [{ name: 'output.weight', shape: [weights] }]
  })
  return { size: whole.length, seed, head: Buffer.from(whole.subarray(0, whole.length - weights * 4)) }
}

/** Keeps a test's corral away from the machine's own hubs, tokens and proxies. */
export const NO_SETTINGS = {
  HF_TOKEN: '',
  HUGGING_FACE_HUB_TOKEN: '',
  HF_HUB_OFFLINE: '',
  HTTPS_PROXY: '',
  HTTP_PROXY: '',
  https_proxy: '',
  http_proxy: '',
  CSGHUB_TOKEN: '',
  MODELSCOPE_API_TOKEN: ''
}

/** Starts a real corral without models, with the emulator as its Hugging Face. */
export async function corralWithHub(
  t: Pick<Test, 'teardown'>,
  hub: Pick<HubEmulator, 'url'>,
  { env, config, ...options }: CorralOptions = {}
): Promise<Corral> {
  const hfHome = newFolder(t)
  return await startCorral(t, {
    ...options,
    env: { ...NO_SETTINGS, HF_HOME: hfHome, HF_TOKEN_PATH: join(hfHome, 'token'), HF_ENDPOINT: hub.url, ...env },
    config: `storage:\n  demo_model: false\n${config ?? ''}`
  })
}

/** Lists violations of the event contract in a pull's events. `again` allows progress to go back. */
export function contractFaults(events: any[], asked: string, again = false): string[] {
  const faults: string[] = []
  if (events[0]?.status !== `pulling ${asked}`) faults.push(`begins with ${JSON.stringify(events[0])}`)
  if (events.at(-1)?.status !== 'success') faults.push(`ends with ${JSON.stringify(events.at(-1))}`)
  const completed = new Map<string, number>()
  const whole = new Set<string>()
  for (const event of events.slice(1, -1)) {
    const { status, digest, total } = event
    if (typeof digest !== 'string' || status !== `downloading ${digest}`) {
      faults.push(`not an event of a file: ${JSON.stringify(event)}`)
      continue
    }
    if (!Number.isInteger(total) || !Number.isInteger(event.completed) || event.completed > total) {
      faults.push(`numbers: ${JSON.stringify(event)}`)
    }
    if (!again && event.completed < (completed.get(digest) ?? 0)) faults.push(`goes back: ${JSON.stringify(event)}`)
    completed.set(digest, event.completed)
    if (event.completed === total) whole.add(digest)
  }
  for (const digest of completed.keys()) if (!whole.has(digest)) faults.push(`${digest} never has completed == total`)
  return faults
}

export const filesOf = (events: any[]) => [...new Set(events.flatMap(event => event.digest ?? []))].sort()

export interface TimedEvent {
  event: any
  /** Milliseconds since the request. */
  at: number
}

/** Reads a streamed reply. `text` is the raw body. */
export async function timedPull(
  corral: Corral,
  body: object,
  init: { path?: string; headers?: Record<string, string>; signal?: AbortSignal; onEvent?: (event: any) => void } = {}
): Promise<{ events: TimedEvent[]; type: string; text: string }> {
  const began = performance.now()
  const response = await corral.send(init.path ?? '/api/pull', body, {
    ...(init.headers ? { headers: init.headers } : {}),
    ...(init.signal ? { signal: init.signal } : {})
  })
  const type = response.headers.get('content-type') ?? ''
  const decoder = new TextDecoder()
  const events: TimedEvent[] = []
  let text = ''
  let rest = ''
  if (response.status !== 200) throw new Error(`${response.status}: ${await response.text()}`)
  for await (const chunk of response.body!) {
    const piece = decoder.decode(chunk, { stream: true })
    text += piece
    rest += piece
    const lines = rest.split('\n')
    rest = lines.pop()!
    for (const line of lines) {
      const json = type.includes('ndjson') ? line : line.startsWith('data: ') ? line.slice(6) : ''
      if (json.trim() === '') continue
      const event = JSON.parse(json)
      events.push({ event, at: performance.now() - began })
      init.onEvent?.(event)
    }
  }
  return { events, type, text }
}

export interface Refusal {
  /** HTTP status, even if it came inside the stream. */
  status: number
  code: string
  error: string
  /** The reply itself had an error status, before any event. */
  early: boolean
  events: any[]
}

/** Requests a pull that must fail, and returns its error. Throws if it succeeds. */
export async function refusal(corral: Corral, body: object): Promise<Refusal> {
  const response = await corral.send('/api/pull', body)
  const text = await response.text()
  if (response.status !== 200) {
    const { error, code } = JSON.parse(text)
    return { status: response.status, code, error, early: true, events: [] }
  }
  const events = text
    .split('\n')
    .filter(line => line.startsWith('data: '))
    .map(line => JSON.parse(line.slice(6)))
  const last = events.at(-1)
  if (!last?.code || events.some(event => event.status === 'success')) throw new Error(`It did not fail: ${text}`)
  if (last.status !== `error: ${last.error}`) throw new Error(`The last event is ${JSON.stringify(last)}`)
  return { status: last.errorCode, code: last.code, error: last.error, early: false, events }
}

export async function listed(corral: Corral): Promise<string[]> {
  return (await corral.json('/api/tags')).body.models.map((model: any) => model.name).sort()
}

export const pulls = async (corral: Corral): Promise<any[]> => (await corral.json('/api/pulls')).body.pulls

export async function answer(corral: Corral, model: string): Promise<string> {
  const { status, body } = await corral.json('/api/chat', {
    model,
    messages: [CAPITAL_QUESTION],
    stream: false,
    options: { temperature: 0, max_tokens: 32, num_ctx: 512, num_parallel: 1 }
  })
  return status === 200 ? body.message.content.trim() : `${status} ${JSON.stringify(body)}`
}

/** Every regular file below a folder, as relative paths. */
export function filesBelow(folder: string): string[] {
  if (!existsSync(folder)) return []
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter(entry => entry.isFile())
    .map(entry => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .sort()
}

/** SHA-256 of the stored model files whose names end with `ending`, whatever the layout of the models folder. */
export async function storedDigests(models: string, ending: string): Promise<string[]> {
  const digests: string[] = []
  for (const path of filesBelow(models)) {
    if (!path.endsWith(ending) || path.startsWith('.')) continue
    const hash = createHash('sha256')
    for await (const chunk of createReadStream(join(models, path))) hash.update(chunk)
    digests.push(hash.digest('hex'))
  }
  return digests
}

/** Bytes on disk of unfinished downloads. */
export function partialBytes(home: string): number {
  const folder = join(home, 'models', '.downloads')
  return filesBelow(folder).reduce((sum, path) => sum + statSync(join(folder, path)).blocks * 512, 0)
}
