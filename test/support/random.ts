/** Pseudo-random numbers from 0 to 1 for a seed (mulberry32). */
export function randomNumbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let value = Math.imul(state ^ (state >>> 15), 1 | state)
    value = (value + Math.imul(value ^ (value >>> 7), 61 | value)) ^ value
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32
  }
}

/** Pseudo-random whole numbers from 0 up to, but not including, `below`. */
export function randomBelow(seed: number): (below: number) => number {
  const random = randomNumbers(seed)
  return below => Math.floor(random() * below)
}

export function pick<T>(random: () => number, values: readonly T[]): T {
  return values[Math.floor(random() * values.length)]!
}
