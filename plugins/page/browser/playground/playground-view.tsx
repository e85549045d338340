import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { isObject, parseAnyJson } from '../../../../core/system/json-object.ts'
import { CopyButton } from '../parts/controls.tsx'
import { formatDuration, formatNumber } from '../parts/formats.ts'
import { Button, Choices, Field, Form, TextField } from '../parts/forms.tsx'
import { Fault, PageView, Table } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { type ApiError, base, key, send } from '../state/api.ts'
import { may } from '../state/me.ts'
import { noteRequest, type RecentRequest, recentRequests } from '../state/recent-requests.ts'
import { go } from '../state/route.ts'
import { fill, texts } from '../texts/texts.ts'
import {
  type ApiDocument,
  asCurl,
  asJavaScript,
  asPython,
  type Operation,
  operationsIn,
  pathWith
} from './operations.ts'

const FIRST = 'chat'

/** Fills in and sends any request of the API, and shows it as code. */
export function PlaygroundView({ path: [wanted = FIRST] }: { path: string[] }) {
  const t = texts.value
  const { reply, fault } = useReply<ApiDocument>('openapi.json')
  // Other routes would refuse this caller.
  const operations = useMemo(() => reply && operationsIn(reply), [reply])?.filter(({ role }) => may(role))
  const current = operations?.find(({ id }) => id === wanted) ?? operations?.[0]
  const tags = [...new Set(operations?.map(({ tag }) => tag))]
  return (
    <PageView title={t.playground} aside={<a href={`${base}docs`}>{t.apiDocument}</a>}>
      <Fault text={fault?.message} />
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
    </PageView>
  )
}

const FORMS = { curl: asCurl, python: asPython, javascript: asJavaScript }
const FORM_NAMES = { curl: 'curl', python: 'Python', javascript: 'JavaScript' }

/** Maximum characters of a reply that are shown. */
const MAX_LENGTH = 500_000

function RequestForm({ operation }: { operation: Operation }) {
  const t = texts.value
  const [given, setGiven] = useState<Record<string, string>>({})
  const [body, setBody] = useState(operation.example)
  const [reply, setReply] = useState<{ status: string; text: string } | undefined>(undefined)
  const [isBusy, setBusy] = useState(false)
  const [form, setForm] = useState<keyof typeof FORMS>('curl')
  const controller = useRef<AbortController | undefined>(undefined)
  useEffect(() => () => controller.current?.abort(), [])
  const path = pathWith(operation, given)
  const shown = {
    method: operation.method,
    url: base.replace(/\/$/, '') + path,
    ...(body !== undefined && { body }),
    hasKey: key.value !== ''
  }
  const code = FORMS[form](shown)
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
        model: isObject(parsed) && typeof parsed.model === 'string' ? parsed.model : undefined,
        status,
        firstByte,
        total: performance.now() - began,
        ...phasesIn(text)
      })
    }
  }
  return (
    <div class="playground">
      <p class="quiet" lang="en">
        {withCode(operation.description)}
      </p>
      <Form class="form" onSubmit={() => (isBusy ? controller.current?.abort() : sendIt())}>
        {operation.parameters.map(({ name, required, description = '' }) => (
          <Field
            key={name}
            label={
              <span lang="en">
                {name} <small>{withCode(description)}</small>
              </span>
            }
            required={required === true}
            value={given[name] ?? ''}
            onInput={event => setGiven({ ...given, [name]: event.currentTarget.value })}
          />
        ))}
        {body !== undefined && (
          <TextField
            label={t.body}
            class="field mono"
            rows={Math.min(20, body.split('\n').length + 1)}
            spellcheck={false}
            value={body}
            onInput={event => setBody(event.currentTarget.value)}
          />
        )}
        <div class="row">
          <Button
            kind={isBusy ? undefined : 'main'}
            type="submit"
            text={isBusy ? t.stop : `${t.send} ${operation.method}`}
          />
          <code class="quiet">{path}</code>
        </div>
      </Form>
      {reply && <Code class="code reply" title={reply.status} text={reply.text} />}
      <h2 class="section-title">{t.asCode}</h2>
      <Choices label={t.asCode} names={FORM_NAMES} chosen={form} onChoose={setForm} />
      <Code class="code" title={form} text={code} label={t.copyCode} />
    </div>
  )
}

function Code(props: { class: string; title: string; text: string; label?: string }) {
  return (
    <figure class={props.class}>
      <figcaption>
        <span>{props.title}</span>
        <CopyButton text={() => props.text} {...(props.label && { label: props.label })} />
      </figcaption>
      <pre tabIndex={0}>{props.text}</pre>
    </figure>
  )
}

const prettyJson = (text: string) => JSON.stringify(parseAnyJson(text), undefined, 2) ?? text

/** The timings in a native reply, in ms. */
function phasesIn(text: string): Pick<RecentRequest, 'load' | 'prompt' | 'generation' | 'tokens'> {
  const number = (field: string, unit = 1) => {
    const found = [...text.matchAll(new RegExp(`"${field}": ?(\\d+)`, 'g'))].at(-1)?.[1]
    return found === undefined ? undefined : Number(found) / unit
  }
  return {
    load: number('load_duration', 1e6),
    prompt: number('prompt_eval_duration', 1e6),
    generation: number('eval_duration', 1e6),
    tokens: number('eval_count') ?? number('completion_tokens') ?? number('output_tokens')
  }
}

function RecentRequests() {
  const t = texts.value
  if (recentRequests.value.length === 0) return null
  const phases = [t.phaseLoad, t.phasePrompt, t.phaseFirst, t.phaseGeneration, t.total]
  const rows = recentRequests.value.map(
    ({ route, model, status, load, prompt, firstByte, generation, total, tokens }) => [
      <>
        {route}
        <small> {model}</small>
      </>,
      status,
      ...[load, prompt, firstByte, generation, total].map(ms => (ms === undefined ? '' : formatDuration(ms))),
      tokens === undefined ? '' : formatNumber(tokens)
    ]
  )
  return (
    <>
      <h2 class="section-title">{t.recentRequests}</h2>
      <Table head={[t.request, t.result, ...phases, t.tokenCount]} rows={rows} />
    </>
  )
}

/** Renders a description of the API document, with text in backticks as code. */
const withCode = (text: string) =>
  text.split('`').map((part, at) => (at % 2 === 0 ? part : <code key={at}>{part}</code>))
