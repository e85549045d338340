import { useEffect, useRef, useState } from 'preact/hooks'
import type { ServerLogLine } from '../../../../core/contracts/native-records.ts'
import { SearchField } from '../parts/controls.tsx'
import { Select } from '../parts/forms.tsx'
import { Fault } from '../parts/layout.tsx'
import { type ApiError, send, streamOf } from '../state/api.ts'
import { engines, models } from '../state/server-state.ts'
import { plural, texts } from '../texts/texts.ts'

const MAX_LINES = 2000

/** A line of the server's log, or of an engine's. */
interface LogEvent extends Partial<ServerLogLine> {
  line?: string
  startedAt?: string
  endedAt?: string
  exit?: unknown
}

interface Line {
  level?: string | undefined
  text: string
}

/** Levels of lines, the lowest first. Only the server's own lines have one. */
const LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal']

export function LogsTab() {
  const t = texts.value
  const names = [...new Set([...engines.value, ...models.value].map(({ name }) => name))]
  const [model, setModel] = useState('')
  const [level, setLevel] = useState('trace')
  const [wanted, setWanted] = useState('')
  return (
    <div class="form">
      <div class="row">
        <Select
          class="row grow"
          label={t.logOf}
          value={model}
          options={[['', t.serverItself], ...names.map(name => [name, name] as const)]}
          onChange={event => setModel(event.currentTarget.value)}
        />
        {model === '' && (
          <Select
            class="row grow"
            label={t.logLevel}
            value={level}
            options={Object.entries(t.logLevels)}
            onChange={event => setLevel(event.currentTarget.value)}
          />
        )}
      </div>
      <SearchField label={t.searchLog} value={wanted} onInput={setWanted} />
      <Log key={model} model={model} level={model === '' ? level : ''} wanted={wanted.toLowerCase()} />
    </div>
  )
}

function Log({ model, level, wanted }: { model: string; level: string; wanted: string }) {
  const t = texts.value
  const [lines, setLines] = useState<readonly Line[]>([])
  const [fault, setFault] = useState('')
  const [isFollowing, setFollowing] = useState(true)
  const box = useRef<HTMLPreElement>(null)
  useEffect(() => {
    const controller = new AbortController()
    const { signal } = controller
    const read = async () => {
      const path = model === '' ? '?' : `/${model.split('/').map(encodeURIComponent).join('/')}?lines=500&`
      const response = await send('GET', `api/logs${path}follow=1`, {
        signal,
        headers: { accept: 'text/event-stream' }
      })
      for await (const items of streamOf(response, signal)) {
        const fresh = items.flatMap(item => ('comment' in item ? [] : lineIn(JSON.parse(item.data))))
        setLines(known => [...known, ...fresh].slice(-MAX_LINES))
      }
    }
    read().catch(error => {
      if (!signal.aborted) setFault((error as ApiError).message)
    })
    return () => controller.abort()
  }, [model])
  const least = LEVELS.indexOf(level)
  const shown = lines.filter(
    ({ level = 'fatal', text }) => LEVELS.indexOf(level) >= least && text.toLowerCase().includes(wanted)
  )
  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight
  }, [shown.length, lines, isFollowing])
  return (
    <>
      <Fault text={fault} />
      <p class="row">
        <label class="row">
          <input type="checkbox" checked={isFollowing} onChange={event => setFollowing(event.currentTarget.checked)} />
          {t.followLog}
        </label>
        <span class="quiet">{plural(t.linesShown, shown.length)}</span>
      </p>
      <pre
        class="log"
        ref={box}
        tabIndex={0}
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) =>
          setFollowing(scrollHeight - scrollTop - clientHeight < 40)
        }
      >
        {shown.length === 0
          ? texts.value.nothingYet
          : shown.map(({ level, text }, index) => (
              <span key={index} class={`log-${level}`}>
                {`${text}\n`}
              </span>
            ))}
      </pre>
    </>
  )
}

function lineIn({ line, message, time, level, part, details, startedAt, endedAt, exit }: LogEvent): Line[] {
  if (message !== undefined) {
    const at = time === undefined ? '' : new Date(time).toLocaleTimeString('sv')
    const facts = [at, level, part, message, details && JSON.stringify(details)]
    return [{ level, text: facts.filter(Boolean).join(' ') }]
  }
  if (line !== undefined) return [{ text: line }]
  if (endedAt !== undefined) return [{ text: `── ${endedAt} ${JSON.stringify(exit)}` }]
  return startedAt === undefined ? [] : [{ text: `── ${startedAt}` }]
}
