import type { FastifyBaseLogger } from 'fastify'
import { EventLines } from '../../../../core/answers/event-lines.ts'
import type { KnownMember } from '../../../../core/contracts/cluster.ts'
import type { EngineMode } from '../../../../core/contracts/engines.ts'
import type { LoadingRecord, MemberRecord, RunningRecord } from '../../../../core/contracts/native-records.ts'
import { momentAt } from '../../../../core/system/clock.ts'
import { version as ownVersion } from '../../../../core/system/package-info.ts'
import { serverId } from '../../../../core/system/server-id.ts'
import { DESCRIBE_PATH, type DescribedModel } from '../asking/ask-protocol.ts'
import { type MemberModel, type MemberView, modelKey } from '../placement/cluster-view.ts'
import { type ConnectionSettings, connectionFault, MemberConnection } from './member-connection.ts'
import { MemberRecords } from './member-records.ts'
import type { ListedMember } from './roster.ts'

/** Seconds after which a member's feed says something. */
const HEARTBEAT = 2
const EVENTS_PATH = `/api/events?topics=server,requests,model,engine,memory,build,pull&heartbeat=${HEARTBEAT}`
/** Milliseconds before a lost member is tried again: at first, and at most. */
const FIRST_WAIT = 250
const MAX_WAIT = 5000
/** Milliseconds without requests for one that answers wrongly: at first, and at most. */
const FIRST_REST = 1000
const MAX_REST = 60_000
/** What an engine's `expires_at` begins with that is never unloaded for idleness. */
const NEVER = '2999-'
/** States of an engine that will be loaded only where somebody waits for it. */
const UNLOADED = new Set<LoadingRecord['state']>(['queued', 'waiting', 'stopping'])
/** Names in one request for descriptions. */
const MAX_DESCRIBED = 100

export interface MemberSettings extends ConnectionSettings {
  /** Milliseconds after which a member that says nothing counts as lost. */
  silence: number
}

interface MemberEvents {
  /** Its state, its models or its figures have changed. */
  changed(member: Member, what: 'state' | 'models' | 'figures'): void
  /** An engine of it has gone, and what its slots had read with it. */
  unloaded(member: Member, model: string): void
  /** Another member that is the same server; undefined where there is none. */
  twinOf(member: Member, id: string): Member | undefined
}

/** Why a member cannot be one, or cannot be reached. */
class LinkFault extends Error {}

/** What the member says of an engine, and how many requests of this server that counts. */
interface Reported {
  running: number
  queued: number
  sentThen: number
}

/** A server that answers for this one: what is known of it, by one connection to its feed that is kept up. */
export class Member {
  readonly name: string
  readonly source: string
  readonly known: KnownMember
  readonly connection: MemberConnection
  /** What placement sees; changed in place. */
  readonly view: MemberView & { models: Map<string, MemberModel> }
  readonly #settings: MemberSettings
  readonly #events: MemberEvents
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly #closed = new AbortController()
  #records = new MemberRecords()
  /** By its key. */
  #models = new Map<string, DescribedModel>()
  /** By its name there. */
  #byName = new Map<string, DescribedModel>()
  /** Models that have the same files at all members, by their keys; set by `refresh`. */
  #accepted: ReadonlyMap<string, string> = new Map()
  #reported: ReadonlyMap<string, Reported> = new Map()
  readonly #sent = new Map<string, number>()
  /** This server sends nothing there, whatever the member says itself. */
  #isHeld = false
  #link: 'up' | 'away' = 'away'
  #reason = 'it has not been reached yet'
  #since = new Date()
  /** Of the server that is reached. */
  #id: string | undefined
  /** Aborted when it says nothing any more, with all that it was asked. */
  #presence = new AbortController()
  /** Ends the present connection to the feed, or the wait for the next one. */
  #attempt = new AbortController()
  #restUntil = 0
  #faults = 0
  #wrong = ''
  #record: MemberRecord | undefined
  #first: () => void = () => {}
  /** Settles when it was reached for the first time, or could not be. */
  readonly met = new Promise<void>(resolve => {
    this.#first = resolve
  })

  constructor(
    listed: ListedMember,
    settings: MemberSettings,
    events: MemberEvents,
    log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  ) {
    this.name = listed.name
    this.source = listed.source
    this.known = listed
    this.#settings = settings
    this.#events = events
    this.#log = log
    this.connection = new MemberConnection(listed, settings)
    this.view = { name: listed.name, state: 'away', models: new Map(), memory: [] }
    void this.#follow()
  }

  /** Names the server that is reached; undefined while none is. */
  get id(): string | undefined {
    return this.#id
  }

  /** Models that it has, by their keys. */
  get models(): ReadonlyMap<string, DescribedModel> {
    return this.#models
  }

  /** What it has in memory, or on its way there or from there, as `modelKey` gives it. */
  get engines(): Iterable<string> {
    return this.#reported.keys()
  }

  get sent(): number {
    let sum = 0
    for (const count of this.#sent.values()) sum += count
    return sum
  }

  /** Aborted when the member is lost for requests that it has now: its machine says nothing any more. */
  get presence(): AbortSignal {
    return this.#presence.signal
  }

  /**
   * Takes note that a request is sent.
   * @param key as `modelKey` gives it
   * @returns to be called once when the request is over
   */
  begin(key: string): () => void {
    const add = (count: number) => {
      this.#sent.set(key, (this.#sent.get(key) ?? 0) + count)
      this.#count(key)
      this.#touch('figures')
    }
    add(1)
    return () => add(-1)
  }

  /** A request could not be sent, or was cut: its feed is asked anew whether it is still there. */
  suspect(reason: string): void {
    if (this.#link === 'away') return
    this.#setLink('away', reason)
    this.#attempt.abort()
  }

  /** It has answered as no member does: it gets no requests for a while, the longer the more often. */
  distrust(reason: string): void {
    this.#faults++
    this.#wrong = reason
    const rest = Math.min(MAX_REST, FIRST_REST * 2 ** (this.#faults - 1))
    this.#restUntil = performance.now() + rest
    setTimeout(() => this.#setState(), rest + 1).unref()
    this.#log.warn({ member: this.name, reason, seconds: rest / 1000 }, 'a member gets no requests for a while')
    this.#setState()
  }

  /** Stops sending requests there, or goes on with it. */
  hold(isHeld: boolean): void {
    this.#isHeld = isHeld
    this.#setState()
    this.#touch('figures')
  }

  /** It has answered. */
  trust(): void {
    this.#faults = 0
  }

  /** It says that it has no such model: no request goes there for it until it says otherwise. */
  lacks(key: string): void {
    this.#models.delete(key)
    this.#touch('models')
  }

  /** It has this model now: what it says itself may come a moment later. */
  learn(model: DescribedModel): void {
    this.#models.set(model.key, model)
    this.#byName.set(model.publicName, model)
    this.#touch('models')
  }

  /** Tells which models have the same files at all members. */
  refresh(accepted: ReadonlyMap<string, string>): void {
    this.#accepted = accepted
    this.#readModels()
  }

  /** The record of `GET /api/cluster`. @param notes what comparing it with others shows */
  record(notes: readonly string[]): MemberRecord {
    this.#record ??= this.#makeRecord()
    const all = [...this.#record.notes, ...notes]
    return notes.length === 0 ? this.#record : { ...this.#record, notes: all }
  }

  get version(): string | undefined {
    return this.#records.all('server')[0]?.version
  }

  get build(): string | undefined {
    return this.#records.all('build')[0]?.id
  }

  /** What it has in memory, under the names of this server. */
  held(nameOf: (key: string) => string | undefined): { running: RunningRecord[]; loading: LoadingRecord[] } {
    const running: RunningRecord[] = []
    const loading: LoadingRecord[] = []
    if (this.#link === 'away') return { running, loading }
    for (const engine of this.#records.all('engine')) {
      const key = this.#byName.get(engine.name)?.key
      const name = key === undefined || !this.#isAccepted(key) ? undefined : nameOf(key)
      if (name === undefined) continue
      const named = { name, model: name, member: this.name }
      if (engine.state === 'loaded') {
        const { state: _, ...record } = engine
        running.push({ ...record, ...named })
      } else loading.push({ ...engine, ...named })
    }
    return { running, loading }
  }

  /** Ends the connection to its feed. What it answers goes on; then its connections are closed. */
  async leave(): Promise<void> {
    this.#closed.abort()
    this.#attempt.abort()
    this.#first()
  }

  /** Cuts everything. */
  async close(): Promise<void> {
    await this.leave()
    await this.connection.close()
  }

  // ---- its feed

  async #follow(): Promise<void> {
    let wait = FIRST_WAIT
    while (!this.#closed.signal.aborted) {
      this.#attempt = new AbortController()
      const { signal } = this.#attempt
      let isSilent = false
      const silence = setTimeout(() => {
        isSilent = true
        this.#attempt.abort()
      }, this.#settings.silence)
      let reason = 'it ended its feed'
      try {
        await this.#readFeed(signal, () => {
          silence.refresh()
          if (this.#link === 'up') wait = FIRST_WAIT
        })
      } catch (error) {
        reason = error instanceof LinkFault ? error.message : connectionFault(error)
        if (isSilent) reason = `it has said nothing for ${Math.round(this.#settings.silence / 1000)} s`
        else if (signal.aborted) reason = this.#reason
      } finally {
        clearTimeout(silence)
      }
      if (this.#closed.signal.aborted) break
      this.#setLink('away', reason)
      this.#first()
      if (isSilent) {
        // Nothing comes of what it was asked either: that is decided here, for all of it.
        const lost = this.#presence
        this.#presence = new AbortController()
        lost.abort(new LinkFault(reason))
      }
      // The first look comes at once: its feed alone may have been cut.
      await pause(wait === FIRST_WAIT && !isSilent ? 20 : wait * (0.75 + Math.random() / 2), this.#closed.signal)
      wait = Math.min(MAX_WAIT, wait * 2)
    }
  }

  async #readFeed(signal: AbortSignal, heard: () => void): Promise<void> {
    const reply = await this.connection.send('GET', EVENTS_PATH, { signal })
    if (reply.statusCode !== 200) throw new LinkFault(await refusalOf(reply.statusCode, reply.body))
    if (!/event-stream/.test(String(reply.headers['content-type']))) {
      reply.body.on('error', () => {}).destroy()
      throw new LinkFault('what answers at its address is not a corral')
    }
    const lines = new EventLines()
    this.#records = new MemberRecords()
    let isKnown = false
    for await (const chunk of reply.body) {
      // Signs of life alone are no member's: it says first what it is.
      if (isKnown) heard()
      for (const payload of lines.push(chunk)) {
        heard()
        const touched = this.#apply(payload)
        if (!isKnown) {
          this.#verify()
          await this.#describe(signal, true)
          isKnown = true
          this.#readModels()
          this.#setLink('up', '')
          this.#first()
        } else {
          if (touched.has('model')) await this.#describe(signal, false)
          if (touched.has('model') || touched.has('engine') || touched.has('memory')) this.#readModels()
          this.#setState()
          this.#touch('figures')
        }
      }
    }
    if (!isKnown) throw new LinkFault('it ended its feed before it said anything')
  }

  #apply(payload: string): Set<string> {
    try {
      return this.#records.apply(JSON.parse(payload))
    } catch {
      throw new LinkFault('its feed cannot be read: what answers at its address is not a corral')
    }
  }

  /** @throws LinkFault where this server can be no member */
  #verify(): void {
    const [server] = this.#records.all('server')
    if (!server) throw new LinkFault('its feed says nothing of a server: what answers at its address is not a corral')
    const { id, version } = server
    if (typeof id !== 'string') {
      throw new LinkFault(`it runs corral ${version}, which can be no member yet: upgrade it to ${ownVersion}`)
    }
    if (id === serverId) throw new LinkFault('it is this server itself: take it off the list of members')
    const twin = this.#events.twinOf(this, id)
    if (twin) throw new LinkFault(`it is the same server as the member "${twin.name}": take one of them off the list`)
    if (this.#records.all('requests').length === 0) {
      throw new LinkFault(`its key is that of a user: make one there with "corral key create <name> --role operator"`)
    }
    this.#id = id
  }

  /** Asks for what is not known of its models. */
  async #describe(signal: AbortSignal, anew: boolean): Promise<void> {
    const listed = this.#records.all('model').filter(({ format }) => format !== 'cluster')
    const known = anew ? new Map<string, DescribedModel>() : this.#byName
    const isSame = ({ name, digest, modified_at }: (typeof listed)[number]) => {
      const model = known.get(name)
      return model?.digest === digest && model.modifiedAt === modified_at
    }
    const names = listed.filter(model => !isSame(model)).map(({ name }) => name)
    const found: DescribedModel[] = []
    for (let from = 0; from < names.length; from += MAX_DESCRIBED) {
      const body = { models: names.slice(from, from + MAX_DESCRIBED) }
      const reply = await this.connection.send('POST', DESCRIBE_PATH, { body, signal })
      const text = await reply.body.text()
      if (reply.statusCode !== 200) {
        const why = reply.statusCode === 404 ? `upgrade it to ${ownVersion}` : `status ${reply.statusCode}`
        throw new LinkFault(`it runs corral ${this.version}, which does not describe its models to a front: ${why}`)
      }
      found.push(...(JSON.parse(text).models as DescribedModel[]))
    }
    const kept = listed.filter(isSame).map(({ name }) => known.get(name)!)
    const all = [...kept, ...found]
    const isChanged = anew || found.length > 0 || all.length !== this.#models.size
    if (!isChanged) return
    this.#byName = new Map(all.map(model => [model.publicName, model]))
    this.#models = new Map(all.map(model => [model.key, model]))
    this.#touch('models')
  }

  // ---- what placement sees

  #isAccepted(key: string): boolean {
    const digest = this.#models.get(key)?.digest
    return digest !== undefined && this.#accepted.get(key) === digest
  }

  #readModels(): void {
    const before = this.view.models
    const models = new Map<string, MemberModel>()
    const pinned = new Set(
      this.#records
        .all('model')
        .filter(({ pinned }) => pinned)
        .map(({ name }) => name)
    )
    for (const { key, publicName, size, modes } of this.#models.values()) {
      if (!this.#isAccepted(key)) continue
      for (const mode of modes) {
        const id = modelKey(key, mode)
        const stored: MemberModel = { state: 'stored', size, slots: 0, context: 0, running: 0, queued: 0 }
        const model: MemberModel = Object.assign(before.get(id) ?? stored, {
          ...stored,
          ...(before.get(id)?.usedAt !== undefined && { usedAt: before.get(id)!.usedAt }),
          pinned: pinned.has(publicName)
        })
        models.set(id, model)
      }
    }
    const reported = new Map<string, Reported>()
    for (const engine of this.#records.all('engine')) {
      const key = this.#byName.get(engine.name)?.key
      const id = key === undefined ? '' : modelKey(key, engine.mode as EngineMode)
      const model = models.get(id)
      if (!model) continue
      if (engine.state === 'loaded') {
        Object.assign(model, {
          state: 'loaded',
          size: engine.size,
          slots: engine.slots,
          context: engine.context_length,
          expires: engine.expires_at.startsWith(NEVER) ? Number.POSITIVE_INFINITY : momentAt(engine.expires_at),
          options: { num_ctx: engine.options.num_ctx, num_parallel: engine.options.num_parallel },
          ...(engine.running > 0 && { usedAt: performance.now() })
        })
      } else {
        // Where no client waits it goes, or is one more replica that waits for free memory: a request would have others
        // unloaded for it. One that clients wait for is loaded again.
        const isVague = UNLOADED.has(engine.state) && engine.queued === 0
        model.state = isVague ? 'stored' : 'loading'
      }
      const { running = 0 } = engine as { running?: number }
      reported.set(id, { running, queued: engine.queued, sentThen: this.#sent.get(id) ?? 0 })
    }
    for (const id of this.#reported.keys()) if (!reported.has(id)) this.#events.unloaded(this, id)
    this.#reported = reported
    const isSame = before.size === models.size && [...models].every(([id, model]) => before.get(id) === model)
    this.view.memory = this.#records.all('memory')
    if (!isSame) this.view.models = models
    for (const id of models.keys()) this.#count(id)
    this.#touch(isSame ? 'figures' : 'state')
  }

  /** What a model has to do there: what the member says, and what was sent since it said that. */
  #count(id: string): void {
    const model = this.view.models.get(id)
    if (!model) return
    const sent = this.#sent.get(id) ?? 0
    const { running, queued, sentThen } = this.#reported.get(id) ?? { running: 0, queued: 0, sentThen: 0 }
    const total = Math.max(sent, running + queued + sent - sentThen)
    model.running = Math.min(total, model.slots || total)
    model.queued = total - model.running
  }

  // ---- its state

  #setLink(link: 'up' | 'away', reason: string): void {
    const { name } = this
    const known = this.#link === link && this.#reason === reason
    if (!known && link === 'up') this.#log.info({ member: name, url: this.connection.url }, 'a member is up')
    if (!known && link === 'away')
      this.#log.warn({ member: name, url: this.connection.url, reason }, 'a member is away')
    if (link === 'up') this.#restUntil = 0
    else this.#id = undefined
    this.#link = link
    this.#reason = reason
    this.#setState()
    if (!known) this.#touch('state')
  }

  #setState(): void {
    const state = this.#stateNow()
    if (state === this.view.state) return
    this.view.state = state
    this.#since = new Date()
    this.#touch('state')
  }

  #stateNow(): MemberView['state'] {
    if (this.#link === 'away' || this.#restUntil > performance.now()) return 'away'
    return this.#isHeld || this.#records.all('server')[0]?.draining ? 'draining' : 'up'
  }

  #touch(what: 'state' | 'models' | 'figures'): void {
    this.#record = undefined
    this.#events.changed(this, what)
  }

  #makeRecord(): MemberRecord {
    const { version, build } = this
    const engines = this.#link === 'away' ? [] : this.#records.all('engine')
    const sum = (of: (engine: RunningRecord) => number) =>
      engines.reduce((total, engine) => total + (engine.state === 'loaded' ? of(engine) : 0), 0)
    const names = (models: Iterable<{ key: string; publicName: string }>) =>
      [...models].filter(({ key }) => this.#isAccepted(key)).map(({ publicName }) => publicName)
    const loaded = engines.flatMap(({ name, state }) => (state === 'loaded' ? (this.#byName.get(name) ?? []) : []))
    const reason = this.#link === 'away' ? this.#reason : this.#restUntil > performance.now() ? this.#wrong : undefined
    const others = [...this.#models.values()].filter(({ key }) => !this.#isAccepted(key))
    return {
      name: this.name,
      url: this.connection.url,
      source: this.source,
      state: this.view.state,
      ...(reason !== undefined && { reason: sentence(reason) }),
      notes: [
        ...(version === undefined || version === ownVersion
          ? []
          : [`It runs corral ${version}, this server ${ownVersion}.`]),
        ...(this.#isHeld
          ? [
              'This server alone has stopped sending requests there: it is only an operator there, and an admin may have the ' +
                'member refuse those of everybody. Make a key there ("corral key create front --role admin"), set it here as ' +
                'the key of this member, and drain it again; or run "corral drain" there.'
            ]
          : []),
        ...others.map(
          ({ publicName }) =>
            `Its model ${publicName} has other files than that of other members, and gets no requests.`
        )
      ],
      since: this.#since.toISOString(),
      ...(version !== undefined && { version }),
      ...(build !== undefined && { build }),
      models: names(this.#models.values()).sort(),
      loaded: [...new Set(names(loaded))].sort(),
      slots: sum(({ slots }) => slots),
      running: sum(({ running }) => running),
      queued: engines.reduce((total, { queued }) => total + queued, 0),
      sent: this.sent,
      ...(this.#link === 'up' && { pulls: this.#records.all('pull') }),
      memory: [...this.view.memory].map(({ pool, reserved, budget }) => ({
        pool,
        reserved,
        ...(budget !== undefined && { budget })
      }))
    }
  }
}

const sentence = (text: string) => `${text[0]?.toUpperCase()}${text.slice(1)}${text.endsWith('.') ? '' : '.'}`

async function refusalOf(status: number, body: { text(): Promise<string> }): Promise<string> {
  const text = await body.text().catch(() => '')
  if (status === 401 || status === 403) {
    return 'it refuses the key that this server has for it: make one there with "corral key create <name> --role operator"'
  }
  if (status === 429)
    return 'too many clients follow its state already, or it had too many wrong keys; it is asked again'
  if (status === 503) return 'it is shutting down'
  const isCorral = /"code":"[a-z_]+"/.test(text)
  if (status === 400 && isCorral)
    return `it is of an earlier version, which can be no member: upgrade it to ${ownVersion}`
  return `what answers at its address is not a corral (status ${status})`
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const timer = setTimeout(done, ms)
    function done() {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    signal.addEventListener('abort', done)
  })
}
