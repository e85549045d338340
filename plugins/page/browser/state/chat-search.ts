import type { Message } from './chat-format.ts'

/** A message that contains the searched words, and the text around the first place. */
export interface Hit {
  message: Message
  passage: string
}

/** Matches words in any case and with any spaces between them. Returns undefined for too few letters. */
export function patternOf(wanted: string): RegExp | undefined {
  const words = wanted.trim().split(/\s+/)
  if (words.join('').length < 2) return undefined
  return new RegExp(`(${words.map(word => word.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('\\s+')})`, 'iu')
}

/** Characters of a passage before and from the words. */
const BEFORE = 30
const AFTER = 150

/** Returns the text around the first match, or undefined. */
export function passageIn(text: string, pattern: RegExp): string | undefined {
  const at = text.search(pattern)
  if (at < 0) return undefined
  // Begins with a whole word, and never with half a character.
  const start = Math.max(0, at - BEFORE)
  const before = text.slice(start, at).replace(start > 0 ? /^(\S*\s+|[\uDC00-\uDFFF])/ : '', '')
  const passage = before + text.slice(at, at + AFTER).replace(/[\uD800-\uDBFF]$/, '')
  return (start > 0 ? '…' : '') + passage.replace(/\s+/g, ' ')
}
