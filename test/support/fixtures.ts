import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

/** Reads the cases of a table test from `test/fixtures`. */
export function readFixture<Cases>(name: string): Cases {
  return JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', `${name}.json`), 'utf8'))
}
