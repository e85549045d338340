import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { applyEdits, modify, type ParseError, parse } from 'jsonc-parser'
import { errorMessage } from '../../core/errors.ts'

/** A member of an object, or the item of a list with this name. */
type Step = string | { name: string }

/** A value to set in a file of JSON, which may have comments. */
export interface Change {
  path: Step[]
  value: unknown
  /**
   * Place inside the value. While it is unchanged, the value counts as corral's even if other parts have changed. By
   * default every part counts. An empty place means that the name alone shows that it is corral's.
   */
  mark?: string[]
  /** Whether the program also needs the value without corral, so that undo leaves it in a file that has changed. */
  stays?: true
}

/** A value that was set. */
interface Entry {
  path: Step[]
  mark?: string[]
  /** What was set at the mark, by one launch each. */
  marks: unknown[]
  /** The value before, if there was one. */
  before?: unknown
  /** Number of leading steps of the path that existed before. */
  existed: number
}

/** A file of the user that was changed. */
export interface ChangedFile {
  path: string
  /** Its text without the changes, or null if it did not exist. */
  base: string | null
  /** SHA-256 of each text that was written since, or was about to be when the process was killed. */
  written: string[]
  /** Folders that were created for it, outermost first. */
  folders: string[]
  entries: Entry[]
}

/** Thrown if a text is not JSON, or a change would not have its effect. */
export class NotEditable extends Error {
  override readonly name = 'NotEditable'
}

const BOM = '\ufeff'
const digest = (text: string) => createHash('sha256').update(text).digest('hex')
const formatPath = (path: Step[]) => path.map(step => (typeof step === 'string' ? step : step.name)).join('.')

/** Parses a text. An empty one is an empty object, or a list if the path starts with an item. */
function open(text: string, [first]: Step[]) {
  const body = text.replace(BOM, '')
  const json = body.trim() !== '' ? body : typeof first === 'object' ? '[]' : '{}'
  const mistakes: ParseError[] = []
  const value: unknown = parse(json, mistakes, { allowTrailingComma: true })
  if (!mistakes[0]) return { json, value }
  throw new NotEditable(`line ${json.slice(0, mistakes[0].offset).split('\n').length} is not valid JSON`)
}

/** Finds a value. `depth` is the number of steps that exist. */
function find(value: unknown, path: Step[]) {
  const place: (string | number)[] = []
  let depth = 0
  let found = value
  for (const step of path) {
    const list = Array.isArray(found) ? (found as ({ name?: unknown } | null)[]) : []
    const at = typeof step === 'string' ? step : list.findIndex(item => item?.name === step.name)
    place.push(at === -1 ? list.length : at)
    found = (found as Record<string | number, unknown> | null | undefined)?.[at]
    if (found !== undefined) depth++
  }
  return { place, found, depth }
}

const get = (text: string, path: Step[]) => find(open(text, path).value, path).found

/** Sets a value, or removes it if it is undefined. Comments and the format of everything else stay. */
function put(text: string, path: Step[], value: unknown): string {
  const { json, value: whole } = open(text, path)
  const { place, found } = find(whole, path)
  const unit = /\n([ \t]+)\S/.exec(json)?.[1] ?? '  '
  const isTab = unit.startsWith('\t')
  const eol = json.includes('\r\n') ? '\r\n' : '\n'
  let edited: string
  try {
    const edits = modify(json, place, value, {
      formattingOptions: { insertSpaces: !isTab, tabSize: isTab ? 1 : unit.length, eol },
      isArrayInsertion: found === undefined && typeof place.at(-1) === 'number'
    })
    edited = applyEdits(json, edits)
  } catch (error) {
    throw new NotEditable(`it has no room for ${formatPath(path)} (${errorMessage(error)})`)
  }
  // A second member with the same name, for example, would hide the change.
  if (!isDeepStrictEqual(get(edited, path), value)) throw new NotEditable(`its ${formatPath(path)} stays as it is`)
  return text.startsWith(BOM) ? BOM + edited : edited
}

const markOf = (value: unknown, mark: string[] = []) => (mark.length > 0 ? find(value, mark).found : value)

/**
 * Changes a text.
 * @param text undefined if there is no file
 * @param earlier the record of earlier launches, whose effect the text no longer has
 * @throws NotEditable
 */
export function applyChanges(text: string | undefined, changes: readonly Change[], earlier?: ChangedFile) {
  let changed = text ?? ''
  const entries: Entry[] = []
  for (const { path, value, mark, stays } of changes) {
    const { found, depth } = find(open(changed, path).value, path)
    const known = earlier?.entries.find(entry => isDeepStrictEqual(entry.path, path))
    changed = put(changed, path, value)
    if (stays) continue
    const marks = [...(known?.marks ?? []), ...(mark?.length === 0 ? [] : [markOf(value, mark)])]
    entries.push({ path, marks, existed: depth, ...(mark && { mark }), ...(found !== undefined && { before: found }) })
  }
  if (text === undefined) changed += '\n'
  const base = text ?? null
  const written = [...(earlier?.base === base ? earlier.written : []), digest(changed)]
  return { text: changed, record: { base, written, entries } }
}

/**
 * Returns a file's text without corral's changes, byte for byte if nobody has changed it since.
 * @param text undefined if there is no file
 * @returns an undefined text if there must be no file, and the places that stay because somebody has changed them
 * @throws NotEditable
 */
export function undoChanges(text: string | undefined, { base, written, entries }: ChangedFile) {
  if (text === undefined || text === base) return { text, kept: [] }
  if (written.includes(digest(text))) return { text: base ?? undefined, kept: [] }
  const kept: string[] = []
  let rest = text
  for (const { path, mark, marks, before, existed } of entries.toReversed()) {
    const now = get(rest, path)
    if (now === undefined || isDeepStrictEqual(now, before)) continue
    const isOwn = mark?.length === 0 || marks.some(each => isDeepStrictEqual(each, markOf(now, mark)))
    if (!isOwn) {
      kept.push(formatPath(path))
      continue
    }
    rest = put(rest, path, before)
    // The objects around it that were made for it.
    for (let length = path.length - 1; before === undefined && length > existed; length--) {
      const around = path.slice(0, length)
      if (isDeepStrictEqual(get(rest, around), {})) rest = put(rest, around, undefined)
    }
  }
  const isEmpty = base === null && /^\s*(\{\s*\}|\[\s*\])\s*$/.test(rest)
  return { text: isEmpty ? undefined : rest, kept }
}

/** The lines that differ between two texts, with a line of context on each side. */
export function formatDiff(before: string, after: string): string {
  const [old, now] = [before, after].map(text => text.split(/\r?\n/)) as [string[], string[]]
  const least = Math.min(old.length, now.length)
  let start = 0
  while (start < least && old[start] === now[start]) start++
  let end = 0
  while (end < least - start && old.at(-1 - end) === now.at(-1 - end)) end++
  const lines = (sign: string, all: string[], from: number, to: number) => all.slice(from, to).map(line => sign + line)
  return [
    ...lines('  ', old, Math.max(0, start - 1), start),
    ...(before === '' ? [] : lines('- ', old, start, old.length - end)),
    ...lines('+ ', now, start, now.length - end),
    ...lines('  ', old, old.length - end, old.length - end + 1)
  ].join('\n')
}
