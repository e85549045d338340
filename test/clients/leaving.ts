import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { ENDLESS, MODEL, type Place, QUESTION } from './trials.ts'

/** Tokens in an answer of `ENDLESS`. */
const TOKENS = 3_500
/** Tokens generated to measure the speed. */
const TRIED = 350
/** Pieces that a reader takes before it disconnects. */
const TAKEN = 40
/** Pieces that may still be on their way then. */
const STILL_COMING = 500
/** Milliseconds that the slowest machine may need to notice a disconnected reader. */
const MIN_WAIT = 1_000

async function ask(address: string, path: string, method: string, body: object): Promise<any> {
  const response = await fetch(address + path, { method, body: JSON.stringify(body) })
  const text = await response.text()
  if (!response.ok) throw new Error(`${path} answered ${response.status}: ${text}`)
  return JSON.parse(text)
}

/**
 * Creates a model that never finishes its answers by itself, as Ollama's clients create models. Every client can then
 * disconnect in the middle, whatever fields it sends.
 * @returns how long a request may continue after its client disconnected, in milliseconds: half the time of a whole
 * answer
 */
export async function makeEndless(address: string): Promise<number> {
  const parameters = { ignore_eos: true, num_predict: TOKENS, temperature: 0 }
  await ask(address, '/ollama/api/create', 'POST', { model: ENDLESS, from: MODEL, parameters, stream: false })
  const messages = [{ role: 'user', content: QUESTION }]
  const tried = { model: ENDLESS, messages, options: { num_predict: TRIED }, stream: false }
  const { eval_count, eval_duration } = await ask(address, '/ollama/api/chat', 'POST', tried)
  assert.equal(eval_count, TRIED)
  return Math.max((eval_duration / 1e6 / TRIED) * (TOKENS / 2), MIN_WAIT)
}

export async function removeEndless(address: string): Promise<void> {
  await ask(address, '/api/delete', 'DELETE', { model: ENDLESS })
}

/**
 * Reads the beginning of a long answer, disconnects, and waits until the server runs nothing any more, long before the
 * answer would have ended.
 * @param open starts the answer; without `leave`, ending the iteration must end the request
 */
export async function leavesInTheMiddle<Piece>(
  place: Place,
  open: () => Promise<{ pieces: AsyncIterable<Piece>; leave?: () => void }>
): Promise<string> {
  const { pieces, leave } = await open()
  let taken = 0
  try {
    for await (const _ of pieces) {
      taken++
      if (taken === TAKEN) {
        if (!leave) break
        leave()
      }
      if (taken > TAKEN + STILL_COMING) break
    }
  } catch (error) {
    // Clients end an aborted iteration with an error. An earlier error is a failure.
    if (taken < TAKEN) throw error
  }
  assert.ok(taken >= TAKEN, `only ${taken} chunks came`)
  assert.ok(taken <= TAKEN + STILL_COMING, 'chunks arrive after the client disconnected')
  await freed(place)
  return 'its slot is free immediately'
}

async function freed({ address, leavingLimit }: Place): Promise<void> {
  const begun = performance.now()
  for (;;) {
    const { models } = (await (await fetch(`${address}/api/ps`)).json()) as any
    if (models.every(({ name, running }: any) => name !== ENDLESS || running === 0)) return
    const waited = performance.now() - begun
    assert.ok(waited < leavingLimit, `the answer still runs ${Math.round(waited)} ms after its client disconnected`)
    await sleep(10)
  }
}
