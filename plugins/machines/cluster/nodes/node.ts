import { setMaxListeners } from 'node:events'
import type { Readable } from 'node:stream'
import { buffer, json, text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import type { EngineMode } from '../../../../core/contracts/engines.ts'
import type { LoadingRecord, MemberRecord, RunningRecord } from '../../../../core/contracts/native-records.ts'
import type { KnownMember } from '../../../../core/contracts/services.ts'
import type { StateTopic } from '../../../../core/contracts/state-events.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { StateRecords } from '../../../../core/http/state-records.ts'
import { momentAt } from '../../../../core/system/clock.ts'
import { version as ownVersion } from '../../../../core/system/package-info.ts'
import { serverId } from '../../../../core/system/server-id.ts'
import {
  DESCRIBE_PATH,
  type DescribedModel,
  FAILURE_TRAILER,
  parseFailedReply,
  parseFailure,
  readLines
} from '../asking/ask-protocol.ts'
import { modelKey, type NodeModel, type NodeView } from '../placement/choose-node.ts'
import { isOtherRevision } from '../rollout/revision-names.ts'
import {
  type ConnectionSettings,
  connectionFault,
  isUnreachable,
  NodeConnection,
  type NodeReply
} from './node-connection.ts'

/** Seconds after which a node's feed sends something. */
const HEARTBEAT_S = 2
const EVENTS_PATH = `/api/events?topics=server,requests,model,engine,memory,build,pull&heartbeat=${HEARTBEAT_S}`
/** Milliseconds until a lost node is tried again: at first, and at most. */
const FIRST_WAIT_MS = 250
const MAX_WAIT_MS = 5000
/** Milliseconds without requests for a node that answers wrongly: at first, and at most. */
const FIRST_REST_MS = 1000
const MAX_REST_MS = 60_000
/** Start of `expires_at` of an engine that is never unloaded when idle. */
export const NEVER_PREFIX = '2999-'
/** States of an engine that is loaded only if a request waits for it. */
const UNLOADED_STATES = new Set<LoadingRecord['state']>(['queued', 'waiting', 'stopping'])
const MAX_DESCRIBED = 100
const TICK_MS = 500
/** `:`, which comments of an event stream begin with. */
const COMMENT = 58

/** A node as its source reports it, with a name unique among all nodes. */
export interface ListedNode extends KnownMember {
  readonly source: string
}

export interface NodeOptions extends ConnectionSettings {
  /** Milliseconds of silence after which a node counts as lost. */
  silence: number
  /** Called when its state, its models or its figures have changed. */
  changed(member: ClusterNode, what: 'state' | 'models' | 'figures'): void
  /** Called when one of its engines, with its prompt caches, is gone. */
  unloaded(member: ClusterNode, model: string): void
  /** Returns another node that is the same server. */
  findTwin(member: ClusterNode, id: string): ClusterNode | undefined
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

/** By the key of a model: digests of the files that count as this model. */
export type AcceptedFiles = ReadonlyMap<string, ReadonlySet<string>>

class LinkFault extends Error {}

/** A node's report of an engine, and the number of requests of this server that it includes. */
interface Reported {
  running: number
  queued: number
  sentThen: number
}

/** A server that answers for this one. It is known by one permanent connection to its event feed. */
export class ClusterNode {
  readonly name: string
  readonly source: string
  readonly known: ListedNode
  readonly connection: NodeConnection
  /** The view for placement. Changed in place. */
  readonly view: NodeView & { models: Map<string, NodeModel> }
  readonly #options: NodeOptions
  readonly #closed = new AbortController()
  #records = new StateRecords()
  /** The models that it has, by key. Only this class changes it. */
  models = new Map<string, DescribedModel>()
  /** Models by their names at the node. */
  #byName = new Map<string, DescribedModel>()
  /** Digests of the files that count for each model, by key. Set by `refresh`. */
  #accepted: AcceptedFiles = new Map()
  #reported: ReadonlyMap<string, Reported> = new Map()
  readonly #sent = new Map<string, number>()
  readonly #warming = new Set<string>()
  /** Tokens that each engine had generated at its last report. A change means that it was used. */
  readonly #generated = new Map<string, number>()
  /** This server sends nothing to the node, whatever state the node reports. */
  #isHeld = false
  #link: 'up' | 'away' = 'away'
  #reason = 'it has not been reached yet'
  #since = new Date()
  /** Id of the server that is reached. */
  id: string | undefined
  /** Aborted, with all requests sent to it, when it falls silent. */
  #presence = createPresence()
  /** Ends the current connection to the feed, or the wait for the next one. */
  #attempt = new AbortController()
  #restUntil = 0
  #faults = 0
  #wrong = ''
  #record: MemberRecord | undefined
  #first: () => void = () => {}
  /** Settles when it was reached for the first time, or could not be reached. */
  readonly met = new Promise<void>(resolve => (this.#first = resolve))

  constructor(listed: ListedNode, options: NodeOptions) {
    this.name = listed.name
    this.source = listed.source
    this.known = listed
    this.#options = options
    this.connection = new NodeConnection(listed, options)
    this.view = {
      ...{ name: listed.name, state: 'away', models: new Map(), memory: [] },
      ...(listed.isGuest && { isGuest: true }),
      ...(listed.zone !== undefined && { zone: listed.zone })
    }
    void this.#follow()
  }

  /** Keys (`modelKey`) of its models that are in memory, loading or unloading. */
  get engines(): Iterable<string> {
    return this.#reported.keys()
  }

  /** Requests of this server that it has not answered yet. */
  get sent(): number {
    return sum(this.#sent.values())
  }

  /** Aborted when the node is lost for its current requests: its machine is silent. */
  get presence(): AbortSignal {
    return this.#presence.signal
  }

  /** Sends a request. Fails when the node is lost. @throws CorralError of its refusal; the signal's reason; Error */
  async call(
    path: string,
    { method = 'POST', signal, ...sent }: { method?: 'GET' | 'POST' | 'DELETE'; body?: object; signal?: AbortSignal }
  ): Promise<NodeReply> {
    const until = signal ? AbortSignal.any([signal, this.presence]) : this.presence
    const reply = await this.connection.send(method, path, { ...sent, signal: until })
    if (reply.status === 200) return reply
    const failure = parseFailedReply(await text(reply.body), reply.headers)
    throw failure ?? new Error(`it answered with status ${reply.status}`)
  }

  /** Sends a request and parses its reply. @throws as `call` */
  async ask<Reply>(...call: Parameters<ClusterNode['call']>): Promise<Reply> {
    return (await json((await this.call(...call)).body)) as Reply
  }

  /** Sends a request whose reply does not matter. @throws as `call` */
  async tell(...call: Parameters<ClusterNode['call']>): Promise<void> {
    await buffer((await this.call(...call)).body)
  }

  /** Yields the lines of a streamed reply. @throws CorralError of a failure after the first line */
  async *lines<Line>(...call: Parameters<ClusterNode['call']>): AsyncGenerator<Line> {
    const { body, trailers } = await this.call(...call)
    for await (const line of readLines(body)) yield JSON.parse(line) as Line
    const failure = trailers[FAILURE_TRAILER]
    if (failure !== undefined) throw parseFailure(failure) ?? new Error(failure)
  }

  /** Explains why a request to it failed. */
  explain(error: unknown): string {
    if (error instanceof CorralError) return error.message.replace(/\.$/, '')
    const { aborted, reason } = this.presence
    return aborted ? String(reason.message) : connectionFault(error)
  }

  /** Counts a request. @param key as `modelKey` returns it @returns a function to call when the request has ended */
  begin(key: string): () => void {
    const add = (count: number) => {
      this.#sent.set(key, (this.#sent.get(key) ?? 0) + count)
      const model = this.view.models.get(key)
      if (model) model.usedAt = performance.now()
      this.#count(key)
      this.#touch('figures')
    }
    add(1)
    return () => add(-1)
  }

  /** A request failed or was cut off: checks by a new connection to the feed whether it is still there. */
  suspect(reason: string): void {
    if (this.#link === 'away') return
    this.#setLink('away', reason)
    this.#attempt.abort()
  }

  /** The node answered incorrectly, so it gets no requests for a while, longer each time. */
  distrust(reason: string): void {
    this.#faults++
    this.#wrong = reason
    const rest = Math.min(MAX_REST_MS, FIRST_REST_MS * 2 ** (this.#faults - 1))
    this.#restUntil = performance.now() + rest
    setTimeout(() => this.#setState(), rest + 1).unref()
    this.#options.log.warn({ member: this.name, reason, seconds: rest / 1000 }, 'a member gets no requests for a while')
    this.#setState()
  }

  /** Stops or resumes sending requests there. */
  hold(isHeld: boolean): void {
    this.#isHeld = isHeld
    this.#setState()
    this.#touch('figures')
  }

  trust(): void {
    this.#faults = 0
  }

  /** A model that warms up counts as loading until it has answered. @param key as `modelKey` returns it */
  warmUp(key: string, isWarming: boolean): void {
    if (isWarming) this.#warming.add(key)
    else if (this.#warming.delete(key)) this.#readModels()
  }

  /** The node reported that it lacks a model, so it gets no requests for the model until it reports otherwise. */
  lacks(key: string): void {
    this.models.delete(key)
    this.#touch('models')
  }

  /** The node now has this model. Its own report may arrive a moment later. */
  learn(model: DescribedModel): void {
    this.models.set(model.key, model)
    this.#byName.set(model.publicName, model)
    this.#touch('models')
  }

  /** Sets which files count for each model. */
  refresh(accepted: AcceptedFiles): void {
    this.#accepted = accepted
    this.#readModels()
  }

  /** Returns the record of `GET /api/cluster`. @param notes differences from other nodes */
  record(notes: readonly string[]): MemberRecord {
    this.#record ??= this.#makeRecord()
    const all = [...this.#record.notes, ...notes]
    return notes.length === 0 ? this.#record : { ...this.#record, notes: all }
  }

  /** When it entered its state. */
  get since(): Date {
    return this.#since
  }

  get version(): string | undefined {
    return this.#records.all('server')[0]?.version
  }

  get build(): string | undefined {
    return this.#records.all('build')[0]?.id
  }

  /** Returns its models in memory, under the names of this server. */
  held(getName: (key: string) => string | undefined): { running: RunningRecord[]; loading: LoadingRecord[] } {
    const running: RunningRecord[] = []
    const loading: LoadingRecord[] = []
    if (this.#link === 'away') return { running, loading }
    for (const engine of this.#engines) {
      const key = this.#byName.get(engine.name)?.key
      const name = key === undefined || !this.#isAccepted(key) ? undefined : getName(key)
      if (name === undefined) continue
      const named = { name, model: name, member: this.name }
      if (engine.state === 'loaded') {
        const { state: _, ...record } = engine
        running.push({ ...record, ...named })
      } else loading.push({ ...engine, ...named })
    }
    return { running, loading }
  }

  /** Ends the connection to its feed. Its answers continue, then its connections are closed. */
  leave(): void {
    this.#closed.abort()
    this.#attempt.abort()
    this.#first()
  }

  async close(): Promise<void> {
    this.leave()
    await this.connection.close()
  }

  /** Its own engines. A node that has nodes itself also reports theirs, perhaps under the same names. */
  get #engines() {
    return this.#records.all('engine').filter(engine => !('member' in engine))
  }

  async #follow(): Promise<void> {
    const { silence } = this.#options
    let wait = FIRST_WAIT_MS
    /** Milliseconds without a sign of life: since the last one, and of this connection. */
    let quiet = 0
    let still = 0
    let isSilent = false
    // Ticks are counted, so silence while this process is stopped does not count (SIGSTOP, a laptop that sleeps).
    const clock = setInterval(() => {
      quiet += TICK_MS
      still += TICK_MS
      if (quiet >= silence && quiet < silence + TICK_MS) this.#lose()
      isSilent = still >= silence
      if (isSilent) this.#attempt.abort()
    }, TICK_MS)
    while (!this.#closed.signal.aborted) {
      this.#attempt = new AbortController()
      const { signal } = this.#attempt
      still = 0
      isSilent = false
      let reason = 'it ended its event feed'
      try {
        await this.#readFeed(signal, () => {
          quiet = 0
          still = 0
          if (this.#link === 'up') wait = FIRST_WAIT_MS
        })
      } catch (error) {
        reason = error instanceof LinkFault ? error.message : connectionFault(error)
        if (isSilent) reason = this.#silence()
        else if (signal.aborted) reason = this.#reason
        // A refusal is a sign of life: perhaps it finishes its answers before it stops.
        else if (!isUnreachable(error)) quiet = 0
      }
      if (this.#closed.signal.aborted) break
      this.#setLink('away', reason)
      this.#first()
      // The first retry is immediate, because perhaps only its feed was interrupted.
      const pause = wait === FIRST_WAIT_MS && !isSilent ? 20 : wait * (0.75 + Math.random() / 2)
      await sleep(pause, undefined, { signal: this.#closed.signal }).catch(() => {})
      wait = Math.min(MAX_WAIT_MS, wait * 2)
    }
    clearInterval(clock)
  }

  #silence(): string {
    return `it has sent nothing for ${Math.round(this.#options.silence / 1000)} s`
  }

  /** Its requests are lost too. This decides it for all of them. */
  #lose(): void {
    const reason = this.#silence()
    this.#setLink('away', reason)
    const lost = this.#presence
    this.#presence = createPresence()
    lost.abort(new LinkFault(reason))
    this.#attempt.abort()
  }

  async #readFeed(signal: AbortSignal, heard: () => void): Promise<void> {
    const reply = await this.connection.send('GET', EVENTS_PATH, { signal })
    if (reply.status !== 200) throw new LinkFault(await toRefusal(reply.status, reply.body))
    if (!/event-stream/.test(String(reply.headers['content-type']))) {
      reply.body.on('error', () => {}).destroy()
      throw new LinkFault('what answers at its address is not a corral')
    }
    const lines = new SseParser()
    this.#records = new StateRecords()
    let isKnown = false
    for await (const chunk of reply.body) {
      // Heartbeats alone, which are comments, do not prove that it is a node: it sends a description first.
      if (isKnown || chunk[0] !== COMMENT) heard()
      for (const payload of lines.push(chunk)) {
        heard()
        const touched = this.#apply(payload)
        if (!isKnown) {
          this.#verify()
          await this.#describe(signal, heard, true)
          isKnown = true
          this.#readModels()
          this.#setLink('up', '')
          this.#first()
        } else {
          if (touched.has('model')) await this.#describe(signal, heard)
          if (touched.has('model') || touched.has('engine') || touched.has('memory')) this.#readModels()
          this.#setState()
          this.#touch('figures')
        }
      }
    }
    if (!isKnown) throw new LinkFault('it ended its event feed before sending anything')
  }

  #apply(payload: string): Set<StateTopic> {
    try {
      return this.#records.apply(JSON.parse(payload))
    } catch {
      throw new LinkFault('its event feed cannot be read, so what answers at its address is not a corral')
    }
  }

  /** @throws LinkFault if this server cannot be a node */
  #verify(): void {
    const [server] = this.#records.all('server')
    if (!server)
      throw new LinkFault('its event feed does not describe a server, so what answers at its address is not a corral')
    const { id, version } = server
    if (typeof id !== 'string') {
      throw new LinkFault(`it runs corral ${version}, which cannot be a member. Upgrade it to ${ownVersion}`)
    }
    if (id === serverId) throw new LinkFault('it is this server itself. Remove it from the list of members')
    const twin = this.#options.findTwin(this, id)
    if (twin) throw new LinkFault(`it is the same server as member "${twin.name}". Remove one of them from the list`)
    if (this.#records.all('requests').length === 0) {
      throw new LinkFault(`its key belongs to a user. Make one there with "corral key create <name> --role operator"`)
    }
    this.id = id
  }

  /** Asks for the descriptions of its unknown models. */
  async #describe(signal: AbortSignal, heard: () => void, again = false): Promise<void> {
    const listed = this.#records.all('model').filter(({ format }) => format !== 'cluster')
    const known = again ? new Map<string, DescribedModel>() : this.#byName
    const isSame = ({ name, digest, modified_at }: (typeof listed)[number]) => {
      const model = known.get(name)
      return model?.digest === digest && model.modifiedAt === modified_at
    }
    const names = listed.filter(model => !isSame(model)).map(({ name }) => name)
    const found: DescribedModel[] = []
    for (let from = 0; from < names.length; from += MAX_DESCRIBED) {
      const body = { models: names.slice(from, from + MAX_DESCRIBED) }
      const reply = await this.connection.send('POST', DESCRIBE_PATH, { body, signal })
      const chunks: Buffer[] = []
      for await (const chunk of reply.body) {
        heard()
        chunks.push(chunk)
      }
      if (reply.status !== 200) {
        const why = reply.status === 404 ? `upgrade it to ${ownVersion}` : `status ${reply.status}`
        throw new LinkFault(`it runs corral ${this.version}, which does not describe its models to a gateway: ${why}`)
      }
      found.push(...(JSON.parse(Buffer.concat(chunks).toString()).models as DescribedModel[]))
    }
    const kept = listed.filter(isSame).map(({ name }) => known.get(name)!)
    const all = [...kept, ...found]
    const isChanged = again || found.length > 0 || all.length !== this.models.size
    if (!isChanged) return
    this.#byName = new Map(all.map(model => [model.publicName, model]))
    this.models = new Map(all.map(model => [model.key, model]))
    this.#touch('models')
  }

  #isAccepted(key: string): boolean {
    const digest = this.models.get(key)?.digest
    return digest !== undefined && this.#accepted.get(key)?.has(digest) === true
  }

  #readModels(): void {
    const before = this.view.models
    const models = new Map<string, NodeModel>()
    const pinned = new Set(this.#records.all('model').flatMap(({ name, pinned }) => (pinned ? [name] : [])))
    for (const { key, publicName, size, modes } of this.models.values()) {
      if (!this.#isAccepted(key)) continue
      for (const mode of modes) {
        const id = modelKey(key, mode)
        const stored = { state: 'stored', size, slots: 0, context: 0, running: 0, queued: 0 } as const
        const model: NodeModel = before.get(id) ?? { ...stored }
        models.set(id, Object.assign(model, stored, { pinned: pinned.has(publicName) }))
      }
    }
    const reported = new Map<string, Reported>()
    for (const engine of this.#engines) {
      const key = this.#byName.get(engine.name)?.key
      const id = key === undefined ? '' : modelKey(key, engine.mode as EngineMode)
      const model = models.get(id)
      if (!model) continue
      if (engine.state === 'loaded') {
        const isUsed = engine.running > 0 || engine.generated_tokens > (this.#generated.get(id) ?? 0)
        this.#generated.set(id, engine.generated_tokens)
        Object.assign(model, {
          state: this.#warming.has(id) ? 'loading' : 'loaded',
          size: engine.size,
          slots: engine.slots,
          context: engine.context_length,
          ...(engine.prompt_cache && { storedTokens: engine.prompt_cache.tokens }),
          expires: engine.expires_at.startsWith(NEVER_PREFIX) ? Number.POSITIVE_INFINITY : momentAt(engine.expires_at),
          options: { num_ctx: engine.options.num_ctx, num_parallel: engine.options.num_parallel },
          ...(isUsed && { usedAt: performance.now() })
        })
      } else {
        // If no client waits, it will be unloaded, or it is a replica that waits for free memory: a request would evict
        // other models for it. If clients wait, it will be loaded.
        const isVague = UNLOADED_STATES.has(engine.state) && engine.queued === 0
        model.state = isVague ? 'stored' : 'loading'
      }
      const { running = 0 } = engine as { running?: number }
      reported.set(id, { running, queued: engine.queued, sentThen: this.#sent.get(id) ?? 0 })
    }
    for (const id of this.#reported.keys()) {
      if (reported.has(id)) continue
      this.#generated.delete(id)
      this.#options.unloaded(this, id)
    }
    this.#reported = reported
    const isSame = before.size === models.size && [...models].every(([id, model]) => before.get(id) === model)
    this.view.memory = this.#records.all('memory')
    if (!isSame) this.view.models = models
    for (const id of models.keys()) this.#count(id)
    this.#touch(isSame ? 'figures' : 'state')
  }

  /** Computes a model's load at the node: the node's report plus all later requests. */
  #count(id: string): void {
    const model = this.view.models.get(id)
    if (!model) return
    const sent = this.#sent.get(id) ?? 0
    const { running, queued, sentThen } = this.#reported.get(id) ?? { running: 0, queued: 0, sentThen: 0 }
    const total = Math.max(sent, running + queued + sent - sentThen)
    model.running = Math.min(total, model.slots || total)
    model.queued = total - model.running
  }

  #setLink(link: 'up' | 'away', reason: string): void {
    const fields = { member: this.name, url: this.connection.url }
    const known = this.#link === link && this.#reason === reason
    if (link === 'up') {
      if (!known) this.#options.log.info(fields, 'a member is up')
      this.#restUntil = 0
    } else {
      if (!known) this.#options.log.warn({ ...fields, reason }, 'a member is away')
      this.id = undefined
    }
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

  #stateNow(): NodeView['state'] {
    if (this.#link === 'away' || this.#restUntil > performance.now()) return 'away'
    return this.#isHeld || this.#records.all('server')[0]?.draining ? 'draining' : 'up'
  }

  #touch(what: 'state' | 'models' | 'figures'): void {
    this.#record = undefined
    this.#options.changed(this, what)
  }

  #makeRecord(): MemberRecord {
    const { version, build } = this
    const engines = this.#link === 'away' ? [] : this.#engines
    const running = engines.filter(engine => engine.state === 'loaded')
    const names = (models: Iterable<{ key: string; publicName: string }>) =>
      [...models].filter(({ key }) => this.#isAccepted(key)).map(({ publicName }) => publicName)
    const loaded = running.flatMap(({ name }) => this.#byName.get(name) ?? [])
    const reason = this.#link === 'away' ? this.#reason : this.#restUntil > performance.now() ? this.#wrong : undefined
    const others = [...this.models.values()].filter(({ key }) => !this.#isAccepted(key) && !isOtherRevision(key))
    return {
      name: this.name,
      url: this.connection.url,
      source: this.source,
      state: this.view.state,
      ...(reason !== undefined && { reason: sentence(reason) }),
      notes: [
        ...(version === undefined || version === ownVersion
          ? []
          : [`It runs corral ${version}, and this server runs ${ownVersion}.`]),
        ...(this.#isHeld
          ? [
              "Only this server has stopped sending requests there, because its key there is an operator's. For the " +
                'member to refuse all requests, create a key there ("corral key create front --role admin"), set it here as ' +
                'the key of this member, and drain it again. Or run "corral drain" there.'
            ]
          : []),
        ...others.map(
          ({ publicName }) => `Its model ${publicName} has other files than at other members, and gets no requests.`
        )
      ],
      since: this.#since.toISOString(),
      ...(version !== undefined && { version }),
      ...(build !== undefined && { build }),
      models: names(this.models.values()).sort(),
      loaded: [...new Set(names(loaded))].sort(),
      slots: sum(running.map(({ slots }) => slots)),
      running: sum(running.map(({ running }) => running)),
      queued: sum(engines.map(({ queued }) => queued)),
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

/** All requests to a node listen to it. */
function createPresence(): AbortController {
  const presence = new AbortController()
  setMaxListeners(0, presence.signal)
  return presence
}

const sentence = (text: string) => `${text[0]?.toUpperCase()}${text.slice(1)}${text.endsWith('.') ? '' : '.'}`

const WRONG_KEY =
  'it refuses the key that this server uses. Make one there with "corral key create <name> --role operator"'
/** Explains a node's refusal, and what to do. Others explain themselves. */
const REFUSALS: Partial<Record<ErrorCode, string>> = {
  unauthorized: WRONG_KEY,
  forbidden_role: WRONG_KEY,
  rate_limited: 'too many clients follow its events, or it got too many wrong keys. It is asked again',
  shutting_down: 'it is shutting down',
  invalid_request: `its version is too old to be a member. Upgrade it to ${ownVersion}`
}

async function toRefusal(status: number, body: Readable): Promise<string> {
  const failure = parseFailedReply(await text(body).catch(() => ''), {})
  if (!failure) return `what answers at its address is not a corral (status ${status})`
  return REFUSALS[failure.code] ?? `it refuses: ${failure.message.replace(/\.$/, '')}`
}

function sum(numbers: Iterable<number>): number {
  let total = 0
  for (const number of numbers) total += number
  return total
}
