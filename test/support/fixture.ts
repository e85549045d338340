import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { packageRoot } from '../../core/system/package-info.ts'

const read = (name: string) => readFileSync(join(packageRoot, 'test', 'fixtures', name), 'utf8')

/** Reads a YAML file in test/fixtures. */
export function readFixture<Data>(name: string): Data {
  return parse(read(name))
}

/** Reads a list of cases in a YAML file. `null` stands for undefined, and `{ pattern: … }` for a regular expression. */
export function readCases<Cases>(name: string, key: string): Cases {
  return parse(read(name), (_, value: any) =>
    typeof value?.pattern === 'string' ? new RegExp(value.pattern, value.flags) : (value ?? undefined)
  )[key]
}
