import { createHmac } from 'node:crypto'
import type { EngineFields, EngineMode } from '../../../core/contracts/engines.ts'
import type { LeaseRequest } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { CorralError, type ErrorCode, errorCodes } from '../../../core/errors.ts'
import { withAnySignal } from '../../../core/system/abort-signals.ts'
import { merged } from '../../../core/system/collections.ts'
import { readText } from '../../../core/system/response-body.ts'
import {
  ASK_PATH,
  type AskBody,
  FAILURE_TRAILER,
  parseFailedReply,
  parseFailure,
  WrongAnswer
} from './asking/ask-protocol.ts'
import type { Copies } from './copying/copies.ts'
import type { ClusterNode } from './nodes/node.ts'
import type { NodeAnswer } from './nodes/node-connection.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { chooseNode, modelKey } from './placement/choose-node.ts'
import { promptBlocks } from './placement/prefix-memory.ts'

/** Each of them ends a request. */
export type Signals = readonly AbortSignal[]

export const throwIfAborted = (signals: Signals): void => {
  for (const signal of signals) signal.throwIfAborted()
}

export interface Asking {
  variant: Model
  mode: EngineMode
  /** Fields sent besides the name of the model. */
  body: Omit<AskBody, 'model' | 'owner' | 'turn'>
  /** The request of this server's client. */
  by: Partial<LeaseRequest>
  headers?: Record<string, string> | undefined
  /** Names of nodes where it has failed. Nodes that fail here are added. */
  tried?: Set<string>
}

/** The node failed or cannot answer now. Another one may. */
export class NodeFault extends Error {
  /** The error for the client if no other node can help. */
  readonly outcome: CorralError

  constructor(outcome: CorralError) {
    super(outcome.message)
    this.outcome = outcome
  }
}

/** Refusals caused by the gateway's relation to the node. Their text does not concern the client. */
const GATEWAY_FAULT_CODES: readonly ErrorCode[] = errorCodes(
  'unauthorized forbidden_role forbidden_model host_not_allowed route_not_found method_not_allowed',
  'invalid_json missing_body'
)
/** Refusals that do not concern other nodes, so another one may answer. */
const RETRY_ELSEWHERE_CODES = new Set<ErrorCode>([
  ...GATEWAY_FAULT_CODES,
  ...errorCodes(
    'queue_full too_busy draining shutting_down rate_limited insufficient_memory insufficient_storage',
    'storage_not_writable load_failed load_timeout runtime_missing conversion_failed conversion_not_installed',
    'engine_crashed engine_unreachable model_not_found model_deleted model_stopped internal'
  )
])

/**
 * Asks the best node, and another node if that fails before any output.
 * @param read reads the node's answer
 * @param begun whether something has reached the client
 * @throws CorralError, or the NodeFault of a node whose answer had begun
 */
export async function dispatch<Answer>(
  members: ClusterNodes,
  copies: Copies,
  asking: Asking,
  signals: Signals,
  read: (answer: NodeAnswer, member: ClusterNode) => Promise<Answer>,
  begun = () => false
): Promise<Answer> {
  const { variant, mode, body, tried = new Set<string>() } = asking
  const { owner, session, onProgress, keyName } = asking.by
  const key = modelKey(variant.key, mode)
  const prompt = promptBlocks((body.request ?? {}) as EngineFields, { model: key, owner, session })
  const unread = new Set<string>()
  let barred = members.divide?.(variant.key, { key: keyName, conversation: prompt.key })
  let last: CorralError | undefined
  for (;;) {
    throwIfAborted(signals)
    const closed = barred?.size ? new Set([...tried, ...barred]) : tried
    const now = performance.now()
    const choice = chooseNode({ model: key, prompt, tried: closed, unread }, members.view, members.prefixes, now)
    if (!choice.member && barred?.size) {
      // Any answer is better than none.
      barred = undefined
      continue
    }
    if (choice.why === 'fetch') {
      // After an update, other files may count than when this engine began.
      const { digest } = members.get(choice.from.name)?.models.get(variant.key) ?? variant
      const failure = await withAnySignal(signals, signal =>
        copies.copy({ ...variant, digest }, choice, name => !tried.has(name), signal, onProgress)
      )
      if (failure) last = failure.error
      if (failure?.member !== undefined) tried.add(failure.member)
      if (failure?.from !== undefined) unread.add(failure.from)
      onProgress?.({ phase: 'loading', subject: '' })
      continue
    }
    const member = choice.member && members.get(choice.member.name)
    const name = member && members.nameAt(member, variant)
    if (!member || name === undefined) throw last ?? nobody(members, variant, choice.why)
    tried.add(member.name)
    const model = member.view.models.get(key)
    if (model && isRead(body.call)) {
      const { slots, context, storedTokens } = model
      if (tried.size === 1) members.routed(choice.why)
      members.prefixes.read({ member: member.name, model: key, slots, context, storedTokens }, prompt, now)
    }
    const end = member.begin(key)
    try {
      const answer = await askNode(member, name, asking, signals, read)
      member.trust()
      return answer
    } catch (error) {
      throwIfAborted(signals)
      if (!(error instanceof NodeFault) || begun()) throw error
      // Prefers the refusal after which a later try may help.
      if (last?.code !== 'queue_full') last = error.outcome
    } finally {
      end()
    }
  }
}

const isRead = (call: AskBody['call']) => call === 'chat' || call === 'completion'

function nobody(members: ClusterNodes, { publicName }: Model, why: string): CorralError {
  const count = members.all().length
  if (why === 'too_large') {
    return new CorralError(
      'insufficient_memory',
      `No member of this server has enough memory for "${publicName}". Free some (corral stop), or add a member.`
    )
  }
  return new CorralError(
    'engine_unreachable',
    `None of the members that have "${publicName}" can be reached now (of ${count} in all). GET /api/cluster says why. Try again in a moment.`,
    { retryAfter: 1 }
  )
}

const digests = new Map<string, string>()
const MAX_DIGESTS = 10_000

/** Returns the digest by which nodes know a client of this server. */
function digest(text: string | undefined): string | undefined {
  if (!text) return text
  const known = digests.get(text)
  if (known !== undefined) return known
  if (digests.size >= MAX_DIGESTS) digests.clear()
  const made = createHmac('sha256', 'corral').update(text).digest('base64url').slice(0, 32)
  digests.set(text, made)
  return made
}

/**
 * Asks one node.
 * @param name the model's name there
 * @throws NodeFault, or the CorralError of a request that no other node would answer either
 */
export async function askNode<Answer>(
  member: ClusterNode,
  name: string,
  { variant, body, by, headers }: Pick<Asking, 'variant' | 'body' | 'by' | 'headers'>,
  signals: Signals,
  read: (answer: NodeAnswer, member: ClusterNode) => Promise<Answer>
): Promise<Answer> {
  let answered = false
  const sent = merged(body, { model: name, owner: digest(by.owner), turn: digest(by.turn) })
  try {
    const reply = await member.connection.ask(ASK_PATH, { body: sent, headers }, [...signals, member.presence])
    answered = true
    if (reply.status !== 200) {
      const failure = parseFailedReply(await readText(reply.body), reply.headers)
      if (!failure) member.distrust(`it answered with status ${reply.status} and without an error of corral`)
      throw getFault(member, variant, failure)
    }
    const answer = await read(reply, member)
    const failure = reply.trailers[FAILURE_TRAILER]
    if (failure !== undefined) throw getFault(member, variant, parseFailure(String(failure)))
    return answer
  } catch (error) {
    if (error instanceof CorralError || error instanceof NodeFault) throw error
    if (error instanceof WrongAnswer) {
      member.distrust(error.message)
      throw new NodeFault(wrong(member, variant))
    }
    throwIfAborted(signals)
    const why = member.explain(error)
    member.suspect(why)
    throw new NodeFault(
      new CorralError(
        answered ? 'engine_crashed' : 'engine_unreachable',
        `The member "${member.name}" was lost while it answered for "${variant.publicName}": ${why}. Send the request again.`,
        answered ? {} : { retryAfter: 1 }
      )
    )
  }
}

function getFault(member: ClusterNode, variant: Model, failure: CorralError | undefined): NodeFault | CorralError {
  if (!failure) return new NodeFault(wrong(member, variant))
  const { code } = failure
  if (code === 'model_not_found' || code === 'model_deleted') member.lacks(variant.key)
  // Input that crashed one engine would crash the next one too.
  const isInput = code === 'engine_crashed' && !failure.retryable
  if (!RETRY_ELSEWHERE_CODES.has(code) || isInput) return failure
  if (!GATEWAY_FAULT_CODES.includes(code)) return new NodeFault(failure)
  member.distrust(`it refused a request (${code}): ${failure.message}`)
  return new NodeFault(wrong(member, variant))
}

const wrong = (member: ClusterNode, { publicName }: Model) =>
  new CorralError(
    'engine_crashed',
    `The member "${member.name}" did not answer for "${publicName}" as a member should. GET /api/cluster says why. Send the request again.`
  )
