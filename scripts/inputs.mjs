import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The folder of this checkout. */
export const root = join(dirname(fileURLToPath(import.meta.url)), '..')

const stateOf = path => {
  const { mtimeMs, size } = statSync(join(root, path))
  return `${mtimeMs} ${size}`
}

/** Notes in a folder what it was made of: files below `root`, by their paths from there. */
export function noteInputs(folder, paths) {
  const inputs = [...paths, 'package-lock.json'].filter(path => !path.includes(':')).sort()
  writeFileSync(
    join(folder, 'inputs.json'),
    JSON.stringify(Object.fromEntries(inputs.map(path => [path, stateOf(path)])))
  )
}

/** Whether a folder was made of files that are still the same. */
export function isUpToDate(folder) {
  try {
    const inputs = JSON.parse(readFileSync(join(folder, 'inputs.json'), 'utf8'))
    return Object.entries(inputs).every(([path, state]) => stateOf(path) === state)
  } catch (error) {
    if (error.code !== 'ENOENT') throw error
    return false
  }
}
