import { invalid } from './content-blocks.ts'
import type { MessageParam, ToolParam } from './schemas.ts'

type Fields = Record<string, unknown>

/** A tool and where in the request it is defined. */
export interface OfferedTool {
  tool: ToolParam
  place: string
}

/**
 * The tools that a model may call where a conversation ends: those that are not deferred, and what messages changed
 * since then (results that refer to tools, `tool_addition`, `tool_removal`). The model is not told of others.
 * @throws CorralError `invalid_request` for a change that says no tool
 */
export function offeredTools(tools: readonly ToolParam[], messages: readonly MessageParam[]): OfferedTool[] {
  const known = new Map<unknown, OfferedTool>()
  const offered = new Set<unknown>()
  const define = (tool: ToolParam, place: string) => {
    // Those without a name are told of where they are read.
    const key = tool.name || place
    known.set(key, { tool, place })
    return key
  }
  tools.forEach((tool, index) => {
    const key = define(tool, `tools.${index}`)
    if (!tool.defer_loading) offered.add(key)
  })
  for (const { block, place } of blocksIn(messages)) {
    if (block.type === 'tool_reference') offered.add(block.tool_name)
    if (block.type !== 'tool_addition' && block.type !== 'tool_removal') continue
    const { name, definition } = fieldsOf(block.tool)
    if (block.type === 'tool_removal') offered.delete(name)
    else if (typeof name === 'string') offered.add(name)
    else if (typeof definition === 'object' && definition !== null) {
      offered.add(define(definition as ToolParam, `${place}.tool.definition`))
    } else throw invalid(`${place}.tool`, 'must name a tool or hold the "definition" of one')
  }
  return [...known].flatMap(([key, tool]) => (offered.has(key) ? [tool] : []))
}

/** The blocks of messages and those within results of tools. */
function* blocksIn(messages: readonly MessageParam[]): Generator<{ block: Fields; place: string }> {
  for (const [index, { content }] of messages.entries()) {
    if (!Array.isArray(content)) continue
    for (const [at, block] of content.entries()) {
      const place = `messages.${index}.content.${at}`
      yield { block, place }
      if (block.type !== 'tool_result' || !Array.isArray(block.content)) continue
      for (const inner of block.content) yield { block: fieldsOf(inner), place }
    }
  }
}

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {}
}
