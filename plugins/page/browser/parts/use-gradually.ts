import { useEffect, useState } from 'preact/hooks'

/**
 * How many of many things are shown: some at once, and more after each frame, so that none is late.
 * @param total of those that there are; it begins with the first ones
 * @returns infinite once all have been shown: what is added then is shown at once
 */
export function useGradually(total: number, step: number): number {
  const [count, setCount] = useState(step)
  useEffect(() => {
    if (total === 0 || count === Infinity) return
    const timer = setTimeout(() => setCount(count < total ? count + step : Infinity))
    return () => clearTimeout(timer)
  }, [count, total, step])
  return count
}
