import { readJson, readText } from '../../../core/system/response-body.ts'
import { promptOnly } from '../answer-fields.ts'
import type { EngineRequest, EngineResponse } from '../upstream.ts'

/* llama-server's routes for the states of slots (tools/server/README.md). */

interface Requests {
  request(request: EngineRequest): Promise<EngineResponse>
}

/** Saves, restores or erases a slot. Returns its tokens and the bytes written. @throws Error with the engine's own words */
export async function slotAction(
  engine: Requests,
  id: number,
  action: 'save' | 'restore' | 'erase',
  filename: string,
  signal: AbortSignal
): Promise<{ tokens: number; bytes: number }> {
  const reply = await post(engine, `/slots/${id}?action=${action}`, { filename }, signal)
  return { tokens: toNumber(reply.n_saved ?? reply.n_restored), bytes: toNumber(reply.n_written) }
}

/**
 * Rolls a slot back to the end of its last prompt, where the next prompt of the conversation certainly agrees with it.
 * llama-server returns there through a checkpoint of the slot.
 * @param request the request of the slot's last answer
 * @param thinks whether the model may think: its templates leave out earlier thoughts, so that the next prompt already
 * differs where the answer began
 * @throws Error with the engine's own words
 */
export async function rollBack(
  engine: Requests,
  id: number,
  { path, fields }: SentRequest,
  thinks: boolean,
  signal: AbortSignal
): Promise<void> {
  const { return_progress, ...prompt } = promptOnly(fields)
  const end = thinks && prompt.messages !== undefined ? { add_generation_prompt: false } : {}
  const body = { ...prompt, ...end, stream: false, id_slot: id, cache_prompt: true }
  await post(engine, path, body, signal)
}

export interface SentRequest {
  path: string
  fields: Record<string, unknown>
}

async function post(engine: Requests, path: string, fields: object, signal: AbortSignal) {
  const { status, body } = await engine.request({ method: 'POST', path, body: JSON.stringify(fields), signal })
  const reply = (await readJson(body)) as Record<string, unknown>
  if (status === 200) return reply
  const message = (reply?.error as { message?: unknown } | undefined)?.message
  throw new Error(typeof message === 'string' ? message : `status ${status}`)
}

/** Returns a function that returns a counter of llama-server (tools/server/README.md: GET /metrics), NaN if unknown. */
export async function readMetrics(engine: Requests, signal: AbortSignal): Promise<(name: string) => number> {
  const { status, body } = await engine.request({ method: 'GET', path: '/metrics', signal })
  const text = await readText(body)
  const metrics = status === 200 ? text : ''
  return name => Number(new RegExp(`^llamacpp:${name} (\\S+)$`, 'm').exec(metrics)?.[1])
}

/** Returns the average milliseconds per token of prefill, or undefined if too few tokens were processed. */
export async function millisecondsPerToken(engine: Requests, signal: AbortSignal): Promise<number | undefined> {
  const count = await readMetrics(engine, signal)
  const tokens = count('prompt_tokens_total')
  const seconds = count('prompt_seconds_total')
  // Single tokens take longer than the tokens of a batch.
  return tokens >= 256 && seconds > 0 ? (seconds * 1000) / tokens : undefined
}

function toNumber(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0
}
