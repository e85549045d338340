import type { FastifyReply } from 'fastify'
import { settingsFor } from '../config/model-settings.ts'
import type { EngineFields } from '../contracts/engines.ts'
import type { HostTool, ToolHost, WantedTools } from '../contracts/tool-host.ts'
import { CorralError } from '../errors.ts'
import { merged } from '../system/collections.ts'
import { isObject } from '../system/json-object.ts'
import { withUsableMedia } from './media-parts.ts'
import type { AnswerDependencies } from './model-request.ts'
import type { Question } from './question.ts'
import { type OfferedTool, ToolSession, unknownDecision } from './tool-loop.ts'

/* Chooses the tools that corral runs for a request, and their names. */

const TOOLS_HEADER = 'x-corral-tools'
const MAX_WANTED = 32
/** Maximum length of names for models, as in OpenAI's API. */
const MAX_NAME_LENGTH = 64

/** Reads `files, search.web_search`: servers, and single tools of servers. */
export function parseToolList(text: string, param: string): WantedTools[] {
  const names = text.split(',').map(name => name.trim())
  if (names.length > MAX_WANTED) {
    throw new CorralError('invalid_request', `"${param}" names more than ${MAX_WANTED} tools.`, { param })
  }
  return names.filter(Boolean).map(name => {
    const at = name.indexOf('.')
    return at < 0 ? { server: name, param } : { server: name.slice(0, at), tools: [name.slice(at + 1)], param }
  })
}

/**
 * Chooses the names under which a model sees tools: `<server>_<tool>`. Names of servers have no `_`, so that no server
 * can take a name of another. The client's own tools keep their names.
 */
export function offeredNames(tools: readonly Pick<HostTool, 'server' | 'name'>[], taken: Iterable<string>): string[] {
  const used = new Set(taken)
  return tools.map(({ server, name }) => {
    const plain = `${server}_${name}`.replace(/[^\w-]/g, '_').slice(0, MAX_NAME_LENGTH)
    let offered = plain
    for (let number = 2; used.has(offered); number++) {
      offered = `${plain.slice(0, MAX_NAME_LENGTH - 1 - `${number}`.length)}_${number}`
    }
    used.add(offered)
    return offered
  })
}

export function unknownToolServer({ server, param }: WantedTools): CorralError {
  const message = `There is no tool server "${server}" that you may use. GET /api/mcp lists them, and an admin configures them under "mcp.servers".`
  return new CorralError('invalid_request', message, param === undefined ? {} : { param })
}

/** Whether the client lets the model choose among all tools. */
function mayOffer(sent: unknown): boolean {
  const choice = isObject(sent) ? sent.tool_choice : undefined
  const type = isObject(choice) ? choice.type : choice
  return !['none', 'function', 'tool', 'custom', 'allowed_tools'].includes(`${type}`)
}

/**
 * Adds the tools that corral runs to a question, if the request or the model's settings want any.
 * @throws CorralError `invalid_request`, `tools_unavailable`
 */
export async function withHostTools(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: Question,
  signal: AbortSignal
): Promise<Question> {
  const { body, operation, tools: request, variant } = asked
  if (!body || operation !== 'chat') return asked
  const header = [reply.request.headers[TOOLS_HEADER] ?? []].flat().join(',')
  const wanted = [
    ...(request?.wanted ?? []),
    ...parseToolList(header, TOOLS_HEADER),
    ...parseToolList(settingsFor(deps.config, variant).tools.join(','), '').map(({ param: _, ...each }) => each)
  ]
  const { decisions = [] } = request ?? {}
  const isDemanded = request?.isDemanded === true
  if ((wanted.length === 0 || !(isDemanded || mayOffer(reply.request.body))) && decisions.length === 0) return asked
  const host = deps.tools?.()
  if (!host) {
    const explicit: WantedTools | undefined = (wanted as WantedTools[]).find(({ param }) => param !== undefined)
    if (explicit) throw unknownToolServer(explicit)
    if (decisions[0]) throw unknownDecision(decisions[0])
    return asked
  }
  const unknown = decisions.find(({ id }) => !host.isKept(reply.request.caller.owner, id))
  if (unknown) throw unknownDecision(unknown)
  const own = Array.isArray(body.tools) ? body.tools : []
  const found = new Map<string, OfferedTool>()
  for (const each of wanted) {
    for (const tool of await listed(host, each, reply, signal)) {
      if (each.accepts && !each.accepts(tool)) continue
      const key = `${tool.server} ${tool.name}`
      if (!found.has(key)) found.set(key, { tool, wanted: each })
    }
  }
  const offers = [...found.values()]
  if (offers.length === 0 && decisions.length === 0) return asked
  if (Number(body.n ?? 1) > 1) {
    const message = 'Answers that use the tools of this server have one choice. Remove "n".'
    throw new CorralError('invalid_request', message, { param: 'n' })
  }
  const names = offeredNames(
    offers.map(({ tool }) => tool),
    own.map(tool => `${tool?.function?.name}`)
  )
  const offered = new Map(names.map((name, at) => [name, offers[at]!]))
  const functions = offers.map(({ tool: { description, parameters } }, at) => ({
    type: 'function',
    function: { name: names[at], description, parameters }
  }))
  return merged(asked, {
    ...(functions.length > 0 && {
      body: merged(body, {
        tools: [...own, ...functions],
        messages: withOfferedNames(body.messages, own, offered),
        ...(isDemanded && { tool_choice: 'required' })
      })
    }),
    session: new ToolSession(host, offered, request ?? { wanted }, reply, messages =>
      withUsableMedia(messages, variant, settingsFor(deps.config, variant).engine, () => undefined)
    )
  })
}

/** Gives earlier calls of tools the names that the tools have now. Items name the server and the tool. */
function withOfferedNames(
  messages: unknown,
  tools: readonly EngineFields[],
  offered: ReadonlyMap<string, OfferedTool>
): unknown {
  if (!Array.isArray(messages)) return messages
  const names = new Map(
    [...offered].flatMap(([name, { tool, wanted }]) =>
      [`${wanted.label ?? tool.server}__${tool.name}`, tool.name].map(earlier => [earlier, name] as const)
    )
  )
  for (const own of tools) names.delete(`${(own.function as EngineFields)?.name}`)
  const renamed = (name: unknown) => names.get(`${name}`) ?? name
  return messages.map(message => {
    if (message?.role === 'tool' && names.has(message.name)) return { ...message, name: renamed(message.name) }
    if (!message?.tool_calls?.some((call: EngineFields) => names.has((call.function as EngineFields)?.name as string)))
      return message
    const tool_calls = message.tool_calls.map((call: EngineFields) => {
      const called = call.function as EngineFields
      return { ...call, function: { ...called, name: renamed(called.name) } }
    })
    return { ...message, tool_calls }
  })
}

async function listed(
  host: ToolHost,
  wanted: WantedTools,
  { request: { caller, log } }: FastifyReply,
  signal: AbortSignal
): Promise<HostTool[]> {
  try {
    return await host.list(wanted, caller, signal)
  } catch (error) {
    if (wanted.param !== undefined || signal.aborted) throw error
    log.warn({ err: error }, `The tools of "${wanted.server}", which the model's settings name, are left out.`)
    return []
  }
}
