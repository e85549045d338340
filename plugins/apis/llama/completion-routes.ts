import type { FastifyInstance, FastifyReply } from 'fastify'
import { type Static, type TSchema, Type } from 'typebox'
import {
  ANSWER_ERRORS,
  type AnswerWriter,
  CorralError,
  type Delta,
  type EngineFields,
  embedChunked,
  invalidRequest,
  isObject,
  json,
  jsonOrStream,
  passedFields,
  type Question,
  type Vector,
  vectorReply
} from '../../../core/plugins/public-api.ts'
import { llamaChannel, llamaRouter } from './llama-error.ts'
import type { LlamaDependencies } from './model-control-routes.ts'
import * as schemas from './schemas.ts'

export function completionRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const route = llamaRouter(app)
  const reply200 = (description: string, whole: TSchema = schemas.CompletionEvent) =>
    jsonOrStream(description, whole, {
      event: 'Events `data: {"content","tokens","stop":false,…}`; the last has `stop: true` and the counts.',
      item: schemas.CompletionEvent
    })
  for (const [path, id] of [
    ['/completion', 'llamaCompletion'],
    ['/completions', 'llamaCompletions']
  ] as const) {
    route(`POST ${path}`, id, "Continue a text, in llama-server's own format", {
      body: schemas.CompletionRequest,
      response: reply200('The text', Type.Union([schemas.CompletionEvent, Type.Array(schemas.CompletionEvent)])),
      errors: ANSWER_ERRORS,
      handler: ({ body }, reply) => complete(deps, body, reply, { prompt: toEnginePrompt(body.prompt) })
    })
  }
  route('POST /infill', 'llamaInfill', 'Write the text between two texts', {
    body: schemas.InfillRequest,
    response: reply200('The text between'),
    errors: ANSWER_ERRORS,
    handler: ({ body }, reply) => {
      const { input_prefix, input_suffix, prompt } = body
      // As in llama-server, the prompt is the end of the prefix.
      const texts = {
        prompt: `${input_prefix ?? ''}${prompt ?? ''}`,
        suffix: input_suffix ?? '',
        ...(prompt && { line: prompt })
      }
      return complete(deps, body, reply, texts)
    }
  })
  for (const [path, id] of Object.entries({ '/embedding': 'llamaEmbedding', '/embeddings': 'llamaEmbeddings' })) {
    route(`POST ${path}`, id, "Create embeddings of texts, in llama-server's own format", {
      body: schemas.EmbeddingRequest,
      response: json('One for each text', Type.Array(schemas.VectorSchema)),
      errors: ANSWER_ERRORS,
      handler: async ({ body, caller }, reply) => {
        const request = deps.answers.read(body, caller)
        const question = {
          operation: 'embeddings',
          body: { input: textsToEmbed(body) },
          lease: { ...request.lease, mode: 'embedding' }
        } as const
        const { vectors } = await deps.answers.once(reply, question, (lease, { input }, tally) =>
          embedChunked(lease, input, tally)
        )
        const toRow = (vector: Vector, index: number) => ({ index, embedding: [Array.from(vector)] })
        return vectorReply(reply, vectors, toRow, rows => rows)
      }
    })
  }
}

const OWN = [
  ...['model', 'name', 'options', 'keep_alive', 'stream', 'stream_options', 'n', 'n_cmpl', 'prompt', 'stop', 'suffix'],
  ...['input_prefix', 'input_suffix', 'return_progress', 'return_tokens', 'response_fields']
]

/** Continues a text. @param texts `prompt`, and `suffix` if a text follows the answer */
async function complete(deps: LlamaDependencies, body: EngineFields, reply: FastifyReply, texts: EngineFields) {
  const { variant, settings, options, lease, overflow, requested } = deps.answers.read(body, reply.request.caller)
  if (texts.suffix !== undefined && !variant.metadata.capabilities.includes('insert')) {
    const message = `Model "${variant.publicName}" cannot fill in text between a prefix and a suffix. Use a model that can, such as a code model.`
    throw new CorralError('unsupported_capability', message, { param: 'model' })
  }
  const { stop, response_fields } = body
  const question: Question = {
    operation: 'completion',
    body: {
      ...settings.sampling,
      ...passedFields(body, options, OWN),
      // An empty stop text would end every answer immediately.
      ...(stop !== undefined && stop !== null && { stop: [stop].flat().filter(text => text !== '') }),
      ...texts
    },
    lease,
    variant,
    overflow,
    native: true
  }
  const open = () =>
    new CompletionWriter({
      model: requested,
      progress: body.return_progress === true,
      tokens: body.return_tokens === true,
      ...(Array.isArray(response_fields) && response_fields.length > 0 && { fields: response_fields as string[] })
    })
  if (body.stream === true) {
    const channel = llamaChannel(deps, () => IDLE)
    return await deps.answers.stream(reply, question, channel, open)
  }
  const answers = (await deps.answers.whole(reply, question, open)).whole()
  return Array.isArray(body.prompt) && answers.length > 1 ? answers : answers[0]
}

function toEnginePrompt(prompt: unknown): unknown {
  if (isObject(prompt)) return promptText(prompt)
  if (!Array.isArray(prompt)) return prompt
  if (prompt.every(part => typeof part === 'number')) return prompt
  // A list that mixes tokens and texts is one prompt.
  if (prompt.some(part => typeof part === 'number')) return [prompt]
  return prompt.map(part => (isObject(part) ? promptText(part) : part))
}

function promptText({ prompt_string, multimodal_data }: Record<string, unknown>): string {
  // Clients that can send images may send an empty list. Any other content must not be dropped silently.
  const isNothing = multimodal_data === undefined || multimodal_data === null || [multimodal_data].flat().length === 0
  if (!isNothing) {
    const message = 'Send images and audio in messages (POST /v1/chat/completions), not in "multimodal_data".'
    throw new CorralError('unsupported_capability', message, { param: 'prompt' })
  }
  if (typeof prompt_string === 'string') return prompt_string
  throw invalidRequest('prompt', '"prompt.prompt_string" must be text.')
}

function textsToEmbed({ content, input }: Static<typeof schemas.EmbeddingRequest>): (string | number[])[] {
  const given = input ?? content
  if (given === undefined || given === null || given === '') {
    throw invalidRequest('content', '"content" must be a non-empty text or a list of texts.')
  }
  // A list of numbers is one text, given as tokens.
  return typeof given === 'string' || typeof given[0] === 'number' ? [given as string | number[]] : (given as string[])
}

const IDLE = `data: ${JSON.stringify({ index: 0, content: '', tokens: [], stop: false })}\n\n`

interface CompletionOptions {
  model: string
  progress: boolean
  tokens: boolean
  /** Fields to include in the complete answer, such as `generation_settings/n_predict`. All fields if absent. */
  fields?: readonly string[]
}

interface Choice {
  content: string
  tokens: unknown[]
  logprobs: unknown[]
  last: EngineFields
}

class CompletionWriter implements AnswerWriter {
  readonly #head: CompletionOptions
  readonly #choices: Choice[] = []

  constructor(head: CompletionOptions) {
    this.#head = head
  }

  add(deltas: readonly Delta[]): string {
    let text = ''
    for (const delta of deltas) {
      const event = this.#note(delta)
      if (event) text += `data: ${JSON.stringify(event)}\n\n`
    }
    return text
  }

  end(): string {
    return ''
  }

  whole(): EngineFields[] {
    const { tokens: wanted, fields } = this.#head
    return this.#choices.map(({ content, tokens, logprobs, last }) => {
      const answer = {
        ...last,
        content,
        tokens: wanted ? tokens : [],
        ...(logprobs.length > 0 && { completion_probabilities: logprobs })
      }
      return fields ? pickFields(answer, fields) : answer
    })
  }

  #note(delta: Delta): EngineFields | undefined {
    const { choice: index = 0, content = '', native = {}, logprobs, finish, usage, timing, reading } = delta
    if (reading && !this.#head.progress) return undefined
    this.#choices[index] ??= { content: '', tokens: [], logprobs: [], last: {} }
    const choice = this.#choices[index]
    // A plugin may have changed the text. The engine's tokens then no longer match it.
    const isOwn = content === (native.content ?? '')
    const tokens = isOwn && Array.isArray(native.tokens) ? native.tokens : []
    const { completion_probabilities: _, ...rest } = native
    const event: EngineFields = {
      ...rest,
      index,
      content,
      tokens,
      stop: finish !== undefined,
      ...(logprobs && isOwn && { completion_probabilities: logprobs }),
      ...(finish && {
        model: this.#head.model,
        stop_type: native.stop_type ?? (finish === 'length' ? 'limit' : delta.stopSequence ? 'word' : 'eos'),
        stopping_word: native.stopping_word ?? delta.stopSequence ?? '',
        tokens_predicted: usage?.completionTokens ?? native.tokens_predicted,
        tokens_evaluated: usage?.promptTokens ?? native.tokens_evaluated,
        truncated: native.truncated ?? false,
        timings: native.timings ?? (timing && { prompt_ms: timing.prompt, predicted_ms: timing.generation })
      })
    }
    choice.content += content
    choice.tokens.push(...tokens)
    if (logprobs && isOwn) choice.logprobs.push(...logprobs)
    if (finish) choice.last = event
    // Some deltas only carry counts.
    const isEmpty = content === '' && !finish && !reading && Object.keys(native).length === 0
    return isEmpty ? undefined : event
  }
}

function pickFields(answer: EngineFields, paths: readonly string[]): EngineFields {
  const found: EngineFields = {}
  for (const path of paths) {
    let value: unknown = answer
    for (const key of path.split('/')) value = isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
    if (value !== undefined) found[path] = value
  }
  return found
}
