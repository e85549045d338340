import { createHash, randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CallToolResult, Client } from '@modelcontextprotocol/client'
import { unknownToolServer } from '../../../core/answers/offered-tools.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { Hooks } from '../../../core/contracts/hooks.ts'
import type {
  HostedCall,
  HostTool,
  ResultFile,
  ToolCallEvent,
  ToolCallRequest,
  ToolHost,
  ToolResult,
  WantedTools
} from '../../../core/contracts/tool-host.ts'
import { CorralError, invalidRequest } from '../../../core/errors.ts'
import { hasRole } from '../../../core/http/roles.ts'
import { abortAfter, untilAborted } from '../../../core/system/abort-signals.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { KeyedQueue } from '../../../core/system/keyed-queue.ts'
import type { BuiltInContext } from './built-in/built-in-call.ts'
import { builtInRunner, builtInTools } from './built-in/built-in-tools.ts'
import { reasonText, ToolConnection } from './connection.ts'
import {
  type Prompt,
  type PromptMessage,
  promptMessages,
  type Resource,
  readPrompts,
  readResources,
  readTools,
  resourceFiles,
  resultFiles,
  resultText,
  sizeOf
} from './results.ts'
import type { BuiltIn, ToolSection, ToolServer } from './tool-settings.ts'

/** How long a list of tools is used before the server is asked again, in milliseconds. */
const LIST_AGE_MS = 30_000
/** Processes of one server for different keys. */
const MAX_ISOLATED = 16
/** Calls that wait for an approval, of all users. */
const MAX_KEPT = 1000
/** Of one owner, so that no client can push out the calls of others. */
const MAX_KEPT_PER_OWNER = 32
/** Of a resource, and of a prompt. */
const MAX_BYTES = 8 * 2 ** 20
/** Calls of one owner at a time. More wait, because no slot of an engine limits them. */
const MAX_CALLS_PER_OWNER = 16

type Log = ConstructorParameters<typeof ToolConnection>[3]

interface RequestTimes {
  timeout: number
  maxTotalTimeout: number
}

/** A request for something that is for users, not for models. */
type UserRequest = Omit<ToolCallRequest, 'call' | 'approved'> & { server: string }

type ForUsers = 'resources' | 'prompts'
type Work<Result> = (client: Client, options: RequestTimes) => Promise<Result>

interface Known {
  connection: ToolConnection
  tools?: { list: Omit<HostTool, 'asks'>[]; until: number }
}

/** The configured servers of tools: who may use what, and its limits. */
export class ToolServers implements ToolHost {
  readonly #settings: ToolSection
  readonly #log: Log
  readonly #hooks: Pick<Hooks, 'toolCalled'>
  /** By the server's name, and for isolated ones also the owner. */
  readonly #known = new Map<string, Known>()
  readonly #runBuiltIn: ReturnType<typeof builtInRunner>
  /** Calls that wait for an approval. */
  readonly #kept = new Map<string, { owner: string; call: HostedCall }>()
  readonly #calls = new KeyedQueue()
  readonly #running = new Set<Promise<CallToolResult>>()

  constructor(settings: ToolSection, log: Log, hooks: Pick<Hooks, 'toolCalled'>, builtIn: BuiltInContext) {
    this.#runBuiltIn = builtInRunner(builtIn)
    this.#settings = settings
    this.#log = log
    this.#hooks = hooks
  }

  /** Ends the servers after their calls. @param grace milliseconds that calls may still take */
  async close(grace: number): Promise<void> {
    await Promise.race([Promise.allSettled(this.#running), sleep(grace, undefined, { ref: false })])
    await Promise.all([...this.#known.values()].map(({ connection }) => connection.close()))
  }

  get maxCalls(): number {
    return this.#settings.max_calls
  }

  serverAt(address: string): string | undefined {
    const plain = (url = '') => url.replace(/\/$/, '')
    const all = Object.entries(this.#settings.servers as Record<string, ToolServer>)
    return all.find(([, { url }]) => url !== undefined && plain(url) === plain(address))?.[0]
  }

  mapped(type: string): { server: string; tool: string } | undefined {
    const { map } = this.#settings
    const known = [type, type.replace(/_(?:preview|\d{8})\w*$/, '')].find(each => Object.hasOwn(map, each))
    const [, server, tool] = /^([^.]+)\.(.+)$/.exec(known === undefined ? '' : map[known]!) ?? []
    return server && tool ? { server, tool } : undefined
  }

  keep(owner: string, call: HostedCall): string {
    const id = `mcpr_${randomBytes(24).toString('hex')}`
    const own = [...this.#kept].filter(([, each]) => each.owner === owner)
    if (own.length >= MAX_KEPT_PER_OWNER) this.#kept.delete(own[0]![0])
    setNewest(this.#kept, id, { owner, call: { ...call, approval: id } }, MAX_KEPT)
    return id
  }

  isKept(owner: string, id: string): boolean {
    return this.#kept.get(id)?.owner === owner
  }

  take(owner: string, id: string): HostedCall | undefined {
    const call = this.isKept(owner, id) ? this.#kept.get(id)?.call : undefined
    if (call) this.#kept.delete(id)
    return call
  }

  /** The servers that a caller may use. */
  describe(caller: Caller) {
    return Object.entries(this.#settings.servers as Record<string, ToolServer>)
      .filter(([, server]) => mayUse(server, caller))
      .map(([name, server]) => {
        const known = this.#known.get(keyOf(name, server, caller))
        const fault = known?.connection.fault
        const tools = server.built_in ?? known?.tools?.list.map(({ name }) => name)
        return {
          name,
          transport: server.built_in ? ('built-in' as const) : server.url ? ('http' as const) : ('stdio' as const),
          state: server.built_in ? ('running' as const) : (known?.connection.state ?? ('stopped' as const)),
          ...(fault !== undefined && { fault }),
          roles: server.roles ?? ['operator' as const],
          ask: server.ask ?? ('writes' as const),
          isolated: server.isolate === 'key',
          ...(tools && { tools: tools.filter(name => isListed(server, name)) })
        }
      })
  }

  async list(wanted: WantedTools, caller: Caller, signal: AbortSignal): Promise<HostTool[]> {
    const server = this.#require(wanted, caller)
    const all = await untilAborted(this.#tools(wanted.server, server, caller), signal)
    const allowed = all.filter(({ name }) => isListed(server, name))
    const missing = wanted.tools?.find(name => !allowed.some(tool => tool.name === name))
    if (missing !== undefined && wanted.param !== undefined) {
      const message = `The tool server "${wanted.server}" has no tool "${missing}" that you may use. GET /api/mcp/${wanted.server} lists them.`
      throw new CorralError('invalid_request', message, { param: wanted.param })
    }
    return allowed
      .filter(({ name }) => wanted.tools?.includes(name) ?? true)
      .map(tool => ({ ...tool, asks: asks(server, tool.readOnly) }))
  }

  /** Lists what users can attach. @throws CorralError `invalid_request`, `tools_unavailable` */
  async resources(wanted: WantedTools, caller: Caller, signal: AbortSignal): Promise<Resource[]> {
    return await this.#listed('resources', listResources, wanted, caller, signal)
  }

  /** Lists the prompts for users. @throws CorralError `invalid_request`, `tools_unavailable` */
  async prompts(wanted: WantedTools, caller: Caller, signal: AbortSignal): Promise<Prompt[]> {
    return await this.#listed('prompts', listPrompts, wanted, caller, signal)
  }

  async #listed<Item>(
    kind: ForUsers,
    list: Work<Item[]>,
    wanted: WantedTools,
    caller: Caller,
    signal: AbortSignal
  ): Promise<Item[]> {
    const server = this.#require(wanted, caller)
    if (!isOpen(server, kind)) return []
    return await untilAborted(this.#use(wanted.server, server, caller, `does not list its ${kind}`, list), signal)
  }

  /**
   * Reads a resource that the server lists, and reports it.
   * @throws CorralError `invalid_request`, `over_limit`, `tools_unavailable`
   */
  async readResource(uri: string, request: UserRequest): Promise<ResultFile[]> {
    const asked = { kind: 'resources', param: 'uri', tool: 'resources/read', arguments: uri } as const
    return await this.#give(request, asked, async (client, options) => {
      const listed = await listResources(client, options)
      if (!listed.some(each => each.uri === uri)) return undefined
      const given = resourceFiles((await client.readResource({ uri }, options)).contents)
      return { given, bytes: sizeOf(given) }
    })
  }

  /**
   * Fills a prompt that the server lists, and reports it.
   * @throws CorralError `invalid_request`, `over_limit`, `tools_unavailable`
   */
  async getPrompt(name: string, values: Record<string, string>, request: UserRequest): Promise<PromptMessage[]> {
    const filled = { name, arguments: values }
    const asked = {
      ...({ kind: 'prompts', param: 'prompt', tool: 'prompts/get' } as const),
      arguments: JSON.stringify(filled)
    }
    return await this.#give(request, asked, async (client, options) => {
      const prompt = (await listPrompts(client, options)).find(each => each.name === name)
      const missing = prompt?.arguments.find(each => each.required && !values[each.name])
      if (missing) throw invalidRequest('arguments', `The prompt "${name}" needs a value for "${missing.name}".`)
      if (!prompt) return undefined
      const given = promptMessages((await client.getPrompt(filled, options)).messages)
      const bytes = given.reduce((sum, { text, files = [] }) => sum + Buffer.byteLength(text) + sizeOf(files), 0)
      return { given, bytes }
    })
  }

  /** Gives something to a user, and reports it. @param work returns undefined if the server does not list it */
  async #give<Given>(
    request: UserRequest,
    asked: { kind: ForUsers; param: string; tool: string; arguments: string },
    work: Work<{ given: Given; bytes: number } | undefined>
  ): Promise<Given> {
    const { server: name, caller, signal } = request
    const { kind, param } = asked
    const noun = kind.slice(0, -1)
    const server = this.#require({ server: name, param: 'id' }, caller)
    const end = this.#reporting({ ...request, call: { server: name, ...asked } })
    try {
      const found = isOpen(server, kind)
        ? await untilAborted(this.#use(name, server, caller, `does not give the ${noun}`, work), signal)
        : undefined
      if (!found) {
        const message = `The tool server "${name}" has no ${noun} with this "${param}" that you may read. GET /api/mcp/${name}/${kind} lists them.`
        throw invalidRequest(param, message)
      }
      if (found.bytes > MAX_BYTES) {
        const message = `The ${noun} has more than ${MAX_BYTES} bytes. Read a smaller one.`
        throw new CorralError('over_limit', message, { param })
      }
      end('done')
      return found.given
    } catch (error) {
      end(signal.aborted ? 'cancelled' : 'failed')
      throw error
    }
  }

  /** Returns a function that reports a call when it has ended. */
  #reporting({ call: { server, tool, arguments: given }, caller, requestId }: Omit<ToolCallRequest, 'approved'>) {
    const began = performance.now()
    return (result: ToolCallEvent['result']) => {
      const digest = createHash('sha256').update(given).digest('hex')
      const milliseconds = Math.round(performance.now() - began)
      this.#hooks.toolCalled({ server, tool, digest, result, milliseconds, caller, requestId })
    }
  }

  async call(request: ToolCallRequest): Promise<ToolResult> {
    const { caller, signal } = request
    const report = this.#reporting(request)
    const end = (result: ToolCallEvent['result'], output: string, files: ResultFile[] = []): ToolResult => {
      report(result)
      return { output, failed: result !== 'done', ...(files.length > 0 && { files }) }
    }
    try {
      const refusal = await this.#refusal(request)
      if (refusal !== undefined) return end('refused', refusal)
      const lanes = Array.from({ length: MAX_CALLS_PER_OWNER }, (_, at) => `${caller.owner} ${at}`)
      const lane = lanes.reduce((one, other) => (this.#calls.count(other) < this.#calls.count(one) ? other : one))
      const asking = this.#calls.run(lane, () => this.#ask(request), signal)
      this.#running.add(asking)
      const result = await asking.finally(() => this.#running.delete(asking))
      const text = resultText(result, parseBytes(this.#settings.max_result)!)
      return end(result.isError ? 'failed' : 'done', text, resultFiles(result))
    } catch (error) {
      if (signal.aborted) {
        end('cancelled', '')
        throw signal.reason
      }
      return end('failed', `The call failed: ${reasonText(error)}.`)
    }
  }

  /** Why a call is not made, as a text for the model. The settings may have changed since the tool was offered. */
  async #refusal({ call, caller, approved, signal }: ToolCallRequest): Promise<string | undefined> {
    const wanted = { server: call.server, tools: [call.tool], param: 'tool' }
    const [tool] = await this.list(wanted, caller, signal)
    if (!tool!.asks || approved) return undefined
    return 'The call was refused: it needs the approval of a user, and this client cannot give it.'
  }

  async #ask({
    call: { server: name, tool, arguments: text },
    caller,
    signal
  }: ToolCallRequest): Promise<CallToolResult> {
    const given = parseAnyJson(text)
    if (!isObject(given)) throw new Error('the arguments are not a JSON object')
    const server = serverOf(this.#settings, name)!
    const timeout = parseDuration(this.#settings.call_timeout)!
    const tooLong = () => new Error(`it took longer than ${timeout / 1000} s and was cancelled`)
    if (server.built_in) {
      const late = abortAfter(timeout)
      const call = { caller, timeout, signal: AbortSignal.any([signal, late]) }
      const output = await this.#runBuiltIn(tool as BuiltIn, given, call).catch(error => {
        throw late.aborted ? tooLong() : error
      })
      return { content: [{ type: 'text', text: output }] }
    }
    const { connection } = this.#find(name, server, caller)
    return await connection.use(async client => {
      try {
        const calling = client.callTool({ name: tool, arguments: given }, { signal, timeout, maxTotalTimeout: timeout })
        return await untilAborted(calling, signal)
      } catch (error) {
        if (isTimeout(error)) connection.noteTimeout()
        throw isTimeout(error) ? tooLong() : error
      }
    })
  }

  #require(wanted: WantedTools, caller: Caller): ToolServer {
    const server = serverOf(this.#settings, wanted.server)
    // Servers that a caller may not use are treated as if they did not exist.
    if (!server || !mayUse(server, caller)) throw unknownToolServer(wanted)
    return server
  }

  #find(name: string, server: ToolServer, caller: Caller): Known {
    const key = keyOf(name, server, caller)
    const known = this.#known.get(key)
    if (known) return known
    const others = [...this.#known].filter(([each]) => each.startsWith(`${name} `))
    if (others.length >= MAX_ISOLATED) {
      const [oldest] = others
        .filter(([, { connection }]) => !connection.isBusy)
        .sort(([, a], [, b]) => a.connection.lastUse - b.connection.lastUse)
      if (!oldest) {
        const message = `The tool server "${name}" runs for ${MAX_ISOLATED} other keys now. Try again later.`
        throw new CorralError('tools_unavailable', message)
      }
      this.#known.delete(oldest[0])
      void oldest[1].connection.close()
    }
    const options = {
      start: parseDuration(this.#settings.start_timeout)!,
      idle: parseDuration(this.#settings.idle)!,
      // For servers that keep files: one for each key.
      variables: server.isolate ? { CORRAL_KEY: caller.owner.replace(/^key:/, '').replace(/[^\w-]/g, '_') } : {}
    }
    const added: Known = { connection: new ToolConnection(name, server, options, this.#log) }
    this.#known.set(key, added)
    return added
  }

  async #tools(name: string, server: ToolServer, caller: Caller): Promise<Omit<HostTool, 'asks'>[]> {
    if (server.built_in) return builtInTools(name, server.built_in)
    const known = this.#find(name, server, caller)
    if (known.tools && performance.now() < known.tools.until) return known.tools.list
    const list = await this.#use(name, server, caller, 'does not list its tools', async (client, options) => {
      if (!client.getServerCapabilities()?.tools) return []
      return readTools(name, (await client.listTools(undefined, options)).tools)
    })
    known.tools = { list, until: performance.now() + LIST_AGE_MS }
    return list
  }

  /** @param fault what the server does not do if it fails */
  async #use<Result>(
    name: string,
    server: ToolServer,
    caller: Caller,
    fault: string,
    work: Work<Result>
  ): Promise<Result> {
    const timeout = parseDuration(this.#settings.start_timeout)!
    try {
      const { connection } = this.#find(name, server, caller)
      return await connection.use(client => work(client, { timeout, maxTotalTimeout: timeout }))
    } catch (error) {
      if (error instanceof CorralError) throw error
      throw new CorralError('tools_unavailable', `The tool server "${name}" ${fault}: ${reasonText(error)}.`, {
        cause: error
      })
    }
  }
}

const listResources = async (client: Client, options: RequestTimes) =>
  client.getServerCapabilities()?.resources
    ? readResources((await client.listResources(undefined, options)).resources)
    : []

const listPrompts = async (client: Client, options: RequestTimes) =>
  client.getServerCapabilities()?.prompts ? readPrompts((await client.listPrompts(undefined, options)).prompts) : []

const serverOf = ({ servers }: ToolSection, name: string): ToolServer | undefined =>
  Object.hasOwn(servers, name) ? (servers as Record<string, ToolServer>)[name] : undefined

const keyOf = (name: string, { isolate }: ToolServer, { owner }: Caller) => (isolate ? `${name} ${owner}` : name)

const mayUse = ({ roles = ['operator'] }: ToolServer, { role }: Caller) => roles.some(needed => hasRole(role, needed))

const isListed = ({ tools }: ToolServer, name: string) => tools?.includes(name) ?? true

const isOpen = (server: ToolServer, kind: ForUsers) => !server.built_in && (server[kind] ?? server.tools === undefined)

const asks = ({ ask = 'writes' }: ToolServer, readOnly: boolean) => ask === 'always' || (ask === 'writes' && !readOnly)

const isTimeout = (error: unknown) => error instanceof Error && 'code' in error && error.code === 'REQUEST_TIMEOUT'
