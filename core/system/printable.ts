/* Characters with which clients could forge lines of a log, or change the terminal that shows it. */
const FORBIDDEN = '\\u0000-\\u0008\\u000a-\\u001f\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069\\ufeff'
const CONTROL = new RegExp(`[${FORBIDDEN}]`, 'g')
const HAS_CONTROL = new RegExp(`[${FORBIDDEN}]`)

function escapeOf(character: string): string {
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
}

/** A text for one line of a log, truncated to `longest` characters, with control characters as `\u001b`. */
export function printable(text: string, longest = Number.POSITIVE_INFINITY): string {
  const cut = text.length > longest ? `${text.slice(0, longest)}…` : text
  return HAS_CONTROL.test(cut) ? cut.replace(CONTROL, escapeOf) : cut
}

/**
 * A JSON line whose strings have no control characters after parsing: JSON's escapes are escaped once more, since a
 * terminal gets the parsed text. Line breaks stay in stack traces, where each line is indented.
 */
export function printableJson(line: string): string {
  const body = line.endsWith('\n') ? line.slice(0, -1) : line
  const escaped = body.replace(/\\(?:u00[01][0-9a-f]|u007f|[bfnr]|.)/gi, (found, at: number) => {
    if (found === '\\n') return body.startsWith('    at ', at + 2) ? found : '\\\\n'
    return /^\\(?:u..|b$|f$|r$)/.test(found) ? `\\${found}` : found
  })
  const safe = escaped.replace(CONTROL, character => `\\${escapeOf(character)}`)
  return body.length === line.length ? safe : `${safe}\n`
}
