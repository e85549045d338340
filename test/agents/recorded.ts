import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'
import type { AgentName } from './packages.ts'
import type { Exchange } from './recording-proxy.ts'
import { PROMPT } from './scripted-model.ts'

/** A request as an agent sent it. `{{ "text" x n }}` stands for repeated text, `{{ tools }}` for the agent's tools. */
export interface RecordedRequest {
  path: string
  headers: Record<string, string>
  body: any
}
interface Recording {
  tools: unknown[]
  requests: RecordedRequest[]
}

const fileOf = (agent: AgentName) => join(packageRoot, 'test', 'fixtures', 'agents', `${agent}.json`)
const TOOLS = '{{ tools }}'
const REPEATED = /\{\{ "([^"]*)" x (\d+) \}\}/g
/** Texts up to this length are kept. Longer ones are the vendor's instructions. */
const MAX_TEXT = 60
const MAX_DESCRIPTION = 16
/** Long texts of these fields are not instructions: calls of the scripted model and grammars. */
const KEPT = new Set(['arguments', 'input', 'definition'])
/** Headers that may change the answer. */
const HEADERS = ['anthropic-beta', 'anthropic-version', 'x-codex-beta-features']

/** Writes requests of a session as a fixture, without the vendor's texts, names of folders, dates and ids. */
export function record(agent: AgentName, exchanges: readonly Exchange[]): void {
  const places: [RegExp, string][] = [
    [/[^\s"'`(]*\/corral-agent-\w+\/work/g, '/project'],
    [/[^\s"'`(]*\/corral-agent-\w+\/home/g, '/home/user'],
    [/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, '00000000-0000-4000-8000-000000000000'],
    [/[0-9a-f]{32,}/g, '0'.repeat(32)],
    [/20\d\d-\d\d-\d\d/g, '2026-01-01'],
    [/"?turn_started_at_unix_ms"?:\d+/g, '"turn_started_at_unix_ms":0']
  ]
  const plain = (text: string) => places.reduce((all, [from, to]) => all.replaceAll(from, to), text)
  const shorten = (text: string, most: number) =>
    text
      .split(PROMPT)
      .map(part => (part.length > most ? `{{ "word " x ${Math.ceil(part.length / 5)} }}` : plain(part)))
      .join(PROMPT)
  const clean = (value: unknown, key = ''): any => {
    if (typeof value === 'string') {
      if (KEPT.has(key) || key.startsWith('x-codex-')) return plain(value)
      return shorten(value, key === 'description' ? MAX_DESCRIPTION : MAX_TEXT)
    }
    if (Array.isArray(value)) return value.map(item => clean(item, key))
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, clean(item, name)]))
  }
  const withTools = exchanges.filter(({ body }) => body.tools?.length)
  const tools = clean(withTools[0]?.body.tools ?? [])
  const requests = exchanges.map(({ path, headers, body }) => {
    const cleaned = clean(body)
    if (JSON.stringify(cleaned.tools) === JSON.stringify(tools)) cleaned.tools = TOOLS
    const sent = HEADERS.filter(name => headers[name]).map(name => [name, String(headers[name])])
    return JSON.stringify({ path, headers: Object.fromEntries(sent), body: cleaned })
  })
  const lines = (items: unknown[]) => items.join(',\n')
  const text = `{"tools":[\n${lines(tools.map((tool: unknown) => JSON.stringify(tool)))}\n],\n"requests":[\n${lines(requests)}\n]}\n`
  writeFileSync(fileOf(agent), text)
}

/** Returns an agent's recorded requests, with repeated texts of `size` times their length. */
export function recordedRequests(agent: AgentName, size = 1): RecordedRequest[] {
  if (!existsSync(fileOf(agent))) throw new Error(`${agent} has no recording. Run "npm run docs:agents".`)
  const { tools, requests } = JSON.parse(readFileSync(fileOf(agent), 'utf8')) as Recording
  return requests.map(({ body, ...request }) => {
    const whole = body.tools === TOOLS ? { ...body, tools } : body
    return { ...request, body: expand(whole, size) }
  })
}

/** Replaces `{{ "text" x n }}` in all texts. */
export function expand<Value>(value: Value, size = 1): Value {
  const text = JSON.stringify(value, (_, item) =>
    typeof item === 'string'
      ? item.replaceAll(REPEATED, (_, part: string, count: string) => part.repeat(Math.ceil(Number(count) * size)))
      : item
  )
  return JSON.parse(text)
}
