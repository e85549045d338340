import { stat } from 'node:fs/promises'
import { errorMessage } from '../errors.ts'

/**
 * Polls a configuration file and calls back when its content changed and stayed the same between two polls, because
 * editors write a file in several steps or replace it. A deleted file is reported once.
 * @param file returns the path of the file; nothing is watched if it is undefined
 * @param interval milliseconds between two polls, each of which wakes an idle server
 * @returns stops watching
 */
export function watchConfig(file: () => string | undefined, changed: () => void, interval: number): () => void {
  let seen: string | undefined
  let told: string | undefined
  let isStopped = false
  const look = async () => {
    const path = file()
    if (path === undefined) return
    const mark = await stat(path, { bigint: true }).then(
      ({ ino, size, mtimeNs, mode }) => `${ino}:${size}:${mtimeNs}:${mode}`,
      errorMessage
    )
    if (isStopped) return
    const isStill = mark === seen
    seen = mark
    // The first version has already been read.
    told ??= mark
    if (!isStill || mark === told) return
    told = mark
    changed()
  }
  const timer = setInterval(() => void look(), interval).unref()
  void look()
  return () => {
    isStopped = true
    clearInterval(timer)
  }
}
