import type { FastifyReply } from 'fastify'
import type { Engine, EngineFields } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { Lease } from '../contracts/leases.ts'
import { errorMessage } from '../errors.ts'
import { abortAfter } from '../system/abort-after.ts'

/*
 * What an answer took whose client left before the engine had said so. The engine had to read the prompt all the same:
 * whoever always leaves early would else have it read for nothing.
 */

/** How long an engine may take to count (milliseconds). */
const PATIENCE = 10_000

/** Counts, behind the reply, what the engine read of an answer that was cut. Does nothing where nobody cut it. */
export function countCut(
  { request: { record, log } }: FastifyReply,
  { signal }: Lease,
  count: (signal: AbortSignal) => Promise<number>
): void {
  if (!signal.aborted) return
  record.hold()
  count(abortAfter(PATIENCE))
    .then(tokens => record.tokens.read(tokens, 0, record.tokens.prompts))
    .catch(error => log.debug(`The prompt of an answer that was cut cannot be counted: ${errorMessage(error)}`))
    .finally(() => record.release())
}

/** Tokens of one of the prompts of an answer, with the text behind the gap that it is to fill; 0 where there is none. */
export async function promptTokens(
  engine: Pick<Engine, 'countTokens' | 'tokenize'>,
  operation: Operation,
  body: EngineFields,
  at: number,
  signal: AbortSignal
): Promise<number> {
  if (operation === 'chat') return at === 0 ? ((await engine.countTokens?.(body, { signal })) ?? 0) : 0
  if (operation !== 'completion') return 0
  const { prompt, suffix } = body
  const isOne = typeof prompt === 'string' || (Array.isArray(prompt) && typeof prompt[0] === 'number')
  const own = (isOne ? [prompt] : (prompt as unknown[]))[at]
  if (own === undefined) return 0
  return await tokensIn(engine, (suffix === undefined ? [own] : [own, suffix]) as (string | number[])[], signal)
}

/** Tokens of texts, or of lists of tokens, but for those that a model's vocabulary puts around each. */
export async function tokensIn(
  engine: Pick<Engine, 'tokenize'>,
  texts: readonly (string | readonly number[])[],
  signal: AbortSignal
): Promise<number> {
  let sum = 0
  for (const text of texts) {
    if (typeof text !== 'string') sum += text.length
    else
      sum +=
        ((await engine.tokenize?.({ content: text, add_special: true }, { signal }))?.tokens as unknown[] | undefined)
          ?.length ?? 0
  }
  return sum
}
