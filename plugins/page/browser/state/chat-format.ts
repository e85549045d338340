import { isObject } from '../../../../core/system/json-object.ts'

/*
 * The format of chats, in files, on the server and in memory. The types follow from the checks. A conversation is a
 * tree: each message has a parent, an edited or regenerated message becomes a sibling, and the chat points to the leaf
 * that is shown.
 */

type Check<Value = unknown> = (value: unknown) => value is Value
export type Shape = Readonly<Record<string, Check>>
type Of<Fields extends Shape> = { [Field in keyof Fields]: Fields[Field] extends Check<infer Value> ? Value : never }

const text = (value: unknown): value is string => typeof value === 'string'
const id = (value: unknown): value is string =>
  text(value) && value !== '' && value.length <= 300 && value !== '__proto__'
const number = (value: unknown): value is number => Number.isFinite(value)
const flag = (value: unknown): value is boolean => typeof value === 'boolean'
const oneOf =
  <const Values extends readonly unknown[]>(...values: Values) =>
  (value: unknown): value is Values[number] =>
    values.includes(value)
const listOf =
  <Item>(item: Check<Item>) =>
  (value: unknown): value is Item[] =>
    Array.isArray(value) && value.every(item)
const valuesOf =
  <Item>(item: Check<Item>) =>
  (value: unknown): value is Record<string, Item> =>
    isObject(value) && Object.values(value).every(item)
const shape =
  <Fields extends Shape>(fields: Fields) =>
  (value: unknown): value is Of<Fields> =>
    isObject(value) && wrongField(value, fields) === undefined
/** Makes all fields of a shape optional. */
const optional = (fields: Shape): Shape =>
  Object.fromEntries(
    Object.entries(fields).map(([field, check]) => [
      field,
      (value: unknown): value is unknown => value === undefined || check(value)
    ])
  )

/** Returns the first field that is missing or has the wrong type. */
export const wrongField = (value: Record<string, unknown>, fields: Shape): string | undefined =>
  Object.keys(fields).find(field => !fields[field]!(value[field]))

/** Maximum depth of nested objects. */
const MAX_DEPTH = 32

function isShallow(value: unknown, depth = MAX_DEPTH): boolean {
  if (typeof value !== 'object' || value === null) return true
  return depth > 0 && Object.values(value).every(field => isShallow(field, depth - 1))
}

const SETTINGS = {
  system: text,
  /** JSON schema for answers, as written. */
  schema: text,
  /** Tools as written: a JSON list. */
  tools: text,
  /** Tools that the server runs: names of servers, and `server.tool`. */
  mcp: listOf(text),
  /** How much the model thinks, if it can. Absent leaves it to the model. */
  effort: oneOf('off', 'low', 'medium', 'high'),
  /** Options that differ from the server's defaults. */
  options: (value: unknown): value is Record<string, unknown> => isObject(value) && isShallow(value)
}
/** The parts of a chat's requests other than messages. */
export type Settings = Partial<Of<typeof SETTINGS>>

/** Times are epoch milliseconds. */
const CHAT = { id, title: text, createdAt: number }
const CHAT_MORE = {
  ...SETTINGS,
  /** Time of the last change of anything, and of each field. */
  changedAt: number,
  stamps: valuesOf(number),
  /** Times at which messages were deleted, by id. */
  gone: valuesOf(number),
  /** The last message of the current branch. */
  leaf: id,
  pinned: flag,
  /** Whether the user wrote the title. */
  named: flag,
  model: text,
  /** A project has the name and settings of its new chats. Its only messages have its documents. */
  isProject: flag,
  /** Id of the project that the chat is in, if that exists. */
  project: id
}
/** Old chats have no time of their last message. */
export const CHAT_FIELDS = { ...CHAT, ...optional({ ...CHAT_MORE, updatedAt: number }) }
export type Chat = Of<typeof CHAT> & { updatedAt: number } & Partial<Of<typeof CHAT_MORE>>

/** `data` is a `data:` URL, or the text itself for documents: empty after their removal, with form feeds between pages. */
const ATTACHMENT = { name: text, kind: oneOf('image', 'audio', 'text'), type: text, data: text }
/** Bytes of the file. */
const ATTACHMENT_MORE = { size: number }
export type Attachment = Of<typeof ATTACHMENT> & Partial<Of<typeof ATTACHMENT_MORE>>
const isAttachment = (value: unknown): value is Attachment =>
  shape({ ...ATTACHMENT, ...optional(ATTACHMENT_MORE) })(value) &&
  // Loading a URL on another server would reveal what is being read.
  (value.kind === 'text' || value.data.startsWith(`data:${value.kind}/`))

/** `arguments` is JSON as written by the model. */
const TOOL_CALL = { id: text, name: text, arguments: text }
export type ToolCall = Of<typeof TOOL_CALL>

const RESULT_FILE = { name: text, type: text, data: text }
/** A file in the result of a tool. `data` is base64. */
export type ResultFile = Of<typeof RESULT_FILE>

const HOSTED_CALL = { id: text, server: text, tool: text, name: text, arguments: text, at: number }
const HOSTED_CALL_MORE = {
  output: text,
  failed: flag,
  files: listOf(shape(RESULT_FILE)),
  /** The id by which the server knows the decision of the user. */
  approval: text,
  /** Absent when the call has begun. */
  state: oneOf('asked', 'approved', 'denied', 'expired')
}
/** A call of a tool that the server runs. `at` is its place in the text of the answer. */
export type HostedCall = Of<typeof HOSTED_CALL> & Partial<Of<typeof HOSTED_CALL_MORE>>
const isHostedCall = shape({ ...HOSTED_CALL, ...optional(HOSTED_CALL_MORE) }) as Check<unknown> as Check<HostedCall>

const SOURCE = { name: text, at: number, text }
const SOURCE_MORE = { page: number, heading: text }
/** A passage of a document, at an offset of its text. Answers cite it by its number in the list, from 1. */
export type Source = Of<typeof SOURCE> & Partial<Of<typeof SOURCE_MORE>>
const isSource = shape({ ...SOURCE, ...optional(SOURCE_MORE) }) as Check<unknown> as Check<Source>

export interface Timing {
  promptTokens: number
  /** Prompt tokens that the slot had cached. */
  cachedTokens: number
  answerTokens: number
  /** Milliseconds until the first text, including all waits. */
  firstText?: number
  /** Tokens per second, and prompt tokens per second without cached ones. */
  speed?: number
  promptSpeed?: number
}

const MESSAGE = { id, chat: id, role: oneOf('user', 'assistant', 'tool'), content: text, at: number }
const MESSAGE_MORE = {
  parent: id,
  /** Time of the last edit. */
  rev: number,
  attachments: listOf(isAttachment),
  /** Replaces this message and those before it in requests. */
  summary: text,
  /** For tool results: the id of the tool call. */
  callId: text,
  /** The others are for answers. */
  model: text,
  thinking: text,
  toolCalls: listOf(shape(TOOL_CALL)),
  calls: listOf(isHostedCall),
  /** The passages that the answer is based on, and how they were found. */
  sources: listOf(isSource),
  search: oneOf('meaning', 'words'),
  /** Absent when the answer is complete. */
  state: oneOf('waiting', 'answering', 'stopped', 'failed'),
  /** The server's description of what the answer is waiting for. */
  status: text,
  /** The stream of the answer, and the last event that was stored. */
  stream: shape({ id: text, last: number }),
  /** Why the model stopped: `stop`, `length` or `tool_calls`. */
  finish: text,
  timing: valuesOf(number) as Check<unknown> as Check<Timing>,
  /** Number of messages dropped because the context was full. */
  dropped: number,
  error: shape({ message: text, code: text })
}
export const MESSAGE_FIELDS = { ...MESSAGE, ...optional(MESSAGE_MORE) }
export type Message = Of<typeof MESSAGE> & Partial<Of<typeof MESSAGE_MORE>>

/** Validate presets and saved prompts. */
export const arePresets = listOf(shape({ name: text, ...optional(SETTINGS) }))
export const arePrompts = listOf(shape({ name: text, text }))
