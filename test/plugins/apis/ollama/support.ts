import type { Test } from 'tap'
import { type Corral, type CorralOptions, startCorral } from '../../../support/corral.ts'

/** Starts a corral with a separate listener for Ollama's clients. */
export async function corralWithListener(
  t: Pick<Test, 'teardown'>,
  { config, ...options }: CorralOptions = {}
): Promise<{ corral: Corral; address: string }> {
  const corral = await startCorral(t, {
    ...options,
    config: `api-ollama: { listen: "127.0.0.1:0" }\n${config ?? 'defaults: { num_parallel: 1, temperature: 0 }'}`
  })
  return { corral, address: addressOf(corral) }
}

function addressOf(corral: Corral): string {
  const found = /served at (http:\/\/127\.0\.0\.1:\d+)/.exec(corral.log())?.[1]
  if (found === undefined) throw new Error(`no separate listener:\n${corral.log()}`)
  return found
}

/** A tool that the demo model calls when it is asked for the weather. */
export const WEATHER = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  }
}

export interface Answer {
  status: number
  type: string
  text: string
  /** The JSON values of the lines. Empty if the reply is not JSON. */
  lines: any[]
}

/** Sends a request exactly as given, and reads the whole reply. */
export async function ask(
  method: string,
  url: string,
  headers: Record<string, string>,
  body?: string | Uint8Array | ReadableStream
): Promise<Answer> {
  const response = await fetch(url, {
    method,
    headers,
    ...(body === undefined ? {} : { body }),
    ...(body instanceof ReadableStream ? { duplex: 'half' as const } : {})
  } as RequestInit)
  const text = await response.text()
  const isJson = text.startsWith('{') || text.startsWith('[')
  return {
    status: response.status,
    type: response.headers.get('content-type') ?? '',
    text,
    lines: isJson
      ? text
          .trimEnd()
          .split('\n')
          .map(line => JSON.parse(line))
      : []
  }
}

export const get = (url: string, headers: Record<string, string> = {}) => ask('GET', url, headers)

/** Sends an object as JSON, and any other body as it is. */
export const post = (url: string, body: object | string, headers: Record<string, string> = {}) =>
  ask('POST', url, headers, typeof body === 'string' ? body : JSON.stringify(body))
