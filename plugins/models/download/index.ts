import { randomBytes } from 'node:crypto'
import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Type } from 'typebox'
import { Bytes, Duration, Timeout } from '../../../core/config/core-schema.ts'
import type {
  Downloads,
  FileMirror,
  Pull,
  PullCaller,
  PullPlan,
  PullRecord,
  SearchRequest
} from '../../../core/contracts/downloads.ts'
import type { Hub, HubMatch } from '../../../core/contracts/hubs.ts'
import type { FoundRepository, SearchReply } from '../../../core/contracts/native-records.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import {
  bareName,
  modelKey,
  parseModelName,
  parseRequestedName,
  type RequestedName
} from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { untilAborted } from '../../../core/system/abort-signals.ts'
import { formatBytes, parseBytes } from '../../../core/system/bytes.ts'
import { addTo } from '../../../core/system/collections.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { type MemoryFacts, refusal } from './choice/choice.ts'
import { chooseFiles, requireFewModelFiles } from './choice/choose-files.ts'
import { knownName, openPulledNames, type PulledNames } from './choice/known-names.ts'
import { prefixFault } from './choice/pull-reference.ts'
import { recommendedModels } from './choice/recommended-models.ts'
import { FairQueue } from './pulls/fair-queue.ts'
import { JOB_FILE, type JobRecord, PullJob, readJob } from './pulls/pull-job.ts'
import {
  type DownloadContext,
  diskRoom,
  fetchedBytes,
  machineMemory,
  missingBytes,
  plannedOrigin,
  planPull,
  variantWithFiles
} from './pulls/pull-planner.ts'
import { readCard } from './pulls/repository-card.ts'
import { TransferThread } from './transfer/transfers.ts'

export default definePlugin({
  name: 'downloads',
  api: 1,
  description: 'Pulls of models from hubs: the choice of files, the transfer, and pulls in the background',
  offers: ['downloads'],
  needs: ['storage', 'catalog', 'hardware', 'engines', 'conversion'],
  options: Type.Object(
    {
      search: Type.Array(Type.String({ minLength: 1 }), {
        default: ['huggingface'],
        description: 'Hubs to search for a name without prefix, in this order'
      }),
      connections: Type.Integer({
        default: 8,
        minimum: 1,
        maximum: 64,
        description: 'Maximum connections of all downloads together',
        restart: true
      }),
      connections_per_file: Type.Integer({
        default: 4,
        minimum: 1,
        maximum: 64,
        description: 'Maximum connections for one file',
        restart: true
      }),
      bandwidth_limit: Bytes({
        default: '0',
        description: 'Maximum bytes per second of all downloads together; 0 means no limit',
        restart: true
      }),
      stall_timeout: Timeout({
        default: '30s',
        description: 'A connection that is silent for this long is replaced by a new one',
        restart: true
      }),
      private_addresses: Type.Array(Type.String({ format: 'corral-private-address' }), {
        default: [],
        needsTrust: true,
        description:
          'Hosts, addresses and networks beside public ones from which clients may pull models by address; "*" is all. Hubs and mirrors in the settings need no entry'
      }),
      pause_after: Duration({
        default: '5s',
        description:
          'How long a pull continues after the last client that watched it has left; "detach" keeps it running'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const hardware = context.service('hardware')
    const catalog = context.service('catalog')
    // Models are listed under the name of Ollama's library by which they were pulled.
    const pulledNames = openPulledNames(join(context.paths.home, 'pulled-names.json'), context.log)
    catalog.addNames(
      name => pulledNames.meaning(name),
      () => pulledNames.listed()
    )
    catalog.addNames(name => knownName(name)?.model)
    const toSettings = (given: typeof options) => ({
      search: given.search,
      privateAddresses: given.private_addresses,
      pauseAfter: parseDuration(given.pause_after)!,
      limits: { pulls: context.config.limits.pulls, waiting: context.config.limits.waiting_pulls }
    })
    const downloads = createDownloads({
      ...toSettings(options),
      storage: context.service('storage'),
      catalog,
      pulledNames,
      transfers: new TransferThread({
        connections: options.connections,
        connectionsPerFile: options.connections_per_file,
        bandwidthLimit: parseBytes(options.bandwidth_limit)!,
        stallTimeout: parseDuration(options.stall_timeout)!
      }),
      conversion: context.service('conversion'),
      paths: context.paths,
      memory: async () => machineMemory(await hardware.detect(), context.service('engines').settings),
      retryPauses: [30_000, 600_000],
      hooks: context.hooks,
      log: context.log
    })
    return {
      services: { downloads },
      hooks: async app => {
        app.addHook('onReady', async () => downloads.checkSearch())
      },
      start: () => downloads.start(),
      reload: (next: typeof options) => downloads.configure(toSettings(next)),
      stop: () => downloads.stop()
    }
  }
})

interface DownloadsOptions extends Omit<DownloadContext, 'hubs' | 'mirrors' | 'partial' | 'queue' | 'onReceived'> {
  pulledNames: Pick<PulledNames, 'add'>
  limits: { pulls: number; waiting: number }
}

/** After this time a transfer makes room for a client that has none. */
const TURN_MS = 60_000
/** Concurrent listings for each concurrent transfer. A listing mostly waits for hubs. */
const LISTINGS_PER_PULL = 4

/** `owner/name:label` in lower case: a variant has one pull at a time. */
type PlanKey = Pick<PullPlan, 'name' | 'label'>
const pullKey = ({ name, label }: PlanKey) => `${modelKey(name)}:${label.toLowerCase()}`

export function createDownloads(options: DownloadsOptions) {
  const { storage, transfers, paths, log } = options
  const hubs: Hub[] = []
  const mirrors: FileMirror[] = []
  const jobs = new Map<string, PullJob>()
  let closing = false
  let received = 0

  const findHub = (name: string) => hubs.find(hub => hub.name === name)
  const queue = new FairQueue({ turnLength: TURN_MS })
  /** A separate queue for listings, so that slow hubs do not block transfers. */
  const listing = new FairQueue()
  const setLimits = ({ pulls, waiting }: DownloadsOptions['limits']) => {
    queue.configure({ places: pulls, waiting })
    listing.configure({ places: pulls * LISTINGS_PER_PULL, waiting })
  }
  setLimits(options.limits)
  const onReceived = (bytes: number) => {
    received += bytes
  }
  const partial = (plan: PlanKey) => jobs.get(pullKey(plan))?.folder
  const context = { ...options, queue, hubs, mirrors, onReceived, partial }
  const refuseWhenClosing = () => {
    if (closing) throw shuttingDown()
  }

  async function whenListing<T>({ turn }: PullCaller, waiting: Waiting, list: () => Promise<T>): Promise<T> {
    refuseWhenClosing()
    const place = listing.enter(turn)
    try {
      if (place.isWaiting) waiting.onProgress?.({ phase: 'waiting', subject: 'for other pulls' })
      await untilAborted(place.begun, waiting.signal)
      return await list()
    } finally {
      place.leave()
    }
  }

  function addJob(record: JobRecord, completed: readonly number[] = []): PullJob {
    const key = pullKey(record.plan)
    const job = new PullJob(record, completed, join(paths.downloads, record.id), context, () => {
      if (jobs.get(key) === job) jobs.delete(key)
    })
    jobs.set(key, job)
    return job
  }

  /** Returns the pulls of a model, or of one variant if the name has a label. */
  function findJobs(name: RequestedName): PullJob[] {
    return [...jobs.values()].filter(
      ({ plan }) =>
        modelKey(name.owner === undefined ? { name: plan.name.name } : plan.name) === modelKey(name) &&
        (name.variant === undefined || plan.label.toLowerCase() === name.variant.toLowerCase())
    )
  }

  /** @throws CorralError `model_not_found`, or `invalid_request` if the model has several pulls */
  function getJob(id: string): PullJob {
    const named = [...jobs.values()].find(job => job.id === id)
    if (named) return named
    let name: RequestedName
    try {
      name = parseRequestedName(id)
    } catch {
      throw pullNotFound(id)
    }
    const found = findJobs(name)
    if (found.length > 1) {
      const models = found.map(job => job.record().model).join(', ')
      throw new CorralError(
        'invalid_request',
        `There are several pulls of "${bareName(name)}": ${models}. Name one of them.`,
        { param: 'id' }
      )
    }
    if (!found[0]) throw pullNotFound(id)
    return found[0]
  }

  /** Loads a pull's folder. Leftovers of a crash are removed. */
  async function loadJob(id: string): Promise<void> {
    const folder = join(paths.downloads, id)
    const names = await readdir(folder)
    if (!names.includes(JOB_FILE)) {
      await rm(folder, { recursive: true, force: true, maxRetries: 3 })
      return
    }
    const record = await readJob(folder)
    if (record.id !== id) throw new Error(`its ${JOB_FILE} belongs to ${record.id}`)
    if (jobs.has(pullKey(record.plan))) throw new Error('there is another pull of the same model')
    const job = addJob(record, await fetchedBytes(folder, record.plan))
    if (record.state !== 'downloading' && record.state !== 'storing') return
    if (await job.setAside()) {
      const { model, reason } = job.record()
      log.error(`The pull of ${model} (${id}): ${reason}`)
      return
    }
    log.info(`The pull of ${job.record().model} continues where it was interrupted`)
    await job.resume(undefined)
  }

  /** @throws CorralError `insufficient_storage` if the files of a plan do not fit on the disk */
  async function requireRoom(plan: PullPlan): Promise<void> {
    const job = jobs.get(pullKey(plan))
    // A running pull checks the disk itself.
    if (job?.running) return
    const missing = await missingBytes(plan, job?.folder, storage.variants(plan.name))
    const { required, available, fits } = await diskRoom(paths.downloads, missing)
    if (fits) return
    throw new CorralError(
      'insufficient_storage',
      `"${bareName(plan.name)}" (${plan.label}) needs ${formatBytes(required)} more on the disk of the models folder, ` +
        `which has ${formatBytes(available)} free. Remove models that are not needed, choose a smaller variant, or choose ` +
        'another disk with CORRAL_MODELS.',
      { details: { required, available } }
    )
  }

  const service: Downloads = {
    addHub(hub) {
      if (findHub(hub.name)) throw new Error(`There is already a hub named "${hub.name}". Give this one another name.`)
      for (const prefix of hub.prefixes) {
        const fault = prefixFault(prefix, hubs)
        if (fault) throw new Error(`The hub "${hub.name}" cannot have the prefix ${JSON.stringify(prefix)}: ${fault}.`)
      }
      return addTo(hubs, hub)
    },

    hubs: () => hubs,

    addMirror: mirror => addTo(mirrors, mirror),

    plan: (request, waiting) => whenListing(request.caller, waiting, () => planPull(context, request, waiting)),

    card: (request, waiting) => whenListing(request.caller, waiting, () => readCard(context, request, waiting)),
    recommended: async () => recommendedModels(await context.memory()),
    search: (request, waiting) =>
      whenListing(request.caller, { signal: waiting.signal }, () => searchHubs(context, request, waiting)),

    async pullModel(model, { as, caller = { turn: 'plugins' }, ...waiting } = {}) {
      const plan = await service.plan({ model, caller, ...(as !== undefined && { as }) }, waiting)
      const pull = await service.pull(plan, { detached: false, caller })
      if (!pull) return storage.get({ ...plan.name, variant: plan.label })
      const report = () => {
        const { completed, total } = pull.record()
        const fraction = total > 0 ? completed / total : 0
        waiting.onProgress?.({ phase: 'downloading', subject: bareName(plan.name), completed, total, fraction })
      }
      return await pull.watch(report, waiting.signal ?? new AbortController().signal)
    },

    async pull(plan, { detached, caller: { turn } }): Promise<Pull | undefined> {
      refuseWhenClosing()
      // Recorded before the model exists, so that it is listed by this name from the start.
      if (plan.libraryName !== undefined) {
        await options.pulledNames.add(plan.libraryName, plan)
        options.hooks.stateChanged('model')
      }
      const isStored = async () => (await variantWithFiles(plan, storage.variants(plan.name))) !== undefined
      // The model may have been stored since it was planned.
      if (plan.present || (await isStored())) return undefined
      for (;;) {
        await requireRoom(plan)
        refuseWhenClosing()
        const other = findJobs(plan.name).find(job => plannedOrigin(job.plan).from !== plannedOrigin(plan).from)
        if (other) throw otherOriginRunning(other.record(), plan)
        const present = jobs.get(pullKey(plan))
        if (!present) break
        await present.join(plan, { detached, turn })
        if (!present.ended) return present
        if (await isStored()) return undefined
      }
      const id = randomBytes(6).toString('hex')
      const job = addJob({ id, createdAt: new Date().toISOString(), state: 'downloading', detached, turn, plan })
      await job.create()
      return job
    },

    list: () =>
      [...jobs.values()]
        .filter(job => !job.isStored)
        .map(job => job.record())
        .sort((a, b) => (a.created_at < b.created_at ? -1 : 1)),

    received: () => received,

    privateAddresses: () => context.privateAddresses,

    async pause(id, options = {}): Promise<PullRecord> {
      const job = getJob(id)
      await job.pause(options)
      return job.record()
    },

    async resume(id, { turn }): Promise<PullRecord> {
      refuseWhenClosing()
      const job = getJob(id)
      await job.resume(turn)
      return job.record()
    },

    async cancel(id) {
      if (!(await getJob(id).cancel())) throw pullNotFound(id)
    },

    async cancelModel(name, error) {
      const cancelled = await Promise.all(findJobs(name).map(job => job.cancel(error)))
      return cancelled.filter(Boolean).length
    }
  }
  return {
    ...service,
    configure({
      limits,
      ...settings
    }: Pick<DownloadsOptions, 'search' | 'privateAddresses' | 'pauseAfter' | 'limits'>) {
      Object.assign(context, settings)
      setLimits(limits)
    },

    /** Warns about hubs in the settings that no plugin has added. Call it when all plugins are set up. */
    checkSearch() {
      const missing = options.search.filter(name => !findHub(name))
      if (missing.length === 0) return
      const there = hubs.map(hub => hub.name).join(', ') || 'none'
      log.warn(`"search" names hubs that are not enabled: ${missing.join(', ')}. Enabled hubs: ${there}`)
    },

    /** Loads the pulls of earlier runs, and continues pulls that were running. */
    async start() {
      await mkdir(paths.downloads, { recursive: true, mode: 0o700 })
      for (const entry of await readdir(paths.downloads, { withFileTypes: true })) {
        if (!entry.isDirectory()) continue
        try {
          await loadJob(entry.name)
        } catch (error) {
          const what = `The pull in ${join(paths.downloads, entry.name)} cannot be continued: ${errorMessage(error)}.`
          log.error(`${what} Delete the folder and pull again.`)
        }
      }
    },

    /** Stops all work, and waits until nothing is being written. */
    async stop() {
      closing = true
      await Promise.all([...jobs.values()].map(job => job.stop(shuttingDown())))
      await transfers.close()
    }
  }
}

function pullNotFound(id: string): CorralError {
  const shown = JSON.stringify(id.length > 200 ? `${id.slice(0, 200)}…` : id)
  return new CorralError(
    'model_not_found',
    `There is no pull ${shown}. "corral pulls" (GET /api/pulls) lists unfinished pulls.`,
    { param: 'id' }
  )
}

function otherOriginRunning({ model, origin, id }: PullRecord, wanted: PullPlan): CorralError {
  return refusal(
    'model_exists',
    `"${model}" is already being pulled from ${origin}, and this pull is from ${wanted.repository.address}. ` +
      `Choose another name ("as"), or cancel the pull ${id} first.`
  )
}

function shuttingDown(): CorralError {
  return new CorralError(
    'shutting_down',
    'corral is shutting down. Downloaded data is kept. Pull again when it runs again.'
  )
}

type SearchContext = Pick<DownloadContext, 'hubs' | 'search' | 'memory'>

type SearchingHub = Hub & Required<Pick<Hub, 'search'>>

/** Repositories of each hub whose files are listed to find their sizes. Hubs count each listing as a request. */
const MAX_LISTED = 20
const LISTINGS_AT_ONCE = 6

/** Searches hubs for models, and predicts which files a pull of each would choose. See `Downloads.search`. */
export async function searchHubs(
  context: SearchContext,
  request: Pick<SearchRequest, 'words' | 'hub' | 'limit'>,
  waiting: Waiting
): Promise<SearchReply> {
  const hubs = hubsFor(context, request.hub)
  const errors: SearchReply['errors'] = []
  const failures: CorralError[] = []
  const searchOne = async (hub: SearchingHub): Promise<{ hub: SearchingHub; match: HubMatch }[]> => {
    try {
      const found = await hub.search(request.words, request.limit, waiting)
      // A repository with an invalid model name could not be pulled.
      return found.filter(({ id }) => isName(id)).map(match => ({ hub, match }))
    } catch (error) {
      waiting.signal?.throwIfAborted()
      if (!(error instanceof CorralError)) throw error
      failures.push(error)
      errors.push({ hub: hub.name, code: error.code, error: error.message })
      return []
    }
  }
  const found = await Promise.all(hubs.map(searchOne))
  if (failures.length === hubs.length) throw failures[0]!
  const memory = await context.memory()
  const rows = found.flatMap(matches => matches.map((entry, index) => ({ ...entry, isListed: index < MAX_LISTED })))
  const models: FoundRepository[] = []
  const left = rows.entries()
  const worker = async () => {
    for (const [index, { hub, match, isListed }] of left) {
      const files = isListed
        ? await previewPull(hub, match, memory, waiting)
        : { problem: `Only the first ${MAX_LISTED} are inspected. Search for more of its name.` }
      models[index] = { ...toRecord(hub, match, context.search[0] === hub.name), ...files }
    }
  }
  await Promise.all(Array.from({ length: LISTINGS_AT_ONCE }, worker))
  return { models, hubs: hubs.map(({ name }) => name), errors }
}

function hubsFor({ hubs, search }: SearchContext, wanted: string | undefined): SearchingHub[] {
  const place = ({ name }: Hub) => (search.includes(name) ? search.indexOf(name) : search.length)
  const able = hubs
    .filter((hub): hub is SearchingHub => hub.search !== undefined)
    .sort((a, b) => place(a) - place(b) || (a.name < b.name ? -1 : 1))
  const chosen =
    wanted === 'all'
      ? able
      : able.filter(({ name }) => (wanted === undefined ? search.includes(name) : name === wanted))
  if (chosen.length > 0) return chosen
  const names = able.map(({ name }) => name).join(', ')
  const problem =
    wanted === undefined
      ? 'None of the hubs in "downloads.search" can be searched.'
      : `No hub called ${JSON.stringify(wanted.slice(0, 60))} can be searched.`
  const advice =
    names === '' ? 'No hub with a search is enabled.' : `Searchable hubs are ${names}; "all" searches all of them.`
  throw new CorralError('invalid_request', `${problem} ${advice}`, { param: 'hub' })
}

function isName(id: string): boolean {
  try {
    return parseModelName(id).variant === undefined
  } catch {
    return false
  }
}

function toRecord({ name, prefixes }: Hub, match: HubMatch, isFirst: boolean): FoundRepository {
  const { id, updatedAt, downloads, likes, license, ...rest } = match
  // A prefix like `hf:`, not the beginning of an address.
  const prefix = isFirst ? '' : (prefixes.find(text => /^[^/]+:$/.test(text)) ?? '')
  return {
    model: `${prefix}${id}`,
    hub: name,
    id,
    publisher: id.slice(0, id.indexOf('/')),
    ...rest,
    ...(downloads !== undefined && { downloads }),
    ...(likes !== undefined && { likes }),
    ...(updatedAt !== undefined && { updated_at: updatedAt }),
    ...(license !== undefined && { license })
  }
}

/** Returns what a pull of the repository would choose, by its listing alone, or why that is unknown. */
async function previewPull(hub: Hub, { id, formats }: HubMatch, memory: MemoryFacts, waiting: Waiting) {
  try {
    const { files, gated } = await hub.repository({ id }, waiting)
    const choice = chooseFiles({ id, files: requireFewModelFiles(id, files), memory })
    const { format, label, size, choices } = choice
    const isKnown = choice.files.every(file => file.size !== undefined)
    return {
      formats: [...new Set([...formats, format])],
      ...(gated && { gated }),
      ...(label !== undefined && { variant: label }),
      ...(isKnown ? { size, memory: choice.memory } : { problem: 'The hub does not say how large its files are.' }),
      choices: choices.filter(other => other.label !== label)
    }
  } catch (error) {
    waiting.signal?.throwIfAborted()
    if (!(error instanceof CorralError)) throw error
    const choices = error.details?.choices as FoundRepository['choices']
    return { problem: error.message, ...(choices && { choices }) }
  }
}
