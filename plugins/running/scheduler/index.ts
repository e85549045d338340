import { Type } from 'typebox'
import { Bytes, Duration, KeepAlive } from '../../../core/config/core-schema.ts'
import type { EngineProvider } from '../../../core/contracts/engines.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { giveBackMemory } from '../../../core/system/give-back-memory.ts'
import { createEngineRegistry } from './engine-registry.ts'
import { createHostMemory } from './host-memory.ts'
import { toKeepAlive } from './model-configuration.ts'
import { createScheduler } from './scheduler.ts'
import type { Limits } from './scheduler-state.ts'

/** Milliseconds without a model, after a start or the last unload, until corral releases its own unused memory. */
const RELEASE_MEMORY_AFTER_MS = 4000

/** A setting for an amount of memory as `parseBytes` reads it, or empty. */
const MemoryAmount = (description: string) =>
  Type.Unsafe<string | number>({
    type: ['string', 'number'],
    title: 'an amount such as 12GiB, or nothing',
    pattern: '^(\\d+(\\.\\d+)? *([bB]|[kKmMgGtT]([iI]?[bB])?)?)?$',
    minimum: 0,
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
        description: 'How long a model stays loaded without requests; negative means forever'
      }),
      max_loaded_models: Type.Integer({
        default: 3,
        minimum: 1,
        description: 'Maximum number of models in memory at once'
      }),
      max_queue: Type.Integer({
        default: 512,
        minimum: 0,
        description:
          'Maximum number of requests waiting for one model; beyond it, the client with the most gets 503 queue_full'
      }),
      memory: MemoryAmount('Main memory that all models together may use; empty means what the machine can spare'),
      gpu_memory: MemoryAmount('Memory of each GPU that all models together may use; empty means what it can spare'),
      prompt_cache: Bytes({
        default: '16GiB',
        description:
          'Disk space for the states of conversations, so that a model need not process the same prompts again after others have used it or after it was unloaded; at most half of the free space is used; 0 stores none',
        restart: true
      }),
      prompt_cache_memory: MemoryAmount(
        'Main memory for these states, which models may take when they need it; empty means at most a quarter of what is free; 0 keeps them on the disk only'
      ),
      speculation: Type.Boolean({
        default: true,
        description:
          'Try to guess tokens ahead (speculative decoding) with each model and keep the method that makes real answers faster; "ngram" and "draft" of a model decide for it'
      }),
      fair_wait: Duration({
        default: '15s',
        description: 'How long a busy model starts new answers while another one waits for its memory …'
      }),
      fair_count: Type.Integer({ default: 64, minimum: 1, description: '… and how many' }),
      room_timeout: Duration({
        default: '5m',
        description: 'How long a request waits for memory before it gets 503 insufficient_memory'
      }),
      load_grace: Duration({
        default: '10s',
        description: 'How long a load continues when nobody waits for it; a client that tries again finds it'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const { log, config } = context
    const toSettings = ({ memory, gpu_memory, prompt_cache_memory, speculation }: typeof options) => ({
      memory: amount(memory),
      gpuMemory: amount(gpu_memory),
      promptCacheMemory: amount(prompt_cache_memory),
      speculation
    })
    const settings = { promptCache: parseBytes(options.prompt_cache)!, ...toSettings(options) }
    const hardware = context.service('hardware')
    const hostMemory = createHostMemory(hardware, settings, () => engines.reclaimable())
    const engines = createEngineRegistry(
      {
        settings,
        hostMemory: hostMemory.budget,
        // Callers must not wait for the detection of the hardware.
        hostUsed: async () => (hardware.known() ? hostMemory.used() : {})
      },
      log
    )
    const toLimits = (given: typeof options): Limits => ({
      maxLoaded: given.max_loaded_models,
      maxQueue: given.max_queue,
      keepAlive: toKeepAlive(parseDuration(given.keep_alive)!),
      fairWait: parseDuration(given.fair_wait)!,
      fairCount: given.fair_count,
      roomTimeout: parseDuration(given.room_timeout)!,
      loadGrace: parseDuration(given.load_grace)!,
      queuePerKey: config.limits.queue_per_key,
      reloads: config.limits.reloads
    })
    const scheduler = createScheduler({
      storage: context.service('storage'),
      catalog: context.service('catalog'),
      engines,
      hostMemory,
      config,
      hooks: context.hooks,
      limits: toLimits(options),
      log
    })
    /** Adds a provider. Removing it ends the engines that it started or is starting, after their answers. */
    function addProvider(provider: EngineProvider): () => void {
      const remove = engines.add(provider)
      return () => {
        scheduler.endEnginesOf(provider)
        remove()
      }
    }
    // The next answer has to load a model anyway, so compiling corral's own code again does not show.
    const rest = setTimeout(() => {
      if (scheduler.running().length > 0 || scheduler.loading().length > 0) return
      void giveBackMemory(log)
    }, RELEASE_MEMORY_AFTER_MS).unref()
    return {
      services: { scheduler, engines: { ...engines, add: addProvider } },
      on: { modelUnloaded: () => void rest.refresh() },
      start() {
        // Not awaited: the server already listens.
        void scheduler.preload(context.signal)
      },
      reload(next: typeof options) {
        Object.assign(settings, toSettings(next))
        scheduler.reload(toLimits(next), context.signal)
      },
      async stop() {
        clearTimeout(rest)
        await scheduler.close(parseDuration(config.shutdown_grace)!)
        await engines.close()
      }
    }
  }
})

function amount(configured: string | number): number | undefined {
  return configured === '' ? undefined : parseBytes(configured)
}
