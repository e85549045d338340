import type { Counters, RunningRecord, ShownModel, WorkStep } from '../core/contracts/native-records.ts'
import { plural } from '../core/system/plural.ts'
import type { ChatEvent, GenerateEvent } from '../plugins/apis/native/schemas.ts'
import { type ChatSettings, isLoadOption } from './chat-settings.ts'
import { CommandFailure, failure } from './command-failure.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'

export interface Turn {
  prompt: string
  /** Base64. */
  images?: string[]
  answer: string
}

/** Receives parts of an answer, and the current status of its request, such as `loading 42%`. */
type AnswerSink = Record<'status' | 'thinking' | 'content', (text: string) => void>

/** A finished answer with its token counts and times. */
export interface Answered extends Counters {
  /** Why the answer was truncated, if it was. */
  cutBy?: 'max_tokens' | 'context'
  contextLength?: number | undefined
  /** The next useful context: twice the current one, up to the size it was trained for. 0 if there is none. */
  largerContext?: number
  /** Number of oldest messages that no longer fit the context and are not sent again. */
  dropped: number
}

export class ChatSession {
  readonly #client: ServerClient
  readonly settings: ChatSettings
  turns: Turn[] = []
  /** Base64 images for the next question. */
  images: string[] = []
  /** Index of the oldest turn that is still sent. */
  #sentFrom = 0
  #last: Turn | undefined
  #seedOnce: number | undefined
  /** Whether the client's role allows loading models explicitly. */
  #mayLoad = true
  #about: { model: string; shown: ShownModel } | undefined
  /** Tokens of the conversation at the last answer. */
  #tokens: number | undefined

  constructor(client: ServerClient, settings: ChatSettings) {
    this.#client = client
    this.settings = settings
  }

  /** Loads the model. If this client may not, the first answer loads it, and this checks that the model exists. */
  async load(onStatus: (text: string) => void, signal?: AbortSignal): Promise<void> {
    const { model, options } = this.settings
    // Without keep_alive, because 0 would unload the model before its first answer.
    const request = { model, options, stream: true }
    try {
      if (!this.#mayLoad) return void (await this.about())
      for await (const event of this.#client.stream<WorkStep>('/api/load', request, { onStatus, signal })) {
        const { status, completed, total } = event
        const share = completed !== undefined && total ? ` ${Math.floor((completed / total) * 100)}%` : ''
        if (status !== 'ready') onStatus(status + share)
      }
    } catch (error) {
      if (!(error instanceof ServerRefusal) || error.code !== 'forbidden_role' || !this.#mayLoad) throw error
      this.#mayLoad = false
      await this.about()
    }
  }

  /** Whether the model has no chat template and only completes text. */
  async isBase(): Promise<boolean> {
    return (await this.about()).capabilities.includes('base')
  }

  async about(): Promise<ShownModel> {
    const { model } = this.settings
    if (this.#about?.model !== model) {
      this.#about = { model, shown: await this.#client.json<ShownModel>('POST', '/api/show', { model }) }
    }
    return this.#about.shown
  }

  /**
   * Sends a prompt and streams the answer, without the oldest turns if the conversation exceeds the context. `signal`
   * stops the engine: the partial answer is remembered, and the result is undefined.
   * @throws CommandFailure; the prompt is then forgotten
   */
  async ask(prompt: string, sink: AnswerSink, signal?: AbortSignal): Promise<Answered | undefined> {
    const images = this.images.splice(0)
    const question: Turn = { prompt, answer: '', ...(images.length > 0 && { images }) }
    this.#last = question
    const isBase = await this.isBase()
    let droppedByServer = 0
    const remember = (sentFrom = this.#sentFrom) => {
      if (question.answer === '') return
      this.turns.push(question)
      this.#sentFrom = sentFrom
    }
    const request = this.#request([...this.turns.slice(this.#sentFrom), question], isBase)
    const stream = this.#client.stream<ChatEvent | GenerateEvent>(isBase ? '/api/generate' : '/api/chat', request, {
      signal,
      onStatus: sink.status,
      onHeaders: headers => {
        droppedByServer = Number(headers['x-corral-dropped-messages'] ?? 0)
      }
    })
    try {
      for await (const event of stream) {
        const message = 'message' in event ? event.message : undefined
        const content = 'response' in event ? event.response : message?.content
        if (message?.thinking) sink.thinking(message.thinking)
        if (content) {
          question.answer += content
          sink.content(content)
        }
        if (!event.done || event.done_reason === 'error') continue
        const sentFrom = Math.min(this.turns.length, this.#sentFrom + (await this.#turnsAmong(droppedByServer)))
        const dropped = 2 * (sentFrom - this.#sentFrom)
        remember(sentFrom)
        const { prompt_eval_count: promptTokens = 0, eval_count: answerTokens = 0, done_reason: reason } = event
        this.#tokens = promptTokens + answerTokens
        if (reason !== 'length' && dropped === 0) return { ...event, dropped }
        const contextLength = await this.#readContextLength()
        const { context_length: trained = Number.POSITIVE_INFINITY } = (await this.about()).details
        const present = contextLength ?? 0
        const largerContext = present >= trained ? 0 : Math.min(2 * present, trained)
        const isFull = contextLength !== undefined && this.#tokens >= contextLength - 1
        const cutBy = reason !== 'length' ? {} : ({ cutBy: isFull ? 'context' : 'max_tokens' } as const)
        return { ...event, ...cutBy, contextLength, largerContext, dropped }
      }
    } catch (error) {
      if (!signal?.aborted) throw error
      remember()
      return undefined
    }
    throw failure('The answer is incomplete because the server closed the connection. Try again.')
  }

  /** The fields of a request for an answer to the last of these turns. A base model gets only the prompt. */
  #request(turns: readonly Turn[], isBase: boolean): object {
    const { model, system, options, format, think, keepAlive } = this.settings
    const conversation = turns.flatMap(({ prompt, images, answer }) => [
      { role: 'user', content: prompt, ...(images && { images }) },
      ...(answer === '' ? [] : [{ role: 'assistant', content: answer }])
    ])
    const messages = system ? [{ role: 'system', content: system }, ...conversation] : conversation
    const { prompt, images } = turns.at(-1)!
    const seed = this.#seedOnce
    this.#seedOnce = undefined
    return {
      model,
      ...(isBase ? { prompt, images, system } : { messages }),
      stream: true,
      options: { context_overflow: 'drop_oldest', ...options, ...(seed !== undefined && { seed }) },
      // JSON omits undefined values.
      format,
      think,
      keep_alive: keepAlive
    }
  }

  /** Converts dropped messages to dropped turns. The model's built-in messages go first. */
  async #turnsAmong(messages: number): Promise<number> {
    if (messages === 0) return 0
    const examples = (await this.about()).messages?.filter(({ role }) => role !== 'system').length ?? 0
    return Math.ceil(Math.max(0, messages - examples) / 2)
  }

  /** Undefined if the model is no longer loaded, or the server does not report the length. */
  async #readContextLength(): Promise<number | undefined> {
    try {
      const { digest } = (await this.about()).details
      const { models } = await this.#client.json<{ models: RunningRecord[] }>('GET', '/api/ps')
      return models.find(model => model.digest === digest && model.mode === 'chat')?.context_length
    } catch (error) {
      // Only the wording of a remark depends on this. The next answer reports a failing server.
      if (error instanceof CommandFailure) return undefined
      throw error
    }
  }

  /** Messages that are remembered but no longer sent, because the context is too small. */
  get unsent(): number {
    return 2 * this.#sentFrom
  }

  /** How much of the context the conversation uses, if that is known. */
  async contextUse(): Promise<string | undefined> {
    const contextLength = this.#tokens === undefined ? undefined : await this.#readContextLength()
    return contextLength === undefined ? undefined : `${this.#tokens} of ${contextLength} tokens used`
  }

  /**
   * Removes the last question so that it can be asked again. Undefined if there is none.
   * @param seed seed of that answer only
   */
  takeBack(seed: number | undefined): { prompt: string; restore: () => void } | undefined {
    const last = this.#last ?? this.turns.at(-1)
    if (!last) return undefined
    const answered = this.turns.at(-1) === last
    const { length } = this.turns
    if (answered) this.turns.pop()
    this.#sentFrom = Math.min(this.#sentFrom, this.turns.length)
    this.images = [...(last.images ?? [])]
    this.#seedOnce = seed
    this.#tokens = undefined
    return {
      prompt: last.prompt,
      restore: () => {
        if (answered && this.turns.length < length) this.turns.push(last)
      }
    }
  }

  /** Call this after changing a setting: a larger context has room for dropped turns again. */
  settingChanged(name: string): void {
    if (isLoadOption(name)) this.#sentFrom = 0
  }

  async switchTo(model: string, onStatus: (text: string) => void, signal?: AbortSignal): Promise<void> {
    const before = this.settings.model
    this.settings.model = model
    try {
      await this.load(onStatus, signal)
    } catch (error) {
      this.settings.model = before
      throw error
    }
    this.settingChanged('num_ctx')
  }

  restore(turns: readonly Turn[]): void {
    this.turns = [...turns]
    this.#sentFrom = 0
    this.#last = undefined
    this.images = []
    this.#tokens = undefined
  }
}

export const baseText = (model: string) =>
  `${model} is a base model: it completes your text and does not see earlier messages.`

/**
 * Explains why an answer was truncated and how to get more. Undefined if it is complete.
 * @param inChat suggests `/set` instead of flags
 */
export function cutText(
  { cutBy, contextLength, largerContext = 0, eval_count: tokens = 0 }: Answered,
  inChat: boolean
) {
  if (!cutBy) return undefined
  const set = (name: string, value: number) =>
    inChat ? `/set ${name} ${value}` : `--${name.replace('_', '-')} ${value}`
  const after = `The answer stopped after ${plural(tokens, 'token')}`
  if (cutBy === 'context') {
    const full = `${after}: the context of ${contextLength} tokens is full`
    if (largerContext === 0) return `${full}, and the model was not trained for a larger one.`
    return `${full}. Get more with: ${set('num_ctx', largerContext)}`
  }
  return `${after}, the limit set by max_tokens. Get more with: ${set('max_tokens', Math.max(100, 2 * tokens))}`
}

export function formatCounters(counters: Counters): string {
  const seconds = (ns: number | undefined) => (ns ?? 0) / 1e9
  const rate = (count: number | undefined, ns: number | undefined) =>
    count && ns
      ? `${plural(count, 'token')} in ${seconds(ns).toFixed(2)} s, ${(count / seconds(ns)).toFixed(1)} tokens/s`
      : '0 tokens'
  return [
    `prompt   ${rate(counters.prompt_eval_count, counters.prompt_eval_duration)}`,
    `answer   ${rate(counters.eval_count, counters.eval_duration)}`,
    `loading  ${seconds(counters.load_duration).toFixed(2)} s`,
    `total    ${seconds(counters.total_duration).toFixed(2)} s`
  ].join('\n')
}
