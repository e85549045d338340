import type { FastifyReply } from 'fastify'

/* Headers of a reply that say what corral changed about a request or its answer. */

export const GROWN_CONTEXT = 'x-corral-context'
export const CLAMPED_TOKENS = 'x-corral-max-tokens'
export const DROPPED_MESSAGES = 'x-corral-dropped-messages'
/** The header of a reply if corral ended the answer as if it had reached its limit. */
export const STOPPED = 'x-corral-stopped'

/** The tools that corral ran for the answer. */
export const USED_TOOLS = 'x-corral-used-tools'

/** Remembers which headers an event stream has sent. Headers that are set later become comments in the stream. */
export function followHeaders(reply: FastifyReply) {
  let sent: Record<string, unknown> | undefined
  const noteSent = () => {
    sent ??= { ...reply.getHeaders() }
  }
  return {
    noteSent,
    /** Returns comments with corral's headers that were set since they were sent or returned. */
    lateComments(): string {
      const before = sent
      if (!before) {
        noteSent()
        return ''
      }
      sent = { ...reply.getHeaders() }
      const late = Object.entries(sent).filter(
        ([name, value]) => name.startsWith('x-corral-') && before[name] !== value
      )
      return late.map(([name, value]) => `: ${name}: ${value}\n\n`).join('')
    }
  }
}

export const UNENFORCED_SCHEMA = 'x-corral-unenforced-schema'

/** The old header name is also sent until 0.3.0. */
export const unenforcedHeaders = (pointers: string) => ({
  [UNENFORCED_SCHEMA]: pointers,
  'x-corral-unheeded-schema': pointers
})

/** Limits of the pointers in the header, since clients accept headers of about 8 KiB. */
const MAX_POINTERS = 10
const MAX_POINTER_LENGTH = 200

/** Formats JSON pointers for a header. Pointers that do not fit are only counted. */
export function pointerList(pointers: readonly string[]): string {
  const named = pointers.filter(({ length }) => length <= MAX_POINTER_LENGTH).slice(0, MAX_POINTERS)
  const more = pointers.length > named.length ? [`+${pointers.length - named.length}`] : []
  return [...named, ...more].join(', ')
}

export const IGNORED_TOOLS = 'x-corral-ignored-tools'

/** Reports the names of tools that were left out, such as tools that run on the vendor's servers, in a header and the log. */
export function reportIgnoredTools(reply: FastifyReply, names: readonly string[]): void {
  const list = headerList(names)
  if (list === '') return
  reply.header(IGNORED_TOOLS, list)
  reply.log.info({ tools: list }, 'Tools of a request were left out, because corral does not run them.')
}

const MAX_NAMES = 20
const MAX_NAME_LENGTH = 64

/** Characters that cannot be encoded in a URI. */
const LONE_SURROGATE = /\p{Surrogate}/gu

/** Formats names that a client chose for a header. Names that do not fit are only counted. */
export function headerList(all: readonly string[]): string {
  const names = new Set(all)
  const short = [...names]
    .filter(name => name.length <= MAX_NAME_LENGTH)
    .map(name => encodeURIComponent(name.replace(LONE_SURROGATE, '\ufffd')))
    .filter(name => name !== '' && name.length <= MAX_NAME_LENGTH)
  const shown = short.sort().slice(0, MAX_NAMES)
  const more = names.size > shown.length ? [`+${names.size - shown.length}`] : []
  return [...shown, ...more].join(', ')
}
