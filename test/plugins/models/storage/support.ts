import { createHash } from 'node:crypto'
import { type Dirent, existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import pino from 'pino'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { parseModelName } from '../../../../core/models/model-name.ts'
import { ModelStore } from '../../../../plugins/models/storage/model-store.ts'

/** Opens a store whose log lines are collected in `lines`. */
export async function openStore(
  models: string,
  importRoots?: string[]
): Promise<{ store: ModelStore; lines: string[] }> {
  const lines: string[] = []
  const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(line) })
  return { store: await ModelStore.open(models, log, importRoots), lines }
}

export const name = parseModelName

/** A file as found by an import. */
export function sourceAt(source: string) {
  const { size, dev, ino } = statSync(source, { bigint: true })
  return { source, size: Number(size), dev, ino }
}

/**
 * Lists every path below a folder, sorted, with forward slashes, without revision markers and the empty staging folder.
 */
export function tree(folder: string): string[] {
  if (!existsSync(folder)) return []
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .map((entry: Dirent) =>
      join(entry.parentPath, entry.name)
        .slice(folder.length + 1)
        .replaceAll('\\', '/')
    )
    .filter(path => path !== '.staging' && !path.endsWith('/.corral-revision'))
    .sort()
}

/** Lists what is wrong with a variant's files compared with the recorded content. */
export function findFaults(variant: StoredVariant): string[] {
  return variant.files.flatMap(file => {
    const path = join(variant.directory, file.path)
    if (!existsSync(path)) return [`${path} is missing`]
    const sha256 = createHash('sha256').update(readFileSync(path)).digest('hex')
    return sha256 === file.sha256 ? [] : [`${path} has other content`]
  })
}

/** A promise and the function that resolves it. */
export function gate(): { opened: Promise<void>; open: () => void } {
  let open = () => {}
  const opened = new Promise<void>(resolve => {
    open = resolve
  })
  return { opened, open }
}

/** Waits for a condition, up to the test's own time limit. */
export async function until(isSo: () => boolean): Promise<void> {
  while (!isSo()) await new Promise(resolve => setTimeout(resolve, 5))
}
