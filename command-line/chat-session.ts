import type { Counters, WorkStep } from '../core/contracts/native-records.ts'
import type { ChatEvent } from '../plugins/api-native/schemas.ts'
import { CommandFailure, EXIT } from './command-failure.ts'
import type { ServerClient } from './server-client.ts'

interface Message {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** What every request of a chat carries. */
export interface ChatSettings {
  model: string
  system?: string | undefined
  /** As `options` of the API. */
  options: Record<string, number>
  /** `json`, or a JSON schema. */
  format?: unknown
  think?: boolean | undefined
  keepAlive?: string | undefined
}

/** Receives an answer while it is generated. */
export interface AnswerSink {
  /** What the answer is waiting for, such as `loading 42%`. */
  status(text: string): void
  thinking(text: string): void
  content(text: string): void
}

/** A chat with one model; it remembers the conversation. */
export class ChatSession {
  readonly #client: ServerClient
  readonly #settings: ChatSettings
  #messages: Message[] = []

  constructor(client: ServerClient, settings: ChatSettings) {
    this.#client = client
    this.#settings = settings
  }

  /** Loads the model. */
  async load(onStatus: (text: string) => void): Promise<void> {
    const { model, options } = this.#settings
    // Without keep_alive: one of 0 would unload the model before its first answer.
    const request = { model, options, stream: true }
    for await (const event of this.#client.stream<WorkStep>('/api/load', request, { onStatus })) {
      if (event.status !== 'ready') onStatus(loadStatus(event))
    }
  }

  /**
   * Sends a prompt and streams the answer. When `signal` aborts, the engine stops, the part of the answer that has
   * arrived is remembered, and the result is undefined.
   */
  async ask(prompt: string, sink: AnswerSink, signal?: AbortSignal): Promise<Counters | undefined> {
    const { model, system, options, format, think, keepAlive } = this.#settings
    const question: Message = { role: 'user', content: prompt }
    const conversation = [...this.#messages, question]
    const request = {
      model,
      messages: system ? [{ role: 'system', content: system }, ...conversation] : conversation,
      stream: true,
      options,
      // JSON leaves out what is undefined.
      format,
      think,
      keep_alive: keepAlive
    }
    let answer = ''
    const remember = () => {
      if (answer !== '') this.#messages.push(question, { role: 'assistant', content: answer })
    }
    try {
      for await (const event of this.#client.stream<ChatEvent>('/api/chat', request, {
        signal,
        onStatus: sink.status
      })) {
        const message = 'message' in event ? event.message : undefined
        if (message?.thinking) sink.thinking(message.thinking)
        if (message?.content) {
          answer += message.content
          sink.content(message.content)
        }
        if (event.done && event.done_reason !== 'error') {
          remember()
          return event
        }
      }
    } catch (error) {
      if (!signal?.aborted) throw error
      remember()
      return undefined
    }
    throw new CommandFailure(EXIT.failure, 'The answer broke off: the server closed the connection. Try again.')
  }

  /** Forgets the conversation. */
  clear(): void {
    this.#messages = []
  }
}

function loadStatus({ status, completed, total }: WorkStep): string {
  return completed !== undefined && total ? `${status} ${Math.floor((completed / total) * 100)}%` : status
}

/** The token counts and times of an answer, for people. */
export function formatCounters(counters: Counters): string {
  const seconds = (ns: number | undefined) => (ns ?? 0) / 1e9
  const rate = (count: number | undefined, ns: number | undefined) =>
    count && ns
      ? `${count} tokens in ${seconds(ns).toFixed(2)} s, ${(count / seconds(ns)).toFixed(1)} tokens/s`
      : '0 tokens'
  return [
    `prompt   ${rate(counters.prompt_eval_count, counters.prompt_eval_duration)}`,
    `answer   ${rate(counters.eval_count, counters.eval_duration)}`,
    `loading  ${seconds(counters.load_duration).toFixed(2)} s`,
    `total    ${seconds(counters.total_duration).toFixed(2)} s`
  ].join('\n')
}
