import { lstatSync, readFileSync, statSync } from 'node:fs'
import { crc32 } from 'node:zlib'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import { version } from '../../../core/system/package-info.ts'
import { type CachedManifest, hasSafetensors, type ShortManifest } from './model-details.ts'
import { MANIFEST_FILE } from './model-folders.ts'

/** Raise this when the stored form of a manifest changes: older files are then ignored. */
const LAYOUT = 1
/** Changes within one tick of the file system's clock have the same time. FAT has the longest ticks. */
const MAX_TICK_MS = 2000

/** When a model's folder and manifest last changed (ctime, which users cannot set), and the manifest's size. */
type ChangeMarks = readonly [folder: number, manifest: number, size: number]
interface Row {
  path: string
  marks: ChangeMarks
  kept: CachedManifest
}
/** One model in the file: path, marks, format, length of its short manifest and, once known, its offset. */
type ListedRow = [path: string, ...marks: ChangeMarks, safetensors: boolean, length: number, at?: number]

/**
 * What the previous start read of each model, in a cache file. An entry is valid while the model's folder and manifest
 * are unchanged. Checking that takes two system calls instead of five, a parser and a schema check. The folders remain
 * the only truth: the file may be deleted, damaged or outdated at any time.
 *
 * After a line with a checksum come a list of the models and their short manifests as one string. Each manifest is
 * sliced out, and parsed when it is first needed.
 */
export interface LastScan {
  /** Returns when a model's folder and manifest last changed, or undefined if there is no manifest. */
  readMarks(directory: string): ChangeMarks | undefined
  find(path: string, marks: ChangeMarks): CachedManifest | undefined
  /** Records a manifest that was read. @param marks taken before it was read */
  add(path: string, marks: ChangeMarks, manifest: ShortManifest): void
  /** Writes the file if its content has changed. */
  save(log: Pick<FastifyBaseLogger, 'warn'>): Promise<void>
}

/** @param models absolute path of the models folder */
export function openLastScan(file: string, models: string, now = Date.now()): LastScan {
  const identity = `${JSON.stringify({ layout: LAYOUT, version, models })} `
  const { rows, manifestText } = rowsIn(file, identity)
  let next: Row[] = []
  let found = 0
  return {
    readMarks(directory) {
      try {
        const manifest = lstatSync(`${directory}/${MANIFEST_FILE}`, { throwIfNoEntry: false })
        if (!manifest?.isFile()) return undefined
        return [statSync(directory).ctimeMs, manifest.ctimeMs, manifest.size]
      } catch {
        // Reading the folder reports what is wrong.
        return undefined
      }
    },
    find(path, marks) {
      const row = rows.get(path)
      if (!row || row[1] !== marks[0] || row[2] !== marks[1] || row[3] !== marks[2]) return undefined
      found++
      const kept = { text: manifestText(row), safetensors: row[4] }
      next.push({ path, marks, kept })
      return kept
    },
    add(path, marks, manifest) {
      if (Math.max(marks[0], marks[1]) < now - MAX_TICK_MS) next.push({ path, marks, kept: manifest })
    },
    async save(log) {
      if (found < rows.size || found < next.length) {
        const texts = next.map(({ kept }) => kept.text ?? JSON.stringify(kept))
        const list = next.map(({ path, marks, kept }, at) => [path, ...marks, hasSafetensors(kept), texts[at]!.length])
        const content = `${JSON.stringify(list)}\n${texts.join('')}`
        try {
          await writeFileAtomic(file, `${identity}${crc32(content)}\n${content}`, { mode: 0o600 })
        } catch (error) {
          log.warn(error, `${file} cannot be written, so the next start will read all manifests`)
        }
      }
      rows.clear()
      next = []
    }
  }
}

/** Reads the file. Empty if it is damaged or belongs to another version or models folder. */
function rowsIn(
  file: string,
  identity: string
): { rows: Map<string, ListedRow>; manifestText(row: ListedRow): string } {
  const rows = new Map<string, ListedRow>()
  let texts = ''
  const manifestText = (row: ListedRow) => texts.slice(row[6], row[6]! + row[5])
  try {
    const bytes = readFileSync(file)
    const end = bytes.indexOf('\n')
    const content = bytes.subarray(end + 1)
    if (bytes.toString('utf8', 0, end) !== `${identity}${crc32(content)}`) return { rows, manifestText }
    const behind = content.indexOf('\n') + 1
    texts = content.toString('utf8', behind)
    let at = 0
    for (const row of JSON.parse(content.toString('utf8', 0, behind)) as ListedRow[]) {
      row.push(at)
      at += row[5]
      rows.set(row[0], row)
    }
    return { rows, manifestText }
  } catch {
    // Fall back to the folders.
    return { rows: new Map(), manifestText }
  }
}
