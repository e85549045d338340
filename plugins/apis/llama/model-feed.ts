import type { Static } from 'typebox'
import {
  type Caller,
  CorralError,
  hasRole,
  isAllowed,
  type LoadState,
  listedModels,
  loadStates,
  type Model,
  type Services
} from '../../../core/plugins/public-api.ts'
import type { FeedEventSchema } from './schemas.ts'

type PullRecord = ReturnType<Services['downloads']['list']>[number]

const TOPICS: Parameters<Services['stateFeed']['follow']>[0]['topics'] = new Set(['model', 'engine', 'pull'])
/** All listeners share one subscription to the state feed. Their permissions are applied here. */
const FOLLOWER = { turn: 'models/sse', role: 'operator' } as const
const MAX_LISTENERS_PER_CLIENT = 16
const MAX_LISTENERS = 128
const MAX_NAMES_PER_DOWNLOAD = 8

type FeedEvent = Static<typeof FeedEventSchema>

interface Listener {
  caller: Pick<Caller, 'turn' | 'models' | 'role'>
  send(events: readonly FeedEvent[]): Promise<void> | undefined
  end(): void
}

/** An event, and the model whose users may see it. Only operators see events without a model. */
interface Change {
  event: FeedEvent
  variant?: Model
}

/** The last known states by name or pull id. A state has changed if `mark` differs. */
interface Snapshot {
  models: Map<string, Required<Change> & { mark: string }>
  /** Events of a pull are sent under each name that clients requested it by. */
  pulls: Map<string, Omit<FeedEvent, 'model'> & { mark: string; names: readonly string[]; model: string }>
}

type Dependencies = Pick<Services, 'catalog' | 'scheduler' | 'downloads' | 'stateFeed'>

export class ModelFeed {
  readonly #deps: Dependencies
  readonly #listeners = new Set<Listener>()
  readonly #busy = new WeakSet<Listener>()
  /** Pull id → the names under which clients requested it with `POST /models`. */
  readonly #requested = new Map<string, Set<string>>()
  /** Ids of listed pulls whose models are stored already. No more progress is sent for them. */
  readonly #stored = new Set<string>()
  #last: Snapshot | undefined
  #unfollow: (() => void) | undefined

  constructor(deps: Dependencies) {
    this.#deps = deps
  }

  listen(listener: Listener): () => void {
    const { turn } = listener.caller
    const own = [...this.#listeners].filter(({ caller }) => caller.turn === turn).length
    if (own >= MAX_LISTENERS_PER_CLIENT || this.#listeners.size >= MAX_LISTENERS) {
      const message = 'Too many clients follow the model states already. Close one of the streams.'
      throw new CorralError('rate_limited', message, { retryAfter: 30 })
    }
    this.#unfollow ??= this.#deps.stateFeed.follow({
      caller: FOLLOWER,
      topics: TOPICS,
      take: ({ kind }) => void (kind === 'change' && this.look()),
      end: () => {
        this.#unfollow = undefined
        this.close()
      }
    })
    this.#listeners.add(listener)
    this.#last ??= this.#snapshot()
    return () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size > 0) return
      this.#unfollow?.()
      this.#unfollow = undefined
      this.#last = undefined
      this.#stored.clear()
    }
  }

  look(): void {
    const before = this.#last
    if (!before) return
    const now = this.#snapshot()
    this.#last = now
    const changes = changesBetween(before, now, this.#stored)
    for (const id of this.#stored) if (!now.pulls.has(id)) this.#stored.delete(id)
    this.#tell(changes)
  }

  downloading(id: string, requested: string): void {
    for (const known of this.#requested.keys()) if (!this.#pull(({ id }) => id === known)) this.#requested.delete(known)
    const names = this.#requested.get(id) ?? new Set()
    if (names.size < MAX_NAMES_PER_DOWNLOAD) this.#requested.set(id, names.add(requested))
    this.look()
  }

  findDownload(requested: string): PullRecord | undefined {
    return this.#pull(
      ({ id, model }) => this.#requested.get(id)?.has(requested) || model.toLowerCase() === requested.toLowerCase()
    )
  }

  /** Reports that a pull has finished, which may have started and ended between two snapshots. */
  stored(model: string): void {
    if (!this.#last) return
    const [id, pull] = [...this.#last.pulls].find(([, { model: known }]) => known === model) ?? []
    const ended = id ?? this.#pull(each => each.model === model)?.id
    if (ended !== undefined) this.#stored.add(ended)
    const names = pull?.names ?? this.#requested.get(ended ?? '') ?? [model]
    // Listeners must see the new model before they see that its download finished.
    this.look()
    this.#tell([...names].map(name => ({ event: { model: name, event: 'download_finished', data: {} } })))
  }

  #pull(isMeant: (pull: PullRecord) => boolean | undefined): PullRecord | undefined {
    return this.#deps.downloads.list().find(isMeant)
  }

  close(): void {
    for (const { end } of [...this.#listeners]) end()
  }

  #tell(changes: readonly Change[]): void {
    if (changes.length === 0) return
    for (const listener of this.#listeners) {
      // A slow listener is disconnected. It reads the whole list again when it reconnects.
      if (this.#busy.has(listener)) {
        listener.end()
        continue
      }
      const { models, role } = listener.caller
      const seen = changes.filter(({ variant }) =>
        variant ? isAllowed(models, variant) : models === undefined && hasRole(role, 'operator')
      )
      const taken = seen.length === 0 ? undefined : listener.send(seen.map(({ event }) => event))
      if (!taken) continue
      this.#busy.add(listener)
      void taken.finally(() => this.#busy.delete(listener))
    }
  }

  #snapshot(): Snapshot {
    const { catalog, downloads, scheduler } = this.#deps
    const getState = loadStates(scheduler)
    const models: Snapshot['models'] = new Map()
    for (const { alias: model, model: variant } of listedModels(catalog)) {
      const data = statusData(getState(variant))
      models.set(model, { variant, event: { model, event: 'model_status', data }, mark: JSON.stringify(data) })
    }
    const pulls: Snapshot['pulls'] = new Map()
    for (const pull of downloads.list()) {
      pulls.set(pull.id, { ...downloadState(pull), names: [...(this.#requested.get(pull.id) ?? [pull.model])] })
    }
    return { models, pulls }
  }
}

/** The data of a `model_status` event. Progress is in hundredths, so that a load causes at most a hundred events. */
function statusData({ value, progress, failure }: LoadState): Record<string, unknown> {
  if (value === 'loaded') return { status: value }
  if (value === 'unloaded') {
    return { status: value, exit_code: failure ? 1 : 0, ...(failure && { reason: failure.message }) }
  }
  // llama.cpp's page computes with this value and would show NaN without it.
  const { phase, fraction = 0 } = progress ?? {}
  const stage = phase === 'loading' || phase === undefined ? 'text_model' : phase
  return { status: value, progress: { stages: [stage], current: stage, value: Math.round(fraction * 100) / 100 } }
}

function downloadState({ model, state, files, reason }: PullRecord) {
  if (state === 'failed') {
    return { model, event: 'download_failed', data: reason === undefined ? {} : { reason }, mark: state }
  }
  const done = files.map(({ path, completed, total }) => [path, { done: completed, total }])
  const data = { progress: Object.fromEntries(done) }
  return { model, event: 'download_progress', data, mark: JSON.stringify(data) }
}

/** Returns the differences between two snapshots. @param stored ids of pulls that were reported as finished */
function changesBetween(before: Snapshot, now: Snapshot, stored: ReadonlySet<string>): Change[] {
  const changes: Change[] = []
  const added: Change[] = []
  for (const [model, { variant, event, mark }] of now.models) {
    const earlier = before.models.get(model)
    if (earlier?.variant.key !== variant.key) {
      added.push({ variant, event: { model: '*', event: 'models_reload', data: {} } })
    } else if (earlier.mark !== mark) changes.push({ variant, event })
  }
  for (const [model, { variant }] of before.models) {
    // A short name may refer to another variant after its own variant is deleted.
    if (now.models.get(model)?.variant.key === variant.key) continue
    changes.push({ variant, event: { model, event: 'model_remove', data: {} } })
  }
  // Clients reload the list only after they know what was removed.
  changes.push(...added)
  const report = (names: readonly string[], event: string, data: object) =>
    changes.push(...names.map(model => ({ event: { model, event, data } })))
  for (const [id, { names, event, data, mark }] of now.pulls) {
    if (before.pulls.get(id)?.mark !== mark && !stored.has(id)) report(names, event, data)
  }
  for (const [id, { names, event }] of before.pulls) {
    // A pull that disappeared without being stored was cancelled. A failed pull was reported already.
    if (now.pulls.has(id) || stored.has(id) || event === 'download_failed') continue
    report(names, 'download_failed', { reason: 'The download was cancelled.' })
  }
  return changes
}
