import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import { compacted, compactionLimit, type Summary, summarize } from '../../../core/answers/conversation-summary.ts'
import type { Preparation } from '../../../core/answers/question.ts'
import type { EngineFields } from '../../../core/contracts/engines.ts'
import { readJsonFileSync, writeJsonFile } from '../../../core/system/json-file.ts'
import { summaryText } from './history.ts'
import type { CountRequest, Edit } from './schemas.ts'

/*
 * Clears old parts of a conversation, as Anthropic's `context_management` asks. Clients send the whole conversation in
 * each request. If each request cleared a little more, the engine could use less of its prompt cache every time. So what
 * was cleared stays cleared, and more is cleared only when the rest reaches the trigger again.
 */

type Message = Record<string, unknown>

export interface AppliedEdit {
  type: string
  cleared_tool_uses?: number
  cleared_thinking_turns?: number
  cleared_input_tokens: number
}

interface EditedContext {
  body: EngineFields
  applied: AppliedEdit[]
  tokens?: number
}

type Count = (body: EngineFields) => Promise<number>

const CLEAR_TOOL_USES = 'clear_tool_uses_20250919'
const CLEAR_THINKING = 'clear_thinking_20251015'
const MAX_UNCLEARED_TOKENS = 100_000
const KEPT_TOOL_USES = 3
const CLEARED = '[This result was removed to save space.]'
/** Tokens that a chat template adds on its own, such as instructions for tools. */
const MAX_TEMPLATE_TOKENS = 2000
const MAX_STEPS = 1000

const Hashes = Type.Array(Type.String({ maxLength: 100 }), { maxItems: MAX_STEPS })

/** Remembers how far conversations were cleared, by hashes of their messages up to the last cleared result. */
export class ClearedSteps {
  readonly #hashes: Set<string>
  readonly #file: string | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'> | undefined
  #saved = Promise.resolve()

  /** @param file remembers them across restarts. A file that cannot be read is replaced */
  constructor(file?: string, log?: Pick<FastifyBaseLogger, 'warn'>) {
    const { value = [], fault } = (file && readJsonFileSync(file, Hashes)) || {}
    if (fault) log?.warn({ file }, `Cleared conversations are cleared again, because of their file: ${fault}`)
    this.#hashes = new Set(value)
    this.#file = file
    this.#log = log
  }

  has(hash: string): boolean {
    return this.#hashes.has(hash)
  }

  add(hash: string): void {
    const isNew = !this.#hashes.delete(hash)
    this.#hashes.add(hash)
    if (this.#hashes.size > MAX_STEPS) this.#hashes.delete(this.#hashes.values().next().value!)
    const file = this.#file
    if (!isNew || file === undefined) return
    this.#saved = this.#saved
      .then(() => writeJsonFile(file, [...this.#hashes], { mode: 0o600, fsync: false }))
      .catch(error => this.#log?.warn({ err: error }, 'How far conversations were cleared could not be stored.'))
  }

  async close(): Promise<void> {
    await this.#saved
  }
}

/** Whether a prompt may have this many tokens. A token is at least one byte of text. */
function mayReach(tokens: number, { messages, tools }: EngineFields): boolean {
  return Buffer.byteLength(JSON.stringify([messages, tools])) + MAX_TEMPLATE_TOKENS >= tokens
}

export async function clearContext(body: EngineFields, edits: readonly Edit[], setting: Setting, count: Count) {
  let context: EditedContext = { body, applied: [] }
  for (const edit of edits) {
    if (edit.type === CLEAR_THINKING) context = await clearThinking(context, edit, count)
    else if (edit.type === CLEAR_TOOL_USES) context = await clearToolUses(context, edit, setting, count)
  }
  return context
}

const keptIn = (keep: Edit['keep']) => (typeof keep === 'string' ? undefined : keep?.value)

async function clearThinking({ body, applied, tokens }: EditedContext, { type, keep }: Edit, count: Count) {
  const kept = keep == null ? 1 : keptIn(keep)
  const { messages, cleared } = withoutThinking(body.messages as Message[], kept ?? Number.POSITIVE_INFINITY)
  if (cleared === 0) return { body, applied, ...(tokens !== undefined && { tokens }) }
  const edited = { ...body, messages }
  const left = await count(edited)
  const edit = { type, cleared_thinking_turns: cleared, cleared_input_tokens: (tokens ?? (await count(body))) - left }
  return { body: edited, applied: [...applied, edit], tokens: left }
}

function withoutThinking(messages: readonly Message[], kept: number): { messages: Message[]; cleared: number } {
  const turns = new Set<number>()
  let turn = 0
  const turnOf = messages.map(({ role, reasoning_content }) => {
    if (role === 'user') turn++
    if (reasoning_content) turns.add(turn)
    return turn
  })
  const old = new Set([...turns].slice(0, Math.max(0, turns.size - kept)))
  const cleared = messages.map((message, index) => {
    if (!old.has(turnOf[index]!) || !message.reasoning_content) return message
    const { reasoning_content: _, ...rest } = message
    return rest
  })
  return { messages: cleared, cleared: old.size }
}

async function clearToolUses(
  context: EditedContext,
  edit: Edit,
  { model, owner, steps, window }: Setting,
  count: Count
): Promise<EditedContext> {
  const { body, applied } = context
  const { value, type: unit } = edit.trigger ?? { value: MAX_UNCLEARED_TOKENS, type: 'input_tokens' }
  const messages = body.messages as Message[]
  const uses = toolUses(messages, new Set(edit.exclude_tools ?? []))
  const most = Math.max(0, uses.length - (keptIn(edit.keep) ?? KEPT_TOOL_USES))
  const inTokens = unit !== 'tool_uses'
  const limit = inTokens ? compactionLimit(value, window) : value
  if (most === 0 || (inTokens ? !mayReach(limit, body) : uses.length <= limit)) return context
  const clearFirst = (number: number) => ({ ...body, messages: cleared(messages, uses.slice(0, number), edit) })
  const hashes = hashUses(messages, uses.slice(0, most), JSON.stringify([model, owner, edit]))
  const original = context.tokens ?? (await count(body))
  let number = hashes.findLastIndex(hash => steps.has(hash)) + 1
  let tokens = number > 0 ? await count(clearFirst(number)) : original
  if (number < most && (inTokens ? tokens > limit : uses.length - number > limit)) {
    const fewer = await count(clearFirst(most))
    if (tokens - fewer >= (edit.clear_at_least?.value ?? 0)) {
      number = most
      tokens = fewer
    }
  }
  const removed = uses.slice(0, number).filter(use => !use.isExcluded).length
  if (removed === 0) return { ...context, tokens: original }
  steps.add(hashes[number - 1]!)
  const report = { type: edit.type, cleared_tool_uses: removed, cleared_input_tokens: original - tokens }
  return { body: clearFirst(number), applied: [...applied, report], tokens }
}

interface ToolUse {
  id: unknown
  name: unknown
  index: number
  isExcluded: boolean
}

function toolUses(messages: readonly Message[], excluded: ReadonlySet<unknown>): ToolUse[] {
  const names = new Map<unknown, string>()
  return messages.flatMap(({ role, tool_calls, tool_call_id: id }, index) => {
    for (const { id, function: called } of (tool_calls ?? []) as { id: unknown; function: { name: string } }[]) {
      names.set(id, called.name)
    }
    const name = names.get(id)
    return role === 'tool' ? [{ id, name, index, isExcluded: excluded.has(name) }] : []
  })
}

function hashUses(messages: readonly Message[], uses: readonly ToolUse[], seed: string): string[] {
  const hash = createHash('sha256').update(seed)
  let next = 0
  return uses.map(({ index }) => {
    for (; next <= index; next++) hash.update(JSON.stringify(messages[next]))
    return hash.copy().digest('base64')
  })
}

function cleared(messages: readonly Message[], uses: readonly ToolUse[], { clear_tool_inputs: inputs }: Edit) {
  const old = uses.filter(({ isExcluded }) => !isExcluded)
  const results = new Set(old.map(({ index }) => index))
  const names = Array.isArray(inputs) ? new Set<unknown>(inputs) : undefined
  const ids = new Set(old.flatMap(({ id, name }) => (names?.has(name) || inputs === true ? [id] : [])))
  return messages.map((message, index) => {
    if (results.has(index)) return { ...message, content: CLEARED }
    if (!Array.isArray(message.tool_calls) || ids.size === 0) return message
    const tool_calls = message.tool_calls.map(call =>
      ids.has(call.id) ? { ...call, function: { ...call.function, arguments: '{}' } } : call
    )
    return { ...message, tool_calls }
  })
}

const MAX_UNCOMPACTED_TOKENS = 150_000
const BYTES_PER_TOKEN = 4

export interface ManagedContext {
  /** What to ask the engine. False if the summary is the whole answer. */
  body: EngineFields | false
  applied: AppliedEdit[]
  summary?: Summary
}

interface Setting {
  model: string
  /** An owner's conversations reveal nothing to others who ask the same. */
  owner: string | undefined
  steps: ClearedSteps
  window: number
}

/** Clears old parts of a conversation as the request asks. Resolves with the tokens before and after if they are known. */
export async function clearedContext(
  { context_management: management }: CountRequest,
  { body, count }: Pick<Preparation, 'body' | 'count'>,
  setting: Setting
) {
  const counted = async (each: EngineFields) =>
    (await count(each)) ?? Math.ceil(JSON.stringify(each.messages).length / BYTES_PER_TOKEN)
  const context = await clearContext(body, management?.edits ?? [], setting, counted)
  return { context, count: counted }
}

export async function manageContext(
  request: CountRequest,
  first: Preparation,
  known: Omit<Setting, 'window'>,
  maxTokens: number
): Promise<ManagedContext | undefined> {
  const { context_management: management, compaction } = request
  if (!management && !compaction) return undefined
  const setting = { ...known, window: first.window }
  const { context, count } = await clearedContext(request, first, setting)
  const { body, applied } = context
  const edit = management?.edits?.find(({ type }) => type === 'compact_20260112')
  const limit = compactionLimit(edit?.trigger?.value ?? MAX_UNCOMPACTED_TOKENS, setting.window)
  const isFull = edit && mayReach(limit, body) && (context.tokens ?? (await count(body))) >= limit
  if (!isFull && !compaction) return { body, applied }
  const summary = await summarize(first, body, maxTokens, compaction ? compaction.instructions : edit?.instructions)
  const answered = compaction || edit?.pause_after_compaction
  const next = summary.text === undefined ? body : compacted(body, summaryText(summary.text))
  return { body: answered ? false : next, applied, summary }
}
