import { printable } from '../system/printable.ts'
import { isWebPage, pageTitle } from '../system/web-page.ts'

/** Bytes at the beginning of a file that `foreignStart` reads. */
export const START_SIZE = 4096

/** Explains why a file is not a model if it is something that is often saved as one. @param start its first bytes */
export function foreignStart(path: string, start: Buffer): string | undefined {
  const text = start.toString('utf8', 0, START_SIZE)
  const name = JSON.stringify(printable(path))
  if (/^version https:\/\/(?:git-lfs|hawser)\.github\.com\/spec\//.test(text)) {
    return `${name} is a Git LFS pointer, not the model itself: run "git lfs pull" in its folder, or download the file.`
  }
  if (!isWebPage(text)) return undefined
  return `${name} is a web page${pageTitle(text, 'its title:')}, not a model: its server may ask for a login first. Download the file again.`
}
