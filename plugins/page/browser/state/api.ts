import { signal } from '@preact/signals'
import { createParser } from 'eventsource-parser'
import { localTexts, tabTexts } from './browser-storage.ts'

/** An error reply of the server, or the reason why it could not be reached. */
export class ApiError extends Error {
  override name = 'ApiError'
  /** HTTP status, or 0 if the server was not reached. */
  readonly status: number
  /** Stable error code, such as `model_not_found`. */
  readonly code: string
  /** The complete reply, for fields such as `choices`. */
  readonly body: Record<string, unknown>

  constructor(message: string, status: number, code: string, body: Record<string, unknown> = {}) {
    super(message)
    this.status = status
    this.code = code
    this.body = body
  }
}

/** Base URL of the server, ending with a slash. */
export const base = new URL(
  document.querySelector<HTMLMetaElement>('meta[name=corral-base]')?.content ?? './',
  document.baseURI
).href.replace(/[?#].*$/, '')

const STORED_KEY = 'corral-key'

/** The API key or session for requests, or empty. Kept until the tab is closed, or for all tabs if the user stays signed in. */
export const key = signal(tabTexts.get(STORED_KEY) ?? localTexts.get(STORED_KEY) ?? '')
/** Whether the server has asked for a key, or for another one. */
export const isKeyWanted = signal(false)

/** Sets the key of this tab, or the session of all tabs. An empty key removes it. */
export function useKey(value: string, stays = false): void {
  key.value = value
  isKeyWanted.value = false
  tabTexts.set(STORED_KEY, stays ? '' : value)
  if (stays || value === '') localTexts.set(STORED_KEY, value)
}

export interface RequestOptions {
  /** Sent as JSON, unless it is a form. */
  body?: unknown
  headers?: Record<string, string>
  signal?: AbortSignal
}

/** Sends a request to the server. @throws ApiError if it refuses or cannot be reached; the reason of the signal */
export async function send(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
  const { body, headers, signal } = options
  const used = key.value
  const isForm = body instanceof FormData
  let response: Response
  try {
    response = await fetch(base + path, {
      method,
      headers: {
        ...(used && { authorization: `Bearer ${used}` }),
        ...(body !== undefined && !isForm && { 'content-type': 'application/json' }),
        ...headers
      },
      ...(body !== undefined && { body: isForm ? body : JSON.stringify(body) }),
      ...(signal && { signal })
    })
  } catch (error) {
    if (signal?.aborted) throw signal.reason
    throw new ApiError(String((error as Error).message), 0, 'unreachable')
  }
  if (response.ok) return response
  const error = await errorOf(response)
  if (response.status === 401 && used === key.value) {
    // Remove an ended session first: the server may not require a key at all.
    if (used.startsWith('corral_session_')) useKey('')
    else isKeyWanted.value = true
  }
  throw error
}

/** Like `send`, for JSON replies. */
export async function ask<Reply>(method: string, path: string, options?: RequestOptions): Promise<Reply> {
  return (await send(method, path, options)).json() as Promise<Reply>
}

/** Has the server count the tokens of a request. */
export async function countTokens(body: object, options: RequestOptions): Promise<number> {
  const path = 'v1/chat/completions/input_tokens'
  return (await ask<{ input_tokens: number }>('POST', path, { ...options, body })).input_tokens
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => '')
  try {
    const body = JSON.parse(text)
    const { error, code } = body
    const { message = error, code: inner = code } = typeof error === 'object' ? error : {}
    return new ApiError(String(message), response.status, String(inner), body)
  } catch {
    return new ApiError(text.slice(0, 500) || response.statusText, response.status, 'unknown')
  }
}

/** An event of a stream, or a comment with the server's progress. */
export type StreamItem = { data: string; event?: string | undefined; id?: string | undefined } | { comment: string }

/** Reads the events of a stream. @throws ApiError `connection_lost` if it is interrupted; the reason of the signal */
export async function* streamOf(response: Response, signal?: AbortSignal): AsyncGenerator<StreamItem[]> {
  let items: StreamItem[] = []
  const parser = createParser({
    onEvent: ({ data, event, id }) => void items.push({ data, event, id }),
    onComment: comment => void items.push({ comment: comment.trim() })
  })
  const reader = response.body!.getReader()
  const decoder = new TextDecoder()
  try {
    while (true) {
      const { done, value } = await reader.read()
      if (done) return
      parser.feed(decoder.decode(value, { stream: true }))
      if (items.length > 0) yield items
      items = []
    }
  } catch (error) {
    if (signal?.aborted) throw signal.reason
    throw new ApiError(String((error as Error).message), 0, 'connection_lost')
  } finally {
    reader.cancel().catch(() => undefined)
  }
}
