import type { Test } from 'tap'
import { pick, randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'

export const RESPONSES = 'resources/responses/responses.d.ts'

let shapes: ReturnType<typeof sdkShapes> | undefined

/** Returns items that a client may send: of every type of the official client, which the API returns or accepts. */
export function randomItems(t: Test, seed: number): Record<string, unknown>[] {
  shapes ??= sdkShapes(t.testdir(), RESPONSES, ['ResponseInputItem', 'ResponseItem', 'ResponseOutputItem'], 'openai')
  const random = randomNumbers(seed)
  const items = Array.from({ length: 1 + Math.floor(random() * 6) }, () => randomValue(pick(random, shapes!), random))
  return (items as Record<string, unknown>[]).filter(isContent)
}

/** References need stored items, and a trigger is a request for a summary. */
const isContent = ({ type, content }: Record<string, unknown>) =>
  content !== undefined || (typeof type === 'string' && type !== 'item_reference' && type !== 'compaction_trigger')
