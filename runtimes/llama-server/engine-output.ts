import { printable } from '../../core/system/printable.ts'
import { markAsClientText } from './engine-logs.ts'
import { type EngineLine, parseLine } from './loading.ts'

const MAX_LINE_LENGTH = 2000
/** Quoted text after a head has ended after this many milliseconds without a line. */
const QUOTE_END = 1000
/** Lines before llama-server repeats a grammar or a model's output. The client controls the lines that follow. */
const HEADS = /error (?:parsing|printing) grammar: |^AST for |^WARNING: JSON schema conversion/

/**
 * Reads the output of one engine and separates its own words from clients' words. Clients' words must not report a
 * state or memory use, or be taken for the reason of a failure. A build that logs JSON lines writes them to stdout,
 * with clients' newlines escaped, and writes everything outside its log to stderr. Lines are limited in length and
 * stripped of control characters. Clients' lines are marked (`isQuoted`).
 */
export function createOutputReader(now = () => performance.now()) {
  let logsJson = false
  let quotesUntil = 0

  /** Whether a line belongs to the quoted text after a head. */
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
      // On stdout, this is a piece of a message that was too long for one line.
      const foreign = each.continued || ((past || !isJson) && continues(each.text)) || (past && stream === 'stdout')
      const text = printable(each.text, MAX_LINE_LENGTH)
      return { ...each, text: foreign ? markAsClientText(text) : text }
    })
  }
}
