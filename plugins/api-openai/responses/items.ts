import { randomBytes } from 'node:crypto'
import type { TokenProbability } from '../../../core/contracts/engines.ts'

export interface OutputText {
  type: 'output_text'
  text: string
  annotations: never[]
  logprobs: TokenProbability[]
}

/** What a user's or the system's message, or the result of a call, consists of. */
export type InputPart =
  | { type: 'input_text'; text: string }
  | { type: 'input_image'; image_url: unknown; detail: string }
  | { type: 'input_audio'; input_audio: { data: unknown; format?: unknown } }

export type ItemStatus = 'in_progress' | 'completed' | 'incomplete'

export interface InputMessage {
  type: 'message'
  id: string
  status: ItemStatus
  role: 'user' | 'system' | 'developer'
  content: InputPart[]
}

export interface OutputMessage {
  type: 'message'
  id: string
  status: ItemStatus
  role: 'assistant'
  content: OutputText[]
}

export interface ReasoningItem {
  type: 'reasoning'
  id: string
  status: ItemStatus
  summary: { type: 'summary_text'; text: string }[]
  content: { type: 'reasoning_text'; text: string }[]
}

export interface FunctionCall {
  type: 'function_call'
  id: string
  status: ItemStatus
  call_id: string
  name: string
  /** The group that the function belongs to. */
  namespace?: string
  /** JSON text. */
  arguments: string
}

export interface FunctionCallOutput {
  type: 'function_call_output'
  id: string
  status: ItemStatus
  call_id: string
  output: string | InputPart[]
}

export type OutputItem = OutputMessage | ReasoningItem | FunctionCall
export type Item = InputMessage | FunctionCallOutput | OutputItem

/** A new id of OpenAI's form, such as `msg_` and 48 hex digits. */
export function newId(prefix: 'resp' | 'msg' | 'rs' | 'fc' | 'fco' | 'call'): string {
  return `${prefix}_${randomBytes(24).toString('hex')}`
}
