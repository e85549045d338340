import type { Counters, WorkStep } from '../core/contracts/native-records.ts'
import type { ChatEvent } from '../plugins/api-native/operations/answers.ts'
import { CommandFailure, EXIT } from './failure.ts'
import type { ServerClient } from './server-client.ts'

export interface Message {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** What every request of a chat carries. */
export interface ChatSettings {
  model: string
  system?: string
  /** As `options` of the API. */
  options: Record<string, number>
  /** `json`, or a JSON schema. */
  format?: unknown
  think?: boolean
  keepAlive?: string
}

/** Where an answer goes while it comes. */
export interface AnswerSink {
  /** What is being waited for, such as `loading 42%`. */
  status(text: string): void
  thinking(text: string): void
  content(text: string): void
}

/** A chat with one model, which remembers what was said. */
export interface Conversation {
  /** Loads the model. */
  load(onStatus: (text: string) => void, signal?: AbortSignal): Promise<void>
  /**
   * Sends a prompt and streams the answer. When `signal` aborts, the engine stops, what was answered so far is
   * remembered, and the counters are missing.
   */
  ask(prompt: string, sink: AnswerSink, signal?: AbortSignal): Promise<Counters | undefined>
  /** Forgets what was said. */
  clear(): void
}

export function createConversation(client: ServerClient, settings: ChatSettings): Conversation {
  const { model, system, options, format, think, keepAlive } = settings
  const messages: Message[] = []
  return {
    async load(onStatus, signal) {
      // A keep_alive of the chat, such as 0, must not unload the model before its first answer.
      for await (const part of client.stream<WorkStep>('/api/load', { model, options, stream: true }, signal)) {
        if ('status' in part) onStatus(part.status)
        else if (part.event.status !== 'ready') onStatus(loadStatus(part.event))
      }
    },
    async ask(prompt, sink, signal) {
      const asked: Message[] = [...messages, { role: 'user', content: prompt }]
      const request = {
        model,
        messages: system ? [{ role: 'system', content: system }, ...asked] : asked,
        stream: true,
        options,
        ...(format === undefined ? {} : { format }),
        ...(think === undefined ? {} : { think }),
        ...(keepAlive === undefined ? {} : { keep_alive: keepAlive })
      }
      let answer = ''
      const remember = () => {
        if (answer !== '') messages.push(asked.at(-1)!, { role: 'assistant', content: answer })
      }
      try {
        for await (const part of client.stream<ChatEvent>('/api/chat', request, signal)) {
          if ('status' in part) {
            sink.status(part.status)
            continue
          }
          const { event } = part
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
      throw new CommandFailure(EXIT.failure, 'The answer broke off: the server closed the connection. Ask again.')
    },
    clear() {
      messages.length = 0
    }
  }
}

function loadStatus({ status, completed, total }: WorkStep): string {
  return completed !== undefined && total ? `${status} ${Math.floor((completed / total) * 100)}%` : status
}

/** The counters of an answer for people. */
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
    `in all   ${seconds(counters.total_duration).toFixed(2)} s`
  ].join('\n')
}
