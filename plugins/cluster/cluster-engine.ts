import { randomUUID } from 'node:crypto'
import type {
  AnswerSink,
  Delta,
  Engine,
  EngineExit,
  EngineFields,
  EngineSpec,
  RankingReply
} from '../../core/contracts/engines.ts'
import type { LeaseRequest } from '../../core/contracts/leases.ts'
import type { Progress } from '../../core/contracts/progress.ts'
import { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/models/load-options.ts'
import {
  type AnswerCall,
  type AskBody,
  type OnceCall,
  USED_TRAILER,
  unpackVectors,
  usedOfText
} from './asking/ask-protocol.ts'
import { type Asking, dispatch, WrongAnswer } from './asking/dispatch.ts'
import type { MemberReply } from './members/member-connection.ts'
import type { Members } from './members/members.ts'
import { modelKey } from './placement/cluster-view.ts'

/** Requests at once: members have queues of their own, which are shared between clients as they are there. */
const SLOTS = 65_536

/** What one request says beside what it asks. */
type AskedBy = Pick<
  LeaseRequest,
  'options' | 'keepAlive' | 'owner' | 'turn' | 'session' | 'slots' | 'idle' | 'onClamped'
>

/** Models whose members do not answer in bytes. */
export type WithoutBytes = Set<string>

/** An engine whose requests members answer, each the one that does it best. */
export function createClusterEngine(spec: EngineSpec, members: Members, withoutBytes: WithoutBytes): Engine {
  const stopped = new AbortController()
  let end: (exit: EngineExit) => void = () => {}
  const exited = new Promise<EngineExit>(resolve => {
    end = resolve
  })
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
      stopped.abort(new CorralError('model_stopped', `The model "${spec.alias}" was stopped.`))
      end({ code: null, signal: null, expected: true })
    },
    logTail: () => []
  }

  async function forRequest(request: LeaseRequest, signal: AbortSignal): Promise<Engine> {
    const asked = callsFor(request)
    if (request.loadOnly) await asked.load(request, signal)
    return Object.assign(Object.create(base, Object.getOwnPropertyDescriptors(base)) as Engine, asked.calls)
  }

  /** The calls of an engine, for one request. */
  function callsFor(by: Partial<AskedBy>) {
    const either = (signal: AbortSignal) => AbortSignal.any([signal, stopped.signal])
    const askingOf = (body: Asking['body']): Asking => ({
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
      session: by.session
    })
    /** Tells which options of the request the member has cut to its bounds. */
    const sayClamped = ({ headers }: MemberReply) => {
      const clamped = headers['x-corral-clamped']
      if (typeof clamped === 'string') by.onClamped?.(clampedOptions(clamped))
    }

    async function stream<Piece>(
      call: AnswerCall,
      request: EngineFields,
      sink: AnswerSink<Piece>,
      more: Pick<AskBody, 'bytes' | 'count_each' | 'stop_text' | 'native'>,
      read: (reply: MemberReply, take: (piece: Piece) => Promise<void>) => Promise<void>
    ): Promise<void> {
      let begun = false
      const take = async (piece: Piece) => {
        begun = true
        await sink.take(piece)
      }
      const asking = {
        ...askingOf({ call, request, ...more }),
        traceParent: sink.traceParent,
        owner: sink.owner ?? by.owner
      }
      await dispatch(members, asking, either(sink.signal), {
        begun: () => begun,
        async read(reply) {
          sayClamped(reply)
          await read(reply, take)
        }
      })
    }

    const deltas = (call: AnswerCall) => (request: EngineFields, sink: AnswerSink) => {
      const { countEach, stopText, native } = sink
      const more = {
        ...(countEach && { count_each: true }),
        ...(stopText && { stop_text: true }),
        ...(native && { native: true })
      }
      return stream(call, request, sink, more, readDeltas)
    }

    const bytes = (call: AnswerCall) => async (request: EngineFields, sink: AnswerSink<Buffer>) => {
      const told: AnswerSink<Buffer>['used'] = sink.used?.bind(sink)
      let events = 0
      try {
        await stream<Buffer>(call, request, sink, { bytes: true }, async (reply, take) => {
          for await (const chunk of reply.body) {
            events += eventsIn(chunk)
            await take(chunk)
          }
          events = 0
          usedOfText((reply.trailers as Record<string, unknown>)[USED_TRAILER]).forEach((usage, choice) => {
            if (usage) told?.(usage, choice)
          })
        })
      } catch (error) {
        if (error instanceof CorralError && error.code === 'not_implemented' && events === 0) {
          withoutBytes.add(variant.key)
          const { message } = error
          throw new CorralError('engine_crashed', message, { details: { sent: false } })
        }
        // One that was cut has no counts of its own; its first event says only who speaks.
        if (events > 1) told?.({ promptTokens: 0, cachedTokens: 0, completionTokens: events - 1 }, 0)
        throw error
      }
    }

    async function once<Value>(call: OnceCall, request: EngineFields, signal: AbortSignal): Promise<Value> {
      return await dispatch(members, askingOf({ call, request }), either(signal), {
        begun: () => false,
        async read(reply) {
          sayClamped(reply)
          const text = await reply.body.text()
          try {
            return JSON.parse(text).value as Value
          } catch {
            throw new WrongAnswer('its answer is not JSON')
          }
        }
      })
    }

    const isBytes = !withoutBytes.has(variant.key)
    const calls: Partial<Engine> = {
      ...(mode === 'chat' && {
        chat: deltas('chat'),
        completion: deltas('completion'),
        transcribe: deltas('transcribe'),
        ...(isBytes && { chatBytes: bytes('chat'), completionBytes: bytes('completion') }),
        countTokens: (request: EngineFields, { signal }: { signal: AbortSignal }) =>
          once<number>('countTokens', request, signal),
        applyTemplate: (request: EngineFields, { signal }: { signal: AbortSignal }) =>
          once<string>('applyTemplate', request, signal)
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
      /** Has a member load the model, and tells meanwhile what it does. */
      async load({ onProgress }: Pick<LeaseRequest, 'onProgress'>, signal: AbortSignal): Promise<void> {
        await dispatch(members, askingOf({ call: 'load' }), either(signal), {
          begun: () => false,
          async read(reply) {
            sayClamped(reply)
            for await (const line of linesOf(reply.body)) onProgress?.(parsed(line) as Progress)
          }
        })
      }
    }
  }

  return Object.assign(base, callsFor({}).calls, { forRequest })
}

/** The header's `num_ctx=4096, num_parallel=2` as options. */
function clampedOptions(header: string): Partial<LoadOptions> {
  return Object.fromEntries(
    header.split(', ').map(part => {
      const [name, value] = part.split('=') as [string, string]
      return [name, Number(value)]
    })
  )
}

const EVENT = Buffer.from('data: {')

function eventsIn(bytes: Buffer): number {
  let count = 0
  for (let at = bytes.indexOf(EVENT); at >= 0; at = bytes.indexOf(EVENT, at + EVENT.length)) count++
  return count
}

async function readDeltas(reply: MemberReply, take: (deltas: readonly Delta[]) => Promise<void>): Promise<void> {
  for await (const line of linesOf(reply.body)) {
    const deltas = parsed(line)
    if (!Array.isArray(deltas)) throw new WrongAnswer('a line of its answer is no list')
    await take(deltas)
  }
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    throw new WrongAnswer('a line of its answer is not JSON')
  }
}

async function* linesOf(body: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of body) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
    rest = lines.pop()!
    for (const line of lines) if (line !== '') yield line
  }
  if (rest !== '') throw new WrongAnswer('its answer ends in the middle of a line')
}
