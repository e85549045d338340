import { randomUUID } from 'node:crypto'
import type { Dispatcher } from 'undici'
import { SseParser, toDelta } from '../../core/answers/openai-events.ts'
import type {
  AnswerSink,
  Delta,
  Engine,
  EngineExit,
  EngineFields,
  EngineSpec,
  TokenUsage
} from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { forwardedHeaders } from '../../core/http/forwarded-headers.ts'
import { withAnySignal, withResolver } from '../../core/system/abort-signals.ts'
import { isObject } from '../../core/system/json-object.ts'
import { fullContext, messageOf, type RemoteServers } from './remote-servers.ts'

/** Parallel requests. The remote server decides how many it answers. */
const SLOTS = 1024

export function createRemoteEngine(
  spec: EngineSpec,
  servers: RemoteServers,
  { model, contextSize }: { model: string; contextSize: number }
): Engine {
  const stopped = new AbortController()
  const { promise: exited, resolve: end } = withResolver<EngineExit>()
  const untilStopped = <T>(signal: AbortSignal, use: (signal: AbortSignal) => Promise<T>) =>
    withAnySignal([signal, stopped.signal], use)

  async function stream(path: string, fields: EngineFields, sink: AnswerSink): Promise<void> {
    let begun = false
    const asked = servers.kind.request(spec.alias, fields, contextSize)
    const body = { ...asked, model, stream: true, stream_options: { include_usage: true } }
    const take = async (deltas: Delta[]) => {
      if (deltas.length === 0) return
      begun = true
      await sink.take(deltas)
    }
    const read = (reply: Dispatcher.ResponseData['body']) => readAnswer(spec.alias, reply, take)
    const more = { begun: () => begun, headers: forwardedHeaders(sink) }
    await untilStopped(sink.signal, signal => servers.ask(path, body, signal, read, more))
  }

  return {
    id: randomUUID(),
    provider: 'remote',
    spec,
    contextSize,
    slots: SLOTS,
    memory: undefined,
    exited,
    chat: (fields, sink) => stream('/chat/completions', fields, sink),
    completion: (fields, sink) => stream('/completions', fields, sink),
    async embed(inputs, { signal }) {
      const body = { model, input: inputs, encoding_format: 'float' }
      const read = async (reply: Dispatcher.ResponseData['body']) => {
        return (await reply.json()) as { data: { index: number; embedding: number[] }[]; usage?: unknown }
      }
      const reply = await untilStopped(signal, signal => servers.ask('/embeddings', body, signal, read))
      const vectors: number[][] = []
      for (const { index, embedding } of reply.data) vectors[index] = embedding
      return { vectors, promptTokens: toUsage(reply.usage).promptTokens }
    },
    async stop() {
      stopped.abort(new CorralError('model_stopped', `The model "${spec.alias}" was stopped.`))
      end({ code: null, signal: null, expected: true })
    },
    logTail: () => []
  }
}

/** Reads the token counts in a reply's `usage`, by their names in chat completions or in later APIs of OpenAI. */
export function toUsage(usage: unknown): TokenUsage {
  const fields = isObject(usage) ? usage : {}
  const details = isObject(fields.prompt_tokens_details) ? fields.prompt_tokens_details : {}
  const count = (...values: unknown[]) => Math.max(0, Number(values.find(value => typeof value === 'number') ?? 0))
  return {
    promptTokens: count(fields.prompt_tokens, fields.input_tokens, fields.total_tokens),
    cachedTokens: count(details.cached_tokens),
    completionTokens: count(fields.completion_tokens, fields.output_tokens)
  }
}

/** Reads a stream in the OpenAI chat format. Holds the final deltas back until the usage has arrived. */
async function readAnswer(
  name: string,
  body: Dispatcher.ResponseData['body'],
  take: (deltas: Delta[]) => Promise<void>
): Promise<void> {
  const lines = new SseParser()
  const ends: Delta[] = []
  let usage: unknown
  let done = false
  for await (const chunk of body) {
    const deltas: Delta[] = []
    for (const payload of lines.push(chunk)) {
      if (payload === '[DONE]') {
        done = true
        continue
      }
      const event = JSON.parse(payload)
      if (event?.error) {
        const what = `The server of model "${name}" ended its answer: ${messageOf(event.error)}`
        throw fullContext(event.error) ?? new CorralError('engine_crashed', what)
      }
      usage = event?.usage ?? usage
      if (!event?.choices?.length) continue
      const delta = toDelta(event)
      if (delta.finish) ends.push(delta)
      else deltas.push(delta)
    }
    await take(deltas)
  }
  // A plain error, because another server may answer while nothing has reached the client.
  if (!done && ends.length === 0) throw new Error('The answer was interrupted.')
  if (usage && ends[0]) ends[0].usage = toUsage(usage)
  await take(ends)
}
