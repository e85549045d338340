import { Type } from 'typebox'
import { Bytes, Duration, KeepAlive } from '../../../core/config/core-schema.ts'
import type { EngineProvider } from '../../../core/contracts/engines.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { giveBackMemory } from '../../../core/system/give-back-memory.ts'
import { createEngineRegistry } from './engine-registry.ts'
import { createHostMemory } from './host-memory.ts'
import { createScheduler } from './scheduler.ts'
import type { Limits } from './scheduler-state.ts'

/** Milliseconds without any model, after a start or the last unload, until corral gives back its own memory too. */
const RESTS_AFTER = 4000

/** An amount of memory as `parseBytes` reads it, or nothing. */
const Memory = (description: string) =>
  Type.Unsafe<string | number>({
    type: ['string', 'number'],
    title: 'an amount such as 12GiB, or nothing',
    pattern: '^(\\d+(\\.\\d+)? *([bB]|[kKmMgGtT]([iI]?[bB])?)?)?$',
    minimum: 1,
    default: '',
    description
  })

export default definePlugin({
  name: 'scheduler',
  api: 1,
  description: 'Decides which models are in memory',
  offers: ['scheduler', 'engines'],
  needs: ['storage', 'catalog', 'hardware'],
  options: Type.Object(
    {
      keep_alive: KeepAlive({
        default: '5m',
        description: 'How long a model stays loaded without requests; negative means for ever'
      }),
      max_loaded_models: Type.Integer({ default: 3, minimum: 1, description: 'Most models in memory at once' }),
      max_queue: Type.Integer({
        default: 512,
        minimum: 0,
        description: 'Most requests that wait for one model; more get 503 queue_full, of the client with most'
      }),
      memory: Memory('All models together take at most this of the main memory; empty is what the machine can spare'),
      gpu_memory: Memory('All models together take at most this of each GPU; empty is what it can spare'),
      prompt_cache: Bytes({
        default: '4GiB',
        description:
          'Disk for what models have read when they are unloaded, so that they need not read it again; 0 is none',
        restart: true
      }),
      fair_wait: Duration({
        default: '15s',
        description: 'How long a busy model begins answers while another waits for its room …'
      }),
      fair_count: Type.Integer({ default: 64, minimum: 1, description: '… and how many' }),
      room_timeout: Duration({
        default: '5m',
        description: 'How long a request waits for room in memory until it gets 503 insufficient_memory'
      }),
      load_grace: Duration({
        default: '10s',
        description: 'How long a load goes on when nobody waits for it any more; a client that tries again finds it'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const { log, config } = context
    let memory = amount(options.memory)
    const hostMemory = createHostMemory(context.service('hardware'), memory)
    let gpuMemory = amount(options.gpu_memory)
    const engines = createEngineRegistry(
      {
        settings: {
          promptCache: parseBytes(options.prompt_cache)!,
          get memory() {
            return memory
          },
          get gpuMemory() {
            return gpuMemory
          }
        },
        hostMemory: () => hostMemory.budget()
      },
      log
    )
    const limitsOf = (given: typeof options): Limits => {
      const keepAlive = parseDuration(given.keep_alive)!
      return {
        maxLoaded: given.max_loaded_models,
        maxQueue: given.max_queue,
        keepAlive: keepAlive < 0 ? Number.POSITIVE_INFINITY : keepAlive,
        fairWait: parseDuration(given.fair_wait)!,
        fairCount: given.fair_count,
        roomTimeout: parseDuration(given.room_timeout)!,
        loadGrace: parseDuration(given.load_grace)!,
        queuePerKey: config.limits.queue_per_key,
        reloads: config.limits.reloads
      }
    }
    const scheduler = createScheduler({
      storage: context.service('storage'),
      catalog: context.service('catalog'),
      engines,
      hostMemory,
      config,
      hooks: context.hooks,
      limits: limitsOf(options),
      log
    })
    /** Adds a provider. What it was about to serve, or served, is stopped when it is removed. */
    function addProvider(provider: EngineProvider): () => void {
      const remove = engines.add(provider)
      return () => {
        const held = [...scheduler.running(), ...scheduler.loading()].filter(
          ({ variant, mode }) => engines.providerOf(variant, mode) === provider
        )
        remove()
        for (const { variant } of held) {
          const name = { ...variant.model, variant: variant.label }
          scheduler
            .stop(name)
            .catch(error => log.debug({ err: error }, 'an engine without a provider was gone already'))
        }
      }
    }
    // The next answer has to load a model: beside that it does not show that corral's own code is compiled once more.
    const rest = setTimeout(() => {
      if (scheduler.running().length > 0 || scheduler.loading().length > 0) return
      void giveBackMemory(log)
    }, RESTS_AFTER).unref()
    return {
      services: { scheduler, engines: { ...engines, add: addProvider } },
      on: { modelUnloaded: () => void rest.refresh() },
      start() {
        // The server listens meanwhile.
        void scheduler.preload(context.signal)
      },
      reload(next: typeof options) {
        memory = amount(next.memory)
        hostMemory.configure(memory)
        gpuMemory = amount(next.gpu_memory)
        scheduler.reload(limitsOf(next), context.signal)
      },
      async stop() {
        clearTimeout(rest)
        await scheduler.close(parseDuration(config.shutdown_grace)!)
        await engines.close()
      }
    }
  }
})

/** Bytes; undefined where nothing is configured. */
function amount(configured: string | number): number | undefined {
  return configured === '' ? undefined : parseBytes(configured)
}
