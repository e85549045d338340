import { readFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { isSystemError } from '../../core/errors.ts'

const FILE = 'selection.json'

/** A release that did not work here when it was to be used. */
export interface FailedVersion {
  reason: string
  /** ISO 8601 UTC. */
  at: string
  /** The machine as it was then, see `machineMark`: another driver may be its cure. */
  machine: string
}

/** Which build is used, as `corral runtime use` and `corral runtime upgrade` wrote it down. Builds by their ids. */
export interface Selection {
  /** Absent: the best one of the ranking. */
  selected?: string
  /** What an upgrade returns to. */
  previous?: string
  /** What an upgrade brought and no engine has been started on yet. */
  trial?: string
  /** Builds that are not to be tried again by themselves. */
  failed?: Record<string, FailedVersion>
}

/** What is written down now; nothing where there is none, or what is there cannot be read. */
export function selectionIn(directory: string): Selection {
  let text: string
  try {
    text = readFileSync(join(directory, FILE), 'utf8')
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return {}
    throw error
  }
  try {
    const { selected, previous, trial, failed } = JSON.parse(text) as Record<string, unknown>
    return {
      ...(typeof selected === 'string' && { selected }),
      ...(typeof previous === 'string' && { previous }),
      ...(typeof trial === 'string' && { trial }),
      ...(typeof failed === 'object' && failed !== null && { failed: failed as Record<string, FailedVersion> })
    }
  } catch {
    // It is written atomically: who broke it by hand gets the best of the ranking.
    return {}
  }
}

/** Which build the user chose, and which one an upgrade returns to; see `Selection`. */
export async function readSelection(directory: string): Promise<Selection> {
  return selectionIn(directory)
}

/** Writes down what `change` makes of it, whole or not at all. */
export async function changeSelection(
  directory: string,
  change: (selection: Selection) => Selection
): Promise<Selection> {
  await mkdir(directory, { recursive: true })
  const selection = change(selectionIn(directory))
  await writeFileAtomic(join(directory, FILE), `${JSON.stringify(selection, null, 2)}\n`)
  return selection
}
