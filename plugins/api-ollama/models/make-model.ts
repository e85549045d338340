import { join } from 'node:path'
import type { Conversion } from '../../../core/contracts/conversion.ts'
import type { Downloads } from '../../../core/contracts/downloads.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Catalog, ModelDefaults } from '../../../core/contracts/models.ts'
import type { AdoptRequest, Storage, StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import type { ModelName } from '../../../core/models/model-name.ts'
import { refuseWhilePulled } from '../../../core/models/refuse-while-pulled.ts'
import type { BlobStore } from './blob-store.ts'
import { type Making, mergedDefaults } from './create-request.ts'
import { modelOf } from './sent-files.ts'

export interface MakingDependencies {
  storage: Storage
  catalog: Catalog
  scheduler: Scheduler
  downloads: Downloads
  conversion: Conversion
  blobs: BlobStore
}

/** Told what is being done, in the words of Ollama's server where it has some. */
export type Tell = (status: string, progress?: { digest: string; completed: number; total: number }) => void

/** Makes models of other models and of files that were sent. */
export function createModelMaker({ storage, scheduler, downloads, conversion, blobs }: MakingDependencies) {
  /** Stores what is made; a model that it takes the place of, and that is loaded, is unloaded once nothing runs. */
  async function adopt(request: AdoptRequest, signal: AbortSignal, tell: Tell): Promise<void> {
    const before = storage.find(request.name)
    const copying = new Set<string>()
    const digests = new Map(request.files.map(({ path, sha256 }) => [path, `sha256:${sha256}`]))
    for (const digest of new Set(digests.values())) tell(`using existing layer ${digest}`)
    const made = await storage.adopt(request, {
      signal,
      onProgress(progress) {
        const { subject, completed, total } = progress
        if (completed === undefined || total === undefined) return
        // What is linked is there at once.
        if (completed === total && !copying.has(subject)) return
        copying.add(subject)
        tell(`copying ${subject}`, { digest: digests.get(subject) ?? subject, completed, total })
      }
    })
    tell('writing manifest')
    if (before && before.revision !== made.revision) scheduler.keepAlive(made.model, 0)
  }

  /** A model under another name: the same files, by link where that is possible. */
  async function makeOf(
    source: StoredVariant,
    name: ModelName,
    defaults: ModelDefaults | undefined,
    signal: AbortSignal,
    tell: Tell
  ): Promise<void> {
    const release = storage.hold(source)
    try {
      const files = source.files.map(({ path, role, sha256 }) => ({
        source: join(source.directory, ...path.split('/')),
        path,
        role,
        sha256
      }))
      const origin = { kind: 'made' as const, from: source.publicName }
      await adopt({ name, format: source.format, origin, files, ...(defaults && { defaults }) }, signal, tell)
    } finally {
      release()
    }
  }

  return {
    /** @throws CorralError `model_not_found`, `model_exists`, `insufficient_storage` */
    async copy(source: StoredVariant, name: ModelName, signal: AbortSignal): Promise<void> {
      refuseWhilePulled(downloads, name)
      // The bare name finds what was made under a tag, where there is nothing else; it is no name of its own.
      const isItself = name.variant !== undefined || source.origin.tag === undefined
      if (isItself && storage.find(name)?.key === source.key) return
      await makeOf(source, name, source.defaults, signal, () => {})
    },

    /**
     * @param source the model that it is made of, where it is made of one
     * @throws CorralError `model_exists`, `invalid_request` saying what is wrong with the files, `insufficient_storage`,
     * `unsupported_capability` where weights would have to be quantized that corral does not quantize
     */
    async create(
      name: ModelName,
      { source: wanted, defaults, quantize }: Making,
      source: StoredVariant | undefined,
      signal: AbortSignal,
      tell: Tell
    ): Promise<void> {
      refuseWhilePulled(downloads, name)
      const quantized = (format: StoredVariant['format'], present: string | undefined) =>
        quantize === undefined ? defaults : withType(conversion, defaults, quantize, format, present)
      if (source) {
        const given = quantized(source.format, source.metadata.quantization)
        await makeOf(source, name, mergedDefaults(source.defaults, given), signal, tell)
      } else if ('files' in wanted) {
        const digests = wanted.files.map(({ sha256 }) => sha256)
        await blobs.use(digests, async paths => {
          tell('parsing files')
          const model = await modelOf(wanted.files.map((file, index) => ({ ...file, path: paths[index]! })))
          const given = mergedDefaults(undefined, quantized(model.format, undefined))
          const origin = { kind: 'made' as const, from: 'files that were sent' }
          await adopt({ name, origin, ...model, ...(given && { defaults: given }) }, signal, tell)
        })
      }
    }
  }
}

/** SafeTensors weights are converted when they are loaded: to the type that they are to be quantized to. */
function withType(
  conversion: Conversion,
  defaults: ModelDefaults,
  quantize: string,
  format: StoredVariant['format'],
  present: string | undefined
): ModelDefaults {
  const dtype = conversion.requireDtype(quantize)
  if (format === 'safetensors') return { ...defaults, options: { ...defaults.options, dtype } }
  if (present?.toLowerCase() === dtype) return defaults
  throw new CorralError(
    'unsupported_capability',
    `corral quantizes SafeTensors models only (to what "quantize", or the option "dtype", names); this one is a GGUF` +
      `${present ? ` (${present})` : ''}. Leave "quantize" out, or pull the model in the quantization that you want.`,
    { param: 'quantize' }
  )
}
