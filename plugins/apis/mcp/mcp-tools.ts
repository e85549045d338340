import type { Tool } from '@modelcontextprotocol/server'
import type { RuntimesReport } from '../../../core/contracts/builds.ts'
import type { LocalModel, PullEvent, RunningRecord, SearchReply } from '../../../core/contracts/native-records.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { plural } from '../../../core/system/plural.ts'
import { printable } from '../../../core/system/printable.ts'
import definitions from './mcp-tools.json' with { type: 'json' }

/** Descriptions of the tools, and the routes that decide who may use them. */
export const TOOLS = definitions as unknown as { route: string; tool: Tool }[]

/** Arguments of a call. The REST routes check them. */
type Values = Record<string, unknown>

/** Sends a request with these fields to a REST route, as the caller. @throws CorralError */
// biome-ignore lint/suspicious/noExplicitAny: not every route has a type
export type Send = <Reply = any>(route: string, fields?: Values) => Promise<Reply>

/** A text for people and models, and data for programs. */
type Answer = [text: string, data: object]

/** Longer lists are truncated in texts, because models read them. */
const MAX_LINES = 200

function lines(items: readonly string[], none: string): string {
  const more = items.length > MAX_LINES ? [`… and ${items.length - MAX_LINES} more`] : []
  return [...items.slice(0, MAX_LINES).map(item => printable(item)), ...more].join('\n') || none
}

const facts = (...all: unknown[]) => all.filter(Boolean).join(', ')

/** The function of each tool. */
export const ACTIONS: Record<string, (send: Send, values: Values) => Promise<Answer>> = {
  async list_models(send) {
    const tags = await send<{ models: LocalModel[] }>('GET /api/tags')
    const running = await send<{ models: RunningRecord[] }>('GET /api/ps')
    const names = new Set(running.models.map(({ name }) => name))
    const models = tags.models.map(({ name, size, format, capabilities, details: { context_length }, aliases }) => {
      return { name, size, format, capabilities, context_length, aliases, loaded: names.has(name) }
    })
    const texts = models.map(model =>
      facts(model.name, formatBytes(model.size), ...model.capabilities, model.loaded && 'loaded')
    )
    return [lines(texts, 'This server has no models.'), { models }]
  },
  async search_models(send, { query, ...more }) {
    const reply = await send<SearchReply>('GET /api/search', { q: query, ...more })
    const found = reply.models.map(({ model, size, license, problem }) =>
      facts(model, size && formatBytes(size), license, problem)
    )
    const failed = reply.errors.map(({ hub, error }) => `${hub}: ${error}`)
    return [lines([...found, ...failed], 'No models were found.'), reply]
  },
  async pull_model(send, values) {
    const reply = await send<PullEvent>('POST /api/pull', { ...values, stream: true })
    return [lines(['The model is stored.', ...(reply.warnings ?? [])], ''), reply]
  },
  load_model: async (send, { num_ctx, ...more }) => [
    'The model is loaded.',
    await send('POST /api/load', { ...more, options: { num_ctx }, stream: true })
  ],
  stop_model: async (send, values) => ['The model is unloaded.', await send('POST /api/stop', values)],
  async chat(send, { prompt, messages, ...more }) {
    const all = prompt === undefined ? messages : [messages ?? [], { role: 'user', content: prompt }].flat()
    const { model, choices, usage } = await send('POST /v1/chat/completions', { ...more, messages: all })
    const [{ message, finish_reason }] = choices
    const { content, reasoning_content: reasoning } = message
    return [content ?? '', { model, content, reasoning, finish_reason, usage }]
  },
  async embed(send, values) {
    const { model, data, usage } = await send('POST /v1/embeddings', values)
    const embeddings: number[][] = data.map(({ embedding }: { embedding: number[] }) => embedding)
    const text = `${plural(embeddings.length, 'embedding')} with ${embeddings[0]?.length} numbers each`
    return [text, { model, embeddings, usage }]
  },
  async rerank(send, values) {
    const reply = await send<{ results: { index: number; relevance_score: number }[] }>('POST /v1/rerank', values)
    const texts = reply.results.map(({ index, relevance_score }) => `document ${index}: ${relevance_score}`)
    return [lines(texts, 'There are no results.'), reply]
  },
  async transcribe(send, { audio, ...more }) {
    const reply = await send('POST /v1/audio/transcriptions', { ...more, file: audio })
    return [reply.text, reply]
  },
  async usage(send, values) {
    const reply = await send('GET /api/usage', values)
    const texts = reply.usage.map(
      (row: Values) => `${row.name}: ${row.requests} requests, ${row.tokens_in} tokens in, ${row.tokens_out} tokens out`
    )
    return [lines(texts, `Nothing was used since ${reply.since}.`), reply]
  },
  async doctor(send) {
    const report = await send<RuntimesReport>('GET /api/runtimes')
    const { state, chosen, hardware, ranking } = report
    const gpus = hardware?.gpus.map(({ name }) => name).join(', ') || 'none'
    const missing = ranking.flatMap(({ title, missing }) =>
      missing.map(({ what, fix }) => `${title}: ${what}${fix ? ` Fix: ${fix}` : ''}`)
    )
    return [lines([`llama.cpp: ${chosen?.id ?? 'none'} (${state})`, `GPUs: ${gpus}`, ...missing], ''), report]
  }
}
