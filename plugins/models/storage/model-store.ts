import { existsSync } from 'node:fs'
import { mkdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { AdoptRequest, OnCopied } from '../../../core/contracts/adopted-files.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { ModelDefaults, Origin } from '../../../core/contracts/models.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import type { ImportRequest, Storage, StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { bareName, type ModelName, modelKey, parseModelName } from '../../../core/models/model-name.ts'
import { isWhole } from '../../../core/models/stored-variant.ts'
import { addTo } from '../../../core/system/collections.ts'
import { compareFile } from '../../../core/system/file-digests.ts'
import { KeyedQueue } from '../../../core/system/keyed-queue.ts'
import { importAccess, inspectFiles, inspectSource } from './import-source.ts'
import {
  findLabel,
  MANIFEST_FILE,
  type Manifest,
  ModelIndex,
  shortManifest,
  type VariantRecord,
  variantNamed,
  withoutRevisions,
  withVariant
} from './manifest.ts'
import type { ModelSource } from './model-files.ts'
import { type LastScan, scanModels } from './model-scan.ts'
import { modelExists, modelNotFound, writeFailure } from './refusals.ts'
import {
  createStagingFolder,
  decidePlacement,
  discardFolder,
  modelFolder,
  type NewRevision,
  placeRevision,
  removeEmptyFolders,
  saveManifest,
  stageFiles
} from './staging.ts'

type Intake = Waiting & {
  origin: Origin
  defaults?: ModelDefaults
  becomesDefault?: boolean
  allowHardLink: boolean
  onCopied?: OnCopied
}

/** The models on disk. Reads are answered from memory. Changes of one model run one after another. */
export class ModelStore extends ModelIndex implements Storage {
  readonly #models: string
  readonly #log: FastifyBaseLogger
  /** Whole imports, which may take minutes. */
  readonly #imports = new KeyedQueue()
  /** Short changes of manifests. Separate, so that a removal does not wait for an import's copying. */
  readonly #changes = new KeyedQueue()
  readonly #listeners: ((variants: StoredVariant[]) => Promise<void>)[] = []
  /** How many hold a revision's folder. */
  readonly #users = new Map<string, number>()
  /** Files that had their recorded digest, by path, with their state at that time. */
  readonly #compared = new Map<string, string>()
  /** Held folders that no manifest names any longer, with the keys of their models. */
  readonly #retired = new Map<string, string>()
  readonly #work = new Set<Promise<unknown>>()
  readonly #closing = new AbortController()

  importRoots: readonly string[]
  /** Whether files are compared with their digests before they are loaded. */
  trust: 'any' | 'digest' = 'any'

  private constructor(models: string, log: FastifyBaseLogger, importRoots: readonly string[]) {
    super(message => log.warn(message))
    this.#models = models
    this.#log = log
    this.importRoots = importRoots
  }

  /** Removes the leftovers of crashes. @param last the scan of the previous start, and the record for the next one */
  static async open(models: string, log: FastifyBaseLogger, importRoots: readonly string[] = [], last?: LastScan) {
    const store = new ModelStore(models, log, importRoots)
    for (const { key, directory, manifest } of await store.#explained(() => scanModels(models, log, last))) {
      store.put(key, directory, manifest)
    }
    if (last) void store.#tracked(last.save(log))
    return store
  }

  /** Cancels imports and waits until nothing is being written or deleted. */
  async close(): Promise<void> {
    this.#closing.abort(
      new CorralError('shutting_down', 'corral is shutting down. Repeat the import when it runs again.')
    )
    await Promise.allSettled(this.#work)
  }

  scratch(): Promise<string> {
    return createStagingFolder(this.#models)
  }

  find(name: ModelName): StoredVariant | undefined {
    return variantNamed(this.variants(name), name)
  }

  get(name: ModelName): StoredVariant {
    const variant = this.find(name)
    if (!variant) throw modelNotFound(name, this.variants(name))
    return variant
  }

  /** @param intake the origin, if it is not the path itself, and other options */
  async import({ path, name, caller }: ImportRequest, intake: Partial<Intake> = {}): Promise<StoredVariant> {
    const options = { origin: { kind: 'import', from: path }, allowHardLink: true, ...intake } as const
    // Refuse to replace a hub's model before copying anything. For other origins the content decides.
    const hub = this.variants(name).find(variant => variant.origin.kind === 'hub')
    if (hub && options.origin.kind !== 'hub') throw modelExists(hub)
    const access = importAccess(caller, this.importRoots)
    return this.#take(name, await inspectSource(path, name.variant, access), options)
  }

  async importPath(path: string, caller: Caller | undefined): Promise<string> {
    return await importAccess(caller, this.importRoots).locate(path)
  }

  async adopt(
    request: AdoptRequest,
    { onRead, ...waiting }: Waiting & { onCopied?: OnCopied; onRead?: () => Promise<void> } = {}
  ): Promise<StoredVariant> {
    const { name, origin, defaults, becomesDefault } = request
    const label = request.label ?? name.variant
    // The name becomes a label, and so part of paths.
    if (label !== undefined) parseModelName(`${bareName(name)}:${label}`)
    const source = await inspectFiles({ ...request, label }, importAccess(request.caller, this.importRoots))
    await onRead?.()
    return this.#take(name, source, { ...waiting, origin, defaults, becomesDefault, allowHardLink: true })
  }

  /**
   * Stages files and makes them a variant of a model: its first, a further one, or a new revision of the same label. If
   * the content is already stored, the existing variant is returned.
   * @throws CorralError `model_exists` if the model came from elsewhere
   */
  async #take(
    name: ModelName,
    { files: sources, ...source }: ModelSource,
    { origin, defaults, becomesDefault, signal: caller, ...staging }: Intake
  ): Promise<StoredVariant> {
    const key = modelKey(name)
    const signal = caller ? AbortSignal.any([caller, this.#closing.signal]) : this.#closing.signal
    const stageAndPlace = () =>
      this.#explained(async () => {
        const { folder, files } = await stageFiles(this.#models, sources, { ...staging, signal })
        const revision = { ...source, files, origin, defaults, becomesDefault }
        try {
          return await this.#changes.run(key, () => this.#place(name, folder, revision), signal)
        } finally {
          await discardFolder(this.#models, folder)
        }
      })
    return this.#tracked(this.#imports.run(key, stageAndPlace, signal))
  }

  /** Moves a staged folder to its model. Writing the manifest, last, makes it take effect. */
  async #place(name: ModelName, staged: string, revision: NewRevision): Promise<StoredVariant> {
    const { format, files } = revision
    const { present, becomesDefault, ...placed } = decidePlacement(name, revision, this.variants(name))
    if (present?.digest === placed.digest && (await isWhole(present))) {
      return becomesDefault ? await this.#makeDefault(present) : present
    }
    const directory = await this.#folderFor(name)
    const wanted = `${placed.label.toLowerCase()}-${placed.digest.slice(0, 8)}`
    const folder = await placeRevision(staged, directory, wanted)
    try {
      const size = files.reduce((sum, file) => sum + file.size, 0)
      const variant = { ...placed, revision: folder, format, files, size, modifiedAt: new Date().toISOString() }
      return await this.#record(name, directory, variant, becomesDefault)
    } catch (error) {
      await discardFolder(this.#models, join(directory, folder))
      await removeEmptyFolders(directory)
      throw error
    }
  }

  async #explained<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      throw writeFailure(this.#models, error)
    }
  }

  #tracked<T>(work: Promise<T>): Promise<T> {
    const tracked = work.finally(() => this.#work.delete(tracked))
    this.#work.add(tracked)
    return tracked
  }

  async remove(name: ModelName): Promise<StoredVariant[]> {
    const key = modelKey(name)
    const variants = this.variants(name)
    if (variants.length === 0) throw modelNotFound(name, [])
    const toDelete = name.variant === undefined ? variants : [this.get(name)]
    this.setHidden(key, toDelete, true)
    return this.#changes.run(key, async () => {
      for (const result of await Promise.allSettled(this.#listeners.map(listener => listener(toDelete)))) {
        if (result.status === 'fulfilled') continue
        this.#log.error(result.reason, 'A plugin failed to release a model that is being removed')
      }
      const directory = this.directory(key)!
      const rest = withoutRevisions(this.manifest(key)!, new Set(toDelete.map(variant => variant.revision)))
      try {
        await this.#explained(() => this.#write(key, directory, rest))
      } finally {
        this.setHidden(key, toDelete, false)
      }
      for (const variant of toDelete) await this.#retire(key, variant.directory)
      return toDelete
    })
  }

  async setDefault(requested: ModelName): Promise<StoredVariant> {
    const name = this.get(requested).model
    return this.#changes.run(modelKey(name), () => this.#makeDefault(this.get(name)))
  }

  async exchange(requested: ModelName, label: string): Promise<StoredVariant> {
    const key = modelKey(requested)
    return this.#changes.run(key, async () => {
      const one = this.get(requested)
      const other = this.get({ ...requested, variant: label })
      const manifest = this.manifest(key)!
      const modifiedAt = new Date().toISOString()
      const withFilesOf = (from: StoredVariant, label: string) => ({
        ...findLabel(manifest.variants, from.label)!,
        ...{ label, modifiedAt }
      })
      const variants = manifest.variants.map(variant => {
        if (variant.label === one.label) return withFilesOf(other, one.label)
        return variant.label === other.label ? withFilesOf(one, other.label) : variant
      })
      await this.#explained(() => this.#write(key, this.directory(key)!, { ...manifest, variants }))
      return this.get(one.model)
    })
  }

  async #makeDefault(variant: StoredVariant): Promise<StoredVariant> {
    if (variant.isDefault) return variant
    const key = modelKey(variant.model)
    const manifest = { ...this.manifest(key)!, default: variant.label }
    await this.#explained(() => this.#write(key, this.directory(key)!, manifest))
    return this.get(variant.model)
  }

  /** Writes a model's manifest, or deletes it and with it the model. */
  async #write(key: string, directory: string, manifest: Manifest | undefined): Promise<void> {
    this.keepDetails(key, new Set(manifest?.variants.map(({ revision }) => revision)))
    await saveManifest(directory, manifest)
    if (manifest) this.put(key, directory, shortManifest(manifest))
    else this.delete(key)
  }

  onRemove(listener: (variants: StoredVariant[]) => Promise<void>): () => void {
    return addTo(this.#listeners, listener)
  }

  async requireTrusted({ publicName, directory, files }: StoredVariant, { signal, onProgress }: Waiting = {}) {
    if (this.trust === 'any') return
    const total = files.reduce((sum, { size }) => sum + size, 0)
    let completed = 0
    const onBytes = (bytes: number) => {
      completed += bytes
      onProgress?.({ phase: 'proving', subject: publicName, fraction: completed / total, completed, total })
    }
    for (const file of files) {
      const path = join(directory, ...file.path.split('/'))
      // Only the system sets the time of the last change of a file's record.
      const state = async () => {
        const { ino, size, ctimeMs } = await stat(path).catch(() => ({ ino: 0, size: 0, ctimeMs: 0 }))
        return `${ino} ${size} ${ctimeMs}`
      }
      const before = await state()
      if (this.#compared.get(path) === before) continue
      const [difference] = await compareFile(directory, file, { signal, onBytes })
      if (difference) {
        const text = `"${publicName}" is not loaded, because its file ${difference.path} ${difference.problem}.`
        throw new CorralError('load_failed', `${text} Pull or import it again ("corral verify" compares all files).`)
      }
      this.#compared.set(path, before)
    }
  }

  hold({ directory }: StoredVariant): () => void {
    this.#users.set(directory, (this.#users.get(directory) ?? 0) + 1)
    let released = false
    return () => {
      if (released) return
      released = true
      const users = this.#users.get(directory)! - 1
      this.#users.set(directory, users)
      if (users > 0) return
      this.#users.delete(directory)
      const key = this.#retired.get(directory)
      this.#retired.delete(directory)
      // An import may be about to use the model's folder, which this could find empty and remove.
      if (key !== undefined) void this.#tracked(this.#changes.run(key, () => this.#retire(key, directory)))
    }
  }

  /** Deletes a folder that no manifest names any longer, now or when its last user releases it. */
  async #retire(key: string, directory: string): Promise<void> {
    if (this.#users.has(directory)) {
      this.#retired.set(directory, key)
      return
    }
    try {
      await discardFolder(this.#models, directory)
      await removeEmptyFolders(join(directory, '..'))
    } catch (error) {
      // The model is removed anyway. Only its disk space is not free yet.
      this.#log.warn(error, `The files in ${directory} cannot be deleted now; corral tries again at its next start`)
    }
  }

  /** Returns the folder for a new revision, unless the model's manifest could not be read. */
  async #folderFor(name: ModelName): Promise<string> {
    const known = this.directory(modelKey(name))
    if (known !== undefined) {
      // The user may have deleted it.
      await mkdir(known, { recursive: true })
      return known
    }
    const directory = await modelFolder(this.#models, name)
    if (!existsSync(join(directory, MANIFEST_FILE))) return directory
    throw new CorralError(
      'model_exists',
      `${directory} has a model whose ${MANIFEST_FILE} cannot be used (the log says why). ` +
        `Repair it and restart corral, or delete the folder, before "${bareName(name)}" is stored again.`
    )
  }

  /** Writes a variant into its manifest. Returns it as written, since a removal may follow at any moment. */
  async #record(name: ModelName, directory: string, variant: VariantRecord, becomesDefault: boolean) {
    const key = modelKey(name)
    const before = this.manifest(key)
    const replaced = before && findLabel(before.variants, variant.label)
    // JSON drops undefined fields, so memory matches the disk.
    const next = withVariant(before, name, variant)
    if (becomesDefault) next.default = findLabel(next.variants, variant.label)!.label
    await this.#write(key, directory, JSON.parse(JSON.stringify(next)))
    const stored = findLabel(this.variants(name), variant.label)!
    // The folder is the same if the old one was deleted by hand.
    if (replaced && replaced.revision !== variant.revision) {
      await this.#retire(key, join(directory, replaced.revision))
    }
    return stored
  }
}
