import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { invalid, ofType } from './input-items.ts'

type Fields = Record<string, unknown>

/** A function as the Responses API has it: flat. */
export interface FunctionTool {
  type: 'function'
  name: string
  description: string | null
  parameters: Fields | null
  strict: boolean | null
}

/** Functions under a common name, such as those of one MCP server. */
export interface NamespaceTool {
  type: 'namespace'
  name: string
  description: string
  tools: FunctionTool[]
}

export type OfferedTool = FunctionTool | NamespaceTool

/** The name of a function for the engine, which knows of no namespaces. */
export function engineName({ name, namespace }: { name: string; namespace?: string | undefined }): string {
  return namespace ? `${namespace}__${name}` : name
}

interface OfferedFunction {
  /** Its name for the engine. */
  told: string
  tool: FunctionTool
  namespace: string | undefined
}

/** All functions, those of groups among them. */
export function offeredFunctions(tools: readonly OfferedTool[]): OfferedFunction[] {
  const offer = (tool: FunctionTool, namespace?: string): OfferedFunction => ({
    told: engineName({ name: tool.name, namespace }),
    tool,
    namespace
  })
  return tools.flatMap(tool =>
    tool.type === 'function' ? [offer(tool)] : tool.tools.map(inner => offer(inner, tool.name))
  )
}

/** The function that an engine calls, as the request named it. */
export function calledFunction(tools: readonly OfferedTool[], told: string): { name: string; namespace?: string } {
  const found = offeredFunctions(tools).find(offered => offered.told === told)
  return found?.namespace ? { name: found.tool.name, namespace: found.namespace } : { name: told }
}

/**
 * The functions and groups of them that a request offers. Tools that a hosted service runs itself are left out beside
 * them: agents offer such tools in every request, whatever the model and server.
 * @throws CorralError `unsupported_capability` where there are only such tools, `invalid_request`
 */
export function readTools(tools: readonly unknown[]): OfferedTool[] {
  const read = tools.map((tool, index) => readTool(tool as Fields, `tools[${index}]`))
  const offered = read.filter(tool => tool !== undefined)
  if (tools.length > 0 && offered.length === 0) {
    const { type } = tools[0] as Fields
    throw new CorralError(
      'unsupported_capability',
      `"tools[0]": tools ${ofType(type as string)} do not exist here, only functions that the client runs itself ("type": "function").`,
      { param: 'tools[0].type' }
    )
  }
  return offered
}

function readTool(tool: Fields, at: string): OfferedTool | undefined {
  if (typeof tool.type !== 'string' || tool.type === 'function') return readFunction(tool, at)
  if (tool.type !== 'namespace') return undefined
  const { name, description, tools } = tool
  if (typeof name !== 'string' || name === '') throw invalid(`${at}.name`, 'the name of a group of functions')
  if (!Array.isArray(tools)) throw invalid(`${at}.tools`, 'a list of functions')
  const functions = tools.flatMap((inner: unknown, index) => {
    const place = `${at}.tools[${index}]`
    if (!isObject(inner)) throw invalid(place, 'an object')
    return typeof inner.type === 'string' && inner.type !== 'function' ? [] : [readFunction(inner, place)]
  })
  if (functions.length === 0) return undefined
  return { type: 'namespace', name, description: typeof description === 'string' ? description : '', tools: functions }
}

function readFunction(tool: Fields, at: string): FunctionTool {
  const { type, name, description, parameters, strict } = tool
  if (type !== 'function') throw invalid(`${at}.type`, '"function"')
  if (typeof name !== 'string' || name === '') throw invalid(`${at}.name`, 'the name of a function')
  if (parameters !== undefined && parameters !== null && !isObject(parameters)) {
    throw invalid(`${at}.parameters`, 'a JSON schema')
  }
  return {
    type: 'function',
    name,
    description: typeof description === 'string' ? description : null,
    parameters: isObject(parameters) ? parameters : null,
    // What it is held to be where it is not given.
    strict: typeof strict === 'boolean' ? strict : true
  }
}
