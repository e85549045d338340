import { useEffect, useRef, useState } from 'preact/hooks'
import { type ApiError, ask, key } from '../state/api.ts'
import { attempt } from './controls.tsx'

/** The type of a chat that is dragged. Its data is the id. */
export const CHAT_DRAG = 'application/x-corral-chat'
/** Chats that a list shows at first, and adds in each following frame. */
export const LINES_A_FRAME = 100

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

/**
 * Requests a route when the view is shown, when the request or the key changes, and on each call of `again`. The last
 * reply is kept until the next one arrives.
 * @param path empty for no request
 * @param body of a POST request; without one it is a GET request
 */
export function useReply<Reply>(path: string, body?: object) {
  const [round, setRound] = useState(0)
  const [reply, setReply] = useState<Reply | undefined>(undefined)
  const [fault, setFault] = useState<ApiError | undefined>(undefined)
  useEffect(() => {
    setFault(undefined)
    if (path === '') return
    const controller = new AbortController()
    const { signal } = controller
    ask<Reply>(body ? 'POST' : 'GET', path, { body, signal }).then(setReply, (error: ApiError) => {
      if (!signal.aborted) setFault(error)
    })
    return () => controller.abort()
  }, [path, JSON.stringify(body), round, key.value])
  const again = () => setRound(round => round + 1)
  /** Changes what the reply is about, and requests it again. */
  const change = (work: () => Promise<unknown>) =>
    attempt(async () => {
      await work()
      again()
    })
  return { reply, fault, again, change }
}

type Handlers = { [Name in keyof WindowEventMap]?: (event: WindowEventMap[Name]) => void }

/** Handles events of the window while the component is shown. The names must stay the same. */
export function useWindowEvents(handlers: Handlers): void {
  const latest = useRef(handlers)
  latest.current = handlers
  useEffect(() => {
    const handle = (event: Event) => (latest.current[event.type as keyof Handlers] as (event: Event) => void)(event)
    for (const name of Object.keys(handlers)) addEventListener(name, handle)
    return () => {
      for (const name of Object.keys(handlers)) removeEventListener(name, handle)
    }
  }, [])
}
