import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import {
  applyEdits,
  type FormattingOptions,
  getNodeValue,
  modify,
  type Node,
  type ParseError,
  parseTree
} from 'jsonc-parser'

/** A member of an object, or the item of an array whose members have these values. */
type Step = string | { name: string }

/** A value to set in a file of JSON, which may have comments. */
export interface Change {
  path: Step[]
  value: unknown
  /**
   * Place inside the value that shows whose it is: as long as it is unchanged, undo removes the value even if other
   * parts have changed. If absent, every part counts.
   */
  mark?: string[]
  /** Whether the program needs the value even without corral, so that undo leaves it in a file that has changed. */
  stays?: true
}

/** A value that was set. */
export interface Entry extends Pick<Change, 'path' | 'mark'> {
  /** The values that were set, by one launch each. */
  values: unknown[]
  /** The value before, if there was one. */
  before?: unknown
  /** Number of leading steps of the path that existed before. */
  existed: number
}

const OPTIONS = { allowTrailingComma: true, disallowComments: false }
const BOM = '\ufeff'

/** Thrown if a file is not valid, or a change would not have its effect. */
export class NotEditable extends Error {
  override readonly name = 'NotEditable'
}

/** Parses a text and finds places in it. An empty text is an empty object, or an array if the path starts with an item. */
function open(text: string, [first]: Step[]) {
  const hasBom = text.startsWith(BOM)
  const body = text.slice(hasBom ? 1 : 0)
  const usual = typeof first === 'object' ? '[]' : '{}'
  const whole = body.trim() === '' ? usual : body
  const mistakes: ParseError[] = []
  const tree = parseTree(whole, mistakes, OPTIONS)
  if (!tree || mistakes.length > 0) {
    const line = whole.slice(0, mistakes[0]?.offset ?? 0).split('\n').length
    throw new NotEditable(`line ${line} is not valid JSON`)
  }
  return { hasBom, whole, tree }
}

/** Translates a path to members and indexes of a tree. The last steps may not exist. */
function find(tree: Node, path: Step[]): { place: (string | number)[]; node: Node | undefined; depth: number } {
  const place: (string | number)[] = []
  let node: Node | undefined = tree
  let depth = 0
  for (const step of path) {
    const children: Node[] = node?.children ?? []
    const at =
      typeof step === 'string'
        ? step
        : children.findIndex(item => (getNodeValue(item) as { name?: unknown } | null)?.name === step.name)
    if (node && (typeof step === 'string' ? 'object' : 'array') !== node.type) {
      throw new NotEditable(
        `${formatPath(path.slice(0, depth)) || 'it'} is not ${typeof step === 'string' ? 'an object' : 'a list'}`
      )
    }
    // Of two members with one name, parsers take the last.
    node =
      typeof at === 'string' ? children.findLast(pair => pair.children?.[0]?.value === at)?.children?.[1] : children[at]
    place.push(at === -1 ? children.length : at)
    if (node) depth++
  }
  return { place, node, depth }
}

export const formatPath = (path: Step[]) => path.map(step => (typeof step === 'string' ? step : step.name)).join('.')

/** Sets a value, or removes it if it is undefined. Comments and the format of everything else stay. */
function put(text: string, path: Step[], value: unknown): string {
  const { hasBom, whole, tree } = open(text, path)
  const { place, node } = find(tree, path)
  const unit = /\n([ \t]+)\S/.exec(whole)?.[1] ?? '  '
  const formattingOptions: FormattingOptions = {
    insertSpaces: !unit.startsWith('\t'),
    tabSize: unit.startsWith('\t') ? 1 : unit.length,
    eol: whole.includes('\r\n') ? '\r\n' : '\n'
  }
  const isInsertion = node === undefined && typeof place.at(-1) === 'number'
  const edited = applyEdits(whole, modify(whole, place, value, { formattingOptions, isArrayInsertion: isInsertion }))
  // A second member with the same name, for example, would hide the change.
  if (!isDeepStrictEqual(get(edited, path), value)) throw new NotEditable(`${formatPath(path)} cannot be changed in it`)
  return `${hasBom ? BOM : ''}${edited}`
}

function get(text: string, path: Step[]): unknown {
  const { node } = find(open(text, path).tree, path)
  return node && getNodeValue(node)
}

/**
 * Makes the changes to the text of a file, or to none.
 * @param earlier entries of earlier launches, whose effect the text no longer has
 * @throws NotEditable
 */
export function applyChanges(
  before: string | undefined,
  changes: readonly Change[],
  earlier: readonly Entry[] = []
): { text: string; entries: Entry[] } {
  let text = before ?? ''
  const entries = changes.flatMap(({ path, value, mark, stays }): Entry[] => {
    const { node, depth } = find(open(text, path).tree, path)
    const known = earlier.find(entry => isDeepStrictEqual(entry.path, path))
    const old = node && { before: getNodeValue(node) as unknown }
    text = put(text, path, value)
    if (stays) return []
    return [{ path, ...(mark && { mark }), values: [...(known?.values ?? []), value], ...old, existed: depth }]
  })
  if (before === undefined) text += '\n'
  return { text, entries }
}

/**
 * Takes corral's values out of a text that has changed since.
 * @returns the text, and the places that stay because somebody has changed them
 * @throws NotEditable
 */
function withoutEntries(text: string, entries: readonly Entry[]): { text: string; kept: string[] } {
  const kept: string[] = []
  for (const { path, values, before, existed, mark } of entries.toReversed()) {
    const now = get(text, path)
    if (now === undefined) continue
    const part = (value: unknown) =>
      (mark ?? []).reduce<unknown>((at, name) => (at as Record<string, unknown> | null)?.[name], value)
    const isOwn = mark?.length === 0 || values.some(value => isDeepStrictEqual(part(value), part(now)))
    if (isDeepStrictEqual(now, before)) continue
    if (!isOwn) {
      kept.push(formatPath(path))
      continue
    }
    text = put(text, path, before)
    // The objects around it that were made for it.
    for (
      let length = path.length - 1;
      before === undefined && length > existed && isEmpty(text, path, length);
      length--
    ) {
      text = put(text, path.slice(0, length), undefined)
    }
  }
  return { text, kept }
}

const isEmpty = (text: string, path: Step[], length: number) =>
  isDeepStrictEqual(get(text, path.slice(0, length)), typeof path[length] === 'string' ? {} : [])

/** A file of the user that was changed. */
export interface ChangedFile {
  path: string
  /** Its text without the changes, or null if it did not exist. */
  base: string | null
  /** SHA-256 of each text that was written since, even if the process was killed before it was. */
  written: string[]
  /** Folders that were created for it, outermost first. */
  folders: string[]
  entries: Entry[]
}

export const digest = (text: string) => createHash('sha256').update(text).digest('hex')

/**
 * Returns a file's text without corral's changes, byte for byte if nobody has changed it since.
 * @param current undefined if there is no file
 * @returns an undefined text if there must be no file, and the places that stay because somebody has changed them
 * @throws NotEditable
 */
export function undoChanges(current: string | undefined, { base, written, entries }: ChangedFile) {
  if (current === undefined || current === base) return { text: current, kept: [] }
  if (written.includes(digest(current))) return { text: base ?? undefined, kept: [] }
  const { text, kept } = withoutEntries(current, entries)
  const isEmpty = base === null && /^\s*(\{\s*\}|\[\s*\])\s*$/.test(text)
  return { text: isEmpty ? undefined : text, kept }
}

/** The lines that differ between two texts, with one line of context. */
export function formatDiff(before: string, after: string): string {
  const [old, now] = [before, after].map(text => text.split(/\r?\n/)) as [string[], string[]]
  if (before === '')
    return now
      .filter(line => line !== '')
      .map(line => `+ ${line}`)
      .join('\n')
  let start = 0
  while (start < old.length && old[start] === now[start]) start++
  let end = 0
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end++
  return [
    ...old.slice(Math.max(0, start - 1), start).map(line => `  ${line}`),
    ...old.slice(start, old.length - end).map(line => `- ${line}`),
    ...now.slice(start, now.length - end).map(line => `+ ${line}`),
    ...now.slice(now.length - end, now.length - end + 1).map(line => `  ${line}`)
  ].join('\n')
}
