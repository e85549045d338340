import type { Delta, Engine } from '../contracts/engines.ts'

const generated = new WeakMap<Engine, number>()

/** Tokens that an engine has sent since it started, including answers in progress. */
export function generatedBy(engine: Engine): number {
  return generated.get(engine) ?? 0
}

export const setGenerated = (engine: Engine, tokens: number) => void generated.set(engine, tokens)

/** Counts an engine's output as it arrives: each event with content is one token. */
export function countGenerated(engine: Engine, piece: readonly Delta[] | Buffer): void {
  generated.set(engine, generatedBy(engine) + (Buffer.isBuffer(piece) ? eventsIn(piece) : deltasIn(piece)))
}

function deltasIn(deltas: readonly Delta[]): number {
  let count = 0
  for (const { content, thinking, toolCalls, tokens = 1 } of deltas)
    if (content || thinking || toolCalls) count += tokens
  return count
}

const EVENT = Buffer.from('data: {')

export function eventsIn(bytes: Buffer): number {
  let count = 0
  for (let at = bytes.indexOf(EVENT); at >= 0; at = bytes.indexOf(EVENT, at + EVENT.length)) count++
  return count
}
