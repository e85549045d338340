import { join } from 'node:path'
import { Type } from 'typebox'
import type { Build } from '../../core/contracts/builds.ts'
import { CorralError } from '../../core/errors.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseBytes } from '../../core/system/bytes.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { KNOWN_OPTIONS } from './answer-fields.ts'
import { createEngineLogs } from './engine-logs.ts'
import { createMemoryEstimates } from './memory/memory-estimates.ts'
import { createMemoryDirectory } from './prompt-cache/memory-directory.ts'
import { createPromptCache } from './prompt-cache/prompt-cache.ts'
import { getMemoryBudget } from './prompt-cache/retention.ts'
import { createLlamaServerProvider } from './provider.ts'
import { createRpcWorkers } from './rpc-workers.ts'
import { knownFlags } from './server-facts.ts'
import { createSpeculation } from './speculation.ts'
import { checkTemplate } from './template-check.ts'
import { listTunables } from './tunables.ts'

/** Milliseconds for which a measurement of the free memory is good enough for a prompt that waits for its slot. */
const MEMORY_AGE = 2000

export default definePlugin({
  name: 'llama-server',
  api: 1,
  description: 'Runs the models on disk with llama-server',
  needs: ['engines', 'storage', 'catalog', 'runtimes', 'conversion', 'hardware'],
  options: Type.Object({}, { additionalProperties: false }),
  engineOptions: KNOWN_OPTIONS,
  setup({ config, log, paths, service }) {
    const engines = service('engines')
    const runtimes = service('runtimes')
    const storage = service('storage')
    const hardware = service('hardware')
    const { extraArguments } = runtimes.engineSettings
    const memory = createMemoryEstimates({
      runtimes,
      hardware,
      directory: join(paths.cache, 'memory'),
      get gpuMemory() {
        return engines.settings.gpuMemory
      },
      hostMemory: () => engines.hostMemory(),
      log
    })
    const directory = join(paths.cache, 'prompts')
    let measured = { at: Number.NEGATIVE_INFINITY, free: 0 }
    const promptCache = createPromptCache({
      directory,
      memoryDirectory: async () => await createMemoryDirectory(directory),
      budget: engines.settings.promptCache,
      async memoryBudget() {
        if (performance.now() - measured.at > MEMORY_AGE) {
          const { host } = await hardware.memory()
          measured = { at: performance.now(), free: host.available + promptCache.memoryUse() }
        }
        return getMemoryBudget(engines.settings.promptCacheMemory, measured.free)
      },
      log
    })
    const provider = createLlamaServerProvider({
      catalog: service('catalog'),
      storage,
      conversion: service('conversion'),
      runtimes,
      memory,
      promptCache,
      speculation: createSpeculation({
        directory: join(paths.cache, 'memory'),
        isEnabled: () => engines.settings.speculation,
        log
      }),
      rpcWorkers: createRpcWorkers(log),
      engineLogs: createEngineLogs(),
      async freeMemory(bytes) {
        const { host } = await hardware.memory()
        const missing = bytes - host.available
        if (missing > 0) await promptCache.shrinkMemory(promptCache.memoryUse() - missing)
      },
      grammarLimits: { size: parseBytes(config.limits.grammar_size)!, ways: config.limits.grammar_repetition },
      get stuckAfter() {
        return parseDuration(config.limits.stuck_after)!
      },
      log
    })
    engines.add({
      ...provider,
      async checkTemplate(template, signal) {
        let build: Build
        try {
          build = await runtimes.build({ signal })
        } catch (error) {
          // The model cannot run here in this case, and another engine will read the template.
          if (error instanceof CorralError && error.code === 'runtime_missing') return
          throw error
        }
        await checkTemplate(build, template, { signal, log, environment: runtimes.environment(build) })
      },
      async tunables(spec, given) {
        const { gpus, cpu } = await hardware.detect()
        const build = await runtimes.build({}, spec.settings?.runtime)
        const { executables, devices } = build
        return listTunables(spec, given, {
          cores: cpu.cores ?? cpu.threads,
          threads: cpu.threads,
          hasGpu: devices.length > 0 && gpus.some(gpu => gpu.usable),
          shared: extraArguments ?? [],
          flags: await knownFlags(build, executables.server, { environment: runtimes.environment(build) }),
          models: storage.list()
        })
      }
    })
    return {
      on: {
        async administered({ change, owner }) {
          if (change === 'key_revoked' && owner !== undefined) await promptCache.forget({ owner })
        }
      }
    }
  }
})
