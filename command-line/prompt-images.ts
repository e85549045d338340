import { readFileSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { errorMessage, isSystemError } from '../core/errors.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { CommandFailure, EXIT } from './command-failure.ts'

/** The largest image that is sent (bytes); base64 makes it a third longer, and servers take requests of 64 MiB. */
const MAX_BYTES = 32 * 2 ** 20
/** The formats that engines read, by their first bytes. */
const FORMATS = /^(\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF.{4}WEBP)/s
const ENDING = String.raw`\.(?:png|jpe?g|gif|bmp|webp)`

/**
 * Paths of images in a prompt: in quotes, or beginning with `/`, `./`, `../`, `~/` or `file://`, with blanks escaped, as
 * terminals write files that are dropped on them.
 */
const PATHS = new RegExp(
  String.raw`"([^"\n]+${ENDING})"|'([^'\n]+${ENDING})'|(?<!\S)((?:file://|~?/|\.{1,2}/|[A-Za-z]:[\\/])(?:\\.|[^\s\\])*?${ENDING})(?![\w/])`,
  'gi'
)

/** A path as it was typed or dropped. */
export function typedPath(text: string): string {
  const bare = text.trim().replace(/^(["'])(.*)\1$/s, '$2')
  if (/^file:\/\//i.test(bare) && URL.canParse(bare)) return fileURLToPath(bare)
  const path = process.platform === 'win32' ? bare : bare.replace(/\\(.)/g, '$1')
  return path.startsWith('~/') ? join(homedir(), path.slice(2)) : resolve(path)
}

/** The images (base64) that a prompt names by paths of files that are there, and the prompt without these paths. */
export function imagesIn(prompt: string): { text: string; paths: string[] } {
  const paths: string[] = []
  const text = prompt.replace(PATHS, (found: string, ...groups: unknown[]) => {
    const [doubled, single, bare] = groups as (string | undefined)[]
    const path = typedPath(doubled ?? single ?? bare!)
    if (!isFile(path)) return found
    paths.push(path)
    return ''
  })
  return { text: paths.length === 0 ? prompt : text.replace(/ {2,}/g, ' ').trim(), paths }
}

function isFile(path: string): boolean {
  try {
    return statSync(path).isFile()
  } catch {
    return false
  }
}

/** An image as base64. @throws CommandFailure where the file is none that models understand */
export function readImage(path: string): string {
  let bytes: Buffer
  try {
    const { size } = statSync(path)
    if (size > MAX_BYTES) {
      const most = formatBytes(MAX_BYTES)
      throw new CommandFailure(EXIT.usage, `${path} has ${formatBytes(size)}; images of at most ${most} can be sent.`)
    }
    bytes = readFileSync(path)
  } catch (error) {
    if (error instanceof CommandFailure) throw error
    const why = isSystemError(error, 'ENOENT') ? 'there is no such file' : errorMessage(error)
    throw new CommandFailure(EXIT.usage, `${path} cannot be read: ${why}.`, error)
  }
  if (!FORMATS.test(bytes.toString('latin1', 0, 16))) {
    throw new CommandFailure(EXIT.usage, `${path} is not an image: it must be PNG, JPEG, GIF, BMP or WebP.`)
  }
  return bytes.toString('base64')
}
