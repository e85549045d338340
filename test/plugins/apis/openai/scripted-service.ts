import type { Test } from 'tap'
import type { EngineSpec } from '../../../../core/contracts/engines.ts'
import { until } from '../../../support/corral.ts'
import {
  eventStream,
  type FakeEngine,
  fakeEngine,
  type Responder,
  type ServiceOptions,
  startService,
  variantOf
} from './support.ts'

export const MODEL = 'corral/tiny-chat'
export const event = (content: string) =>
  `data: {"choices":[{"index":0,"delta":{"content":"${content}"}}],"model":"${MODEL}","object":"chat.completion.chunk"}\n\n`
export const DONE = 'data: [DONE]\n\n'
export const chat = { model: MODEL, messages: [{ role: 'user', content: 'hi' }], stream: true }

/** Starts a service with one model. Each new engine uses the next responder, or the last one. */
export async function scriptedService(t: Test, responders: Responder[], options: Partial<ServiceOptions> = {}) {
  const engines: FakeEngine[] = []
  const service = await startService(t, {
    variants: [variantOf('corral', 'tiny-chat')],
    startEngine: async (spec: EngineSpec) => {
      const respond = responders[Math.min(engines.length, responders.length - 1)]!
      const engine = fakeEngine(spec, respond)
      engines.push(engine)
      return engine
    },
    ...options
  })
  const idle = () => until('the slot is free', () => service.scheduler.running().every(model => model.running === 0))
  return { ...service, engines, idle }
}

/** Splits the text of a failed stream into what came before the error, and the error. */
export function splitError(text: string) {
  const at = text.lastIndexOf('data: {"error":')
  return { before: text.slice(0, at), error: JSON.parse(text.slice(at + 6)).error }
}

export const answers =
  (...chunks: string[]): Responder =>
  () => {
    const response = eventStream()
    for (const chunk of chunks) response.body.write(chunk)
    response.body.end()
    return response
  }

/** Loads until it is aborted. */
export const neverLoads: ServiceOptions['startEngine'] = (_spec, { signal }) =>
  new Promise((_, reject) => {
    if (signal!.aborted) reject(signal!.reason)
    signal!.addEventListener('abort', () => reject(signal!.reason))
  })
