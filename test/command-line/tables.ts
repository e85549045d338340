import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { packageRoot } from '../../core/system/package-info.ts'

/** Returns a text of the folder `fixtures`. */
export const fixture = (name: string) =>
  readFileSync(join(packageRoot, 'test', 'command-line', 'fixtures', name), 'utf8').trimEnd()

/** Tables of cases by name, from `fixtures/tables.yaml`. */
export const tables: Record<string, any[][]> = parse(fixture('tables.yaml'))

/** A pattern for the whole of a text, in which … is any text. */
export function pattern(text: string): RegExp {
  const parts = text.split('…').map(part => part.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'))
  return new RegExp(`^${parts.join('.*')}$`, 's')
}
