import { useEffect, useRef, useState } from 'preact/hooks'
import { CopyButton } from '../parts/controls.tsx'
import { formatDuration, formatNumber } from '../parts/formats.ts'
import { type ApiError, ask, base, key, send } from '../state/api.ts'
import { may } from '../state/me.ts'
import { noteRequest, recentRequests } from '../state/recent-requests.ts'
import { go } from '../state/route.ts'
import { fill, texts } from '../texts/texts.ts'
import { asCurl, asJavaScript, asPython, type Operation, operationsOf, pathWith } from './operations.ts'

const FIRST = 'chat'

/** Fills in and sends any request of the API, and shows it as code. */
export function PlaygroundView({ path }: { path: string[] }) {
  const t = texts.value
  const [all, setAll] = useState<Operation[] | undefined>(undefined)
  // Other routes would refuse this caller.
  const operations = all?.filter(({ role }) => may(role))
  const [fault, setFault] = useState('')
  useEffect(() => {
    ask<Parameters<typeof operationsOf>[0]>('GET', 'openapi.json').then(
      document => setAll(operationsOf(document)),
      error => setFault(error.message)
    )
  }, [key.value])
  const wanted = path[0] ?? FIRST
  const current = operations?.find(({ id }) => id === wanted) ?? operations?.[0]
  const tags = [...new Set(operations?.map(({ tag }) => tag))]
  return (
    <main class="view page-view">
      <div class="page-column">
        <header class="page-head">
          <h1>{t.playground}</h1>
          <a href={`${base}docs`}>{t.apiDocument}</a>
        </header>
        {fault && <p class="is-error">{fault}</p>}
        {operations && current && (
          <>
            <label>
              <span class="visually-hidden">{t.request}</span>
              <select
                class="field"
                value={current.id}
                onChange={event => go(['playground', event.currentTarget.value], true)}
              >
                {tags.map(tag => (
                  <optgroup key={tag} label={tag}>
                    {operations
                      .filter(operation => operation.tag === tag)
                      .map(({ id, method, path, summary }) => (
                        <option key={id} value={id}>
                          {method} {path} – {summary}
                        </option>
                      ))}
                  </optgroup>
                ))}
              </select>
            </label>
            <RequestForm key={current.id} operation={current} />
          </>
        )}
        <RecentRequests />
      </div>
    </main>
  )
}

/** Maximum characters of a reply that are shown. */
const MAX_LENGTH = 500_000

function RequestForm({ operation }: { operation: Operation }) {
  const t = texts.value
  const [given, setGiven] = useState<Record<string, string>>({})
  const [body, setBody] = useState(operation.example)
  const [reply, setReply] = useState<{ status: string; text: string } | undefined>(undefined)
  const [isBusy, setBusy] = useState(false)
  const [form, setForm] = useState<'curl' | 'python' | 'javascript'>('curl')
  const controller = useRef<AbortController | undefined>(undefined)
  useEffect(() => () => controller.current?.abort(), [])
  const path = pathWith(operation, given)
  const shown = {
    method: operation.method,
    url: base.replace(/\/$/, '') + path,
    ...(body !== undefined && { body }),
    hasKey: key.value !== ''
  }
  const code = { curl: asCurl, python: asPython, javascript: asJavaScript }[form](shown)
  const sendIt = async () => {
    let parsed: unknown
    try {
      parsed = body === undefined ? undefined : JSON.parse(body)
    } catch (error) {
      setReply({ status: '', text: fill(t.notJson, { reason: (error as Error).message }) })
      return
    }
    controller.current = new AbortController()
    const { signal } = controller.current
    setBusy(true)
    setReply({ status: '…', text: '' })
    const began = performance.now()
    let firstByte: number | undefined
    let text = ''
    let status: number | string = ''
    try {
      const response = await send(operation.method, path.slice(1), { body: parsed, signal })
      status = response.status
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        firstByte ??= performance.now() - began
        if (text.length < MAX_LENGTH) text += part.value
        setReply({ status: String(status), text })
      }
      setReply({ status: String(status), text: prettyJson(text) })
    } catch (error) {
      if (!signal.aborted) {
        const { status: code, code: id, message } = error as ApiError
        status = code || id
        setReply({ status: `${code || ''} ${id}`, text: `${text}${text ? '\n\n' : ''}${message}` })
      } else status = t.stop
    } finally {
      setBusy(false)
      noteRequest({
        at: Date.now(),
        route: `${operation.method} ${operation.path}`,
        ...modelOf(parsed),
        status,
        ...(firstByte !== undefined && { firstByte }),
        total: performance.now() - began,
        ...phasesOf(text)
      })
    }
  }
  return (
    <div class="playground">
      <p class="quiet" lang="en">
        {withCode(operation.description)}
      </p>
      <form
        class="form"
        onSubmit={event => {
          event.preventDefault()
          if (isBusy) controller.current?.abort()
          else void sendIt()
        }}
      >
        {operation.parameters.map(({ name, isRequired, description }) => (
          <label key={name}>
            <span lang="en">
              {name} <small>{withCode(description)}</small>
            </span>
            <input
              class="field"
              required={isRequired}
              value={given[name] ?? ''}
              onInput={event => setGiven({ ...given, [name]: event.currentTarget.value })}
            />
          </label>
        ))}
        {body !== undefined && (
          <label>
            {t.body}
            <textarea
              class="field mono"
              rows={Math.min(20, body.split('\n').length + 1)}
              spellcheck={false}
              value={body}
              onInput={event => setBody(event.currentTarget.value)}
            />
          </label>
        )}
        <div class="row">
          <button type="submit" class={`button ${isBusy ? '' : 'is-main'}`}>
            {isBusy ? t.stop : `${t.send} ${operation.method}`}
          </button>
          <code class="quiet">{path}</code>
        </div>
      </form>
      {reply && (
        <figure class="code reply">
          <figcaption>
            <span>{reply.status}</span>
            <CopyButton text={() => reply.text} />
          </figcaption>
          <pre tabIndex={0}>{reply.text}</pre>
        </figure>
      )}
      <h2 class="section-title">{t.asCode}</h2>
      <fieldset class="row plain-set" aria-label={t.asCode}>
        {(['curl', 'python', 'javascript'] as const).map(each => (
          <button key={each} type="button" class="button" aria-pressed={each === form} onClick={() => setForm(each)}>
            {{ curl: 'curl', python: 'Python', javascript: 'JavaScript' }[each]}
          </button>
        ))}
      </fieldset>
      <figure class="code">
        <figcaption>
          <span>{form}</span>
          <CopyButton text={() => code} label={t.copyCode} />
        </figcaption>
        <pre tabIndex={0}>{code}</pre>
      </figure>
    </div>
  )
}

const prettyJson = (text: string) => {
  try {
    return JSON.stringify(JSON.parse(text), undefined, 2)
  } catch {
    return text
  }
}

const modelOf = (body: unknown) => {
  const { model } = (body ?? {}) as { model?: unknown }
  return typeof model === 'string' ? { model } : {}
}

/** The timings in a native reply, in ms. */
function phasesOf(text: string): { load?: number; prompt?: number; generation?: number; tokens?: number } {
  const number = (field: string) => {
    const found = [...text.matchAll(new RegExp(`"${field}": ?(\\d+)`, 'g'))].at(-1)?.[1]
    return found === undefined ? undefined : Number(found)
  }
  const ms = (field: string) => {
    const ns = number(field)
    return ns === undefined ? undefined : ns / 1e6
  }
  const found = {
    load: ms('load_duration'),
    prompt: ms('prompt_eval_duration'),
    generation: ms('eval_duration'),
    tokens: number('eval_count') ?? number('completion_tokens') ?? number('output_tokens')
  }
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined))
}

/** The recent requests of this browser and how long each phase took. */
function RecentRequests() {
  const t = texts.value
  if (recentRequests.value.length === 0) return null
  const ms = (value: number | undefined) => (value === undefined ? '' : formatDuration(value))
  return (
    <>
      <h2 class="section-title">{t.recentRequests}</h2>
      <div class="table-frame" tabIndex={0}>
        <table class="data-table">
          <thead>
            <tr>
              <th>{t.request}</th>
              <th>{t.result}</th>
              <th>{t.phaseLoad}</th>
              <th>{t.phasePrompt}</th>
              <th>{t.phaseFirst}</th>
              <th>{t.phaseGeneration}</th>
              <th>{t.total}</th>
              <th>{t.tokenCount}</th>
            </tr>
          </thead>
          <tbody>
            {recentRequests.value.map(request => (
              <tr key={`${request.at} ${request.route}`}>
                <td>
                  {request.route}
                  <small> {request.model}</small>
                </td>
                <td>{request.status}</td>
                <td>{ms(request.load)}</td>
                <td>{ms(request.prompt)}</td>
                <td>{ms(request.firstByte)}</td>
                <td>{ms(request.generation)}</td>
                <td>{ms(request.total)}</td>
                <td>{request.tokens === undefined ? '' : formatNumber(request.tokens)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  )
}

/** Renders a description of the API document, with text in backticks as code. */
const withCode = (text: string) =>
  text.split('`').map((part, at) => (at % 2 === 0 ? part : <code key={at}>{part}</code>))
