import { useEffect, useState } from 'preact/hooks'
import { ask, key } from '../state/api.ts'

/** Requests a route when the view is shown, and again on each call of `again`. */
export function useReply<Reply>(path: string): { reply: Reply | undefined; fault: string; again: () => void } {
  const [round, setRound] = useState(0)
  const [reply, setReply] = useState<Reply | undefined>(undefined)
  const [fault, setFault] = useState('')
  useEffect(() => {
    const controller = new AbortController()
    ask<Reply>('GET', path, { signal: controller.signal }).then(
      found => {
        setReply(found)
        setFault('')
      },
      error => {
        if (!controller.signal.aborted) setFault((error as Error).message)
      }
    )
    return () => controller.abort()
  }, [path, round, key.value])
  return { reply, fault, again: () => setRound(round + 1) }
}
