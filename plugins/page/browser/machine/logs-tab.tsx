import { useEffect, useRef, useState } from 'preact/hooks'
import { type ApiError, send, streamOf } from '../state/api.ts'
import { engines, models } from '../state/server-state.ts'
import { texts } from '../texts/texts.ts'

const MAX_LINES = 2000

interface LogEvent {
  line?: string
  startedAt?: string
  endedAt?: string
  exit?: unknown
}

export function LogsTab() {
  const t = texts.value
  const names = [...new Set([...engines.value, ...models.value].map(({ name }) => name))]
  const [chosen, setChosen] = useState('')
  const model = chosen || names[0] || ''
  return (
    <>
      <label class="row">
        {t.model}
        <select class="field grow" value={model} onChange={event => setChosen(event.currentTarget.value)}>
          {names.map(name => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      {model !== '' && <Log key={model} model={model} />}
    </>
  )
}

function Log({ model }: { model: string }) {
  const t = texts.value
  const [lines, setLines] = useState<string[]>([])
  const [fault, setFault] = useState('')
  const box = useRef<HTMLPreElement>(null)
  const isFollowing = useRef(true)
  useEffect(() => {
    const controller = new AbortController()
    const { signal } = controller
    const read = async () => {
      const path = `api/logs/${model.split('/').map(encodeURIComponent).join('/')}?follow=1&lines=500`
      const response = await send('GET', path, { signal, headers: { accept: 'text/event-stream' } })
      for await (const items of streamOf(response, signal)) {
        const fresh = items.flatMap(item => ('comment' in item ? [] : lineOf(JSON.parse(item.data))))
        setLines(known => [...known, ...fresh].slice(-MAX_LINES))
      }
    }
    read().catch(error => {
      if (!signal.aborted) setFault((error as ApiError).message)
    })
    return () => controller.abort()
  }, [model])
  useEffect(() => {
    if (isFollowing.current && box.current) box.current.scrollTop = box.current.scrollHeight
  }, [lines])
  return (
    <>
      {fault && <p class="is-error">{fault}</p>}
      <pre
        class="log"
        ref={box}
        tabIndex={0}
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          isFollowing.current = scrollHeight - scrollTop - clientHeight < 40
        }}
      >
        {lines.length === 0 ? t.nothingYet : lines.join('\n')}
      </pre>
    </>
  )
}

function lineOf(event: LogEvent): string[] {
  if (event.line !== undefined) return [event.line]
  if (event.endedAt !== undefined) return [`── ${event.endedAt} ${JSON.stringify(event.exit)}`]
  return event.startedAt === undefined ? [] : [`── ${event.startedAt}`]
}
