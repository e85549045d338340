import { json, text } from 'node:stream/consumers'
import type { LlamaServerEngine } from '../engine.ts'

/*
 * What llama-server's HTTP interface offers for slots (tools/server/README.md: GET /slots, POST /slots/{id}?action=…,
 * GET /metrics).
 */

export interface SlotUse {
  id: number
  /** Tokens in its cache; undefined where the build does not tell. */
  tokens: number | undefined
  /** Grows with each task of the engine, so that the latest used slot has the highest one. */
  task: number
}

/** The slots that have answered something since the engine's start. @throws Error when the engine does not tell */
export async function usedSlots(engine: LlamaServerEngine, signal: AbortSignal): Promise<SlotUse[]> {
  const { status, body } = await engine.request({ method: 'GET', path: '/slots', signal })
  const slots = await json(body)
  if (status !== 200 || !Array.isArray(slots)) throw new Error(`GET /slots: status ${status}`)
  return slots.flatMap(slot =>
    typeof slot?.id === 'number' && typeof slot.id_task === 'number'
      ? [{ id: slot.id, task: slot.id_task, tokens: numberOf(slot.n_prompt_tokens) }]
      : []
  )
}

/** Tokens and bytes that were saved. @throws Error with the engine's own words */
export async function saveSlot(
  engine: LlamaServerEngine,
  id: number,
  filename: string,
  signal: AbortSignal
): Promise<{ tokens: number; bytes: number }> {
  const reply = await act(engine, id, 'save', filename, signal)
  return { tokens: numberOf(reply.n_saved) ?? 0, bytes: numberOf(reply.n_written) ?? 0 }
}

/** Tokens that are in the slot now. @throws Error with the engine's own words */
export async function restoreSlot(
  engine: LlamaServerEngine,
  id: number,
  filename: string,
  signal: AbortSignal
): Promise<number> {
  return numberOf((await act(engine, id, 'restore', filename, signal)).n_restored) ?? 0
}

/** Milliseconds that a token of a prompt took to read, on average; undefined where too few were read to say. */
export async function promptPace(engine: LlamaServerEngine, signal: AbortSignal): Promise<number | undefined> {
  const { status, body } = await engine.request({ method: 'GET', path: '/metrics', signal })
  const metrics = await text(body)
  const count = (name: string) => Number(new RegExp(`^llamacpp:${name} (\\S+)$`, 'm').exec(metrics)?.[1])
  const tokens = count('prompt_tokens_total')
  const seconds = count('prompt_seconds_total')
  // Single tokens take longer than those of a batch.
  return status === 200 && tokens >= 256 && seconds > 0 ? (seconds * 1000) / tokens : undefined
}

async function act(engine: LlamaServerEngine, id: number, action: string, filename: string, signal: AbortSignal) {
  const { status, body } = await engine.request({
    method: 'POST',
    path: `/slots/${id}?action=${action}`,
    body: JSON.stringify({ filename }),
    signal
  })
  const reply = (await json(body)) as Record<string, unknown>
  if (status === 200) return reply
  const said = (reply?.error as { message?: unknown } | undefined)?.message
  throw new Error(typeof said === 'string' ? said : `status ${status}`)
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined
}
