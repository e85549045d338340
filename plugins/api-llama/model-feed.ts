import type { Caller } from '../../core/contracts/callers.ts'
import type { Downloads, PullRecord } from '../../core/contracts/downloads.ts'
import type { Scheduler } from '../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../core/contracts/models.ts'
import { CorralError } from '../../core/errors.ts'
import { hasRole } from '../../core/http/roles.ts'
import { isAllowed } from '../../core/models/allowed-models.ts'
import { type LoadState, loadStates } from '../../core/models/load-state.ts'

/** Milliseconds between two looks at what is loaded and downloaded, as long as somebody listens. */
const INTERVAL = 250
/** Who listens at once; of one client, and in all. */
const MOST_OF_ONE = 16
const MOST_IN_ALL = 128

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

interface Snapshot {
  models: Map<string, Seen>
  pulls: Map<string, Seen>
}

/** What becomes of models, for all who listen: one look at a time shared by them, and none while nobody listens. */
export class ModelFeed {
  readonly #deps: { catalog: Catalog; scheduler: Scheduler; downloads: Pick<Downloads, 'list'> }
  readonly #listeners = new Set<Attached>()
  #last: Snapshot | undefined
  #timer: NodeJS.Timeout | undefined

  constructor(deps: { catalog: Catalog; scheduler: Scheduler; downloads: Pick<Downloads, 'list'> }) {
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
    if (own >= MOST_OF_ONE || this.#listeners.size >= MOST_IN_ALL) {
      throw new CorralError(
        'rate_limited',
        'Too many clients follow the states of models already. Close one of them.',
        {
          retryAfter: 30
        }
      )
    }
    const attached = { ...listener, busy: false }
    this.#listeners.add(attached)
    this.#last ??= this.#snapshot()
    this.#timer ??= setInterval(() => this.look(), INTERVAL).unref()
    return () => {
      this.#listeners.delete(attached)
      if (this.#listeners.size > 0) return
      clearInterval(this.#timer)
      this.#timer = undefined
      this.#last = undefined
    }
  }

  /** Tells listeners what has changed since the last look. */
  look(): void {
    const before = this.#last
    if (!before) return
    const now = this.#snapshot()
    this.#last = now
    const changes = changesBetween(before, now)
    if (changes.length === 0) return
    for (const listener of this.#listeners) this.#tell(listener, changes)
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
    const pulls = new Map<string, Seen>()
    for (const pull of downloads.list()) pulls.set(pull.id, pullSeen(pull))
    return { models, pulls }
  }
}

/** The data of an event about a model's state. Progress is in hundredths, so that a load is a hundred events at most. */
function statusData({ value, progress, failure }: LoadState): Record<string, unknown> {
  if (value === 'loaded') return { status: value }
  if (value === 'unloaded') {
    return { status: value, exit_code: failure ? 1 : 0, ...(failure && { reason: failure.message }) }
  }
  const { phase, fraction } = progress ?? {}
  const stage = phase === 'loading' || phase === undefined ? 'text_model' : phase
  const known = fraction === undefined ? {} : { value: Math.round(fraction * 100) / 100 }
  return { status: value, progress: { stages: [stage], current: stage, ...known } }
}

function pullSeen({ model, state, files, reason }: PullRecord): Seen {
  if (state === 'failed') {
    return { event: { model, event: 'download_failed', data: reason === undefined ? {} : { reason } }, mark: state }
  }
  const done = files.map(({ path, completed, total }) => [path, { done: completed, total }])
  const data = { progress: Object.fromEntries(done) }
  return { event: { model, event: 'download_progress', data }, mark: JSON.stringify(data) }
}

/** What has changed between two looks. Pure. */
function changesBetween(before: Snapshot, now: Snapshot): Seen[] {
  const changes: Seen[] = []
  for (const [model, seen] of now.models) {
    const earlier = before.models.get(model)
    if (!earlier) changes.push({ ...seen, event: { model: '*', event: 'models_reload', data: {} } })
    else if (earlier.mark !== seen.mark) changes.push(seen)
  }
  for (const [model, seen] of before.models) {
    if (!now.models.has(model)) changes.push({ ...seen, event: { model, event: 'model_remove', data: {} } })
  }
  for (const [id, seen] of now.pulls) {
    if (before.pulls.get(id)?.mark !== seen.mark) changes.push(seen)
  }
  for (const [id, { event, mark }] of before.pulls) {
    if (now.pulls.has(id)) continue
    const { model } = event
    // What is stored was finished; what is neither here nor there was cancelled.
    const isStored = [...now.models.values()].some(({ variant }) => variant?.key === model.toLowerCase())
    changes.push({ event: { model, event: isStored ? 'download_finished' : 'download_failed', data: {} }, mark })
  }
  return changes
}
