import {
  type AppliedEdit,
  type ClearedSteps,
  type ClearThinking,
  type ClearToolUses,
  clearContext,
  mayReach
} from '../../../core/answers/context-edits.ts'
import { compacted, type Summary, summarize } from '../../../core/answers/conversation-summary.ts'
import type { Preparation } from '../../../core/answers/pipeline.ts'
import type { EngineFields } from '../../../core/contracts/engines.ts'
import { summaryText } from './history.ts'
import type { CountRequest } from './schemas.ts'

const MAX_UNCOMPACTED_TOKENS = 150_000
/** For engines that cannot count. */
const BYTES_PER_TOKEN = 4

/** What was done to a conversation before the answer. */
export interface ManagedContext {
  /** What to ask the engine. False if the summary is the whole answer. */
  body: EngineFields | false
  applied: AppliedEdit[]
  summary?: Summary
}

/** The model whose tokens count, and what is remembered about conversations. */
interface Setting {
  model: string
  steps: ClearedSteps
}

/** Clears old parts of a conversation as the request asks. Resolves with the tokens before and after if they are known. */
export async function clearedContext(
  { context_management: management }: CountRequest,
  { body, count }: Pick<Preparation, 'body' | 'count'>,
  { model, steps }: Setting
) {
  const edits = (management?.edits ?? []).filter(({ type }) => type.startsWith('clear_'))
  const counted = async (each: EngineFields) =>
    (await count(each)) ?? Math.ceil(JSON.stringify(each.messages).length / BYTES_PER_TOKEN)
  const known = edits.filter(({ type }) => type === 'clear_tool_uses_20250919' || type === 'clear_thinking_20251015')
  const context = await clearContext(body, known as (ClearToolUses | ClearThinking)[], model, steps, counted)
  return { context, count: counted }
}

/** Clears and compacts a conversation before its answer. Undefined if the request asks for neither. */
export async function manageContext(
  request: CountRequest,
  first: Preparation,
  setting: Setting,
  maxTokens: number
): Promise<ManagedContext | undefined> {
  const { context_management: management, compaction } = request
  if (!management && !compaction) return undefined
  const { context, count } = await clearedContext(request, first, setting)
  const { body, applied } = context
  const edit = management?.edits?.find(({ type }) => type === 'compact_20260112')
  const limit = edit?.trigger?.value ?? MAX_UNCOMPACTED_TOKENS
  const isFull = edit && mayReach(limit, body) && (context.tokens ?? (await count(body))) >= limit
  if (!isFull && !compaction) return { body, applied }
  const summary = await summarize(first, body, maxTokens, compaction ? compaction.instructions : edit?.instructions)
  const answered = compaction || edit?.pause_after_compaction
  const next = summary.text === undefined ? body : compacted(body, summaryText(summary.text))
  return { body: answered ? false : next, applied, summary }
}
