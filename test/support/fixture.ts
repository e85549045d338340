import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { packageRoot } from '../../core/system/package-info.ts'

/** Reads a YAML file in test/fixtures. */
export function readFixture<Data>(name: string): Data {
  return parse(readFileSync(join(packageRoot, 'test', 'fixtures', name), 'utf8'))
}
