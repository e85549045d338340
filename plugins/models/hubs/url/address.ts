import { createHash } from 'node:crypto'
import { isUsablePath } from '../../../../core/system/usable-path.ts'
import { notAtHub } from '../http/refusal.ts'

/** Query parameters that are secret or expire: signatures, keys and tokens. */
const SECRET =
  /sig|token|key|credential|secret|passw|auth|policy|expires|^(se|sp|sv|sr|st|x-amz-.*|x-goog-.*|x-oss-.*)$/i

/** An address, split into the part that may be stored and shown, and the secrets. */
export interface PlainAddress {
  /** Without credentials and fragment, and without a query that contains a secret. */
  id: string
  /** Headers for its host, which are never stored. */
  credentials: Record<string, string> | undefined
  /** The query if it contains a secret, otherwise empty. Never stored. */
  secretQuery: string
}

/** @throws CorralError `repo_not_found` for an invalid address */
export function parseAddress(text: string): PlainAddress {
  const address = text.includes('://') ? text : `https://${text}`
  const url = /^https?:\/\//i.test(address) && URL.canParse(address) ? new URL(address) : undefined
  if (!url) {
    throw notAtHub(`"${text.slice(0, 120)}" is not the address of a file (https://…).`)
  }
  const { username, password, search } = url
  const isSecret = [...url.searchParams.keys()].some(name => SECRET.test(name))
  url.username = ''
  url.password = ''
  url.hash = ''
  if (isSecret) url.search = ''
  const user = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return {
    id: url.href,
    credentials: username || password ? { authorization: `Basic ${Buffer.from(user).toString('base64')}` } : undefined,
    secretQuery: isSecret ? search : ''
  }
}

/** Returns the last part of an address's path. Undefined if that is not a file name. */
export function fileNameFromUrl(id: string): string | undefined {
  return usableName(decoded(new URL(id).pathname.split('/').at(-1)!))
}

/** Returns the file name in a `Content-Disposition` header. Undefined if there is no usable one. */
export function fileNameFromDisposition(header: string | undefined): string | undefined {
  const extended = /filename\*\s*=\s*UTF-8'[^']*'([^;\s]+)/i.exec(header ?? '')?.[1]
  if (extended !== undefined) return usableName(decoded(extended))
  const plain = /filename\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))/i.exec(header ?? '')
  return usableName(plain?.[1]?.replace(/\\(.)/g, '$1') ?? plain?.[2])
}

/** Undefined if its % signs encode nothing. */
function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

const usableName = (name: string | undefined) => (isUsablePath(name) && !name.includes('/') ? name : undefined)

/** Returns the address of another file in the same folder. */
export function siblingUrl(id: string, name: string): string {
  const url = new URL(id)
  url.pathname = url.pathname.replace(/[^/]*$/, encodeURIComponent(name))
  return url.href
}

/** Returns an identifier for the content at addresses, from what their servers report about it. */
export function contentFingerprint(facts: readonly (string | number | undefined)[][]): string {
  return `content-${createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 40)}`
}
