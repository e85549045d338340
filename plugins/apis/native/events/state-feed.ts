import { createHash, randomBytes } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { FastifyBaseLogger } from 'fastify'
import {
  type FedRecord,
  STATE_TOPICS,
  type StateFeed,
  type StateFollower,
  type StateRecord,
  type StateTopic
} from '../../../../core/contracts/state-events.ts'
import { CorralError } from '../../../../core/errors.ts'
import { hasRole } from '../../../../core/http/roles.ts'
import { isAllowed } from '../../../../core/models/allowed-models.ts'
import { type Access, type CurrentRecord, isMoving, type StateCollector } from './state-collector.ts'

const POLL_INTERVAL_MS = 250
/** Milliseconds until the next poll when nothing is in progress and no change was announced. */
const IDLE_POLL_INTERVAL_MS = 1000
const MAX_FOLLOWERS_PER_CLIENT = 16
const MAX_FOLLOWERS = 512
/** Limits of the log of changes, which slow and returning followers read. */
const MAX_LOGGED_CHANGES = 1000
const MAX_LOG_BYTES = 4 * 2 ** 20
/** Estimated size of a record in the log, in addition to its JSON. */
const RECORD_BYTES = 1024
/** Milliseconds that the state is kept without followers, for clients that reconnect. */
const KEEP_STATE_MS = 60_000

const TOPICS = Object.keys(STATE_TOPICS) as StateTopic[]
/** There may be thousands of models: they are only polled if a change is announced, or if nothing is in progress. */
const TOPICS_WITHOUT_MODELS = TOPICS.filter(topic => topic !== 'model')

/** A record together with its JSON, which has all fields or only the changed ones. */
type StoredRecord = FedRecord & { access: Access }

interface Change {
  removed: StoredRecord[]
  set: StoredRecord[]
  size: number
}

interface Attached extends StateFollower {
  /** Depends on what the follower may see, so ids of other views are never accepted. */
  epoch: string
  /** The version it has received. Undefined before the first snapshot. */
  version: number | undefined
  busy: boolean
}

/**
 * The state of the server as records by topic and key. Every change has a number. All followers share the same polls,
 * and the server does not poll without followers. A follower is just the number of the last change it received: a slow
 * follower reads what it missed from the log, or gets a new snapshot.
 */
export class SharedStateFeed implements StateFeed {
  readonly #records: Pick<StateCollector, 'of' | 'forget'>
  readonly #log: Pick<FastifyBaseLogger, 'error'>
  readonly #followers = new Set<Attached>()
  readonly #held = new Map<StateTopic, Map<string, StoredRecord>>()
  readonly #seen = new Map<StateTopic, readonly CurrentRecord[]>()
  #epoch = ''
  #version = 0
  #changes: Change[] = []
  #kept = 0
  #modelsTouched = false
  #lookedAt = 0
  #lookedAtModels = 0
  #timer: { due: number; handle: NodeJS.Timeout } | undefined
  #forgetting: NodeJS.Timeout | undefined

  constructor(records: Pick<StateCollector, 'of' | 'forget'>, log: Pick<FastifyBaseLogger, 'error'>) {
    this.#records = records
    this.#log = log
  }

  follow(follower: StateFollower): () => void {
    const { turn } = follower.caller
    const own = [...this.#followers].filter(({ caller }) => caller.turn === turn).length
    if (own >= MAX_FOLLOWERS_PER_CLIENT || this.#followers.size >= MAX_FOLLOWERS) {
      const message = 'Too many clients follow the state of this server already. Close one of the streams.'
      throw new CorralError('rate_limited', message, { retryAfter: 30 })
    }
    if (this.#epoch === '') this.#begin()
    else this.#look(true)
    clearTimeout(this.#forgetting)
    const epoch = this.#viewEpoch(follower)
    const attached = { ...follower, epoch, version: this.#parseVersion(epoch, follower.lastId), busy: false }
    this.#followers.add(attached)
    this.#pump(attached)
    this.#plan(this.#lookedAt + POLL_INTERVAL_MS)
    return () => this.#leave(attached)
  }

  touch(topic: StateTopic): void {
    if (this.#followers.size === 0) return
    if (topic === 'model') this.#modelsTouched = true
    this.#plan(this.#lookedAt + POLL_INTERVAL_MS)
  }

  close(): void {
    for (const follower of [...this.#followers]) {
      this.#leave(follower)
      follower.end()
    }
    clearTimeout(this.#forgetting)
  }

  #begin(): void {
    this.#epoch = randomBytes(8).toString('hex')
    this.#version = 0
    for (const topic of TOPICS) this.#compare(topic, performance.now(), { removed: [], set: [], size: 0 })
    this.#lookedAt = this.#lookedAtModels = performance.now()
  }

  #leave(follower: Attached): void {
    if (!this.#followers.delete(follower) || this.#followers.size > 0) return
    clearTimeout(this.#timer?.handle)
    this.#timer = undefined
    this.#forgetting = setTimeout(() => {
      this.#epoch = ''
      this.#held.clear()
      this.#seen.clear()
      this.#records.forget()
      this.#changes = []
      this.#kept = 0
    }, KEEP_STATE_MS).unref()
  }

  #plan(due: number): void {
    if (this.#timer && this.#timer.due <= due) return
    clearTimeout(this.#timer?.handle)
    const look = () => {
      this.#timer = undefined
      try {
        const isMoving = this.#look(performance.now() - this.#lookedAtModels >= IDLE_POLL_INTERVAL_MS)
        this.#plan(this.#lookedAt + (isMoving ? POLL_INTERVAL_MS : IDLE_POLL_INTERVAL_MS))
      } catch (error) {
        // Clients that reconnect get the error.
        this.#log.error({ err: error }, 'the state of the server cannot be read, so its feeds are closed')
        this.close()
      }
    }
    this.#timer = { due, handle: setTimeout(look, Math.max(0, due - performance.now())).unref() }
  }

  /** Polls the records and sends changes to followers. @returns whether something is in progress */
  #look(withModels: boolean): boolean {
    const now = performance.now()
    const all = withModels || this.#modelsTouched
    const change: Change = { removed: [], set: [], size: 0 }
    this.#lookedAt = now
    if (all) {
      this.#lookedAtModels = now
      this.#modelsTouched = false
    }
    let moves = false
    for (const topic of all ? TOPICS : TOPICS_WITHOUT_MODELS) moves = this.#compare(topic, now, change) || moves
    if (change.removed.length + change.set.length > 0) {
      this.#version++
      this.#changes.push(change)
      this.#kept += change.size
      for (const follower of [...this.#followers]) this.#pump(follower)
      while (this.#changes.length > MAX_LOGGED_CHANGES || this.#kept > MAX_LOG_BYTES)
        this.#kept -= this.#changes.shift()!.size
    }
    return moves
  }

  #compare(topic: StateTopic, now: number, change: Change): boolean {
    const all = this.#records.of(topic, now)
    if (all === this.#seen.get(topic)) return false
    const before = this.#held.get(topic)
    const held = new Map<string, StoredRecord>()
    let moves = false
    for (const seen of all) {
      moves ||= isMoving(seen)
      const known = before?.get(seen.key)
      const isSame = known !== undefined && accessKey(known.access) === accessKey(seen.access)
      const patch = isSame ? changedFields(known.value, seen.value) : seen.value
      if (patch === undefined) {
        held.set(seen.key, known!)
        continue
      }
      const whole = storedRecord(seen, seen.value)
      held.set(seen.key, whole)
      // A record whose access changed is removed for those who could see it before.
      if (known && !isSame) remember(change, 'removed', known)
      remember(change, 'set', isSame ? storedRecord(seen, patch) : whole)
    }
    for (const [key, known] of before ?? []) if (!held.has(key)) remember(change, 'removed', known)
    this.#held.set(topic, held)
    this.#seen.set(topic, all)
    return moves
  }

  #pump(follower: Attached): void {
    while (!follower.busy && this.#followers.has(follower) && follower.version !== this.#version) {
      const taken = this.#next(follower)
      if (!taken) continue
      follower.busy = true
      void taken.finally(() => {
        follower.busy = false
        this.#pump(follower)
      })
    }
  }

  #next(follower: Attached): Promise<void> | undefined {
    const { version, epoch } = follower
    const isSeen = (record: StoredRecord) => maySee(follower, record)
    const at = version === undefined ? -1 : this.#changes.length - (this.#version - version)
    if (version === undefined || at < 0) {
      follower.version = this.#version
      const records = [...this.#held.values()].flatMap(topic => [...topic.values()].filter(isSeen))
      return follower.take({ kind: 'snapshot', id: `${epoch}-${this.#version}`, records })
    }
    follower.version = version + 1
    const change = this.#changes[at]!
    const [removed, set] = [change.removed.filter(isSeen), change.set.filter(isSeen)]
    if (removed.length + set.length === 0) return undefined
    return follower.take({ kind: 'change', id: `${epoch}-${version + 1}`, removed, set })
  }

  #viewEpoch({ caller: { role, models }, topics }: StateFollower): string {
    const view = [this.#epoch, hasRole(role, 'operator'), models ?? '*', topics ? [...topics].sort() : '*']
    return createHash('sha256').update(JSON.stringify(view)).digest('hex').slice(0, 16)
  }

  /** Parses the version of an id. Returns undefined for ids of other views and for future versions. */
  #parseVersion(epoch: string, id: string | undefined): number | undefined {
    const [, of, digits] = /^([0-9a-f]{16})-([0-9]{1,15})$/.exec(id ?? '') ?? []
    const version = Number(digits)
    return of === epoch && version <= this.#version ? version : undefined
  }
}

function maySee({ caller: { role, models }, topics }: StateFollower, { topic, access }: StoredRecord): boolean {
  if (topics && !topics.has(topic)) return false
  if (access === undefined) return true
  return access === 'operator' ? hasRole(role, 'operator') : isAllowed(models, access)
}

const accessKey = (access: Access) => (typeof access === 'object' ? access.key : access)

/** @param shown the part of the value that is in the JSON */
function storedRecord({ topic, key, value, access }: CurrentRecord, shown: object): StoredRecord {
  let json: string | undefined
  return {
    ...({ topic, key, value } as StateRecord),
    access,
    // Computed on demand, because most records are sent only in snapshots.
    get json() {
      json ??= JSON.stringify({ topic, key, value: shown })
      return json
    }
  }
}

function remember(change: Change, what: 'removed' | 'set', record: StoredRecord): void {
  change[what].push(record)
  change.size += RECORD_BYTES + (what === 'set' ? record.json.length : 0)
}

function changedFields(before: object, after: object): object | undefined {
  if (before === after) return undefined
  const [old, now] = [before, after] as [Record<string, unknown>, Record<string, unknown>]
  const patch: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(now)) {
    if (old[name] !== value && !isDeepStrictEqual(old[name], value)) patch[name] = value ?? null
  }
  for (const name of Object.keys(old)) if (!(name in now)) patch[name] = null
  return Object.keys(patch).length === 0 ? undefined : patch
}
