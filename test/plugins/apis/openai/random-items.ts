import type { Test } from 'tap'
import { pick, randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'

export const RESPONSES = 'resources/responses/responses.d.ts'

const MESSAGES = 'resources/chat/completions/completions.d.ts'

type Shapes = ReturnType<typeof sdkShapes>
const known = new Map<string, Shapes>()

function shapesOf(t: Test, file: string, names: string[]): Shapes {
  const found = known.get(file) ?? sdkShapes(t.testdir(), file, names, 'openai')
  known.set(file, found)
  return found
}

function randomValues(shapes: Shapes, seed: number): Record<string, unknown>[] {
  const random = randomNumbers(seed)
  const count = 1 + Math.floor(random() * 6)
  return Array.from({ length: count }, () => randomValue(pick(random, shapes), random) as Record<string, unknown>)
}

/** Returns items that a client may send: of every type of the official client, which the API returns or accepts. */
export function randomItems(t: Test, seed: number): Record<string, unknown>[] {
  const names = ['ResponseInputItem', 'ResponseItem', 'ResponseOutputItem']
  return randomValues(shapesOf(t, RESPONSES, names), seed).filter(isContent)
}

/** References need stored items, and a trigger is a request for a summary. */
const isContent = ({ type, content }: Record<string, unknown>) =>
  content !== undefined || (typeof type === 'string' && type !== 'item_reference' && type !== 'compaction_trigger')

/** Returns messages of chats that a client may send. Only an assistant's message needs content, a call or audio. */
export function randomMessages(t: Test, seed: number): Record<string, unknown>[] {
  const messages = randomValues(shapesOf(t, MESSAGES, ['ChatCompletionMessageParam', 'ChatCompletionMessage']), seed)
  return messages.filter(
    ({ content, tool_calls: calls, function_call, audio }) =>
      content !== undefined || (calls as [])?.length > 0 || function_call || audio
  )
}
