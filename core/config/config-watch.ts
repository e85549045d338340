import { unwatchFile, watchFile } from 'node:fs'

/**
 * Polls a configuration file and calls back when it has changed and then stayed the same until the next poll, because
 * editors write a file in several steps or replace it. A deleted file is reported once.
 * @param interval milliseconds between two polls, each of which wakes an idle server
 * @returns stops watching
 */
export function watchConfig(path: string, changed: () => void, interval: number): () => void {
  let settling: NodeJS.Timeout | undefined
  const onChange = () => {
    clearTimeout(settling)
    settling = setTimeout(changed, interval * 1.2).unref()
  }
  watchFile(path, { interval, persistent: false }, onChange)
  return () => {
    clearTimeout(settling)
    unwatchFile(path, onChange)
  }
}
