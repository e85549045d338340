import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { Runtimes } from '../../core/contracts/builds.ts'
import type { Conversion, ConvertedModel } from '../../core/contracts/conversion.ts'
import { untilAborted, type Waiting } from '../../core/contracts/progress.ts'
import type { Storage, StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import type { DataPaths } from '../../core/system/data-paths.ts'
import { requireSpace } from '../../core/system/disk-space.ts'
import { openConversionLog } from './conversion-log.ts'
import { convertModel } from './convert-model.ts'
import { clearUnfinished, findConverted, listConverted, removeConverted } from './converted-folders.ts'
import { type DtypePlan, diskNeed, planDtype } from './dtypes.ts'
import { type ConverterPython, type PythonSettings, preparePython } from './python/environment.ts'
import { SharedWork } from './shared-work.ts'

export interface ConversionDependencies {
  storage: Storage
  runtimes: Runtimes
  settings: PythonSettings
  paths: Pick<DataPaths, 'home' | 'logs'>
  env: NodeJS.ProcessEnv
  log: FastifyBaseLogger
}

export interface ConversionService extends Conversion {
  /** Removes what killed conversions left. */
  start(): Promise<void>
  /** Calls all conversions off and settles when none runs. */
  stop(): Promise<void>
}

/** Separates a variant's folder from a type in the keys of conversions; part of neither. */
const SEPARATOR = '\n'

export function createConversion(deps: ConversionDependencies): ConversionService {
  const { storage, runtimes, log, env } = deps
  const conversions = new SharedWork<ConvertedModel>()
  const environments = new SharedWork<ConverterPython>()
  /** The last of the conversions that stand in line for a variant's folder. */
  const lines = new Map<string, Promise<unknown>>()
  const proven = new Set<string>()

  storage.onRemove(async variants => {
    for (const { directory, publicName } of variants) {
      await conversions.end(
        key => key.startsWith(directory + SEPARATOR),
        new CorralError('model_not_found', `Model "${publicName}" was deleted.`)
      )
    }
  })

  /** One conversion of a model at a time: two would want twice the memory and disk. */
  async function inLine<T>(directory: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const before = lines.get(directory)
    const turn = (before ? untilAborted(before, signal) : Promise.resolve()).then(work)
    // Who leaves the line early must not let the next one overtake the one before it.
    const settled = Promise.allSettled([before, turn])
    lines.set(directory, settled)
    try {
      return await turn
    } finally {
      void settled.then(() => {
        if (lines.get(directory) === settled) lines.delete(directory)
      })
    }
  }

  async function make(variant: StoredVariant, plan: DtypePlan, waiting: Required<Waiting>): Promise<ConvertedModel> {
    const { signal } = waiting
    const present = await findConverted(variant, plan.dtype)
    if (present) return present
    await clearUnfinished(variant)
    const tools = await runtimes.conversionTools(waiting)
    if (plan.quantize && tools.quantize === undefined) {
      throw new CorralError(
        'runtime_missing',
        `Converting to ${plan.dtype} needs llama-quantize, and the llama.cpp build in use has none. ` +
          'Choose f32, f16, bf16 or q8_0, or use a build that brings it (corral doctor shows the builds).'
      )
    }
    if (tools.mismatch) log.warn(tools.mismatch)
    await requireSpace(
      variant.directory,
      diskNeed(plan, variant.metadata.parameters ?? 0),
      `Converting "${variant.publicName}" to ${plan.dtype} needs about`
    )
    const python = await environments.run('', waiting, shared =>
      preparePython(
        {
          settings: deps.settings,
          directory: join(deps.paths.home, 'python'),
          converter: tools.directory,
          env,
          log,
          proven
        },
        shared
      )
    )
    const conversionLog = await openConversionLog(deps.paths.logs, variant, plan.dtype)
    const begun = performance.now()
    log.info(
      { model: variant.publicName, dtype: plan.dtype, log: conversionLog.path },
      `converting ${variant.publicName} to ${plan.dtype}`
    )
    try {
      const warn = (message: string) => log.warn(message)
      const { version: engine } = await runtimes.build({ signal })
      await convertModel({ variant, plan, tools, engine, python, log: conversionLog, env, warn }, waiting)
    } catch (error) {
      if (!signal.aborted) {
        log.error({ model: variant.publicName, dtype: plan.dtype, log: conversionLog.path }, messageOf(error))
      }
      throw error
    } finally {
      await conversionLog.close()
    }
    const made = await findConverted(variant, plan.dtype)
    if (!made) {
      throw new CorralError(
        'conversion_failed',
        `The converted files of "${variant.publicName}" are gone from ${variant.directory}. Try again.`
      )
    }
    const seconds = Math.round((performance.now() - begun) / 100) / 10
    log.info(
      { model: variant.publicName, dtype: plan.dtype, size: made.size, seconds },
      `converted ${variant.publicName} to ${plan.dtype}`
    )
    return made
  }

  function requireSafetensors({ format, publicName, label }: StoredVariant): void {
    if (format === 'safetensors') return
    throw new CorralError(
      'invalid_request',
      `Model "${publicName}" is a GGUF (${label}) already; only SafeTensors models are converted. It runs as it is.`,
      { param: 'model' }
    )
  }

  return {
    requireDtype: dtype => planDtype(dtype, undefined).dtype,

    async convert(variant, dtype, waiting) {
      requireSafetensors(variant)
      const plan = planDtype(dtype, variant.metadata.quantization)
      const present = await findConverted(variant, plan.dtype)
      if (present) return present
      const key = variant.directory + SEPARATOR + plan.dtype
      return await conversions.run(key, waiting, async shared => {
        // It may have been deleted since the caller got hold of it.
        storage.get({ ...variant.model, variant: variant.label })
        const release = storage.hold(variant)
        try {
          shared.onProgress({ phase: 'queued', subject: '' })
          return await inLine(variant.directory, shared.signal, () => make(variant, plan, shared))
        } finally {
          release()
        }
      })
    },

    async list(variant) {
      return variant.format === 'safetensors' ? await listConverted(variant) : []
    },

    async remove(variant, dtype) {
      requireSafetensors(variant)
      const plan = planDtype(dtype, undefined)
      if (!(await findConverted(variant, plan.dtype))) {
        const made = (await listConverted(variant)).map(model => model.dtype)
        throw new CorralError(
          'model_not_found',
          `Nothing of "${variant.publicName}" is converted to ${plan.dtype}` +
            `${made.length > 0 ? `; there is ${made.join(', ')}` : ''}.`,
          { param: 'dtype' }
        )
      }
      await removeConverted(variant, plan.dtype)
    },

    async start() {
      for (const variant of storage.list()) {
        if (variant.format !== 'safetensors') continue
        try {
          await clearUnfinished(variant)
        } catch (error) {
          log.warn(error, `Left-overs of an interrupted conversion in ${variant.directory} cannot be deleted`)
        }
      }
    },

    async stop() {
      const error = new CorralError(
        'shutting_down',
        'corral is shutting down. Repeat the conversion when it runs again.'
      )
      await Promise.all([conversions.end(() => true, error), environments.end(() => true, error)])
    }
  }
}
