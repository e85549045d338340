import { useEffect, useState } from 'preact/hooks'
import { type ApiError, ask, key } from '../state/api.ts'

/**
 * Requests a route when the view is shown, when the request or the key changes, and on each call of `again`. The last
 * reply is kept until the next one arrives.
 * @param body of a POST request; without one it is a GET request
 */
export function useReply<Reply>(
  path: string,
  body?: object
): { reply: Reply | undefined; fault: ApiError | undefined; again: () => void } {
  const [round, setRound] = useState(0)
  const [reply, setReply] = useState<Reply | undefined>(undefined)
  const [fault, setFault] = useState<ApiError | undefined>(undefined)
  useEffect(() => {
    setFault(undefined)
    const controller = new AbortController()
    const { signal } = controller
    ask<Reply>(body ? 'POST' : 'GET', path, { body, signal }).then(setReply, (error: ApiError) => {
      if (!signal.aborted) setFault(error)
    })
    return () => controller.abort()
  }, [path, JSON.stringify(body), round, key.value])
  return { reply, fault, again: () => setRound(round + 1) }
}
