import { printable } from '../../core/system/printable.ts'
import { type EngineLine, parseLine } from './loading.ts'
import { quoted } from './log-book.ts'

/** Characters of a line that are kept. */
const MAX_LINE_LENGTH = 2000
/** Milliseconds without a line after which what a head began has ended. */
const QUOTE_END = 1000
/**
 * Lines that llama-server prints as they are, past its log, before it repeats a grammar or what a model wrote: all that
 * follows at once is a client's, whatever it looks like.
 */
const HEADS = /error (?:parsing|printing) grammar: |^AST for |^WARNING: JSON schema conversion/

/**
 * Reads the output of one engine, and tells its own words from those of clients, which must not report a state or a use
 * of memory, nor be taken for the reason of a failure. A build that logs JSON lines does so on stdout, where a client's
 * newlines are escaped; on stderr is what it prints past its log. Lines come out bounded and without control
 * characters; those of clients are marked (`isQuoted`).
 */
export function createOutputReader(now = () => performance.now()) {
  let logsJson = false
  let quotesUntil = 0

  /** Whether a line continues what a head began. */
  function continues(text: string): boolean {
    const at = now()
    const inside = at < quotesUntil
    if (inside || HEADS.test(text)) quotesUntil = at + QUOTE_END
    return inside
  }

  return (line: string, stream: 'stdout' | 'stderr'): EngineLine[] => {
    const lines = parseLine(line)
    const isText = lines.every(({ type }) => type === 'text')
    const isAsIs = lines.some(each => each.type === 'text' && each.text === line.trimEnd())
    const isJson = line.startsWith('{') && !isAsIs
    if (stream === 'stdout' && isJson) logsJson = true
    const past = logsJson && (stream === 'stderr' || (isText && !isJson))
    const read: EngineLine[] = past ? [{ type: 'text', text: line, level: undefined }] : lines
    return read.map(each => {
      if (each.type !== 'text') return each
      // On stdout it is a piece of a message that was too long for one line.
      const foreign = each.continued || ((past || !isJson) && continues(each.text)) || (past && stream === 'stdout')
      const text = printable(each.text, MAX_LINE_LENGTH)
      return { ...each, text: foreign ? quoted(text) : text }
    })
  }
}
