import { CorralError } from '../errors.ts'

/** A tool in the words of the hosted-chat API. */
interface EngineTool {
  type: 'function'
  function: { name: string }
}

/** Which tools an answer may call. */
export interface ToolChoice {
  mode?: 'auto' | 'none' | 'required' | undefined
  /** The only tools that may be called, and where the request names them; absent where all may. */
  names?: { name: unknown; param: string }[]
}

/**
 * The fields of an engine's request for its tools. Not every engine can be made to call a tool by its name, so it is
 * offered only those that may be called.
 * @throws CorralError `invalid_request` for a choice that the tools do not allow
 */
export function toolFields(tools: readonly EngineTool[], { mode, names }: ToolChoice): Record<string, unknown> {
  for (const { name, param } of names ?? []) {
    if (tools.some(tool => tool.function.name === name)) continue
    throw new CorralError('invalid_request', `"${param}" must be the name of one of the "tools".`, { param })
  }
  if (mode === 'required' && tools.length === 0) {
    const param = 'tool_choice'
    throw new CorralError('invalid_request', '"tool_choice" requires a call, but there are no "tools".', { param })
  }
  // A model that sees tools might call one all the same.
  if (tools.length === 0 || mode === 'none') return {}
  const allowed = names ? tools.filter(tool => names.some(({ name }) => name === tool.function.name)) : tools
  return { tools: allowed, ...(mode && { tool_choice: mode }) }
}
