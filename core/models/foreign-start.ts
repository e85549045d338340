import { printable } from '../system/printable.ts'

/** Bytes at the beginning of a file that `foreignStart` looks at. */
export const START_SIZE = 4096
const MAX_TITLE_LENGTH = 80

/** Explains why a file is not a model if it is something that is often saved as one. @param start its first bytes */
export function foreignStart(path: string, start: Buffer): string | undefined {
  const text = start.toString('utf8', 0, START_SIZE)
  const name = JSON.stringify(printable(path))
  if (/^version https:\/\/(?:git-lfs|hawser)\.github\.com\/spec\//.test(text)) {
    return `${name} is a Git LFS pointer, not the model itself: run "git lfs pull" in its folder, or download the file.`
  }
  if (!/^\uFEFF?\s*(?:<!doctype html|<html|<head)\b/i.test(text)) return undefined
  const title = /<title[^>]*>([^<]*)/i.exec(text)?.[1]?.replace(/\s+/g, ' ').trim()
  const shown = title ? ` (its title: ${JSON.stringify(printable(title, MAX_TITLE_LENGTH))})` : ''
  return `${name} is a web page${shown}, not a model: its server may ask for a login first. Download the file again.`
}
