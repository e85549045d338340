import { createHmac, randomUUID } from 'node:crypto'
import { GROWN_CONTEXT, UNENFORCED_SCHEMA } from '../../../core/answers/answer-headers.ts'
import { promptTokens } from '../../../core/answers/engine-call.ts'
import { eventsIn } from '../../../core/answers/generated-tokens.ts'
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
import type { Capability, Model } from '../../../core/contracts/models.ts'
import type { OnProgress, Progress } from '../../../core/contracts/progress.ts'
import { CorralError, type ErrorCode, errorCodes } from '../../../core/errors.ts'
import { forwardedHeaders } from '../../../core/http/forwarded-headers.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { listModes, listOperations } from '../../../core/models/model-operations.ts'
import { withAnySignal, withResolver } from '../../../core/system/abort-signals.ts'
import { merged } from '../../../core/system/collections.ts'
import {
  ASK_PATH,
  type AskBody,
  FAILURE_TRAILER,
  type OnceCall,
  parseFailedReply,
  parseFailure,
  readLines,
  USED_TRAILER,
  unpackVectors,
  usedOfText,
  WrongAnswer
} from './asking/ask-protocol.ts'
import { ContinuedAnswer, type Ending, hasAnswerContent } from './asking/continued-answer.ts'
import type { Copies } from './copying/copies.ts'
import type { ClusterNode, NodeReply } from './nodes/node.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { chooseNode, modelKey } from './placement/choose-node.ts'
import { promptBlocks } from './placement/prefix-memory.ts'
import type { ReplicaKeeper } from './replica-keeper.ts'

/** The capability that a mode needs, if no node has described the model. */
const NEEDED: Record<string, Capability> = { chat: 'completion', embedding: 'embedding', rerank: 'rerank' }

export function clusterProvider(
  members: ClusterNodes,
  copies: Copies,
  replicas: Pick<ReplicaKeeper, 'records'>
): EngineProvider {
  /** Keys of models whose nodes do not send bytes. */
  const withoutBytes = new Set<string>()

  /** Sends a request to each node that has the model in memory. Nodes that do not answer are ignored. */
  async function atEach(variant: Model, path: string, body: (name: string) => object): Promise<boolean> {
    const holders = members.all().filter(member => isHeld(member.view.models, variant))
    const done = await Promise.all(
      holders.map(async member => {
        const name = members.nameAt(member, variant)
        if (name === undefined) return false
        try {
          const reply = await member.call(path, { body: body(name) })
          await reply.body.dump()
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
      return { ...held, loading: [...held.loading, ...copies.loading()], replicas: replicas.records() }
    },
    unload: variant => atEach(variant, '/api/stop', model => ({ model })),
    keepAlive(variant, ms) {
      void atEach(variant, '/api/generate', model => ({ model, keep_alive: ms / 1000, stream: false }))
    }
  }
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
  const { promise: exited, resolve: end } = withResolver<EngineExit>()
  const { variant, mode } = spec
  const key = modelKey(variant.key, mode)
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
    const asked = callsFor(request)
    if (request.loadOnly) await asked.load(request, signal)
    return Object.assign(Object.create(base) as Engine, asked.calls)
  }

  function callsFor(by: Partial<LeaseRequest>) {
    const untilStopped = <T>(signal: AbortSignal, use: (signal: AbortSignal) => Promise<T>) =>
      withAnySignal([signal, stopped.signal], use)
    const toAsking = (body: Asking['body']): Asking => ({
      variant,
      mode,
      body: {
        mode,
        ...(by.options && { options: by.options }),
        ...(by.keepAlive !== undefined && { keep_alive: Number.isFinite(by.keepAlive) ? by.keepAlive / 1000 : -1 }),
        ...(by.slots !== undefined && { slots: by.slots }),
        ...(by.idle && { idle: true }),
        ...body
      },
      owner: by.owner,
      turn: by.turn,
      session: by.session,
      onProgress: by.onProgress
    })
    /** Reports which options the node has clamped, its grown context, and which parts of a schema it does not enforce. */
    const reportHeaders = ({ headers }: NodeReply) => {
      const clamped = headers['x-corral-clamped']
      if (typeof clamped === 'string') by.onClamped?.(clampedOptions(clamped))
      const context = headers[GROWN_CONTEXT]
      if (typeof context === 'string') by.onGrown?.(context)
      const unenforced = headers[UNENFORCED_SCHEMA]
      if (typeof unenforced === 'string') by.onUnenforcedSchema?.(unenforced)
    }

    /**
     * Streams a node's answer. If the node is lost before it has sent any content, another one is asked. If it is lost
     * later, another one continues the answer if the client wants that (`resumable`).
     * @param kept stores the deltas of an answer so that it can be continued
     */
    async function stream<Piece extends readonly Delta[] | Buffer>(
      call: Operation,
      request: EngineFields,
      sink: AnswerSink<Piece>,
      signal: AbortSignal,
      more: Pick<AskBody, 'bytes' | 'whole' | 'count_each' | 'stop_text' | 'native'>,
      read: (reply: NodeReply, take: (piece: Piece) => Promise<void>) => Promise<void>,
      kept?: ContinuedAnswer
    ): Promise<void> {
      const tried = new Set<string>()
      let begun = false
      /** Pieces without content. They would be sent twice if another node were asked. */
      let held: Piece[] = []
      const pass = async (piece: Piece) => {
        const joined = (kept && !Buffer.isBuffer(piece) ? kept.join(piece) : piece) as Piece
        if (joined.length === 0) return
        keep(joined)
        await sink.take(joined)
      }
      const keep = (piece: Piece, begun = true) => {
        if (!Buffer.isBuffer(piece)) kept?.keep(piece, begun)
      }
      const take = async (piece: Piece) => {
        if (!begun && !hasAnswerContent(piece)) {
          if (!isProgress(piece)) return void held.push(piece)
          keep(piece, false)
          return await sink.take(piece)
        }
        if (!begun) sink.controlled?.(controls)
        begun = true
        for (const early of held.splice(0)) await pass(early)
        await pass(piece)
      }
      /** The current node and the name under which the answer can be controlled there. */
      let answering: { member: ClusterNode; asking: Asking } | undefined
      const control = sink.controlled && randomUUID()
      const controls: AnswerControls = {
        async endThought({ signal }) {
          const name = answering && members.nameAt(answering.member, variant)
          if (!answering || name === undefined) return { success: false, message: 'no active completion for this id' }
          const { member, asking } = answering
          const body = { call: 'endThought' as const, control }
          return await askNode(member, { ...asking, body, name }, signal, readPiece<{ success: boolean }>).catch(
            error => {
              throw error instanceof NodeFault ? error.outcome : error
            }
          )
        }
      }
      /** Completes an answer that was cut off after its last token. */
      async function end(kept: ContinuedAnswer, { completionTokens, prompt }: Ending): Promise<void> {
        const read =
          prompt?.promptTokens ?? (await promptTokens(calls, call, request, 0, signal).catch(() => undefined))
        signal.throwIfAborted()
        const usage = { promptTokens: read ?? 0, cachedTokens: prompt?.cachedTokens ?? 0, completionTokens }
        const last: readonly Delta[] | Buffer = kept.lastDeltas(usage)
        if (last.length > 0) await sink.take(last as Piece)
      }
      let asked = request
      let lost: CorralError | undefined
      for (;;) {
        const asking: Asking = {
          ...toAsking({ call, request: asked, ...more, ...(control !== undefined && { control }) }),
          tried,
          headers: forwardedHeaders(sink),
          owner: sink.owner ?? by.owner
        }
        try {
          await dispatch({ members, copies }, asking, signal, {
            begun: () => begun,
            async read(reply, member) {
              reportHeaders(reply)
              held = []
              answering = { member, asking }
              await read(reply, take)
            }
          })
          for (const early of held) await pass(early)
          return
        } catch (error) {
          signal.throwIfAborted()
          if (!(error instanceof NodeFault)) throw lost ?? error
          lost ??= error.outcome
        }
        if (!kept) throw lost
        const tokens = await elsewhere<{ tokens: number[] }>('tokenize', { content: kept.text }, tried, signal)
        const ending = kept.ending(tokens?.tokens.length ?? 0)
        if (ending) return await end(kept, ending)
        const next = tokens && kept.continuation(tokens.tokens)
        if (!next) throw lost
        // A template that truncates or omits the text would generate it again.
        const prompt = next.ending && (await elsewhere<string>('applyTemplate', next.request, tried, signal))
        if (!prompt?.endsWith(next.ending)) throw lost
        asked = next.request
      }
    }

    async function elsewhere<Value>(
      call: OnceCall,
      request: EngineFields,
      tried: ReadonlySet<string>,
      signal: AbortSignal
    ): Promise<Value | undefined> {
      try {
        return await once<Value>(call, request, signal, tried)
      } catch {
        // If the client ended the request, it gets the reason.
        signal.throwIfAborted()
        return undefined
      }
    }

    const deltas = (call: Operation) => (request: EngineFields, sink: AnswerSink) => {
      const { whole = false, countEach = false, stopText = false, native = false } = sink
      const more = { whole, count_each: countEach, stop_text: stopText, native }
      const text = by.resumable && !native && (['chat', 'completion'] as const).find(each => each === call)
      const kept = text ? new ContinuedAnswer(text, request) : undefined
      return untilStopped(sink.signal, signal => stream(call, request, sink, signal, more, readDeltas, kept))
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
        const read = async (reply: NodeReply, take: (chunk: Buffer) => Promise<void>) => {
          isCounted = false
          const whole = new WholeEvents()
          for await (const chunk of reply.body) {
            const events = whole.push(chunk)
            if (events) await take(events)
          }
          if (reply.trailers[FAILURE_TRAILER] === undefined) whole.requireEnd()
          usedOfText(reply.trailers[USED_TRAILER]).forEach((usage, choice) => {
            if (!usage) return
            isCounted = true
            told?.(usage, choice)
          })
        }
        await untilStopped(sink.signal, signal => stream(call, request, counting, signal, { bytes: true }, read))
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

    async function once<Value>(
      call: OnceCall,
      request: EngineFields,
      signal: AbortSignal,
      tried: Iterable<string> = []
    ): Promise<Value> {
      const asking = { ...toAsking({ call, request }), tried: new Set(tried) }
      return await untilStopped(signal, signal =>
        dispatch({ members, copies }, asking, signal, {
          begun: () => false,
          async read(reply) {
            reportHeaders(reply)
            return await readPiece<Value>(reply)
          }
        })
      )
    }

    // Only deltas can be continued by another node.
    const isBytes = !withoutBytes.has(variant.key) && !by.resumable
    const operations = new Set([...listOperations(variant), ...(mode === 'chat' ? ['transcribe'] : [])])
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

    return {
      calls,
      async load({ onProgress }: Pick<LeaseRequest, 'onProgress'>, signal: AbortSignal): Promise<void> {
        await untilStopped(signal, signal =>
          dispatch({ members, copies }, toAsking({ call: 'load' }), signal, {
            begun: () => false,
            async read(reply) {
              reportHeaders(reply)
              for await (const line of readLines(reply.body)) onProgress?.(parsed(line) as Progress)
            }
          })
        )
      }
    }
  }

  return Object.assign(base, callsFor({}).calls, { forRequest })
}

/** Reads an answer that comes in one piece. @throws WrongAnswer */
async function readPiece<Value>({ body }: NodeReply): Promise<Value> {
  return (parsed(await body.text(), 'its answer') as { value: Value }).value
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

const LINE_FEED = 10
const DONE = 'data: [DONE]'

/** Splits a byte stream into whole events, because half an event can be neither renamed nor continued. */
class WholeEvents {
  #rest: Buffer | undefined
  #last: Buffer | undefined

  push(chunk: Buffer): Buffer | undefined {
    const data = this.#rest ? Buffer.concat([this.#rest, chunk]) : chunk
    const { length } = data
    const isWhole = data[length - 1] === LINE_FEED && data[length - 2] === LINE_FEED
    const end = isWhole ? length : data.lastIndexOf('\n\n') + 2
    if (end < 2) {
      this.#rest = data
      return undefined
    }
    this.#rest = isWhole ? undefined : data.subarray(end)
    this.#last = isWhole ? data : data.subarray(0, end)
    return this.#last
  }

  requireEnd(): void {
    if (this.#rest || !this.#last?.includes(DONE)) throw new WrongAnswer('its answer ends in the middle')
  }
}

async function readDeltas(reply: NodeReply, take: (deltas: readonly Delta[]) => Promise<void>): Promise<void> {
  let isEmpty = true
  for await (const line of readLines(reply.body)) {
    const deltas = parsed(line)
    if (!Array.isArray(deltas)) throw new WrongAnswer('a line of its answer is not a list')
    isEmpty = false
    for (const delta of deltas) if (delta?.bytes) delta.bytes = Buffer.from(String(delta.bytes), 'base64')
    await take(deltas)
  }
  if (isEmpty && reply.trailers[FAILURE_TRAILER] === undefined) throw new WrongAnswer('its answer is empty')
}

function parsed(text: string, what = 'a line of its answer'): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw new WrongAnswer(`${what} is not JSON`)
  }
}

export interface Asking {
  variant: Model
  mode: EngineMode
  /** Fields sent besides the name of the model. */
  body: Omit<AskBody, 'model' | 'owner' | 'turn'>
  /** The owner of the prompt and the client, as this server knows them. */
  owner: string | undefined
  turn: string | undefined
  session: string | undefined
  onProgress?: OnProgress | undefined
  headers?: Record<string, string>
  /** Names of nodes where it has failed. Nodes that fail here are added. */
  tried?: Set<string>
}

/** The node failed or cannot answer now. Another one may. */
export class NodeFault extends Error {
  /** The error for the client if no other node can help. */
  readonly outcome: CorralError

  constructor(outcome: CorralError) {
    super(outcome.message)
    this.outcome = outcome
  }
}

/** Refusals caused by the gateway's relation to the node. Their text does not concern the client. */
const GATEWAY_FAULT_CODES: readonly ErrorCode[] = errorCodes(
  'unauthorized forbidden_role forbidden_model host_not_allowed route_not_found method_not_allowed'
)
/** Refusals that do not concern other nodes, so another one may answer. */
const RETRY_ELSEWHERE_CODES = new Set<ErrorCode>([
  ...GATEWAY_FAULT_CODES,
  ...errorCodes(
    'queue_full too_busy draining shutting_down rate_limited insufficient_memory insufficient_storage',
    'storage_not_writable load_failed load_timeout runtime_missing conversion_failed conversion_not_installed',
    'engine_crashed engine_unreachable model_not_found model_deleted model_stopped internal'
  )
])

/**
 * Asks the best node, and another node if that fails before any output.
 * @param begun whether something has reached the client
 * @param read reads the node's answer
 * @throws CorralError, or the NodeFault of a node whose answer had begun
 */
export async function dispatch<Answer>(
  { members, copies }: { members: ClusterNodes; copies: Copies },
  asking: Asking,
  signal: AbortSignal,
  { begun, read }: { begun(): boolean; read(reply: NodeReply, member: ClusterNode): Promise<Answer> }
): Promise<Answer> {
  const { variant, mode, body } = asking
  const { owner, session, onProgress, tried = new Set<string>() } = asking
  const key = modelKey(variant.key, mode)
  const prompt = promptBlocks((body.request ?? {}) as EngineFields, { model: key, owner, session })
  const unread = new Set<string>()
  let last: CorralError | undefined
  for (;;) {
    signal.throwIfAborted()
    const choice = chooseNode({ model: key, prompt, tried, unread }, members.view, members.prefixes, performance.now())
    if (choice.why === 'fetch') {
      const failure = await copies.copy(variant, choice, name => !tried.has(name), signal, onProgress)
      if (failure) last = failure.error
      if (failure?.member !== undefined) tried.add(failure.member)
      if (failure?.from !== undefined) unread.add(failure.from)
      onProgress?.({ phase: 'loading', subject: '' })
      continue
    }
    const member = choice.member && members.get(choice.member.name)
    const name = member && members.nameAt(member, variant)
    if (!member || name === undefined) throw last ?? nobody(members, variant, choice.why)
    tried.add(member.name)
    const model = member.view.models.get(key)
    if (model && isRead(body.call)) {
      const { slots, context, storedTokens } = model
      members.prefixes.read(
        { member: member.name, model: key, slots, context, storedTokens },
        prompt,
        performance.now()
      )
    }
    const end = member.begin(key)
    try {
      const answer = await askNode(member, { ...asking, name }, signal, read)
      member.trust()
      return answer
    } catch (error) {
      signal.throwIfAborted()
      if (!(error instanceof NodeFault) || begun()) throw error
      // Prefers the refusal after which a later try may help.
      if (last?.code !== 'queue_full') last = error.outcome
    } finally {
      end()
    }
  }
}

const isRead = (call: AskBody['call']) => call === 'chat' || call === 'completion'

function nobody(members: ClusterNodes, { publicName }: Model, why: string): CorralError {
  const count = members.all().length
  if (why === 'too_large') {
    return new CorralError(
      'insufficient_memory',
      `No member of this server has enough memory for "${publicName}". Free some (corral stop), or add a member.`
    )
  }
  return new CorralError(
    'engine_unreachable',
    `None of the members that have "${publicName}" can be reached now (of ${count} in all). GET /api/cluster says why. Try again in a moment.`,
    { retryAfter: 1 }
  )
}

/** Asks one node. @throws NodeFault, or the CorralError of a request that no other node would answer either */
export async function askNode<Answer>(
  member: ClusterNode,
  { name, variant, body, owner, turn, headers = {} }: Asking & { name: string },
  signal: AbortSignal,
  read: (reply: NodeReply, member: ClusterNode) => Promise<Answer>
): Promise<Answer> {
  const digest = (text: string | undefined) =>
    text && createHmac('sha256', 'corral').update(text).digest('base64url').slice(0, 32)
  let answered = false
  const sent = { ...body, model: name, owner: digest(owner), turn: digest(turn) }
  try {
    return await withAnySignal([signal, member.presence], async signal => {
      const reply = await member.connection.send('POST', ASK_PATH, { body: sent, signal, headers })
      answered = true
      if (reply.statusCode !== 200) {
        const failure = parseFailedReply(await reply.body.text(), reply.headers)
        if (!failure) member.distrust(`it answered with status ${reply.statusCode} and without an error of corral`)
        throw getFault(member, variant, failure)
      }
      const answer = await read(reply, member)
      const failure = reply.trailers[FAILURE_TRAILER]
      if (failure !== undefined) throw getFault(member, variant, parseFailure(failure))
      return answer
    })
  } catch (error) {
    if (error instanceof CorralError || error instanceof NodeFault) throw error
    if (error instanceof WrongAnswer) {
      member.distrust(error.message)
      throw new NodeFault(wrong(member, variant))
    }
    signal.throwIfAborted()
    const why = member.explain(error)
    member.suspect(why)
    throw new NodeFault(
      new CorralError(
        answered ? 'engine_crashed' : 'engine_unreachable',
        `The member "${member.name}" was lost while it answered for "${variant.publicName}": ${why}. Send the request again.`,
        answered ? {} : { retryAfter: 1 }
      )
    )
  }
}

function getFault(member: ClusterNode, variant: Model, failure: CorralError | undefined): NodeFault | CorralError {
  if (!failure) return new NodeFault(wrong(member, variant))
  const { code } = failure
  if (code === 'model_not_found' || code === 'model_deleted') member.lacks(variant.key)
  // Input that crashed one engine would crash the next one too.
  const isInput = code === 'engine_crashed' && !failure.retryable
  if (!RETRY_ELSEWHERE_CODES.has(code) || isInput) return failure
  if (!GATEWAY_FAULT_CODES.includes(code)) return new NodeFault(failure)
  member.distrust(`it refused a request (${code}): ${failure.message}`)
  return new NodeFault(wrong(member, variant))
}

const wrong = (member: ClusterNode, { publicName }: Model) =>
  new CorralError(
    'engine_crashed',
    `The member "${member.name}" did not answer for "${publicName}" as a member should. GET /api/cluster says why. Send the request again.`
  )
