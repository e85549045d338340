import { setsTemplate, type TemplateSettings } from '../config/model-settings.ts'
import type { EngineFields } from '../contracts/engines.ts'
import type { Model } from '../contracts/models.ts'
import { CorralError, invalidRequest } from '../errors.ts'
import { merged } from '../system/collections.ts'
import { headerList } from './answer-headers.ts'

interface EngineTool {
  type: 'function'
  function: { name: string }
}

export interface ToolChoice {
  mode?: 'auto' | 'none' | 'required' | undefined
  /** The only tools that may be called, and the parameter that names each; absent if all may. */
  names?: { name: unknown; param: string }[]
}

/**
 * The tool fields for an engine, with only the tools that may be called.
 * @param ignored names of tools that were left out, because other services run them
 * @throws CorralError `invalid_request`, or `unsupported_capability` if only tools that were left out may be called
 */
export function toolFields(
  tools: readonly EngineTool[],
  { mode, names }: ToolChoice,
  ignored: readonly string[] = []
): Record<string, unknown> {
  for (const { name, param } of names ?? []) {
    if (tools.some(tool => tool.function.name === name)) continue
    throw invalidRequest(param, `"${param}" must be the name of one of the "tools".`)
  }
  if (mode === 'required' && (tools.length === 0 || names?.length === 0)) {
    const param = 'tool_choice'
    if (ignored.length > 0) {
      const list = headerList(ignored)
      const message = `"tool_choice" demands a call, but the tools that may be called run in another service: ${list}. Send functions, and run them yourself.`
      throw new CorralError('unsupported_capability', message, { param })
    }
    throw invalidRequest(param, '"tool_choice" requires a call, but there are no "tools".')
  }
  // A model that sees tools might call one anyway.
  if (tools.length === 0 || mode === 'none') return {}
  const allowed = names ? tools.filter(tool => names.some(({ name }) => name === tool.function.name)) : tools
  return { tools: allowed, ...(mode && { tool_choice: mode }) }
}

/** Refuses tools that the chat template does not show. Only the engine knows a template of config.yaml. */
export function requireToolSupport(
  { tools }: Record<string, unknown>,
  { metadata, publicName }: Model,
  engine: TemplateSettings
): void {
  if (!Array.isArray(tools) || tools.length === 0 || metadata.capabilities.includes('tools')) return
  if (setsTemplate(engine)) return
  const message = `Model "${publicName}" does not support tools: its chat template does not describe them. Send no "tools", or use a model with the capability "tools".`
  throw new CorralError('unsupported_capability', message, { param: 'tools' })
}

/** Describes the only parameter of a freeform tool's function. */
export const FREEFORM_INPUT = 'The whole input of the tool, as plain text'

/**
 * Returns a request without the patterns of its freeform tools, whose descriptions have the same rules. Engines refuse
 * some patterns that the API's vendor accepts. Undefined if there are no such tools.
 */
export function withoutFreeformPatterns<Body extends EngineFields>(body: Body): Body | undefined {
  const text = JSON.stringify(body.tools, (_, value) =>
    value?.description === FREEFORM_INPUT ? { ...value, pattern: undefined } : value
  )
  return text?.includes(FREEFORM_INPUT) ? merged(body, { tools: JSON.parse(text) }) : undefined
}
