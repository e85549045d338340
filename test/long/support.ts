import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { SseParser } from '../../core/answers/openai-events.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_QUESTION, type Corral } from '../support/corral.ts'

const GGUF = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
/** Folder in which trials leave their figures for `scripts/record-long.ts`. */
const FIGURES = join(packageRoot, '.cache', 'long-trials')

/** Writes the demo model under another name, with content that differs from other copies. It answers as usual. */
export function writeModelCopy(path: string, number: number): void {
  const bytes = readFileSync(GGUF)
  const at = bytes.indexOf('Tiny Chat')
  bytes.write(`T${String(number).padStart(8, '0')}`, at, 'latin1')
  writeFileSync(path, bytes)
}

/** Fails if something takes longer than `limit` milliseconds, since trials look for requests that hang. */
export async function within<T>(limit: number, what: string, work: Promise<T>): Promise<T> {
  const timer = new AbortController()
  const late = sleep(limit, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`${what} did not end within ${limit} ms`)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    timer.abort()
    late.catch(() => {
      // The timer was cancelled.
    })
  }
}

/** A request for an answer of this many tokens, on each API. */
export function answerRequest(surface: 'sse' | 'ndjson' | 'hosted', model: string, tokens: number, more: object = {}) {
  const options = { max_tokens: tokens, temperature: 0, ignore_eos: true, ...more }
  const messages = [CAPITAL_QUESTION]
  if (surface === 'hosted') {
    return { path: '/v1/chat/completions', body: { model, messages, stream: true, ...options }, headers: {} }
  }
  const headers = surface === 'ndjson' ? { accept: 'application/x-ndjson' } : {}
  return { path: '/api/chat', body: { model, messages, options }, headers: headers as Record<string, string> }
}

/** How a reply ended: `done`, the code of its error, or `cut` for a stream without any end. */
export async function readOutcome(response: Awaited<ReturnType<Corral['send']>>): Promise<string> {
  const type = response.headers.get('content-type') ?? ''
  if (type.includes('application/json')) {
    const body = (await response.json()) as { code?: string; error?: { code?: string } }
    if (response.status === 200) return 'done'
    return body.code ?? body.error?.code ?? `status ${response.status} without a code`
  }
  const lines = new SseParser()
  let last = ''
  for await (const chunk of response.body!) {
    if (type.includes('ndjson')) last = lastLine(last, new TextDecoder().decode(chunk))
    else for (const payload of lines.push(chunk)) last = payload
  }
  if (last === '[DONE]') return 'done'
  try {
    const event = JSON.parse(last)
    return event.code ?? event.error?.code ?? (event.done ? 'done' : 'cut')
  } catch {
    return 'cut'
  }
}

function lastLine(rest: string, text: string): string {
  const whole = rest.endsWith('\n') ? text : rest + text
  const lines = whole.trimEnd().split('\n')
  return lines.at(-1)! + (whole.endsWith('\n') ? '\n' : '')
}

/** Stores the figures of a trial that has passed. */
export function record(t: Test, trial: string, figures: Record<string, string | number>): void {
  if (!t.passing()) return
  mkdirSync(FIGURES, { recursive: true })
  const text = JSON.stringify({ trial, date: new Date().toISOString(), figures }, null, 2)
  writeFileSync(join(FIGURES, `${trial.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}.json`), `${text}\n`)
}
