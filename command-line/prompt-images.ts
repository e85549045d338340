import { readFileSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { errorMessage, isSystemError } from '../core/errors.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { CommandFailure, misuse } from './command-failure.ts'

/** Maximum size of an image. Base64 adds a third, and servers accept requests of 64 MiB. */
const MAX_BYTES = 32 * 2 ** 20
/** First bytes of the formats that engines can read. */
const FORMATS = /^(\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF.{4}WEBP)/s
const ENDING = String.raw`\.(?:png|jpe?g|gif|bmp|webp)`

/** Paths of images in a prompt: quoted, or as terminals insert dropped files, with escaped blanks. */
const PATHS = new RegExp(
  String.raw`"([^"\n]+${ENDING})"|'([^'\n]+${ENDING})'|(?<!\S)((?:file://|~?/|\.{1,2}/|[A-Za-z]:[\\/])(?:\\.|[^\s\\])*?${ENDING})(?![\w/])`,
  'gi'
)

/** Unescapes a typed or dropped path. */
export function typedPath(text: string): string {
  const bare = text.trim().replace(/^(["'])(.*)\1$/s, '$2')
  if (/^file:\/\//i.test(bare) && URL.canParse(bare)) return fileURLToPath(bare)
  const path = process.platform === 'win32' ? bare : bare.replace(/\\(.)/g, '$1')
  return path.startsWith('~/') ? join(homedir(), path.slice(2)) : resolve(path)
}

/** Extracts paths of existing images from a prompt. @returns the paths and the prompt without them */
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

/** Reads an image as base64. @throws CommandFailure if models cannot read the file */
export function readImage(path: string): string {
  let bytes: Buffer
  try {
    const { size } = statSync(path)
    if (size > MAX_BYTES) {
      const most = formatBytes(MAX_BYTES)
      throw misuse(`${path} has ${formatBytes(size)}, but images may have at most ${most}.`)
    }
    bytes = readFileSync(path)
  } catch (error) {
    if (error instanceof CommandFailure) throw error
    const why = isSystemError(error, 'ENOENT') ? 'the file does not exist' : errorMessage(error)
    throw misuse(`${path} cannot be read: ${why}.`, error)
  }
  if (!FORMATS.test(bytes.toString('latin1', 0, 16))) {
    throw misuse(`${path} is not an image: it must be PNG, JPEG, GIF, BMP or WebP.`)
  }
  return bytes.toString('base64')
}
