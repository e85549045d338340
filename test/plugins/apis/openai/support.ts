import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import pino from 'pino'
import type { Test } from 'tap'
import { Value } from 'typebox/value'
import { createAnswers } from '../../../../core/answers/pipeline.ts'
import { type CoreConfig, CoreConfigSchema, type ModelSettings } from '../../../../core/config/core-schema.ts'
import type { Engine, EngineExit, EngineSpec } from '../../../../core/contracts/engines.ts'
import type { Scheduler } from '../../../../core/contracts/leases.ts'
import type { Capability } from '../../../../core/contracts/models.ts'
import type { Waiting } from '../../../../core/contracts/progress.ts'
import { requireFiles, type Storage, type StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { createApplication } from '../../../../core/http/application.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { bareName, modelKey } from '../../../../core/models/model-name.ts'
import { DEFAULT_SAMPLING_OPTIONS } from '../../../../core/models/options.ts'
import { HookRegistry } from '../../../../core/plugins/hook-registry.ts'
import { addTo } from '../../../../core/system/collections.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import type { EngineBody } from '../../../../core/system/response-body.ts'
import { StoredResponses } from '../../../../plugins/apis/openai/responses/stored-responses.ts'
import { openaiRoutes } from '../../../../plugins/apis/openai/routes.ts'
import { createCatalog } from '../../../../plugins/models/storage/catalog.ts'
import { createEngineRegistry } from '../../../../plugins/running/scheduler/engine-registry.ts'
import { createScheduler } from '../../../../plugins/running/scheduler/scheduler.ts'
import { engineCalls } from '../../../../runtimes/llama-server/calls.ts'
import { type LaunchSpec, launchSpec, ownFiles } from '../../../../runtimes/llama-server/launch-spec.ts'
import { PromptSlots } from '../../../../runtimes/llama-server/prompt-cache/prompt-slots.ts'
import { servesMode } from '../../../../runtimes/llama-server/provider.ts'
import type { EngineRequest, EngineResponse } from '../../../../runtimes/llama-server/upstream.ts'
import { engineBody } from '../../../support/engine-body.ts'

const DEMO_MODEL = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model')

/** Returns a variant with the files of the demo model. */
export function variantOf(
  owner: string,
  name: string,
  given: { label?: string; isDefault?: boolean; capabilities?: Capability[] } = {}
): StoredVariant {
  const { label = 'F16', isDefault = true, capabilities = ['completion', 'tools'] } = given
  return {
    model: { owner, name },
    label,
    isDefault,
    publicName: isDefault ? `${owner}/${name}` : `${owner}/${name}:${label}`,
    key: `${owner}/${name}:${label}`.toLowerCase(),
    revision: '1',
    format: 'gguf',
    directory: DEMO_MODEL,
    files: [{ path: 'tiny-chat-f16.gguf', size: 1, sha256: '0'.repeat(64), role: 'model' }],
    size: 1,
    digest: '0'.repeat(64),
    modifiedAt: '2026-01-02T03:04:05.678Z',
    origin: { kind: 'bundled', from: 'test' },
    metadata: { architecture: 'llama', contextLength: 4096, capabilities, info: {} }
  }
}

/** A storage with models in memory only. */
function storageOf(variants: StoredVariant[]): Storage & { drop(key: string): Promise<void> } {
  const listeners: ((gone: StoredVariant[]) => Promise<void>)[] = []
  const unused = () => Promise.reject(new Error('not used here'))
  const storage: Storage & { drop(key: string): Promise<void> } = {
    scratch: unused,
    list: () => variants,
    variants: name => variants.filter(variant => modelKey(variant.model) === modelKey(name)),
    find: name =>
      storage
        .variants(name)
        .find(({ isDefault, label }) =>
          name.variant === undefined ? isDefault : label.toLowerCase() === name.variant.toLowerCase()
        ),
    get(name) {
      const found = storage.find(name)
      if (found) return found
      throw new CorralError('model_not_found', `Model "${bareName(name)}" is not here.`, { param: 'model' })
    },
    import: unused,
    adopt: unused,
    importPath: unused,
    remove: unused,
    setDefault: unused,
    exchange: unused,
    onRemove: listener => addTo(listeners, listener),
    hold: () => () => {},
    requireTrusted: async () => undefined,
    async drop(key) {
      const gone = variants.filter(variant => variant.key === key)
      variants = variants.filter(variant => variant.key !== key)
      for (const listener of listeners) await listener(gone)
    }
  }
  return storage
}

/** An engine registry without stored conversations and speculation. */
export const testEngines = (hostMemory = 2 ** 40) =>
  createEngineRegistry({
    settings: { promptCache: 0, speculation: false } as never,
    hostMemory: async () => hostMemory
  })

/** Answers requests of a fake engine. */
export type Responder = (request: EngineRequest, engine: FakeEngine) => Promise<EngineResponse> | EngineResponse

export interface FakeEngine extends Engine {
  /** Simulates a crash: open requests fail and `exited` resolves. */
  crash(): void
}

/** An engine without a process. */
export function fakeEngine(spec: EngineSpec, respond: Responder): FakeEngine {
  let settle: (exit: EngineExit) => void = () => {}
  const exited = new Promise<EngineExit>(resolve => {
    settle = resolve
  })
  const open = new Set<(error: CorralError) => void>()
  const request = async (asked: EngineRequest): Promise<EngineResponse> => {
    let cut: (error: Error) => void = () => {}
    const broken = new Promise<never>((_, reject) => {
      cut = reject
    })
    broken.catch(() => {})
    open.add(cut)
    asked.signal?.addEventListener('abort', () => cut(asked.signal!.reason))
    const response = await Promise.race([respond(asked, engine), broken])
    broken.catch(error => (response.body as EngineBody & Readable).destroy(error))
    return response
  }
  const engine: FakeEngine = {
    ...engineCalls({
      request,
      alias: spec.alias,
      mode: spec.mode,
      contextSize: spec.options.num_ctx,
      metadata: spec.variant.metadata,
      promptSlots: new PromptSlots(spec.options.num_parallel)
    }),
    id: 'fake',
    provider: 'fake',
    spec,
    contextSize: spec.options.num_ctx,
    slots: spec.options.num_parallel,
    memory: undefined,
    pid: undefined,
    exited,
    async stop() {
      for (const cut of open) cut(new CorralError('model_stopped', 'stopped'))
      settle({ code: 0, signal: null, expected: true })
    },
    logTail: () => [],
    crash() {
      for (const cut of open)
        cut(new CorralError('engine_crashed', `The engine of "${spec.alias}" ended while in use.`))
      settle({ code: null, signal: 'SIGKILL', expected: false })
    }
  }
  return engine
}

/** An engine response whose body the test writes. */
export function eventStream(): EngineResponse & { body: PassThrough & EngineBody } {
  return { status: 200, body: engineBody(new PassThrough()) }
}

export function jsonResponse(status: number, body: unknown): EngineResponse {
  const text = typeof body === 'string' ? body : JSON.stringify(body)
  return { status, body: engineBody(Readable.from([Buffer.from(text)])) }
}

export interface Service {
  url: string
  scheduler: Scheduler & { close(graceMs: number): Promise<void> }
  storage: Storage & { drop(key: string): Promise<void> }
  /** Sends JSON to a path below `/v1`. */
  send(path: string, body?: unknown, init?: RequestInit): Promise<Response>
  json(path: string, body?: unknown, init?: RequestInit): Promise<{ status: number; headers: Headers; body: any }>
  /** The log, one line of JSON per entry. */
  log: string[]
}

export interface ServiceOptions {
  variants: StoredVariant[]
  startEngine: (spec: LaunchSpec, waiting: Waiting) => Promise<Engine>
  heartbeat?: number
  defaults?: Record<string, unknown>
  models?: Record<string, ModelSettings>
  maxQueue?: number
}

/** Starts the `/v1` API with the real scheduler, models in memory and engines that the test provides. */
export async function startService(t: Test, options: ServiceOptions): Promise<Service> {
  const log: string[] = []
  const logger = pino({ level: 'debug' }, { write: line => void log.push(line) })
  const config = {
    host: '127.0.0.1',
    port: 0,
    tls: { certificate: '', key: '' },
    body_limit: '1MiB',
    shutdown_grace: '1s',
    defaults: { ...DEFAULT_SAMPLING_OPTIONS, ...DEFAULT_LOAD_OPTIONS, num_ctx: 1024, ...options.defaults },
    limits: Value.Create(CoreConfigSchema.properties.limits),
    models: options.models ?? {}
  } as unknown as CoreConfig
  const storage = storageOf(options.variants)
  const hooks = new HookRegistry(logger)
  const engines = testEngines()
  engines.add({
    name: 'test',
    serves: servesMode,
    estimate: async () => ({ use: { host: 1 }, certain: true, explain: () => '' }),
    start(spec, waiting) {
      const variant = requireFiles(spec.variant)
      return options.startEngine(launchSpec({ ...spec, variant }, ownFiles(variant), storage), waiting)
    }
  })
  const namesakes = (name: string) => {
    const found = options.variants.filter(({ model }) => model.name.toLowerCase() === name.toLowerCase())
    const keys = new Set(found.map(({ model }) => modelKey(model)))
    return [...keys].map(key => found.filter(({ model }) => modelKey(model) === key))
  }
  const catalog = createCatalog({ ...storage, namesakes }, () => new Map(), pino({ level: 'silent' }))
  const scheduler = createScheduler({
    storage,
    catalog,
    engines,
    hooks,
    hostMemory: { add() {}, budget: async () => 2 ** 40 },
    config,
    limits: {
      maxLoaded: 4,
      maxQueue: options.maxQueue ?? 512,
      keepAlive: 300_000,
      fairWait: 15_000,
      fairCount: 64,
      roomTimeout: 300_000,
      loadGrace: 10_000,
      queuePerKey: 512,
      reloads: 6
    },
    log: logger
  })
  const app = await createApplication(config, logger)
  const asking = { catalog, scheduler, hooks, engines, surface: 'api-openai', config }
  const routesOf = {
    ...asking,
    answers: createAnswers(asking),
    heartbeat: () => options.heartbeat ?? 10_000,
    stored: new StoredResponses(2 ** 20, 1000)
  }
  await app.register(api => openaiRoutes(api, routesOf), { prefix: '/v1' })
  await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(async () => {
    await scheduler.close(0)
    app.server.closeAllConnections()
    await app.close()
  })
  const url = `http://127.0.0.1:${(app.server.address() as AddressInfo).port}/v1`
  const service: Service = {
    url,
    scheduler,
    storage,
    log,
    send: (path, body, init) =>
      fetch(url + path, {
        method: body === undefined ? 'GET' : 'POST',
        ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
        ...init
      }),
    async json(path, body, init) {
      const response = await service.send(path, body, init)
      const text = await response.text()
      return { status: response.status, headers: response.headers, body: text === '' ? undefined : JSON.parse(text) }
    }
  }
  return service
}

/** Resolves when a stream has ended or was destroyed. */
export async function closed(stream: Readable): Promise<void> {
  if (!stream.closed) await once(stream, 'close')
}

/** A function in the format of the Responses API. */
export const TOOL = {
  type: 'function',
  name: 'look',
  description: 'Looks',
  parameters: { type: 'object' },
  strict: false
}

/** Returns the error of a refused request, and checks that it does not quote the request. */
export function refusal(read: () => unknown): CorralError | undefined {
  try {
    read()
    return undefined
  } catch (error) {
    if (!(error instanceof CorralError) || error.message.includes('secret')) throw error
    return error
  }
}
