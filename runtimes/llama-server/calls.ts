import { SseParser } from '../../core/answers/openai-events.ts'
import { readThinking } from '../../core/answers/thinking.ts'
import type { AnswerSink, Delta, Engine, EngineFields, EngineMode } from '../../core/contracts/engines.ts'
import type { ModelMetadata } from '../../core/contracts/models.ts'
import { CorralError } from '../../core/errors.ts'
import { untilAborted } from '../../core/system/abort-signals.ts'
import { merged } from '../../core/system/collections.ts'
import { type EngineBody, readJson, readText } from '../../core/system/response-body.ts'
import {
  begunText,
  CHAT,
  COMPLETION,
  countChoices,
  getSeed,
  isConstrained,
  isShortAnswer,
  isWide,
  listPrompts,
  promptOnly,
  safeFields,
  streamed,
  transcriptionChat,
  withProbabilities
} from './answer-fields.ts'
import { EventBlocks, EventReader } from './event-reader.ts'
import { withEngineSchemas } from './grammar-schemas.ts'
import { createInputGuard, createInputRecords, type InputGuard, type Ticket } from './input-guard.ts'
import type { PromptSlots, SlotUse } from './prompt-cache/prompt-slots.ts'
import { contextExceeded, isCacheFault, requestError } from './request-error.ts'
import { afterThinking, requireSchemas, thinkingMarks, thinkingWriter } from './template-thinking.ts'
import { longestText, requireFittingText, requireShortText } from './text-length.ts'
import type { EngineRequest, EngineResponse } from './upstream.ts'

/** Matches the id in an event. Quotes within texts are escaped, so they do not match. */
const ANSWER_ID = /"id":"(chatcmpl-[A-Za-z0-9]+)"/
/** Inputs that callers send together. llama-server finishes the current batch after the client has left. */
const BATCH = 32

export interface CallsOptions {
  /** Sends a request to the server. Resolves at the response's headers. */
  request(request: EngineRequest): Promise<EngineResponse>
  alias: string
  mode: EngineMode
  contextSize: number
  metadata: Pick<ModelMetadata, 'architecture' | 'capabilities'>
  template?: string
  promptSlots: PromptSlots
  /** Adds a line to the engine's log. */
  mark?: (line: string) => void
  /** Refuses requests for log probabilities, if the engine may not know them. */
  refuseProbabilities?: (() => never) | undefined
  /** Knows which parts of requests may trap the engine. By default the engine gets its own guard. */
  guard?: InputGuard
}

/**
 * Returns the calls of an engine, in llama-server's dialect (tools/server/README.md). Answers are requested as streams.
 * llama-server notices that the client of an unstreamed answer has disconnected only while nothing else is generated,
 * and would otherwise continue for no one. Only short answers are requested in one piece (`isShortAnswer`).
 */
export function engineCalls(options: CallsOptions): Partial<Engine> {
  const { request, alias, mode, contextSize, metadata, template = '', promptSlots } = options
  const guard = options.guard ?? createInputGuard(createInputRecords(), alias)
  const thinks = metadata.capabilities.includes('thinking')
  const writeThinking = thinkingWriter(template, thinks)
  const prepared = (fields: EngineFields) => writeThinking(withEngineSchemas(fields))

  /** @param own fields that only corral sets */
  async function post(path: string, body: EngineFields, signal?: AbortSignal, own?: EngineFields): Promise<EngineBody> {
    requireFittingText(body, contextSize)
    const fields = Object.assign(safeFields(body, contextSize), own)
    const keep = fields.stream !== true
    const response = await request({ method: 'POST', path, body: JSON.stringify(fields), signal, keep })
    if (response.status < 400) return response.body
    throw requestError(response.status, await readText(response.body))
  }

  async function look<Reply>(path: string, signal: AbortSignal): Promise<Reply> {
    const { status, body } = await request({ method: 'GET', path, signal })
    if (status >= 400) throw requestError(status, await readText(body))
    return (await readJson(body)) as Reply
  }

  async function ask<Reply>(path: string, body: EngineFields, signal: AbortSignal): Promise<Reply> {
    return (await readJson(await post(path, body, signal))) as Reply
  }

  /** Requests an answer in a slot that suits its owner, and passes its chunks on as they arrive. */
  const stream = (
    path: string,
    given: EngineFields,
    sink: Pick<AnswerSink, 'signal' | 'owner' | 'background' | 'requestId' | 'controlled'>,
    take: (chunk: Buffer, ticket: Ticket) => Promise<void> | undefined
  ): Promise<void> => {
    const { signal, owner, background, requestId } = sink
    return guard.run(given, signal, async ticket => {
      if (options.refuseProbabilities && Number(given.n_probs ?? 0) > 0) options.refuseProbabilities()
      const fields = prepared(given)
      if (isConstrained(fields)) await requirePlainBeginning(fields, signal)
      const body = await constrained(fields, signal)
      const slot = await promptSlots.take({ owner, background, signal }, body)
      const open = async () => {
        slot.sent({ path, fields: body })
        const answer = await postInSlot(path, body, slot.fields)
        ticket.answered = true
        return answer
      }
      const sayControls = path === CHAT && sink.controlled ? watchControls(sink.controlled) : undefined
      const mark = requestId === undefined ? undefined : options.mark
      mark?.(`request ${requestId} begins in slot ${slot.fields.id_slot}`)
      try {
        await inSlot(slot, signal, open, chunk => {
          sayControls?.(chunk)
          return take(chunk, ticket)
        })
      } finally {
        mark?.(`request ${requestId} ends`)
      }
    })
  }

  /** Opens the stream of an answer. If llama-server fails because of its cache, the request is repeated without it. */
  async function postInSlot(path: string, body: EngineFields, own: SlotUse['fields']): Promise<EngineBody> {
    try {
      return await post(path, body, undefined, own)
    } catch (error) {
      if (!isCacheFault(error) || { ...body, ...own }.cache_prompt === false) throw error
      return await post(path, body, undefined, { ...own, cache_prompt: false })
    }
  }

  /** Finds the id in the first events of an answer. llama-server knows the answer by this id. */
  function watchControls(say: NonNullable<AnswerSink['controlled']>): (chunk: Buffer) => void {
    let isSaid = false
    return chunk => {
      const id = isSaid ? undefined : ANSWER_ID.exec(chunk.toString('latin1'))?.[1]
      if (id === undefined) return
      isSaid = true
      say({
        endThought: ({ signal }) =>
          ask<{ success: boolean; message?: string }>(`${CHAT}/control`, { id, action: 'reasoning_end' }, signal)
      })
    }
  }

  function cutShort(): CorralError {
    const message = `The engine of model "${alias}" ended its answer early. Send the request again.`
    return new CorralError('engine_crashed', message)
  }

  /** Reads an answer as deltas. It is complete at its end mark, or when all its choices, if counted, have ended. */
  async function deltas(path: string, body: EngineFields, sink: AnswerSink, choices?: number): Promise<void> {
    // A request for several answers would take slots that belong to others.
    if (isWide(body)) return await oneByOne(path, body, sink)
    if (isShortAnswer(path, body, sink)) return await inOnePiece(path, body, sink)
    const lines = new SseParser()
    const reader = new EventReader(sink.native)
    let done = false
    await stream(path, body, sink, (chunk, ticket) => {
      const pieces = []
      for (const payload of lines.push(chunk)) {
        if (payload === '[DONE]') {
          done = true
          continue
        }
        // llama-server starts each further choice of a request with `null`.
        const event = JSON.parse(payload)
        if (event?.error !== undefined) throw requestError(500, payload)
        if (event) pieces.push(reader.read(event))
      }
      if (!ticket.generated && pieces.some(hasBegun)) guard.progressed(ticket)
      return pieces.length === 0 ? undefined : sink.take(pieces)
    })
    if (!done && reader.finished !== choices) throw cutShort()
  }

  /** Requests an unstreamed answer. Parsing one event of a stream takes as long as parsing the whole answer. */
  async function inOnePiece(path: string, body: EngineFields, sink: AnswerSink): Promise<void> {
    const { return_progress, ...fields } = body
    const chunks: Buffer[] = []
    await stream(path, merged(fields, { stream: false }), sink, chunk => void chunks.push(chunk))
    const delta = new EventReader().read(JSON.parse(Buffer.concat(chunks).toString()))
    // The limit may split a character. Streams hold the first part back.
    if (delta.finish === 'length' && delta.content) delta.content = delta.content.replace(/\ufffd$/, '')
    if (delta.usage) delta.tokens = delta.usage.completionTokens
    await sink.take([delta])
  }

  /**
   * Requests each choice separately, because it is unknown which slots llama-server takes for several choices. A long
   * prompt is processed first, and its state is copied to the slots of all choices.
   */
  async function oneByOne(path: string, body: EngineFields, sink: AnswerSink): Promise<void> {
    const prompts = Array.isArray(body.prompt) ? listPrompts(body.prompt) : [body.prompt]
    const choices = countChoices(body)
    const failed = new AbortController()
    const signal = AbortSignal.any([sink.signal, failed.signal])
    const ask = async (own: EngineFields, index: number, cached: number) => {
      const take = (pieces: readonly Delta[]) =>
        sink.take(pieces.map(piece => merged(withCached(piece, cached), { choice: index })))
      await deltas(path, own, { ...sink, signal, take }, 1)
    }
    for (const [at, prompt] of prompts.entries()) {
      const own = { ...body, n: 1, ...(prompt !== undefined && { prompt }) }
      const isShared = choices > 1 && promptSlots.canCopy(own)
      const cached = isShared ? await readPrompt(path, own, { ...sink, signal }) : Number.POSITIVE_INFINITY
      const answers = Array.from({ length: choices }, (_, choice) =>
        ask({ ...own, ...getSeed(body, choice) }, at * choices + choice, cached)
      )
      try {
        await Promise.all(answers)
      } catch (error) {
        failed.abort(error)
        await Promise.allSettled(answers)
        throw error
      }
    }
  }

  /** Processes a prompt and saves its state. Returns how many of its tokens were cached. */
  async function readPrompt(path: string, body: EngineFields, sink: AnswerSink): Promise<number> {
    let cached = 0
    const take = (pieces: readonly Delta[]) => {
      for (const { usage } of pieces) cached = usage?.cachedTokens ?? cached
      return undefined
    }
    await deltas(path, promptOnly(body), { ...sink, take }, 1)
    await promptSlots.save(sink.owner, body)
    return cached
  }

  async function bytes(path: string, body: EngineFields, sink: AnswerSink<Buffer>): Promise<void> {
    if (isWide(body)) {
      throw new CorralError('unsupported_capability', 'Answers with several choices cannot be passed on as bytes.')
    }
    const blocks = new EventBlocks()
    let done = false
    try {
      await stream(path, merged(withProbabilities(body), { stream: true }), sink, (chunk, ticket) => {
        const block = blocks.push(chunk)
        if (!block) return undefined
        // If the stream reports no progress, progress begins with the first token.
        guard.progressed(ticket)
        done ||= block.done
        const taken = block.bytes.length > 0 ? sink.take(block.bytes) : undefined
        if (block.error !== undefined) throw requestError(500, block.error)
        return taken
      })
    } finally {
      sayUsed(blocks, sink)
    }
    if (!done) throw cutShort()
  }

  /** Lets a grammar begin after the thinking. @throws CorralError for a schema that llama-server would ignore */
  async function constrained(body: EngineFields, signal: AbortSignal): Promise<EngineFields> {
    if (body.messages === undefined) return body
    requireSchemas(body, template)
    const { grammar } = body
    const marked = thinks && typeof grammar === 'string' && grammar !== '' ? thinkingMarks(template) : undefined
    if (!marked) return body
    const { prompt } = await ask<{ prompt: string }>('/apply-template', body, signal)
    return { ...body, grammar: afterThinking(grammar as string, marked, prompt, readThinking(body).enabled !== false) }
  }

  /** Rejects a constrained answer whose given beginning has special tokens, because it crashes llama-server 0.5.0. */
  async function requirePlainBeginning(body: EngineFields, signal: AbortSignal): Promise<void> {
    const content = begunText(body.messages)
    if (content === '') return
    const tokens = async (parse_special: boolean) =>
      await readText(await post('/tokenize', { content, parse_special }, signal))
    const [special, plain] = await Promise.all([tokens(true), tokens(false)])
    if (special === plain) return
    const text =
      'The last message begins the answer and contains special tokens of the model (such as the end of a turn), but the answer is constrained to a format or to tools. Remove the special tokens, or the format and the tools.'
    throw new CorralError('invalid_request', text, { param: 'messages' })
  }

  async function tokensOf(content: string, add_special: boolean, signal: AbortSignal): Promise<number[]> {
    return (await ask<{ tokens: number[] }>('/tokenize', { content, add_special }, signal)).tokens
  }

  /**
   * Returns the input, or the tokens of its beginning if it is longer than the context.
   * @param most tokens, if fewer than the context @throws CorralError `context_exceeded`
   */
  async function fitting(input: string | readonly number[], truncate: boolean, most: number, signal: AbortSignal) {
    if (!truncate) {
      if (most >= contextSize) return input
      requireFittingText({ input }, most)
      const count = typeof input === 'string' ? (await tokensOf(input, true, signal)).length : input.length
      if (count > most) throw contextExceeded(count, most)
      return input
    }
    // Models that pool the last token take one token less than their context, because llama-server processes them piece
    // by piece.
    const room = Math.min(contextSize - 1, most)
    if (typeof input !== 'string') return input.slice(0, room)
    // The rest would be truncated in any case. Half of a surrogate pair is not valid text.
    const head = input.slice(0, longestText(room + 1)).replace(/[\ud800-\udbff]$/, '')
    const whole = await tokensOf(head, true, signal)
    if (whole.length <= room) return head
    const plain = await tokensOf(head, false, signal)
    const added = whole.length - plain.length
    if (added >= room) {
      // Without a token of the text, every text would have the same vector.
      const message = `Truncated to ${Math.min(contextSize, most)} tokens, of which the model itself needs ${added}, nothing of the text is left. Request a larger context with num_ctx.`
      throw new CorralError('context_exceeded', message, { details: { n_ctx: Math.min(contextSize, most) } })
    }
    return cutTokens(whole, plain, room)
  }

  const tokens: Partial<Engine> = {
    batch: BATCH,
    async tokenize(fields, { signal }) {
      requireShortText(fields.content, contextSize)
      return await ask('/tokenize', fields, signal)
    },
    async detokenize(tokens, { signal }) {
      return (await ask<{ content: string }>('/detokenize', { tokens }, signal)).content
    },
    async properties({ signal }) {
      // Paths of the model's files, and fields that only a direct client could use.
      const { model_path, model_alias, media_marker, ...others } = await look<EngineFields>('/props', signal)
      return others
    },
    async slotStates({ signal }) {
      const slots = await look<EngineFields[]>('/slots', signal)
      // Without the prompts.
      return slots.map(({ id, n_ctx, speculative, is_processing }) => ({ id, n_ctx, speculative, is_processing }))
    }
  }

  const countIn = ({ usage }: { usage?: { prompt_tokens?: number } }) => usage?.prompt_tokens ?? 0

  if (mode === 'embedding') {
    return {
      ...tokens,
      async embed(inputs, { truncate = false, most = Number.POSITIVE_INFINITY, signal }) {
        const vectors: Float32Array[] = []
        if (inputs.length === 0) return { vectors, promptTokens: 0 }
        const input = await Promise.all(inputs.map(each => fitting(each, truncate, most, signal)))
        // Base64 is exact and short. A single list of tokens must not look like several inputs.
        const body = { input: input.length === 1 ? input[0] : input, encoding_format: 'base64' }
        const reply = await ask<EmbeddingReply>('/v1/embeddings', body, signal)
        for (const { index, embedding } of reply.data) vectors[index] = readVector(embedding)
        return { vectors, promptTokens: countIn(reply) }
      }
    }
  }

  if (mode === 'rerank') {
    return {
      ...tokens,
      async rerank(query, documents, { signal }) {
        if (documents.length === 0) return { scores: [], promptTokens: 0 }
        const reply = await ask<RankingReply>('/v1/rerank', { query, documents }, signal)
        const scores = reply.results.map(({ index, relevance_score: score }) => ({ index, score }))
        return { scores, promptTokens: countIn(reply) }
      }
    }
  }

  return {
    ...tokens,
    chat: (fields, sink) => deltas(CHAT, streamed(fields, sink), sink, countChoices(fields)),
    chatBytes: (fields, sink) => bytes(CHAT, fields, sink),
    async completion(fields, sink) {
      const { suffix, prompt, line = '', max_tokens, ...others } = streamed(fields, sink)
      if (suffix === undefined) return await deltas(COMPLETION, { ...others, prompt, max_tokens }, sink)
      const [whole, apart] = [String(prompt), String(line)]
      const input_prefix = apart && whole.endsWith(apart) ? whole.slice(0, -apart.length) : whole
      const own = { input_prefix, input_suffix: suffix, ...(input_prefix !== whole && { prompt: apart }) }
      const body = { ...others, n_predict: max_tokens, ...own }
      await deltas('/infill', body, sink, countChoices(fields))
    },
    completionBytes: (fields, sink) => bytes(COMPLETION, fields, sink),
    operations: {
      transcribe: (fields, sink) => deltas(CHAT, streamed(transcriptionChat(fields, metadata), sink), sink, 1)
    },
    async applyTemplate(fields, { signal }) {
      const body = prepared(withProbabilities(fields))
      return await guard.run(fields, signal, async () => {
        return (await ask<{ prompt: string }>('/apply-template', body, signal)).prompt
      })
    },
    async countTokens(fields, { signal }) {
      const body = prepared(withProbabilities(fields))
      return await guard.run(fields, signal, async () => {
        return (await ask<{ input_tokens: number }>(`${CHAT}/input_tokens`, body, signal)).input_tokens
      })
    }
  }
}

/** Reports the usage of an answer in bytes. A disconnected answer has no count, and its first event only a role. */
function sayUsed({ usages, events }: EventBlocks, sink: AnswerSink<Buffer>): void {
  if (usages.length === 0 && events > 1) {
    sink.used?.({ promptTokens: 0, cachedTokens: 0, completionTokens: events - 1 }, 0)
  }
  usages.forEach((usage, choice) => void sink.used?.(usage, choice))
}

/** Corrects the usage of a choice whose prompt was processed by another request that had so many tokens cached. */
function withCached(piece: Delta, cached: number): Delta {
  const { usage } = piece
  return usage && usage.cachedTokens > cached ? { ...piece, usage: { ...usage, cachedTokens: cached } } : piece
}

const hasBegun = ({ content, thinking, toolCalls, usage }: Delta) => Boolean(content || thinking || toolCalls || usage)

interface EmbeddingReply {
  data: { index: number; embedding: string }[]
  usage?: { prompt_tokens?: number }
}
interface RankingReply {
  results: { index: number; relevance_score: number }[]
  usage?: { prompt_tokens?: number }
}

/** Truncates to `room` tokens. @param whole the `plain` tokens with those that the vocabulary adds around every text */
export function cutTokens(whole: readonly number[], plain: readonly number[], room: number): number[] {
  const added = whole.length - plain.length
  let before = 0
  while (before < added && whole[before] !== plain[0]) before++
  const behind = added - before
  const kept = Math.max(0, room - added)
  return [
    ...whole.slice(0, before),
    ...whole.slice(before, before + kept),
    ...(behind > 0 ? whole.slice(whole.length - behind) : [])
  ]
}

/** Reads 32-bit floats, little-endian. */
function readVector(base64: string): Float32Array {
  // Copied because a piece of Node's pool may not be aligned.
  return new Float32Array(Uint8Array.from(Buffer.from(base64, 'base64')).buffer)
}

const COLON = 58

/** Reads an answer in its slot. An unwanted one is abandoned now, and disconnected once llama-server has responded. */
async function inSlot(
  slot: SlotUse,
  signal: AbortSignal,
  open: () => Promise<EngineBody>,
  take: (chunk: Buffer) => Promise<void> | undefined
): Promise<void> {
  let body: EngineBody | undefined
  // At once: events that have arrived already are not counted any more.
  const cancel = () => body?.cancel()
  signal.addEventListener('abort', cancel, { once: true })
  const read = async () => {
    try {
      body = await open()
      if (signal.aborted) body.cancel()
      await body.consume(chunk => {
        // A comment may come before llama-server starts on the prompt, so it does not show progress.
        if (chunk[0] !== COLON) slot.begun()
        return take(chunk)
      })
    } finally {
      slot.end()
    }
  }
  try {
    await untilAborted(read(), signal)
  } finally {
    signal.removeEventListener('abort', cancel)
  }
}
