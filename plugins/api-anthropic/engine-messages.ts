import {
  allReadable,
  blocksOf,
  invalid,
  joined,
  type Part,
  readableParts,
  textOf,
  unknownBlock
} from './content-blocks.ts'
import type { CountRequest, MessageParam } from './schemas.ts'

type Fields = Record<string, unknown>

/** A conversation as engines take it. */
export interface Conversation {
  messages: Fields[]
  /** Where in the request each part of each message's content comes from. */
  places: string[][]
}

interface Placed {
  block: Fields
  place: string
}

/** Calls have ids of Anthropic's look outside; templates may want those that the engine gave them. */
const ID_PREFIX = 'toolu_'

/**
 * What Claude Code puts before its system message. It differs with every request, so that nothing after it would be
 * found in the prompt cache, and says nothing to a model.
 */
const BILLING_HEADER = /^x-anthropic-billing-header:(\s*[\w.-]+=[^;\n]*;)+\s*/

/** The id that a call of the engine's goes by outside. */
export function shownId(id: string): string {
  return ID_PREFIX + id
}

function engineId(id: string): string {
  return id.startsWith(ID_PREFIX) ? id.slice(ID_PREFIX.length) : id
}

/**
 * Messages and system blocks of Anthropic's API as engines take them: turns in a row of the
 * same role are one, results of tools are messages of their own, and what the system says first is one message. What
 * it says later goes into the turn of the user: most templates refuse a system's message there.
 * @throws CorralError `invalid_request` or `unsupported_capability` with the place as `param`
 */
export function engineMessages({ system, messages }: Pick<CountRequest, 'system' | 'messages'>): Conversation {
  const conversation: Conversation = { messages: [], places: [] }
  const add = (message: Fields, parts: readonly Part[] = []) => {
    conversation.messages.push(message)
    conversation.places.push(parts.map(({ place }) => place))
  }
  const turns = turnsOf(messages)
  const opening = turns[0]?.role === 'system' ? turns.shift()! : undefined
  const said = [...blocksOf(system ?? [], 'system'), ...(opening?.blocks ?? [])]
  const text = systemText(said)
  if (text !== '') add({ role: 'system', content: text })
  for (const { role, blocks } of turns) {
    if (role === 'assistant') add(assistantMessage(blocks))
    else addUserTurn(blocks, add)
  }
  const last = turns.at(-1)
  if (last?.role === 'assistant' && last.blocks.some(({ block }) => block.type === 'tool_use')) {
    throw invalid(
      `messages.${messages.length - 1}`,
      'calls tools, and nothing answers them yet: a message of the user with their tool_result blocks must follow'
    )
  }
  return conversation
}

function turnsOf(messages: readonly MessageParam[]): { role: string; blocks: Placed[] }[] {
  const turns: { role: string; blocks: Placed[] }[] = []
  const lastOfUser = messages.findLastIndex(({ role }) => role === 'user')
  messages.forEach((message, index) => {
    if (message.clear_at === 'next_user_message' && index < lastOfUser) return
    let { role } = message
    let blocks = blocksOf(message.content, `messages.${index}.content`)
    if (role === 'system' && turns.some(turn => turn.role !== 'system')) {
      role = 'user'
      blocks = reminder(blocks)
      if (blocks.length === 0) return
    }
    const turn = turns.at(-1)
    if (turn?.role === role) turn.blocks.push(...blocks)
    else turns.push({ role, blocks })
  })
  return turns
}

/** Marked as programs for Anthropic's models did it before there were messages of the system. */
function reminder(blocks: readonly Placed[]): Placed[] {
  const text = systemText(blocks)
  if (text === '') return []
  const marked = `<system-reminder>\n${text}\n</system-reminder>`
  return [{ block: { type: 'text', text: marked }, place: blocks[0]!.place }]
}

function systemText(blocks: readonly Placed[]): string {
  const texts = blocks.map(({ block, place }) => {
    if (block.type === 'tool_addition' || block.type === 'tool_removal') return ''
    if (block.type !== 'text') throw unknownBlock(block, place, 'text, tool_addition and tool_removal')
    return textOf(block, 'text', place).replace(BILLING_HEADER, '')
  })
  return texts.filter(text => text !== '').join('\n')
}

function assistantMessage(blocks: readonly Placed[]): Fields {
  let content = ''
  let thoughts = ''
  const calls: Fields[] = []
  for (const { block, place } of blocks) {
    if (block.type === 'text') content += textOf(block, 'text', place)
    else if (block.type === 'thinking') thoughts += textOf(block, 'thinking', place)
    else if (block.type === 'tool_use') {
      calls.push({
        id: engineId(textOf(block, 'id', place)),
        type: 'function',
        function: { name: textOf(block, 'name', place), arguments: JSON.stringify(block.input ?? {}) }
      })
    } else if (block.type !== 'redacted_thinking') {
      // What was redacted can be read by nobody here.
      throw unknownBlock(block, place, 'text, thinking, redacted_thinking and tool_use')
    }
  }
  return {
    role: 'assistant',
    content,
    ...(thoughts !== '' && { reasoning_content: thoughts }),
    ...(calls.length > 0 && { tool_calls: calls })
  }
}

/** Results come first: templates want them right after the calls. */
function addUserTurn(blocks: readonly Placed[], add: (message: Fields, parts: readonly Part[]) => void): void {
  const said: Part[] = []
  let results = 0
  for (const { block, place } of blocks) {
    if (block.type === 'tool_result') {
      const parts = resultParts(block, place)
      const id = engineId(textOf(block, 'tool_use_id', place))
      add({ role: 'tool', tool_call_id: id, content: joined(parts) }, parts)
      results++
      continue
    }
    const parts = readableParts(block, place)
    if (!parts) throw unknownBlock(block, place, 'text, image, document, search_result and tool_result')
    said.push(...parts)
  }
  if (said.length > 0 || results === 0) add({ role: 'user', content: joined(said) }, said)
}

function resultParts(block: Fields, place: string): Part[] {
  const parts = allReadable(block.content ?? [], `${place}.content`)
  // Templates know no failed results; the model has to read it.
  if (block.is_error === true) parts.unshift({ content: { type: 'text', text: 'Error:' }, place })
  return parts
}
