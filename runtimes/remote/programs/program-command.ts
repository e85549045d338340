import { findExecutable } from '../../../core/system/child-process.ts'
import { isObject } from '../../../core/system/json-object.ts'

/* A command of `config.yaml` as a list of arguments. No shell reads it. */

/** A quoted part, an escaped character, white space, or plain text. */
const PIECE = /"((?:\\["\\]|[^"])*)"|'([^']*)'|\\([\s"'\\])|(\s+)|([^\s"'\\]+|\\)/gy

/**
 * Splits a command into its program and arguments, as a shell does without expanding anything.
 * @throws Error if a quotation mark is not closed, or if there is no program
 */
export function splitCommand(command: string): string[] {
  const words: string[] = []
  let word: string | undefined
  let read = 0
  for (const [piece, double, single, escaped, space, plain] of command.matchAll(PIECE)) {
    read += piece.length
    if (space === undefined) word = (word ?? '') + (double?.replace(/\\(["\\])/g, '$1') ?? single ?? escaped ?? plain)
    else if (word !== undefined) {
      words.push(word)
      word = undefined
    }
  }
  if (read < command.length) throw new Error(`the quotation mark ${command[read]} is not closed`)
  if (word !== undefined) words.push(word)
  if (words.length === 0) throw new Error('it is empty')
  return words
}

/** What corral fills in. `key` is a fresh secret that requests then carry as a bearer token. */
export interface Placeholders {
  port: string
  model: string
  key: string
}

/** Replaces `{port}`, `{model}` and `{key}`. Other braces are left alone. */
export function fillIn(text: string, values: Placeholders): string {
  return text.replace(/\{(port|model|key)\}/g, (_, name: keyof Placeholders) => values[name])
}

/** Sentences about the programs of the section `engines` that do not exist on this machine. */
export function missingPrograms(section: Readonly<Record<string, unknown>> = {}): string[] {
  return Object.entries(section).flatMap(([name, settings]) => {
    const [program = ''] = isObject(settings) ? splitCommand(String(settings.command)) : []
    if (findExecutable(program)) return []
    return `The program "${program}" of engines.${name} was not found. Install it, or write its whole path in "command".`
  })
}
