import { useEffect, useRef } from 'preact/hooks'

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
