import { join } from 'node:path'
import { Type } from 'typebox'
import type { Conversion, ConvertedModel, RunningConversion } from '../../../core/contracts/conversion.ts'
import type { OnProgress, Progress, Waiting } from '../../../core/contracts/progress.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { definePlugin, type PluginContext } from '../../../core/plugins/plugin.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { requireSpace } from '../../../core/system/disk-space.ts'
import { KeyedQueue } from '../../../core/system/keyed-queue.ts'
import { SharedWork } from '../../../core/system/shared-work.ts'
import {
  convertModel,
  type DtypePlan,
  findConverted,
  listConverted,
  modelArchitectures,
  openConversionLog,
  planDtype,
  quantizeGguf,
  removeConverted,
  requiredDiskBytes,
  supportedArchitectures
} from './convert-model.ts'
import {
  type ConverterPython,
  type EnvironmentOptions,
  missingPackages,
  PythonOptions,
  preparePython
} from './python-environment.ts'

export default definePlugin({
  name: 'conversion',
  api: 1,
  description: "Converts SafeTensors models to GGUF, with llama.cpp's tools",
  offers: ['conversion'],
  needs: ['storage', 'runtimes'],
  options: Type.Object(
    {
      install: Type.Enum(['ask', 'auto'], {
        default: 'ask',
        description:
          'Whether the first load of a SafeTensors model may install the Python packages that it needs (some GB): ask refuses the load until an operator has agreed, auto installs them'
      }),
      ...PythonOptions.properties
    },
    { additionalProperties: false, restart: true, needsTrust: true }
  ),
  setup: createConversion
})

/** Key under which GGUFs are quantized one after another. Not a variant's folder. */
const QUANTIZING = ''
/** Separates the variant's folder from the type in the keys of conversions. Neither contains it. */
const SEPARATOR = '\n'

function createConversion(
  context: PluginContext,
  settings: EnvironmentOptions['settings'] & { install: 'ask' | 'auto' }
) {
  const { log, paths, hooks } = context
  const { env } = process
  const storage = context.service('storage')
  const runtimes = context.service('runtimes')
  const conversions = new SharedWork<ConvertedModel>()
  const runningConversions = new Set<RunningConversion>()
  const environments = new SharedWork<ConverterPython>()
  /** One conversion of a model at a time: two would need twice the memory and disk. */
  const queue = new KeyedQueue()
  const checkedPythons = new Set<string>()
  const counts = { running: 0, finished: 0, failed: 0 }

  storage.onRemove(async variants => {
    for (const { directory, publicName } of variants) {
      await conversions.end(
        key => key.startsWith(directory + SEPARATOR),
        new CorralError('model_not_found', `Model "${publicName}" was deleted.`)
      )
    }
  })

  const directory = join(paths.home, 'python')

  async function environmentFor(waiting: Waiting): Promise<ConverterPython> {
    return await environments.run('', waiting, async shared => {
      const { directory: converter } = await runtimes.conversionTools(shared)
      return await preparePython({ settings, directory, converter, env, log, checkedPythons }, shared)
    })
  }

  /** Refuses to install gigabytes without consent, unless an installation is already running. */
  async function requireInstalled(publicName: string): Promise<void> {
    if (settings.install === 'auto' || environments.has('')) return
    const required = await missingPackages({ settings, directory })
    if (required === undefined) return
    throw new CorralError(
      'conversion_not_installed',
      `Model "${publicName}" must be converted from SafeTensors first, and the Python packages for that are not ` +
        `installed: about ${formatBytes(required)} in ${directory}. Install them once with "corral conversion install" ` +
        '(POST /api/conversion/install), or set conversion.install to auto in config.yaml.',
      { details: { required } }
    )
  }

  async function make(variant: StoredVariant, plan: DtypePlan, waiting: Required<Waiting>): Promise<ConvertedModel> {
    const { signal } = waiting
    const { publicName, directory } = variant
    const { dtype } = plan
    const present = await findConverted(variant, dtype)
    if (present) return present
    const tools = await runtimes.conversionTools(waiting)
    if (plan.quantize && tools.quantize === undefined) {
      throw new CorralError(
        'runtime_missing',
        `Converting to ${dtype} needs llama-quantize, and the llama.cpp build in use does not include it. ` +
          'Choose f32, f16, bf16 or q8_0, or use a build that includes it (corral doctor shows the builds).'
      )
    }
    if (tools.mismatch) log.warn(tools.mismatch)
    const need = requiredDiskBytes(plan, variant.metadata.parameters ?? 0)
    await requireSpace(directory, need, `Converting "${publicName}" to ${dtype} needs about`, 'models')
    const python = await environmentFor(waiting)
    const conversionLog = await openConversionLog(paths.logs, variant, dtype)
    const facts = { model: publicName, dtype, log: conversionLog.path }
    const startedAt = performance.now()
    counts.running++
    log.info(facts, `converting ${publicName} to ${dtype}`)
    try {
      const warn = (message: string) => log.warn(message)
      const { version: engine } = await runtimes.build({ signal })
      const folder = await storage.scratch()
      await convertModel({ variant, plan, tools, engine, python, log: conversionLog, env, warn, folder }, waiting)
    } catch (error) {
      if (!signal.aborted) {
        counts.failed++
        log.error(facts, errorMessage(error))
      }
      throw error
    } finally {
      counts.running--
      await conversionLog.close()
    }
    const made = await findConverted(variant, dtype)
    if (!made) {
      const message = `The converted files of "${publicName}" have disappeared from ${directory}. Try again.`
      throw new CorralError('conversion_failed', message)
    }
    counts.finished++
    const seconds = Math.round((performance.now() - startedAt) / 100) / 10
    log.info({ model: publicName, dtype, size: made.size, seconds }, `converted ${publicName} to ${dtype}`)
    return made
  }

  function requireSafetensors({ format, publicName, label }: StoredVariant): void {
    if (format === 'safetensors') return
    throw new CorralError(
      'invalid_request',
      `Model "${publicName}" is already a GGUF (${label}) and runs as it is. Only SafeTensors models are converted.`,
      { param: 'model' }
    )
  }

  const conversion: Conversion = {
    requireDtype: dtype => planDtype(dtype, undefined).dtype,

    async convert(variant, dtype, waiting) {
      requireSafetensors(variant)
      const plan = planDtype(dtype, variant.metadata.quantization)
      const present = await findConverted(variant, plan.dtype)
      if (present) return present
      await requireInstalled(variant.publicName)
      const key = variant.directory + SEPARATOR + plan.dtype
      return await conversions.run(key, waiting, async shared => {
        // The model may have been deleted since.
        storage.get({ ...variant.model, variant: variant.label })
        const release = storage.hold(variant)
        const shown = { variant, dtype: plan.dtype, progress: { phase: 'queued', subject: '' } as Progress }
        const { signal } = shared
        const onProgress: OnProgress = progress => {
          shown.progress = progress
          shared.onProgress(progress)
        }
        runningConversions.add(shown)
        hooks.stateChanged('conversion')
        try {
          onProgress(shown.progress)
          return await queue.run(variant.directory, () => make(variant, plan, { signal, onProgress }), signal)
        } finally {
          release()
          runningConversions.delete(shown)
          hooks.stateChanged('conversion')
        }
      })
    },

    async quantize(shards, target, dtype, waiting) {
      const quantize = async () => {
        const { executables } = await runtimes.build(waiting)
        await quantizeGguf(executables.quantize, { shards, target, dtype }, waiting)
      }
      await queue.run(QUANTIZING, quantize, waiting.signal)
    },

    async supports(config) {
      const architectures = modelArchitectures(config)
      const folder = runtimes.presentConverter()
      const known = folder === undefined ? undefined : await supportedArchitectures(folder)
      const supported = known && architectures.length > 0 ? architectures.some(name => known.has(name)) : undefined
      return { architecture: architectures[0], supported }
    },

    async install(waiting) {
      await environmentFor(waiting)
    },

    counts: () => ({ ...counts }),
    running: () => [...runningConversions],

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
          `"${variant.publicName}" has not been converted to ${plan.dtype}` +
            `${made.length > 0 ? `; converted types: ${made.join(', ')}` : ''}.`,
          { param: 'dtype' }
        )
      }
      await removeConverted(variant, plan.dtype)
    }
  }

  return {
    services: { conversion },

    async stop() {
      const message = 'corral is shutting down. Repeat the conversion when it runs again.'
      const error = new CorralError('shutting_down', message)
      await Promise.all([conversions.end(() => true, error), environments.end(() => true, error)])
    }
  }
}
