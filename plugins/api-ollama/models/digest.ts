import { CorralError } from '../../../core/errors.ts'

/**
 * The 64 hex digits of a digest as Ollama's clients write it: `sha256:<64 hex digits>`, older ones with a dash.
 * @throws CorralError `invalid_request`
 */
export function parseDigest(text: string, param: string): string {
  const digits = /^sha256[:-]([0-9a-f]{64})$/i.exec(text)?.[1]
  if (digits !== undefined) return digits.toLowerCase()
  throw new CorralError(
    'invalid_request',
    `${JSON.stringify(text.slice(0, 100))} is no digest. Write sha256:<64 hex digits>.`,
    { param }
  )
}
