import { useEffect, useState } from 'preact/hooks'

/**
 * Returns how many items of a long list to render: some at first and more after each frame, so that no frame is late.
 * @param total number of items
 * @returns infinity once all have been rendered, so that later items appear immediately
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
