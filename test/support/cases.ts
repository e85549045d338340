import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

/** Reads the tables of test cases in a file of `test/fixtures/cases`. Regular expressions are texts. */
export function readCases(name: string): Record<string, any> {
  return JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'cases', `${name}.json`), 'utf8'))
}
