import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { type Dispatcher, FormData } from 'undici'
import type {
  AnswerSink,
  Engine,
  EngineExit,
  EngineFields,
  EngineSpec,
  MemoryUse
} from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { withResolver } from '../../../core/system/abort-signals.ts'
import { createRemoteEngine, toUsage } from '../remote-engine.ts'
import { createRemoteServers } from '../remote-servers.ts'
import { PREFIX, passedBody, passReply } from './passed-paths.ts'
import type { ProgramProcess } from './program-process.ts'
import type { ProgramModel, ProgramSettings } from './program-settings.ts'

/** Milliseconds until the end of a program is known after its connections broke. */
const EXIT_LAG_MS = 1000
const CONNECT_TIMEOUT_MS = 5000

type Body = Dispatcher.ResponseData['body']

/** With `segments` if times were requested. */
interface ProgramTranscript {
  text?: unknown
  usage?: unknown
  segments?: { text: string }[]
  language?: string
  duration?: number
}

/** The engine of a running program: requests in OpenAI's format, with the abilities of its kind. */
export function createProgramEngine(
  spec: EngineSpec,
  process: ProgramProcess,
  { program, model: placeholder, own }: ProgramModel,
  {
    provider,
    log,
    memory,
    stop
  }: { provider: string; log: FastifyBaseLogger; memory(): MemoryUse; stop(): Promise<void> }
): Engine {
  const { kind, name, base, contextSize, slots, paths, model = placeholder } = program
  const address = { url: process.address + base, key: process.key }
  // Its process says whether it lives.
  const servers = createRemoteServers(spec.alias, [address], { interval: 0, timeout: CONNECT_TIMEOUT_MS, log })
  const remote = createRemoteEngine(spec, servers, { model, contextSize })
  const { promise: stopped, resolve: end } = withResolver<EngineExit>()

  /** The end of the program explains a failure better than the broken connection. */
  async function explain(error: unknown): Promise<unknown> {
    if (!(error instanceof CorralError) || !/^engine_(crashed|unreachable)$/.test(error.code)) return error
    const exit = await Promise.race([process.exited, sleep(EXIT_LAG_MS, undefined, { ref: false })])
    if (exit?.failure) return exit.failure
    // A busy program answers with a status.
    if (error.code === 'engine_crashed' || error.cause === undefined) return error
    const message = `The program "${name}" closed the connection before it answered. Try again.`
    return new CorralError('engine_crashed', message, { cause: error.cause })
  }
  const explained =
    <Args extends unknown[], Result>(call: (...args: Args) => Promise<Result>) =>
    (...args: Args): Promise<Result> =>
      call(...args).catch(async error => {
        throw await explain(error)
      })

  async function transcribe(request: EngineFields, sink: AnswerSink): Promise<void> {
    const { audio, translate, language, prompt, temperature, timed } = request
    const response_format = timed ? 'verbose_json' : 'json'
    const form = new FormData()
    form.set('file', new Blob([Buffer.from(String(audio), 'base64')]), 'audio')
    for (const [key, value] of Object.entries({ model, response_format, language, prompt, temperature, translate })) {
      if (value !== undefined && value !== null) form.set(key, String(value))
    }
    const read = (body: Body) => body.json() as Promise<ProgramTranscript>
    const path = `/audio/${translate ? 'translations' : 'transcriptions'}`
    const { text, usage, segments = [], language: heard, duration } = await servers.ask(path, form, sink.signal, read)
    if (typeof text !== 'string') {
      throw new CorralError('engine_crashed', `The program "${name}" answered without the text of the recording.`)
    }
    const timedText = segments.map(segment => ({ content: segment.text, json: { segment } }))
    await sink.take(segments.length > 0 ? timedText : [{ content: text }])
    await sink.take([{ finish: 'stop', json: { language: heard, duration }, usage: toUsage(usage) }])
  }

  /** Makes images, from others if the request has some. */
  const draw =
    (path: string) =>
    async ({ images, mask, ...fields }: EngineFields, sink: AnswerSink): Promise<void> => {
      const asked = { model, ...fields, response_format: 'b64_json' }
      const body = Array.isArray(images) ? imageForm(asked, images.map(String), mask) : asked
      const read = (reply: Body) => reply.json() as Promise<{ data?: unknown; usage?: unknown }>
      const { data, usage } = await servers.ask(path, body, sink.signal, read)
      const made = Array.isArray(data) ? data.filter(({ b64_json }) => typeof b64_json === 'string') : []
      if (made.length === 0) {
        throw new CorralError('engine_crashed', `The program "${name}" answered without images. Try again.`)
      }
      await sink.take(made.map(({ b64_json, revised_prompt }) => ({ json: { b64_json, revised_prompt } })))
      await sink.take([{ finish: 'stop', ...(usage !== undefined && { usage: toUsage(usage) }) }])
    }

  async function rerank(query: string, documents: readonly string[], { signal }: { signal: AbortSignal }) {
    type Reply = { results: { index: number; relevance_score: number }[]; usage?: unknown }
    const read = (body: Body) => body.json() as Promise<Reply>
    const { results, usage } = await servers.ask('/rerank', { model, query, documents }, signal, read)
    return {
      scores: results.map(({ index, relevance_score: score }) => ({ index, score })),
      promptTokens: toUsage(usage).promptTokens
    }
  }

  const calls: Record<ProgramSettings['kind'], Partial<Engine>> = {
    chat: { chat: explained(remote.chat!), completion: explained(remote.completion!) },
    embedding: { embed: explained(remote.embed!) },
    rerank: { rerank: explained(rerank) },
    transcribe: {
      operations: { transcribe, translate: (request, sink) => transcribe({ ...request, translate: true }, sink) }
    },
    draw: {
      operations: {
        draw: draw('/images/generations'),
        edit_image: draw('/images/edits'),
        vary_image: draw('/images/variations')
      }
    }
  }
  const { operations: usual = {}, ...others } = calls[kind]
  const passed = paths.map(path => {
    const pass = (request: EngineFields, sink: AnswerSink) => {
      const read = (body: Body, type: string) => passReply(body, type, sink)
      return servers.ask(path.slice(PREFIX.length), passedBody(request, model), sink.signal, read, { accepts: /./ })
    }
    return [path, pass] as const
  })
  const operations = [...Object.entries(own?.operations(servers.ask, usual) ?? usual), ...passed]
  return {
    id: remote.id,
    provider,
    spec,
    contextSize,
    slots,
    get memory() {
      return memory()
    },
    get reserved() {
      return memory()
    },
    exited: Promise.race([process.exited, stopped]).finally(() => servers.close()),
    ...others,
    operations: Object.fromEntries(operations.map(([name, call]) => [name, explained(call!)])),
    async stop() {
      await remote.stop()
      await stop()
      end({ code: null, signal: null, expected: true })
    },
    logTail: () => process.log.all()
  }
}

/** @param images in base64, like the mask */
function imageForm(fields: Record<string, unknown>, images: readonly string[], mask: unknown): FormData {
  const form = new FormData()
  for (const [key, value] of Object.entries(fields)) form.set(key, String(value))
  const file = (base64: string) => new Blob([Buffer.from(base64, 'base64')])
  for (const image of images) form.append(images.length > 1 ? 'image[]' : 'image', file(image), 'image')
  if (typeof mask === 'string') form.set('mask', file(mask), 'mask')
  return form
}
