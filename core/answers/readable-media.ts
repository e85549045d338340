import type { EngineFields } from '../contracts/engines.ts'
import type { Lease } from '../contracts/leases.ts'
import { CorralError, invalidRequest } from '../errors.ts'
import { merged } from '../system/collections.ts'
import { isObject } from '../system/json-object.ts'
import { joinTexts, lostMedium, placeOfMedium } from './media-parts.ts'

/*
 * Damaged images and sounds. Only the engine's decoder knows what it can read, and it does not say which file it cannot
 * read. So it is asked about ever smaller parts of the request, by counting their tokens.
 */

/** Calls to find the damaged files of one request. Further files count as damaged. */
const MAX_CALLS = 100

/**
 * Asks the engine with a request. If the engine cannot read some of its media, those in earlier messages are replaced by
 * a sentence, because every later request contains them too, and the engine is asked again.
 * @throws CorralError `invalid_request` with the place as `param` if one in the newest message, or the audio to transcribe,
 * cannot be read
 */
export async function withReadableMedia<Result>(
  { engine, signal }: Pick<Lease, 'engine' | 'signal'>,
  body: EngineFields,
  ask: (body: EngineFields) => Promise<Result>
): Promise<Result> {
  try {
    return await ask(body)
  } catch (error) {
    const parts = (Array.isArray(body.messages) ? body.messages : [])
      .flatMap((message: unknown) => (isObject(message) && Array.isArray(message.content) ? message.content : []))
      .filter(part => placeOfMedium(part) !== undefined)
    if (isUnreadable(error) && body.audio !== undefined) throw refusal('file', 'audio')
    if (!isUnreadable(error) || parts.length === 0 || !engine.countTokens) throw error
    const damaged = new Set(await findUnreadable(parts))
    if (damaged.size === 0) throw error
    for (const part of damaged) refuseNewest(part)
    const messages = (body.messages as { content: unknown }[]).map(message => {
      const { content } = message
      if (!Array.isArray(content) || !content.some(part => damaged.has(part))) return message
      return merged(message, { content: joinTexts(content.map(part => (damaged.has(part) ? lostMedium(part) : part))) })
    })
    return await ask(merged(body, { messages }))
  }

  async function findUnreadable(parts: readonly object[], calls = { left: MAX_CALLS }): Promise<readonly object[]> {
    if (parts.length === 1 || calls.left <= 0) return parts
    const middle = Math.ceil(parts.length / 2)
    const found: object[] = []
    for (const half of [parts.slice(0, middle), parts.slice(middle)]) {
      calls.left--
      if (!(await canRead(half))) found.push(...(await findUnreadable(half, calls)))
    }
    return found
  }

  async function canRead(content: readonly object[]): Promise<boolean> {
    try {
      await engine.countTokens!({ messages: [{ role: 'user', content }] }, { signal })
      return true
    } catch (error) {
      if (isUnreadable(error)) return false
      throw error
    }
  }
}

const isUnreadable = (error: unknown) => error instanceof CorralError && error.details?.unreadable_media === true

function refuseNewest(part: object): void {
  const { param, one } = placeOfMedium(part)!
  if (param === undefined) return
  throw refusal(param, one)
}

function refusal(param: string, what: string): CorralError {
  const message = `"${param}" is ${what} that cannot be read: its data is damaged. Send the file again, or in another format.`
  return invalidRequest(param, message)
}
