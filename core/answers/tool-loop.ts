import { randomUUID } from 'node:crypto'
import type { FastifyReply } from 'fastify'
import type { Delta, EngineFields, TokenUsage, ToolCallPiece } from '../contracts/engines.ts'
import type {
  HostedCall,
  HostTool,
  ResultFile,
  ToolDecision,
  ToolHost,
  ToolRequest,
  ToolResult,
  WantedTools
} from '../contracts/tool-host.ts'
import { CorralError } from '../errors.ts'
import { STOPPED, USED_TOOLS } from './answer-headers.ts'
import { addCallPiece, callArguments } from './call-arguments.ts'
import { noteRepeatedCalls } from './repeats.ts'
import { asData, imageMessage } from './tool-result.ts'

/*
 * The tool loop: the model is asked, calls of tools that corral runs are made, and the model is asked again with their
 * results. It is the same for all APIs. Each turn has its own lease, so that no slot is taken while tools run.
 */

/** A tool under the name that the model calls. */
export interface OfferedTool {
  tool: HostTool
  wanted: WantedTools
}

export function unknownDecision({ param }: ToolDecision): CorralError {
  const message = `"${param}" is not the id of a call that waits for your approval: it was used already, or the server was restarted. Ask again.`
  return new CorralError('invalid_request', message, { param })
}

type Readable = (messages: EngineFields[]) => EngineFields[]
type Give = (deltas: readonly Delta[]) => Promise<void> | undefined

/** The tools of one request, and what has been done with them. It outlives the leases of its turns. */
export class ToolSession {
  readonly #host: ToolHost
  readonly #offered: ReadonlyMap<string, OfferedTool>
  readonly #request: ToolRequest
  readonly #reply: FastifyReply
  readonly #maxCalls: number
  /** Messages since the request's own. */
  readonly #added: EngineFields[] = []
  /** Images of the results since the last turn. */
  readonly #files: ResultFile[] = []
  readonly #readable: Readable
  readonly #used = new Set<string>()
  #calls = 0
  /** Calls of all kinds in earlier turns. */
  #earlierCalls = 0
  #before: Counts = NOTHING
  #taker: unknown
  /** Passes on to the taker what is not from the engine. */
  #give!: Give
  #hasSpoken = false
  /** What to do before the engine is asked again. */
  #waiting: ((signal: AbortSignal) => Promise<boolean>) | undefined

  /** @param readable replaces images that the model cannot use */
  constructor(
    host: ToolHost,
    offered: ReadonlyMap<string, OfferedTool>,
    request: ToolRequest,
    reply: FastifyReply,
    readable: Readable
  ) {
    this.#readable = readable
    this.#host = host
    this.#offered = offered
    this.#request = request
    this.#reply = reply
    this.#maxCalls = Math.min(host.maxCalls, request.maxCalls ?? host.maxCalls)
  }

  /** Whether tools have run, so that the answer must not begin again. */
  get hasRun(): boolean {
    return this.#added.length > 0
  }

  /** Whether a part of the current turn was passed on, so that it must not begin again. */
  get hasSpoken(): boolean {
    return this.#hasSpoken
  }

  /** Whether `work` is next. */
  get isWaiting(): boolean {
    return this.#waiting !== undefined
  }

  /** Opens the consumer of the answer, or returns the earlier consumer if tools have already run. */
  async open<Taker>(open: () => Taker | Promise<Taker>): Promise<Taker> {
    if (!this.hasRun) this.#taker = await open()
    return this.#taker as Taker
  }

  /** Gives calls indexes that are unique within the answer, for hooks. */
  shift(deltas: readonly Delta[]): readonly Delta[] {
    const by = this.#earlierCalls
    if (by === 0) return deltas
    return deltas.map(delta =>
      delta.toolCalls
        ? { ...delta, toolCalls: delta.toolCalls.map(each => ({ ...each, index: each.index + by })) }
        : delta
    )
  }

  /** Asks the engine once, or leaves calls for `work`. They need no engine. */
  async turn(body: EngineFields, ask: (body: EngineFields, take: Give) => Promise<void>, give: Give): Promise<void> {
    this.#give = give
    this.#hasSpoken = false
    if (!this.hasRun) await this.#begin()
    if (this.isWaiting) return
    const turn = new Turn(this.#offered, this.#before)
    await ask(this.#bodyFor(body), deltas => {
      this.#hasSpoken = true
      const kept = turn.pass(deltas)
      return kept.length > 0 ? give(kept) : undefined
    })
    this.#before = turn.counts
    this.#earlierCalls += turn.calls.length
    const ours = turn.calls.filter(call => this.#offered.has(`${call.name}`))
    // The arguments of a truncated call are incomplete.
    if (ours.length === 0 || turn.finish === 'length') return await give([turn.last(turn.finish)])
    this.#added.push(turn.message())
    this.#waiting = async signal => {
      const end = await this.#runAll(ours, signal)
      const over = async (finish: Delta['finish'], ...before: Delta[]) => {
        await this.#give([...before, turn.last(finish)])
        return false
      }
      if (end === 'limit') {
        this.#reply.header(STOPPED, 'tools')
        const why = `[The answer was ended: the model wanted more than ${this.#maxCalls} calls of tools, which is the limit.]`
        return await over('length', { content: `\n\n${why}` })
      }
      if (turn.calls.length > ours.length) return await over('tool_calls')
      if (end === 'approval') return await over('stop')
      return this.#tokensLeft(body) > 0 || (await over('length'))
    }
  }

  /** Runs the calls of the last turn. Returns whether the engine must be asked again; otherwise the answer is over. */
  async work(signal: AbortSignal): Promise<boolean> {
    const waiting = this.#waiting
    this.#waiting = undefined
    const again = (await waiting?.(signal)) ?? false
    if (again) this.#addImages()
    return again
  }

  /** Says which tools there are, and takes the calls that the user has approved since the last request. */
  async #begin(): Promise<void> {
    const lists = new Map<string, HostTool[]>()
    for (const { tool, wanted } of this.#offered.values()) {
      if (wanted.label !== undefined) lists.set(wanted.label, [...(lists.get(wanted.label) ?? []), tool])
    }
    if (lists.size > 0) {
      await this.#give([...lists].map(([label, tools]) => ({ hosted: { type: 'tools', label, tools } })))
    }
    const calls = (this.#request.decisions ?? []).map(decision => {
      const call = this.#host.take(this.#reply.request.caller.owner, decision.id)
      // Another request was faster.
      if (!call) throw unknownDecision(decision)
      return { call, approve: decision.approve }
    })
    if (calls.length === 0) return
    this.#added.push({ role: 'assistant', content: '', tool_calls: calls.map(({ call }) => asMessagePart(call)) })
    this.#waiting = async signal => {
      for (const { call, approve } of calls) {
        if (approve) await this.#run(call, true, signal)
        else await this.#add(call, { output: 'The user did not allow this call.', failed: true })
      }
      return true
    }
  }

  async #runAll(calls: readonly ToolCallPiece[], signal: AbortSignal): Promise<'limit' | 'approval' | undefined> {
    let end: 'approval' | undefined
    for (const piece of calls) {
      if (this.#calls++ >= this.#maxCalls) return 'limit'
      const { tool, wanted } = this.#offered.get(piece.name!)!
      const call: HostedCall = {
        id: piece.id!,
        server: tool.server,
        tool: tool.name,
        label: wanted.label,
        name: piece.name!,
        arguments: callArguments(piece.arguments),
        hosted: wanted.hosted
      }
      const asks = tool.asks || wanted.asks?.(tool) === true
      if (asks && this.#request.approves) {
        const id = this.#host.keep(this.#reply.request.caller.owner, call)
        await this.#give([{ hosted: { type: 'approval', call: { ...call, approval: id } } }])
        end = 'approval'
      } else await this.#run(call, false, signal)
    }
    return end
  }

  async #run(call: HostedCall, approved: boolean, signal: AbortSignal): Promise<void> {
    this.#used.add(`${call.server}.${call.tool}`)
    this.#reply.header(USED_TOOLS, [...this.#used].join(', '))
    await this.#give([{ hosted: { type: 'call', call } }])
    const { caller, id: requestId } = this.#reply.request
    await this.#add(call, await this.#host.call({ call, approved, caller, requestId, signal }))
  }

  async #add(call: HostedCall, result: ToolResult): Promise<void> {
    this.#added.push({ role: 'tool', tool_call_id: call.id, name: call.name, content: asData(call, result.output) })
    this.#files.push(...(result.files ?? []))
    await this.#give([{ hosted: { type: 'result', call, ...result } }])
  }

  #addImages(): void {
    const images = imageMessage(this.#files.splice(0))
    const messages = images ? this.#readable([images]) : []
    // If the model cannot see them, only text is left, and the results name them.
    this.#added.push(...messages.filter(({ content }) => Array.isArray(content)))
  }

  #bodyFor(body: EngineFields): EngineFields {
    if (!this.hasRun) return body
    const { tool_choice: choice, continue_final_message: _, add_generation_prompt: __, ...rest } = body
    return noteRepeatedCalls({
      ...rest,
      ...(choice !== undefined && choice !== 'required' && { tool_choice: choice }),
      ...(typeof body.max_tokens === 'number' && { max_tokens: this.#tokensLeft(body) }),
      messages: this.#conversation(body.messages as EngineFields[])
    })
  }

  /** Joins what the model said before calls that the user decided about with these calls: templates want one message. */
  #conversation(asked: EngineFields[]): EngineFields[] {
    const last = asked.at(-1)
    const [first, ...others] = this.#added
    const isSaid = last?.role === 'assistant' && !last.tool_calls && first!.content === ''
    if (!isSaid) return [...asked, ...this.#added]
    return [...asked.slice(0, -1), { ...last, ...first, content: last.content }, ...others]
  }

  #tokensLeft({ max_tokens: most }: EngineFields): number {
    return typeof most === 'number' ? most - this.#before.usage.completionTokens : Number.POSITIVE_INFINITY
  }
}

const asMessagePart = ({ id, name, arguments: text }: Pick<HostedCall, 'id' | 'name' | 'arguments'>) => ({
  id,
  type: 'function',
  function: { name, arguments: text }
})

/** What all turns have used so far. */
interface Counts {
  usage: TokenUsage
  timing: { prompt: number; generation: number }
}
const NOTHING: Counts = {
  usage: { promptTokens: 0, cachedTokens: 0, completionTokens: 0 },
  timing: { prompt: 0, generation: 0 }
}

/** One answer of the engine within the loop. */
class Turn {
  readonly calls: ToolCallPiece[] = []
  finish: Delta['finish']
  readonly #offered: ReadonlyMap<string, OfferedTool>
  readonly #before: Counts
  #now: Counts
  #content = ''
  #thinking = ''
  /** For calls of the client's tools: the index that the client sees, by the engine's index. */
  readonly #shown = new Map<number, number>()
  #first: number | undefined
  #end: Delta = {}

  constructor(offered: ReadonlyMap<string, OfferedTool>, before: Counts) {
    this.#offered = offered
    this.#before = before
    this.#now = before
  }

  get counts(): Counts {
    return this.#now
  }

  /** Returns what the client gets at once: without calls of corral's tools, and without an end. */
  pass(deltas: readonly Delta[]): Delta[] {
    return deltas.flatMap(delta => {
      const { finish, usage, timing, toolCalls, reading, stopSequence, ...rest } = delta
      if (finish) this.finish = finish
      this.#content += rest.content ?? ''
      this.#thinking += rest.thinking ?? ''
      if (usage) this.#now = { usage: summed(this.#before.usage, usage), timing: this.#now.timing }
      if (timing) this.#now = { usage: this.#now.usage, timing: summed(this.#before.timing, timing) }
      const theirs = (toolCalls ?? []).flatMap(piece => this.#call(piece))
      const kept: Delta = {
        ...rest,
        ...(usage && { usage: this.#now.usage }),
        ...(timing && { timing: this.#now.timing }),
        ...(reading && this.#before === NOTHING && { reading }),
        ...(theirs.length > 0 && { toolCalls: theirs })
      }
      if (finish) this.#end = { ...(stopSequence !== undefined && { stopSequence }) }
      return Object.keys(kept).length > 0 ? [kept] : []
    })
  }

  last(finish: Delta['finish']): Delta {
    const { usage, timing } = this.#now
    return { ...this.#end, finish: finish ?? 'stop', ...(usage !== NOTHING.usage && { usage, timing }) }
  }

  message(): EngineFields {
    return {
      role: 'assistant',
      content: this.#content,
      ...(this.#thinking && { reasoning_content: this.#thinking }),
      tool_calls: this.calls.map(call =>
        asMessagePart({ id: call.id!, name: call.name!, arguments: callArguments(call.arguments) })
      )
    }
  }

  /** Collects a call. Returns the piece if the client gets it. */
  #call(piece: ToolCallPiece): ToolCallPiece[] {
    this.#first ??= piece.index
    const index = piece.index - this.#first
    addCallPiece(this.calls, { ...piece, index })
    const call = this.calls[index]!
    call.id ??= `call_${randomUUID()}`
    // Whose call it is is known once it has a name.
    if (!call.name || this.#offered.has(call.name)) return []
    const known = this.#shown.get(index)
    if (known !== undefined) return [{ ...piece, index: known }]
    this.#shown.set(index, this.#shown.size)
    return [{ ...call, index: this.#shown.size - 1 }]
  }
}

function summed<Numbers extends object>(one: Numbers, other: Numbers): Numbers {
  const sums = Object.entries(one).map(([name, value]) => [name, value + other[name as keyof Numbers]])
  return Object.fromEntries(sums) as Numbers
}
