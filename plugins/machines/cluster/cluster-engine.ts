import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { text } from 'node:stream/consumers'
import { GROWN_CONTEXT, UNENFORCED_SCHEMA } from '../../../core/answers/answer-headers.ts'
import { promptTokens } from '../../../core/answers/engine-call.ts'
import { eventsIn, setGenerated } from '../../../core/answers/generated-tokens.ts'
import type { HeldElsewhere } from '../../../core/contracts/built-in-services.ts'
import type {
  AnswerControls,
  AnswerSink,
  Delta,
  Engine,
  EngineExit,
  EngineFields,
  EngineMode,
  EngineProvider,
  EngineSpec,
  RankingReply
} from '../../../core/contracts/engines.ts'
import type { Operation } from '../../../core/contracts/hooks.ts'
import type { LeaseRequest } from '../../../core/contracts/leases.ts'
import type { Capability, Catalog, Model } from '../../../core/contracts/models.ts'
import type { ModelPreview, RunningRecord } from '../../../core/contracts/native-records.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { forwardedHeaders } from '../../../core/http/forwarded-headers.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../../core/models/load-options.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { listModes, listOperations } from '../../../core/models/model-operations.ts'
import { withResolver } from '../../../core/system/abort-signals.ts'
import { getOrAdd, merged } from '../../../core/system/collections.ts'
import {
  type AskBody,
  type OnceCall,
  parsed,
  passLines,
  type ReadPieces,
  readDeltas,
  readEvents,
  readPiece,
  USED_TRAILER,
  unpackVectors,
  usedOfText
} from './asking/ask-protocol.ts'
import { ContinuedAnswer, type Ending, hasAnswerContent } from './asking/continued-answer.ts'
import type { Copies } from './copying/copies.ts'
import { type Asking, askNode, dispatch, NodeFault, throwIfAborted } from './dispatch.ts'
import { type ClusterNode, NEVER_PREFIX } from './nodes/node.ts'
import type { NodeAnswer } from './nodes/node-connection.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { modelKey } from './placement/choose-node.ts'
import { ALL, type ReplicaKeeper } from './replica-keeper.ts'

/** The capability that a mode needs, if no node has described the model. */
const NEEDED: Record<string, Capability> = { chat: 'completion', embedding: 'embedding', rerank: 'rerank' }

export function clusterProvider(
  members: ClusterNodes,
  copies: Copies,
  replicas: Pick<ReplicaKeeper, 'records' | 'wanted'>,
  find: Catalog['find']
): EngineProvider {
  /** Keys of models whose nodes do not send bytes. */
  const withoutBytes = new Set<string>()
  const standIns = new WeakMap<Model, Map<EngineMode, Engine>>()

  /** Sends a request to each node that has the model in memory. Nodes that do not answer are ignored. */
  async function atEach(variant: Model, path: string, body: (name: string) => object): Promise<boolean> {
    const holders = members.all().filter(member => isHeld(member.view.models, variant))
    const done = await Promise.all(
      holders.map(async member => {
        const name = members.nameAt(member, variant)
        if (name === undefined) return false
        try {
          await member.tell(path, { body: body(name) })
          return true
        } catch {
          // The node refused, or it is gone with its models.
          return false
        }
      })
    )
    return done.includes(true)
  }

  return {
    name: 'cluster',
    serves({ format, key, metadata }, mode) {
      if (format !== 'cluster') return 0
      const described = members.all().flatMap(({ models }) => models.get(key) ?? [])
      const isServed =
        described.length === 0
          ? metadata.capabilities.includes(NEEDED[mode] ?? mode)
          : described.some(({ modes }) => modes.includes(mode))
      return isServed ? 1 : 0
    },
    // Nodes load models. The options of a request are sent along with it.
    loadOptions: () => ({}),
    start: async spec => createClusterEngine(spec, members, copies, withoutBytes),
    elsewhere() {
      const held = members.elsewhere()
      return {
        ...held,
        loading: [...held.loading, ...copies.loading()],
        replicas: replicas.records(),
        wanted: replicas.wanted(ALL)
      }
    },
    held: () => heldModels(members, find),
    async previewElsewhere(variant, options) {
      const [member] = members
        .all()
        .filter(({ view, models }) => view.state === 'up' && models.has(variant.key))
        .sort((a, b) => Number(isHeld(b.view.models, variant)) - Number(isHeld(a.view.models, variant)))
      if (!member) return undefined
      const body = { model: members.nameAt(member, variant), options }
      const reply = await member.call('/api/models/preview', { body }).catch(() => undefined)
      if (!reply) return undefined
      const { load, limited, memory: use, fits } = parsed(await text(reply.body)) as ModelPreview
      return { options: load, ...(limited && { limited }), ...(use && fits && { use, fits }) }
    },
    standIn(variant, mode, slots) {
      if (variant.format === 'cluster') return undefined
      const key = modelKey(variant.key, mode)
      const isFree = members.view.hosts(key).all.some(({ member, model }) => {
        const { name, isGuest, state } = member
        const isReady = isGuest && state === 'up' && model.state === 'loaded'
        if (!isReady || model.slots - model.running - model.queued < slots) return false
        return members.get(name)?.models.get(variant.key)?.digest === variant.digest
      })
      if (!isFree) return undefined
      const engines = getOrAdd(standIns, variant, () => new Map<EngineMode, Engine>())
      const spec = { alias: variant.publicName, mode, variant, options: DEFAULT_LOAD_OPTIONS }
      return getOrAdd(engines, mode, () => createClusterEngine(spec, members, copies, withoutBytes))
    },
    unload: variant => atEach(variant, '/api/stop', model => ({ model })),
    keepAlive(variant, ms) {
      void atEach(variant, '/api/generate', model => ({ model, keep_alive: ms / 1000, stream: false }))
    }
  }
}

/** Returns the models in the nodes' memory, as the scheduler lists its own. */
function heldModels(members: ClusterNodes, find: Catalog['find']): HeldElsewhere {
  const { running, loading } = members.held()
  // A model of the same name that is stored here is not theirs.
  const named = <Row>({ name }: { name: string }, toRow: (variant: Model) => Row[]) => {
    const variant = find(parseModelName(name))
    return variant?.format === 'cluster' ? toRow(variant) : []
  }
  return {
    running: running.flatMap(record =>
      named(record, variant => {
        const member = members.get(record.member!)
        const engine = member && heldEngine(members, member, variant, record)
        if (!engine) return []
        const { mode, options } = engine.spec
        const expiresAt = record.expires_at.startsWith(NEVER_PREFIX) ? undefined : new Date(record.expires_at)
        const { running, queued } = record
        return [{ variant, mode, engine, reserved: {}, options, expiresAt, running, queued }]
      })
    ),
    loading: loading.flatMap(record =>
      named(record, variant => {
        const { mode, progress: fraction, queued } = record
        const state = record.state === 'copying' ? 'loading' : record.state
        const progress = fraction === undefined ? undefined : { phase: 'loading' as const, subject: '', fraction }
        return [{ variant, mode, state, progress, queued }]
      })
    )
  }
}

/** A node's engine, to read its state. It answers nothing. */
function heldEngine(members: ClusterNodes, member: ClusterNode, variant: Model, record: RunningRecord): Engine {
  const { mode, options, context_length, slots, generated_tokens } = record
  const ask = async <Value>(call: OnceCall, signal: AbortSignal): Promise<Value | undefined> => {
    const name = members.nameAt(member, variant) ?? ''
    const asking = { variant, body: { mode, call }, by: {} }
    const read = readPiece<Value | null>
    // One signal may serve many engines.
    setMaxListeners(0, signal)
    const value = await askNode(member, name, asking, [signal], read).catch(() => signal.throwIfAborted())
    return value ?? undefined
  }
  const engine: Engine = {
    id: `${member.name}/${variant.key}#${mode}`,
    provider: 'cluster',
    spec: { alias: variant.publicName, mode, variant, options },
    contextSize: context_length,
    slots,
    memory: undefined,
    properties: async ({ signal }) => (await ask<EngineFields>('properties', signal)) ?? {},
    slotStates: ({ signal }) => ask('slotStates', signal),
    exited: new Promise(() => {}),
    stop: async () => {},
    logTail: () => []
  }
  setGenerated(engine, generated_tokens)
  return engine
}

const isHeld = (models: ReadonlyMap<string, { state: string }>, model: Model) =>
  listModes(model).some(mode => {
    const state = models.get(modelKey(model.key, mode))?.state
    return state === 'loaded' || state === 'loading'
  })

/** Maximum concurrent requests. Nodes have their own queues, which share their slots between clients. */
const SLOTS = 65_536

function createClusterEngine(
  spec: EngineSpec,
  members: ClusterNodes,
  copies: Copies,
  withoutBytes: Set<string>
): Engine {
  const stopped = new AbortController()
  // Each request listens.
  setMaxListeners(0, stopped.signal)
  const { promise: exited, resolve: end } = withResolver<EngineExit>()
  const { variant, mode } = spec
  const key = modelKey(variant.key, mode)
  const operations = new Set([...listOperations(variant), ...(mode === 'chat' ? ['transcribe'] : [])])
  const base: Engine = {
    id: randomUUID(),
    provider: 'cluster',
    spec,
    get contextSize() {
      const contexts = members.view.hosts(key).all.map(({ model }) => model.context)
      return (
        Math.max(0, ...contexts) ||
        Math.min(spec.options.num_ctx, variant.metadata.contextLength ?? Number.POSITIVE_INFINITY)
      )
    },
    slots: SLOTS,
    memory: undefined,
    exited,
    async stop() {
      stopped.abort(
        new CorralError('model_stopped', `The model "${spec.alias}" was stopped. Send the request again to load it.`)
      )
      end({ code: null, signal: null, expected: true })
    },
    logTail: () => []
  }

  async function forRequest(request: LeaseRequest, signal: AbortSignal): Promise<Engine> {
    const { calls, load } = callsFor(request)
    if (request.loadOnly) await load(signal)
    return Object.assign(Object.create(base) as Engine, calls)
  }

  function callsFor(by: Partial<LeaseRequest>) {
    const keepAlive = by.keepAlive === undefined || Number.isFinite(by.keepAlive) ? by.keepAlive : -1000
    // JSON omits what is undefined.
    const common = {
      ...{ mode, options: by.options, slots: by.slots, idle: by.idle || undefined },
      keep_alive: keepAlive && keepAlive / 1000
    }
    const toAsking = (body: Asking['body'], tried: Set<string>, sink?: AnswerSink<never>): Asking => ({
      ...{ variant, mode, body: merged(common, body), tried },
      headers: sink && forwardedHeaders(sink),
      by: sink?.owner === undefined ? by : merged(by, { owner: sink.owner })
    })
    /** Reports which options the node has clamped, its grown context, and which parts of a schema it does not enforce. */
    const reportHeaders = ({ headers }: NodeAnswer) => {
      const clamped = headers['x-corral-clamped']
      if (typeof clamped === 'string') by.onClamped?.(clampedOptions(clamped))
      const context = headers[GROWN_CONTEXT]
      if (typeof context === 'string') by.onGrown?.(context)
      const unenforced = headers[UNENFORCED_SCHEMA]
      if (typeof unenforced === 'string') by.onUnenforcedSchema?.(unenforced)
    }
    const ask = <Answer>(
      body: Asking['body'],
      signal: AbortSignal,
      read: (reply: NodeAnswer) => Promise<Answer>,
      tried: Iterable<string> = []
    ) =>
      dispatch(members, copies, toAsking(body, new Set(tried)), [signal, stopped.signal], async reply => {
        reportHeaders(reply)
        return await read(reply)
      })

    /**
     * Streams a node's answer. If the node is lost before it has sent any content, another one is asked. If it is lost
     * later, another one continues the answer if the client wants that (`resumable`).
     * @param kept stores the deltas of an answer so that it can be continued
     */
    async function stream<Piece extends readonly Delta[] | Buffer>(
      call: Operation,
      request: EngineFields,
      sink: AnswerSink<Piece>,
      more: Pick<AskBody, 'bytes' | 'whole' | 'count_each' | 'stop_text' | 'native'>,
      read: ReadPieces<Piece>,
      kept?: ContinuedAnswer
    ): Promise<void> {
      const signals = [sink.signal, stopped.signal]
      const tried = new Set<string>()
      let begun = false
      /** Pieces without content. They would be sent twice if another node were asked. */
      let held: Piece[] = []
      const pass = (piece: Piece) => {
        const joined = (kept && !Buffer.isBuffer(piece) ? kept.join(piece) : piece) as Piece
        if (joined.length === 0) return undefined
        keep(joined)
        return sink.take(joined)
      }
      const keep = (piece: Piece, begun = true) => {
        if (!Buffer.isBuffer(piece)) kept?.keep(piece, begun)
      }
      const passAll = async (pieces: readonly Piece[]) => {
        for (const piece of pieces) await pass(piece)
      }
      const take = (piece: Piece) => {
        if (!begun && !hasAnswerContent(piece)) {
          if (!isProgress(piece)) return void held.push(piece)
          keep(piece, false)
          return sink.take(piece)
        }
        if (!begun) sink.controlled?.(controls)
        begun = true
        return held.length > 0 ? passAll([...held.splice(0), piece]) : pass(piece)
      }
      /** The current node and the name under which the answer can be controlled there. */
      let answering: { member: ClusterNode; asking: Asking } | undefined
      const control = sink.controlled && randomUUID()
      const controls: AnswerControls = {
        async endThought({ signal }) {
          const name = answering && members.nameAt(answering.member, variant)
          if (!answering || name === undefined) return { success: false, message: 'no active completion for this id' }
          const { member, asking } = answering
          const ended = merged(asking, { body: { call: 'endThought' as const, control } })
          return await askNode(member, name, ended, [signal], readPiece<{ success: boolean }>).catch(error => {
            throw error instanceof NodeFault ? error.outcome : error
          })
        }
      }
      /** Completes an answer that was cut off after its last token. */
      async function end(kept: ContinuedAnswer, { completionTokens, prompt }: Ending): Promise<void> {
        const read =
          prompt?.promptTokens ?? (await promptTokens(calls, call, request, 0, sink.signal).catch(() => undefined))
        throwIfAborted(signals)
        const usage = { promptTokens: read ?? 0, cachedTokens: prompt?.cachedTokens ?? 0, completionTokens }
        const last: readonly Delta[] | Buffer = kept.lastDeltas(usage)
        if (last.length > 0) await sink.take(last as Piece)
      }
      let asked = request
      let lost: CorralError | undefined
      for (;;) {
        const asking = toAsking(merged(more, { call, request: asked, control }), tried, sink)
        try {
          const readAll = async (reply: NodeAnswer, member: ClusterNode) => {
            reportHeaders(reply)
            held = []
            answering = { member, asking }
            await read(reply, take)
          }
          await dispatch(members, copies, asking, signals, readAll, () => begun)
          return await passAll(held)
        } catch (error) {
          throwIfAborted(signals)
          if (!(error instanceof NodeFault)) throw lost ?? error
          lost ??= error.outcome
        }
        if (!kept) throw lost
        const tokens = await elsewhere<{ tokens: number[] }>('tokenize', { content: kept.text }, tried, sink.signal)
        const ending = kept.ending(tokens?.tokens.length ?? 0)
        if (ending) return await end(kept, ending)
        const next = tokens && kept.continuation(tokens.tokens)
        if (!next) throw lost
        // A template that truncates or omits the text would generate it again.
        const prompt = next.ending && (await elsewhere<string>('applyTemplate', next.request, tried, sink.signal))
        if (!prompt?.endsWith(next.ending)) throw lost
        asked = next.request
      }
    }

    /** Asks a node for one piece. @param tried names of nodes that are not asked */
    const once = <Value>(call: OnceCall, request: EngineFields, signal: AbortSignal, tried: Iterable<string> = []) =>
      ask({ call, request }, signal, reply => readPiece<Value>(reply), tried)

    const elsewhere = <Value>(call: OnceCall, request: EngineFields, tried: Iterable<string>, signal: AbortSignal) =>
      once<Value>(call, request, signal, tried).catch((): undefined => {
        // If the client ended the request, it gets the reason.
        throwIfAborted([signal, stopped.signal])
      })

    const deltas = (call: Operation) => (request: EngineFields, sink: AnswerSink) => {
      const { whole = false, countEach = false, stopText = false, native = false } = sink
      const more = { whole, count_each: countEach, stop_text: stopText, native }
      const text = by.resumable && !native && (['chat', 'completion'] as const).find(each => each === call)
      const kept = text ? new ContinuedAnswer(text, request) : undefined
      return stream(call, request, sink, more, readDeltas, kept)
    }

    const bytes = (call: Operation) => async (request: EngineFields, sink: AnswerSink<Buffer>) => {
      const told: AnswerSink<Buffer>['used'] = sink.used?.bind(sink)
      let events = 0
      let isCounted = false
      const counting = merged(sink, {
        take(chunk: Buffer) {
          events += eventsIn(chunk)
          return sink.take(chunk)
        }
      })
      try {
        const read: ReadPieces<Buffer> = async (reply, take) => {
          isCounted = false
          await readEvents(reply, take)
          usedOfText(reply.trailers[USED_TRAILER]).forEach((usage, choice) => {
            if (!usage) return
            isCounted = true
            told?.(usage, choice)
          })
        }
        await stream(call, request, counting, { bytes: true }, read)
      } catch (error) {
        if (error instanceof CorralError && error.code === 'not_implemented' && events === 0) {
          withoutBytes.add(variant.key)
          const { message } = error
          throw new CorralError('engine_crashed', message, { details: { sent: false } })
        }
        // An interrupted answer has no counts. Its first event has only the role.
        if (events > 1 && !isCounted) told?.({ promptTokens: 0, cachedTokens: 0, completionTokens: events - 1 }, 0)
        throw error
      }
    }

    // Only deltas can be continued by another node.
    const isBytes = !withoutBytes.has(variant.key) && !by.resumable
    const calls: Partial<Engine> = {
      operations: Object.fromEntries([...operations].map(name => [name, deltas(name)])),
      ...(mode === 'chat' && {
        chat: deltas('chat'),
        completion: deltas('completion'),
        // Undefined also hides those of the engine that this one is made from.
        chatBytes: isBytes ? bytes('chat') : undefined,
        completionBytes: isBytes ? bytes('completion') : undefined,
        countTokens: (request, { signal }) => once<number>('countTokens', request, signal),
        applyTemplate: (request, { signal }) => once<string>('applyTemplate', request, signal)
      }),
      ...(mode === 'embedding' && {
        async embed(inputs, { signal, ...limits }) {
          return unpackVectors(await once('embed', { input: inputs, ...limits }, signal))
        }
      }),
      ...(mode === 'rerank' && {
        rerank: (query, documents, { signal }) => once<RankingReply>('rerank', { query, documents }, signal)
      }),
      tokenize: (request, { signal }) => once<EngineFields>('tokenize', request, signal),
      detokenize: (tokens, { signal }) => once<string>('detokenize', { tokens }, signal),
      properties: async ({ signal }) => (await once<EngineFields | null>('properties', {}, signal)) ?? {}
    } as Partial<Engine>

    const load = (signal: AbortSignal) =>
      ask({ call: 'load' }, signal, async reply => {
        await passLines(reply, lines => {
          for (const line of lines) by.onProgress?.(parsed(line) as Progress)
          return undefined
        })
      })
    return { calls, load }
  }

  return Object.assign(base, callsFor({}).calls, { forRequest })
}

/** Parses `num_ctx=4096, num_parallel=2` into options. */
function clampedOptions(header: string): Partial<LoadOptions> {
  return Object.fromEntries(
    header.split(', ').map(part => {
      const [name, value] = part.split('=') as [string, string]
      return [name, Number(value)]
    })
  )
}

/** Whether a piece has the progress of prompt processing, which must be shown immediately. */
const isProgress = (piece: readonly Delta[] | Buffer): boolean =>
  Buffer.isBuffer(piece) ? piece.includes('"prompt_progress":') : piece.some(({ reading }) => reading)
