import { createHash } from 'node:crypto'
import { mkdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { isSystemError } from '../../core/errors.ts'

const FILE = 'failed-attempts.json'
/** Milliseconds after which a source may have something better to offer. */
const FORGOTTEN_AFTER = 24 * 60 * 60 * 1000

/** A source brought or made a kind of build that did not work on this machine. */
export interface FailedAttempt {
  source: string
  /** The source and its settings in words: with other settings it is worth another try. */
  description: string
  runtime: string
  reason: string
  /** ISO 8601 UTC. */
  at: string
  /** See `machineMark`. */
  machine: string
}

/**
 * What decides whether builds work on a machine, in 16 hex digits: the same as long as processor, GPUs, drivers and
 * libraries are. Pure.
 */
export function machineMark({ platform, arch, glibc, cpu, gpus, libraries }: Hardware): string {
  const devices = gpus.map(({ id, name, architecture, driver, apis, usable }) => {
    return [id, name, architecture, driver, apis, usable]
  })
  const facts = JSON.stringify([
    platform,
    arch,
    glibc,
    cpu.model,
    [...cpu.features].sort(),
    devices,
    [...libraries].sort()
  ])
  return createHash('sha256').update(facts).digest('hex').slice(0, 16)
}

/** Whether a failure still says something: it was lately, and on the machine as it is. Pure. */
export function stillCounts(failure: { at: string; machine: string }, machine: string, now = Date.now()): boolean {
  return failure.machine === machine && now - Date.parse(failure.at) < FORGOTTEN_AFTER
}

/** What failed so far, so that a start of corral need not download or compile it again only to see it fail. */
export async function readFailedAttempts(directory: string): Promise<FailedAttempt[]> {
  try {
    const list: unknown = JSON.parse(await readFile(join(directory, FILE), 'utf8'))
    return Array.isArray(list) ? list.filter(entry => typeof entry?.source === 'string') : []
  } catch (error) {
    if (isSystemError(error, 'ENOENT') || error instanceof SyntaxError) return []
    throw error
  }
}

/** Writes down that an attempt failed; a former failure of the same source for the same kind is replaced. */
export async function noteFailedAttempt(directory: string, attempt: FailedAttempt): Promise<void> {
  const others = (await readFailedAttempts(directory)).filter(
    ({ source, runtime }) => source !== attempt.source || runtime !== attempt.runtime
  )
  await mkdir(directory, { recursive: true })
  await writeFileAtomic(join(directory, FILE), `${JSON.stringify([...others, attempt], null, 2)}\n`)
}
