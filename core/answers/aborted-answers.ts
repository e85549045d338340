import type { FastifyReply } from 'fastify'
import type { Engine, EngineFields } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { Lease } from '../contracts/leases.ts'
import { errorMessage } from '../errors.ts'
import { abortAfter } from '../system/abort-signals.ts'

/* Counts prompts that were processed for clients that then disconnected. Otherwise these prompts would be free. */

const MAX_WAIT_MS = 10_000

/** Counts the usage of an aborted answer after the reply has ended. Does nothing if the answer was not aborted. */
export function countAborted(
  { request: { record, log } }: FastifyReply,
  { signal }: Lease,
  count: (signal: AbortSignal) => Promise<number>
): void {
  if (!signal.aborted) return
  record.hold()
  count(abortAfter(MAX_WAIT_MS))
    .then(tokens => record.tokens.read(tokens, 0, record.tokens.prompts))
    .catch(error => log.debug(`Tokens of the prompt of an aborted answer could not be counted: ${errorMessage(error)}`))
    .finally(() => record.release())
}

/** Counts the tokens of one of the request's prompts, including a `suffix`. Returns 0 if there is no such prompt. */
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

/** Tokens of texts, or of lists of tokens, without the special tokens that the vocabulary adds around each. */
export async function tokensIn(
  engine: Pick<Engine, 'tokenize'>,
  texts: readonly (string | readonly number[])[],
  signal: AbortSignal
): Promise<number> {
  let sum = 0
  for (const text of texts) {
    const reply =
      typeof text === 'string' && (await engine.tokenize?.({ content: text, add_special: true }, { signal }))
    const tokens = typeof text === 'string' ? reply && (reply.tokens as unknown[] | undefined) : text
    if (tokens) sum += tokens.length
  }
  return sum
}
