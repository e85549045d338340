import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import { errorMessage } from '../../../core/errors.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'

/** Between writes of the file, in milliseconds. A kill loses this much. */
const WRITE_INTERVAL_MS = 60_000

const UseSchema = Type.Object({ last_used_at: Type.String(), last_address: Type.String() })
const FileSchema = Type.Object({ version: Type.Literal(1), uses: Type.Record(Type.String(), UseSchema) })

export type KeyUses = Awaited<ReturnType<typeof openKeyUses>>

/**
 * The last use of each owner's key or sessions. The file is written at most once a minute, and at the end.
 * @param isKnown whether an owner still has a key; the others are forgotten
 */
export async function openKeyUses(
  path: string,
  isKnown: (owner: string) => boolean,
  log: Pick<FastifyBaseLogger, 'warn'>
) {
  const read = await readJsonFile(path, FileSchema)
  if (read?.fault !== undefined) log.warn(`${path} cannot be used: ${read.fault}. It is replaced.`)
  const uses = new Map(Object.entries(read?.value?.uses ?? {}))
  let isChanged = false

  async function write(): Promise<void> {
    if (!isChanged) return
    isChanged = false
    for (const owner of uses.keys()) if (!isKnown(owner)) uses.delete(owner)
    const file = { version: 1, uses: Object.fromEntries(uses) }
    await writeJsonFile(path, file, { mode: 0o600 }).catch(error =>
      log.warn(`${path} was not written: ${errorMessage(error)}`)
    )
  }

  const timer = setInterval(write, WRITE_INTERVAL_MS).unref()
  return {
    /** Notes a use. It runs for every request. */
    note(owner: string, address: string): void {
      uses.set(owner, { last_used_at: new Date().toISOString(), last_address: address })
      isChanged = true
    },
    get: (owner: string) => uses.get(owner),
    async close(): Promise<void> {
      clearInterval(timer)
      await write()
    }
  }
}
