import type { Caller } from '../../../core/contracts/callers.ts'
import type { Downloads, PullRecord } from '../../../core/contracts/downloads.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { StateFeed, StateTopic } from '../../../core/contracts/state-events.ts'
import { CorralError } from '../../../core/errors.ts'
import { hasRole } from '../../../core/http/roles.ts'
import { isAllowed } from '../../../core/models/allowed-models.ts'
import { type LoadState, loadStates } from '../../../core/models/load-state.ts'

/** What of the state of the server its events are made of. */
const TOPICS: ReadonlySet<StateTopic> = new Set(['model', 'engine', 'pull'])
/** The feed follows the state once for all who listen, who are filtered here. */
const FOLLOWER = { turn: 'models/sse', role: 'operator' } as const
/** Who listens at once; of one client, and in all. */
const MAX_PER_CLIENT = 16
const MAX_TOTAL = 128
/** Spellings under which one download is followed. */
const MAX_NAMES = 8

/** One event of `/models/sse`. */
export interface FeedEvent {
  /** Its name; `*` for all models. */
  model: string
  event:
    | 'model_status'
    | 'status_change'
    | 'download_progress'
    | 'download_finished'
    | 'download_failed'
    | 'model_remove'
    | 'models_reload'
  data: Record<string, unknown>
}

interface Listener {
  caller: Pick<Caller, 'turn' | 'models' | 'role'>
  /** Sends events; where it returns a promise, its reader is slow. */
  send(events: readonly FeedEvent[]): Promise<void> | undefined
  /** Ends its stream. */
  end(): void
}

interface Attached extends Listener {
  /** It has not taken yet what it was sent. */
  busy: boolean
}

/** What is known of a model or a download, and what says that it has changed. */
interface Seen {
  event: FeedEvent
  mark: string
  variant?: Model
}

/** A pull, whose events go by each name that clients wait for. */
interface Download extends FeedEvent {
  mark: string
  names: ReadonlySet<string>
}

interface Snapshot {
  models: Map<string, Seen>
  pulls: Map<string, Download>
}

interface Dependencies {
  catalog: Catalog
  scheduler: Scheduler
  downloads: Pick<Downloads, 'list'>
  stateFeed: StateFeed
}

/**
 * What becomes of models, for all who listen: one look shared by them each time that the state of the server changes, and
 * none while nobody listens.
 */
export class ModelFeed {
  readonly #deps: Dependencies
  readonly #listeners = new Set<Attached>()
  /** By the ids of pulls: the names under which `POST /models` asked for them, by which clients wait for their events. */
  readonly #requested = new Map<string, Set<string>>()
  /** Ids of pulls whose models are stored, as long as they are listed: no more is said of them. */
  readonly #stored = new Set<string>()
  #last: Snapshot | undefined
  /** Ends what it follows the state by. */
  #unfollow: (() => void) | undefined

  constructor(deps: Dependencies) {
    this.#deps = deps
  }

  /**
   * Sends events to a listener from now on.
   * @returns ends that
   * @throws CorralError `rate_limited` where too many listen already
   */
  listen(listener: Listener): () => void {
    const { turn } = listener.caller
    const own = [...this.#listeners].filter(({ caller }) => caller.turn === turn).length
    if (own >= MAX_PER_CLIENT || this.#listeners.size >= MAX_TOTAL) {
      throw new CorralError(
        'rate_limited',
        'Too many clients follow the states of models already. Close one of them.',
        {
          retryAfter: 30
        }
      )
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
    const attached = { ...listener, busy: false }
    this.#listeners.add(attached)
    this.#last ??= this.#snapshot()
    return () => {
      this.#listeners.delete(attached)
      if (this.#listeners.size > 0) return
      this.#unfollow?.()
      this.#unfollow = undefined
      this.#last = undefined
      this.#stored.clear()
    }
  }

  /** Tells listeners what has changed since the last look. */
  look(): void {
    const before = this.#last
    if (!before) return
    const now = this.#snapshot()
    this.#last = now
    const changes = changesBetween(before, now, this.#stored)
    for (const id of this.#stored) if (!now.pulls.has(id)) this.#stored.delete(id)
    if (changes.length === 0) return
    for (const listener of this.#listeners) this.#tell(listener, changes)
  }

  /** From now on the events of this pull go by this name, as a client wrote it. */
  downloading(id: string, requested: string): void {
    for (const known of this.#requested.keys()) if (!this.#pull(({ id }) => id === known)) this.#requested.delete(known)
    const names = this.#requested.get(id) ?? new Set()
    if (names.size < MAX_NAMES) this.#requested.set(id, names.add(requested))
    this.look()
  }

  /** The pull that a client began under this name, or that is listed by it. */
  downloadOf(requested: string): PullRecord | undefined {
    return this.#pull(
      ({ id, model }) => this.#requested.get(id)?.has(requested) || model.toLowerCase() === requested.toLowerCase()
    )
  }

  /** Says that the model of a pull, by the name that pulls list, is stored. The pull may have come and gone between two looks. */
  stored(model: string): void {
    if (!this.#last) return
    const [id, pull] = [...this.#last.pulls].find(([, { model: known }]) => known === model) ?? []
    const ended = id ?? this.#pull(each => each.model === model)?.id
    if (ended !== undefined) this.#stored.add(ended)
    const names = pull?.names ?? this.#requested.get(ended ?? '') ?? [model]
    const said = [...names].map(
      (name): Seen => ({ event: { model: name, event: 'download_finished', data: {} }, mark: 'stored' })
    )
    // That the list has it comes first.
    this.look()
    for (const listener of this.#listeners) this.#tell(listener, said)
  }

  #pull(isMeant: (pull: PullRecord) => boolean | undefined): PullRecord | undefined {
    return this.#deps.downloads.list().find(isMeant)
  }

  /** Ends all streams. */
  close(): void {
    for (const { end } of [...this.#listeners]) end()
  }

  #tell(listener: Attached, changes: readonly Seen[]): void {
    // One that does not take what it is sent gets no more: it reads the list anew once it is back.
    if (listener.busy) {
      listener.end()
      return
    }
    const { models, role } = listener.caller
    const seen = changes.filter(({ variant }) => {
      return variant ? isAllowed(models, variant) : models === undefined && hasRole(role, 'operator')
    })
    if (seen.length === 0) return
    const taken = listener.send(seen.map(({ event }) => event))
    if (!taken) return
    listener.busy = true
    void taken.finally(() => {
      listener.busy = false
    })
  }

  #snapshot(): Snapshot {
    const stateOf = loadStates(this.#deps.scheduler)
    const models = new Map<string, Seen>()
    const { catalog, downloads } = this.#deps
    // Aliases are rows of the list too.
    const rows = [
      ...catalog.list().map(variant => ({ model: variant.publicName, variant })),
      ...catalog.aliases().map(({ alias, model }) => ({ model: alias, variant: model }))
    ]
    for (const { model, variant } of rows) {
      const data = statusData(stateOf(variant))
      models.set(model, { variant, event: { model, event: 'model_status', data }, mark: JSON.stringify(data) })
    }
    const pulls = new Map<string, Download>()
    for (const pull of downloads.list()) {
      pulls.set(pull.id, { ...downloadOf(pull), names: new Set([...(this.#requested.get(pull.id) ?? [pull.model])]) })
    }
    return { models, pulls }
  }
}

/** The data of an event about a model's state. Progress is in hundredths, so that a load is a hundred events at most. */
function statusData({ value, progress, failure }: LoadState): Record<string, unknown> {
  if (value === 'loaded') return { status: value }
  if (value === 'unloaded') {
    return { status: value, exit_code: failure ? 1 : 0, ...(failure && { reason: failure.message }) }
  }
  // llama.cpp's page computes with the value, and shows NaN where there is none.
  const { phase, fraction = 0 } = progress ?? {}
  const stage = phase === 'loading' || phase === undefined ? 'text_model' : phase
  return { status: value, progress: { stages: [stage], current: stage, value: Math.round(fraction * 100) / 100 } }
}

function downloadOf({ model, state, files, reason }: PullRecord): Omit<Download, 'names'> {
  if (state === 'failed') {
    return { model, event: 'download_failed', data: reason === undefined ? {} : { reason }, mark: state }
  }
  const done = files.map(({ path, completed, total }) => [path, { done: completed, total }])
  const data = { progress: Object.fromEntries(done) }
  return { model, event: 'download_progress', data, mark: JSON.stringify(data) }
}

/** What has changed between two looks. Pure. @param stored ids of pulls of which it was said that their models are stored */
function changesBetween(before: Snapshot, now: Snapshot, stored: ReadonlySet<string>): Seen[] {
  const changes: Seen[] = []
  const added: Seen[] = []
  const isSame = (one: Seen | undefined, other: Seen) => one?.variant?.key === other.variant?.key
  for (const [model, seen] of now.models) {
    const earlier = before.models.get(model)
    if (!earlier || !isSame(earlier, seen)) {
      added.push({ ...seen, event: { model: '*', event: 'models_reload', data: {} } })
    } else if (earlier.mark !== seen.mark) changes.push(seen)
  }
  for (const [model, seen] of before.models) {
    // A bare name stands for another variant once its own is deleted.
    const later = now.models.get(model)
    if (!later || !isSame(later, seen)) changes.push({ ...seen, event: { model, event: 'model_remove', data: {} } })
  }
  // The list is read anew once what is gone is known.
  changes.push(...added)
  const say = ({ names, mark }: Download, event: FeedEvent['event'], data: FeedEvent['data']) => {
    for (const model of names) changes.push({ event: { model, event, data }, mark })
  }
  for (const [id, pull] of now.pulls) {
    if (before.pulls.get(id)?.mark !== pull.mark && !stored.has(id)) say(pull, pull.event, pull.data)
  }
  for (const [id, pull] of before.pulls) {
    // What is neither there nor stored was cancelled; of one that had failed that was said.
    if (now.pulls.has(id) || stored.has(id) || pull.event === 'download_failed') continue
    say(pull, 'download_failed', { reason: 'It was cancelled.' })
  }
  return changes
}
