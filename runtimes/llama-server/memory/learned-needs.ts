import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { Build } from '../../../core/contracts/builds.ts'
import type { MemoryUse } from '../../../core/contracts/engines.ts'
import { messageOf } from '../../../core/errors.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import type { LaunchSpec } from '../launch-spec.ts'

const UseSchema = Type.Record(Type.String({ maxLength: 100 }), Type.Number({ minimum: 0 }))
const EntrySchema = Type.Object({
  /** Bytes by pool that an engine took from the start. */
  use: Type.Optional(UseSchema),
  /** Bytes by pool that were too little. */
  tooLittle: Type.Optional(UseSchema),
  /** For people who read the file. */
  model: Type.String(),
  /** ISO 8601 UTC. */
  at: Type.String()
})
const FileSchema = Type.Object({ version: Type.Literal(1), needs: Type.Record(Type.String(), EntrySchema) })
type Entry = Static<typeof EntrySchema>

const FILE = 'memory-needs.json'
const MOST = 500
/** Milliseconds after which memory that ran out is assumed to have had another reason. */
const FORGET = 7 * 24 * 3_600_000

/**
 * Names engines that take the same: the same files, options and flags on the same kind of build. A later version of the
 * build may take another amount, which is learned at its first load.
 */
export function needKey(spec: LaunchSpec, build: Build): string {
  const { dtype: _, ...options } = spec.options
  const { arguments: flags = [], environment, speculation, loras, projector } = spec.settings ?? {}
  const facts = [
    [spec.variant.key, spec.variant.revision, spec.modelPath, spec.mode, spec.projectorPath ?? null],
    Object.entries(options).sort(),
    [flags, environment ?? null, speculation ?? null, loras ?? null, projector ?? null],
    [build.kind, build.devices.map(({ id, description }) => [id, description])]
  ]
  return createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 32)
}

/**
 * What engines took, and what was too little, in a file that outlives corral. A damaged file is ignored and a failed
 * write only logged: all of it can be learned again.
 */
export function createLearnedNeeds(
  directory: string,
  log: { warn(object: object, message: string): void },
  now: () => number = Date.now
) {
  const path = join(directory, FILE)
  const needs = new Map<string, Entry>()
  let writing: Promise<void> = Promise.resolve()
  let changed = false

  async function load(): Promise<void> {
    const file = await readJsonFile(path, FileSchema).catch(() => undefined)
    // What was learned meanwhile is newer.
    for (const [key, entry] of Object.entries(file?.value?.needs ?? {})) if (!needs.has(key)) needs.set(key, entry)
  }
  const loaded = load()

  async function write(): Promise<void> {
    await loaded
    changed = false
    const oldest = [...needs].sort(([, a], [, b]) => (a.at < b.at ? -1 : 1))
    for (const [key] of oldest.slice(0, Math.max(0, needs.size - MOST))) needs.delete(key)
    try {
      await writeJsonFile(path, { version: 1, needs: Object.fromEntries(needs) }, { pretty: true })
    } catch (error) {
      log.warn({ path, reason: messageOf(error) }, 'The measured memory use of engines could not be saved.')
    }
  }

  return {
    /** Resolves once what earlier runs of corral learned is known. */
    loaded,
    find(key: string): { use?: MemoryUse | undefined; tooLittle?: MemoryUse | undefined } {
      const entry = needs.get(key)
      const recent = entry && now() - Date.parse(entry.at) < FORGET
      return { use: entry?.use, tooLittle: recent ? entry.tooLittle : undefined }
    },
    note(key: string, model: string, learned: { use: MemoryUse } | { tooLittle: MemoryUse }): void {
      // An engine that runs shows that there was enough; what it takes outlives what was too little.
      const kept = 'use' in learned ? undefined : needs.get(key)?.use
      needs.set(key, { ...(kept ? { use: kept } : {}), ...learned, model, at: new Date(now()).toISOString() })
      if (!changed) writing = writing.then(write)
      changed = true
    },
    /** Waits until all is on the disk. */
    close: () => writing
  }
}
