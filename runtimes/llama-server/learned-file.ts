import { type Static, type TObject, type TProperties, Type } from 'typebox'
import { errorMessage } from '../../core/errors.ts'
import { readJsonFile, writeJsonFile } from '../../core/system/json-file.ts'

const MAX_COUNT = 500

/**
 * Stores what was measured on this machine, by key. A damaged file or a failed write only costs a measurement.
 * @param name the field of the file with the entries
 */
export function createLearnedFile<Properties extends TProperties>(
  path: string,
  name: string,
  schema: TObject<Properties>,
  log: { warn(object: object, message: string): void },
  now: () => number = Date.now
) {
  const stored = Type.Intersect([schema, Type.Object({ at: Type.String({ description: 'ISO 8601 UTC' }) })])
  type Entry = Static<typeof stored>
  const fileSchema = Type.Object({ version: Type.Literal(1), [name]: Type.Record(Type.String(), stored) })
  const entries = new Map<string, Entry>()
  let writing: Promise<void> = Promise.resolve()
  let changed = false

  async function load(): Promise<void> {
    const file = await readJsonFile(path, fileSchema).catch(() => undefined)
    const read = (file?.value as Record<string, Record<string, Entry>> | undefined)?.[name] ?? {}
    // Entries learned since the start are newer.
    for (const [key, entry] of Object.entries(read)) if (!entries.has(key)) entries.set(key, entry)
  }
  const loaded = load()

  async function write(): Promise<void> {
    await loaded
    changed = false
    const oldest = [...entries].sort(([, a], [, b]) => (a.at < b.at ? -1 : 1))
    for (const [key] of oldest.slice(0, Math.max(0, entries.size - MAX_COUNT))) entries.delete(key)
    try {
      const file = { version: 1, [name]: Object.fromEntries(entries) }
      await writeJsonFile(path, file, { pretty: true, fsync: false })
    } catch (error) {
      log.warn({ path, reason: errorMessage(error) }, 'What was measured of engines could not be saved.')
    }
  }

  return {
    /** Resolves once the entries of earlier runs are loaded. */
    loaded,
    get: (key: string): Entry | undefined => entries.get(key),
    set(key: string, value: Static<typeof schema>): void {
      entries.set(key, { ...value, at: new Date(now()).toISOString() } as Entry)
      if (!changed) writing = writing.then(write)
      changed = true
    },
    /** Waits until everything is on disk. */
    close: () => writing
  }
}
