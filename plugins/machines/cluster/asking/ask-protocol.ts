import type { FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Delta, EmbeddingsReply, EngineMode, TokenUsage } from '../../../../core/contracts/engines.ts'
import type { Operation } from '../../../../core/contracts/hooks.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError, ERROR_STATUS, type ErrorCode } from '../../../../core/errors.ts'
import { Given, keep_alive, Loose, options } from '../../../../core/http/request-fields.ts'
import { isObject, parseAnyJson } from '../../../../core/system/json-object.ts'
import { readText } from '../../../../core/system/response-body.ts'
import type { NodeAnswer } from '../nodes/node-connection.ts'

/* How the gateway calls a node's engine. Requests and answers have the form of the engine contract. */

export const ASK_PATH = '/api/cluster/ask'
export const DESCRIBE_PATH = '/api/cluster/describe'

/** Calls whose answers come in one piece, and the operations that they are logged as. All others are streams. */
export const ONCE_OPERATIONS = {
  embed: 'embeddings',
  rerank: 'rerank',
  tokenize: 'tokens',
  detokenize: 'tokens',
  countTokens: 'tokens',
  applyTemplate: 'tokens',
  properties: 'tokens',
  slotStates: 'tokens'
} as const satisfies Record<string, Operation>
export type OnceCall = keyof typeof ONCE_OPERATIONS
export const AskSchema = Loose(
  {
    model: Type.String({ minLength: 1, description: 'Its name at the member' }),
    mode: Type.Optional(Type.String({ maxLength: 64, description: 'chat, embedding, rerank, or an operation' })),
    call: Type.String({
      maxLength: 64,
      description:
        "The engine's call or operation; load only loads, endThought ends the reasoning of the answer that `control` names"
    }),
    request: Given(Loose({}, { description: 'The request in the OpenAI chat format, or the arguments of the call' })),
    options,
    keep_alive,
    slots: Given(Type.Integer({ minimum: 1, description: 'Slots that the answer takes' })),
    owner: Given(
      Type.String({
        maxLength: 64,
        description: 'Digest of the owner of the prompt; prompts of different owners are kept apart'
      })
    ),
    turn: Given(Type.String({ maxLength: 64, description: 'Digest of the client; clients share slots fairly' })),
    idle: Given(Type.Boolean({ description: 'Run only while no client wants the model' })),
    bytes: Given(
      Type.Boolean({ description: 'Send the answer as the bytes of an OpenAI chat stream instead of lists of deltas' })
    ),
    control: Given(
      Type.String({ minLength: 1, maxLength: 64, description: 'A name by which the answer can be controlled' })
    ),
    whole: Given(Type.Boolean({ description: 'Pass nothing on before the answer is complete' })),
    count_each: Given(Type.Boolean({ description: 'Each delta with the tokens so far' })),
    stop_text: Given(Type.Boolean({ description: 'Which text of `stop` ended the answer' })),
    trial: Given(
      Type.Boolean({ description: 'Answer even if the member drains, to test it. Needs an admin; others are refused' })
    ),
    native: Given(Type.Boolean({ description: "Also send the events in llama-server's format" }))
  },
  { title: 'ClusterAsk' }
)
export type AskBody = Static<typeof AskSchema>

/** The gateway needs these facts about a node's model to list and use it. */
export interface DescribedModel
  extends Pick<
    Model,
    'publicName' | 'key' | 'label' | 'isDefault' | 'digest' | 'size' | 'modifiedAt' | 'format' | 'metadata' | 'defaults'
  > {
  owner: string
  name: string
  modes: EngineMode[]
}

/** Trailers of a stream: why it failed after its start, and the tokens of an answer that was sent as bytes. */
export const FAILURE_TRAILER = 'x-corral-failure'
export const USED_TRAILER = 'x-corral-used'
/** Maximum length of a message, and of details as JSON, in a trailer. */
const MAX_TRAILER_LENGTH = 2000

/** How NDJSON is sent to a gateway. It needs no heartbeats: the gateway follows each node's event stream anyway. */
export const MEMBER_LINES = {
  contentType: 'application/x-ndjson',
  heartbeatInterval: 2 ** 31 - 1,
  heartbeat: () => '\n'
}

/** No node would send such an answer. */
export class WrongAnswer extends Error {}

/** Returns a function that splits chunks into non-empty lines. Its `end` throws WrongAnswer in the middle of a line. */
function lineSplitter() {
  let rest: Buffer[] = []
  const split = (chunk: Buffer): string[] => {
    const end = chunk.lastIndexOf('\n') + 1
    const whole = end > 0 ? Buffer.concat([...rest, chunk.subarray(0, end)]).toString() : ''
    if (end > 0) rest = []
    if (end < chunk.length) rest.push(chunk.subarray(end))
    return whole.split('\n').filter(line => line !== '')
  }
  const end = () => {
    if (rest.length > 0) throw new WrongAnswer('its answer ends in the middle of a line')
  }
  return Object.assign(split, { end })
}

/** Yields the non-empty lines of a reply. @throws WrongAnswer if it ends in the middle of a line */
export async function* readLines(body: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const split = lineSplitter()
  for await (const chunk of body) yield* split(chunk)
  split.end()
}

/** Passes on the lines of an answer as they arrive. Lines that arrive together form one list. @throws as `readLines` */
export async function passLines({ body }: NodeAnswer, take: (lines: string[]) => Promise<void> | undefined) {
  const split = lineSplitter()
  await body.consume(chunk => {
    const lines = split(chunk)
    return lines.length > 0 ? take(lines) : undefined
  })
  split.end()
}

/** Reads an answer that comes in one piece. @throws WrongAnswer */
export async function readPiece<Value>({ body }: NodeAnswer): Promise<Value> {
  return (parsed(await readText(body), 'its answer') as { value: Value }).value
}

/** Passes the pieces of an answer to `take`, and waits for its results. */
export type ReadPieces<Piece> = (answer: NodeAnswer, take: (piece: Piece) => Promise<void> | undefined) => Promise<void>

/** Passes whole events of a byte stream on, because half an event can be neither renamed nor continued. */
export const readEvents: ReadPieces<Buffer> = async ({ body, trailers }, take) => {
  let rest: Buffer = Buffer.alloc(0)
  let last: Buffer | undefined
  await body.consume(chunk => {
    const data = rest.length > 0 ? Buffer.concat([rest, chunk]) : chunk
    const end = data.lastIndexOf('\n\n') + 2
    rest = end < 2 ? data : data.subarray(end)
    if (end < 2) return undefined
    last = data.subarray(0, end)
    return take(last)
  })
  const isEnded = rest.length === 0 && last?.includes('data: [DONE]')
  if (!isEnded && trailers[FAILURE_TRAILER] === undefined) throw new WrongAnswer('its answer ends in the middle')
}

export const readDeltas: ReadPieces<readonly Delta[]> = async (answer, take) => {
  let isEmpty = true
  await passLines(answer, lines => {
    isEmpty = false
    return take(lines.flatMap(readLine))
  })
  if (isEmpty && answer.trailers[FAILURE_TRAILER] === undefined) throw new WrongAnswer('its answer is empty')
}

function readLine(line: string): Delta[] {
  const deltas = parsed(line)
  if (!Array.isArray(deltas)) throw new WrongAnswer('a line of its answer is not a list')
  for (const delta of deltas) if (delta?.bytes) delta.bytes = Buffer.from(String(delta.bytes), 'base64')
  return deltas
}

export function parsed(text: string, what = 'a line of its answer'): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw new WrongAnswer(`${what} is not JSON`)
  }
}

function formatFailure(error: CorralError): string {
  const details = JSON.stringify(error.details ?? {})
  const { code, retryAfter, param, retryable } = error
  const text = {
    code,
    message: error.message.slice(0, MAX_TRAILER_LENGTH),
    retryAfter,
    param,
    retryable,
    ...(details.length <= MAX_TRAILER_LENGTH && { details: error.details })
  }
  return encodeURIComponent(JSON.stringify(text))
}

export function parseFailure(text: string): CorralError | undefined {
  try {
    const { code, message, details, retryAfter, param, retryable } = JSON.parse(decodeURIComponent(text))
    return toError(code, String(message), { details, retryAfter, param, retryable })
  } catch {
    return undefined
  }
}

/** Parses a failed reply of the native API, or returns undefined if no corral sent it. */
export function parseFailedReply(text: string, headers: Record<string, unknown>): CorralError | undefined {
  try {
    const { error, errorCode, code, requestId, param, ...details } = JSON.parse(text)
    const retryAfter = Number(headers['retry-after']) || undefined
    // Only requests that could be read as HTTP have an id.
    const isUnread = requestId === undefined && code === 'invalid_request'
    return toError(isUnread ? 'engine_unreachable' : code, error, {
      details,
      retryAfter,
      param,
      retryable: headers['x-should-retry'] !== 'false'
    })
  } catch {
    return undefined
  }
}

/** Returns an error of a node, or undefined if it is not one of corral's. */
function toError(code: unknown, message: unknown, more: Record<string, unknown>): CorralError | undefined {
  if (typeof code !== 'string' || !Object.hasOwn(ERROR_STATUS, code) || typeof message !== 'string') return undefined
  const { details, retryAfter, param, retryable } = more
  return new CorralError(code as ErrorCode, message, {
    ...(isObject(details) && { details }),
    ...(typeof retryAfter === 'number' && { retryAfter }),
    ...(typeof param === 'string' && { param }),
    ...(retryable === false && { retryable })
  })
}

export function parseTrailers({ raw }: FastifyReply) {
  const trailers: Record<string, string> = {}
  const set = (name: string, value: string) => {
    trailers[name] = value
    raw.addTrailers(trailers)
  }
  return {
    /** Sets the failure, and returns the last text of the stream. */
    failure(error: CorralError): string {
      set(FAILURE_TRAILER, formatFailure(error))
      return ''
    },
    used: (used: readonly (TokenUsage | undefined)[]) => set(USED_TRAILER, JSON.stringify(used))
  }
}

export function usedOfText(text: unknown): (TokenUsage | undefined | null)[] {
  const used = parseAnyJson(String(text))
  return Array.isArray(used) ? used : []
}

/** Formats deltas as a line of JSON, with their bytes as base64. */
export function deltasLine(deltas: readonly Delta[]): string {
  const packed = deltas.some(({ bytes }) => bytes)
    ? deltas.map(({ bytes, ...delta }) => ({
        ...delta,
        ...(bytes && { bytes: Buffer.from(bytes).toString('base64') })
      }))
    : deltas
  return `${JSON.stringify(packed)}\n`
}

/** Packs vectors as base64, a third as long as their numbers in JSON. */
export function packVectors({ vectors, promptTokens }: EmbeddingsReply) {
  return {
    vectors: vectors.map(vector => {
      const numbers = Float32Array.from(vector)
      return Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString('base64')
    }),
    promptTokens
  }
}

export function unpackVectors({ vectors, promptTokens }: { vectors: string[]; promptTokens: number }): EmbeddingsReply {
  return {
    vectors: vectors.map(text => {
      // A copy: buffers from Node's pool may start at an unaligned address.
      const bytes = Uint8Array.from(Buffer.from(text, 'base64'))
      return new Float32Array(bytes.buffer)
    }),
    promptTokens
  }
}
