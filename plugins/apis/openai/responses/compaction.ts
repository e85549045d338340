import { type Static, Type } from 'typebox'
import { compacted, compactionLimit, summarize } from '../../../../core/answers/conversation-summary.ts'
import type { Preparation } from '../../../../core/answers/question.ts'
import type { EngineFields } from '../../../../core/contracts/engines.ts'
import type { Lease } from '../../../../core/contracts/leases.ts'
import { CorralError } from '../../../../core/errors.ts'
import { parseJson } from '../../../../core/system/json-file.ts'
import { newId, type PlacedItem } from './response-request.ts'
import type { ResponseWriter } from './response-writer.ts'
import type { CompactionItem, Item, Message, ResponseRequest } from './schemas.ts'

/* Compaction: a summary replaces the conversation, in an item whose `encrypted_content` only corral reads. */

/** Marks the summaries of corral. JSON in base64 follows. */
const MARK = 'corral-summary:'
/** Longer contents are not from corral. */
const MAX_CONTENT_LENGTH = 128 * 1024
/** Maximum characters of the user's latest messages that are kept word for word, in all and per token of the context. */
const MAX_KEPT_LENGTH = 16_000
const KEPT_PER_TOKEN = 0.5

/** Types of items with a summary, in OpenAI's API and in Codex. */
const TYPES = ['compaction', 'compaction_summary', 'context_compaction']
const TRIGGER = 'compaction_trigger'

/** When to compact a conversation: now, without an answer, or before an answer if it has too many tokens. */
export type Compaction = 'now' | { threshold: number | undefined }

export function withTrigger(request: ResponseRequest): ResponseRequest {
  const { input } = request
  const items = typeof input === 'string' ? [{ role: 'user', content: input }] : (input ?? [])
  return { ...request, input: [...items, { type: TRIGGER }] }
}

export function requestedCompaction(request: ResponseRequest, items: readonly PlacedItem[]): Compaction | undefined {
  if (items.at(-1)?.item.type === TRIGGER) return 'now'
  const [management] = request.context_management ?? []
  return management && { threshold: management.compact_threshold ?? undefined }
}

const Summary = Type.Object({
  text: Type.String({ minLength: 1 }),
  /** Maximum characters of the user's latest messages that are kept word for word. */
  keep: Type.Number({ minimum: 0, maximum: MAX_KEPT_LENGTH })
})
type Summary = Static<typeof Summary>

const toItem = (summary: Summary): CompactionItem => ({
  type: 'compaction',
  id: newId('cmp'),
  status: 'completed',
  encrypted_content: MARK + Buffer.from(JSON.stringify(summary)).toString('base64')
})

/** Returns the summary in an item, or undefined if there is none or another server wrote it. */
function summaryOf(item: Item): Summary | undefined {
  const { encrypted_content: content } = item as Partial<CompactionItem>
  if (!TYPES.includes(item.type) || typeof content !== 'string' || !content.startsWith(MARK)) return undefined
  if (content.length > MAX_CONTENT_LENGTH) return undefined
  return parseJson(Buffer.from(content.slice(MARK.length), 'base64').toString(), Summary).value
}

const isMessageOf = (item: Item, ...roles: Message['role'][]): item is Message =>
  item.type === 'message' && roles.includes((item as Message).role)

function latestMessages(items: readonly PlacedItem[], keep: number): PlacedItem[] {
  let length = 0
  return items
    .filter(({ item }) => isMessageOf(item, 'user'))
    .reverse()
    .filter(({ item }) => {
      length += JSON.stringify((item as Message).content).length
      return length <= keep
    })
    .reverse()
}

function replacement({ text, keep }: Summary, items: readonly PlacedItem[]): string {
  const texts = latestMessages(items, keep).map(({ item }) =>
    (item as Message).content.flatMap(part => ('text' in part ? part.text : [])).join('\n')
  )
  const kept = texts.length > 0 ? `\n\nBefore that, the user wrote:\n\n${texts.join('\n\n')}` : ''
  return `The earlier part of this conversation was replaced by this summary of it:\n\n${text}${kept}`
}

/** Returns what the model reads: the last summary replaces everything before it, except system messages. */
export function sinceCompaction(items: readonly PlacedItem[]): PlacedItem[] {
  const at = items.findLastIndex(({ item }) => summaryOf(item) !== undefined)
  if (at < 0) return [...items]
  const before = items.slice(0, at)
  const text = replacement(summaryOf(items[at]!.item)!, before)
  const item = { type: 'message', id: newId('msg'), status: 'completed', role: 'user' } as const
  return [
    ...before.filter(({ item }) => isMessageOf(item, 'system', 'developer')),
    { ...items[at]!, item: { ...item, content: [{ type: 'input_text', text }] } },
    ...items.slice(at + 1)
  ]
}

/** Returns the conversation that a client continues after a compaction: the latest messages, and the summary. */
export function compactedWindow(items: readonly PlacedItem[], output: readonly Item[]): Item[] {
  const { keep } = summaryOf(output[0]!)!
  return [...latestMessages(items, keep).map(({ item }) => item), ...output]
}

/**
 * Compacts a conversation if it should be. The writer gets the item.
 * @returns the request to answer then, `false` if there is none, or undefined if nothing was compacted
 * @throws CorralError if the model wrote no summary
 */
export async function compact(
  { compaction, placed }: { compaction: Compaction | undefined; placed: readonly PlacedItem[] },
  writer: ResponseWriter,
  { engine, variant }: Lease,
  first: Preparation
): Promise<EngineFields | false | undefined> {
  if (compaction === undefined) return undefined
  const { body } = first
  if (compaction !== 'now') {
    const tokens = await first.count(body)
    if (tokens === undefined || tokens <= compactionLimit(compaction.threshold, first.window)) return undefined
  }
  const { text, usage } = await summarize(first, body, Number(body.max_tokens) || Number.POSITIVE_INFINITY)
  if (text !== undefined) {
    const summary = { text, keep: Math.min(MAX_KEPT_LENGTH, engine.contextSize * KEPT_PER_TOKEN) }
    writer.compacted(toItem(summary), usage)
    return compaction === 'now' ? false : compacted(body, replacement(summary, placed))
  }
  if (compaction !== 'now') return undefined
  throw new CorralError(
    'unsupported_capability',
    `The model "${variant.publicName}" wrote no summary of the conversation. Use another model, or shorten the conversation.`,
    { param: 'model' }
  )
}
