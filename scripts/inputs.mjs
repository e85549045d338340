import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = join(dirname(fileURLToPath(import.meta.url)), '..')

const hashState = path => {
  const { mtimeMs, size } = statSync(join(root, path))
  return `${mtimeMs} ${size}`
}

/** Records the input files of a build folder, as paths below `root`. */
export function noteInputs(folder, paths) {
  const inputs = [...paths, 'package-lock.json'].filter(path => !path.includes(':')).sort()
  writeFileSync(
    join(folder, 'inputs.json'),
    JSON.stringify(Object.fromEntries(inputs.map(path => [path, hashState(path)])))
  )
}

/** Whether the recorded input files of a folder are unchanged. */
export function isUpToDate(folder) {
  try {
    const inputs = JSON.parse(readFileSync(join(folder, 'inputs.json'), 'utf8'))
    return Object.entries(inputs).every(([path, state]) => hashState(path) === state)
  } catch (error) {
    if (error.code !== 'ENOENT') throw error
    return false
  }
}
