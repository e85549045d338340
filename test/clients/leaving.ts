import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { ENDLESS, MODEL, type Place } from './trials.ts'

/** Most tokens of an answer of `ENDLESS`. */
const TOKENS = 3_500
/** How many pieces a reader takes before it leaves. */
const TAKEN = 40
/** Pieces that may be on their way when it does. */
const STILL_COMING = 500
/** Pieces may have come in one heap, which says nothing of their speed. */
const LEAST_WAIT = 1_000

/**
 * Makes a model that never ends its answers by itself, in the way that Ollama's clients make models, so that every
 * client can leave one in the middle whatever fields it sends.
 */
export async function makeEndless({ address }: Place): Promise<void> {
  const response = await fetch(`${address}/ollama/api/create`, {
    method: 'POST',
    body: JSON.stringify({
      model: ENDLESS,
      from: MODEL,
      parameters: { ignore_eos: true, num_predict: TOKENS, temperature: 0 },
      stream: false
    })
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${ENDLESS} was not made: ${response.status} ${text}`)
}

/**
 * Reads the beginning of an answer that would go on, leaves, and waits until the server runs nothing any more. That
 * must be long before the answer would have ended, by the speed at which its beginning came.
 * @param open starts the answer; without `leave`, ending the iteration must be enough
 */
export async function leavesInTheMiddle<Piece>(
  place: Place,
  open: () => Promise<{ pieces: AsyncIterable<Piece>; leave?: () => void }>
): Promise<string> {
  const { pieces, leave } = await open()
  let taken = 0
  let began = 0
  let perPiece = 0
  try {
    for await (const _ of pieces) {
      began ||= performance.now()
      taken++
      if (taken === TAKEN) {
        perPiece = (performance.now() - began) / TAKEN
        if (!leave) break
        leave()
      }
      if (taken > TAKEN + STILL_COMING) break
    }
  } catch (error) {
    // Clients end an iteration that is aborted with an error; before that, an error is one.
    if (taken < TAKEN) throw error
  }
  assert.ok(taken >= TAKEN, `only ${taken} pieces came`)
  assert.ok(taken <= TAKEN + STILL_COMING, 'pieces come after the reader left')
  await freed(place, perPiece)
  return 'its slot is free at once'
}

async function freed({ address }: Place, perPiece: number): Promise<void> {
  const begun = performance.now()
  const limit = Math.max((perPiece * TOKENS) / 2, LEAST_WAIT)
  for (;;) {
    const { models } = (await (await fetch(`${address}/api/ps`)).json()) as { models: Loaded[] }
    if (models.every(({ name, running }) => name !== ENDLESS || running === 0)) return
    const waited = performance.now() - begun
    assert.ok(waited < limit, `the answer still runs ${Math.round(waited)} ms after its reader left`)
    await sleep(10)
  }
}

interface Loaded {
  name: string
  running: number
}
