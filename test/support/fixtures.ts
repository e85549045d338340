import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

/**
 * Reads the cases of a table test from `test/fixtures`. In the file, `null` stands for undefined, and
 * `{ "pattern": "…" }` for a regular expression.
 */
export function readFixture<Cases>(name: string, key?: string): Cases {
  const text = readFileSync(join(packageRoot, 'test', 'fixtures', `${name}.json`), 'utf8')
  const cases = JSON.parse(text, (_, value) => {
    if (typeof value?.pattern === 'string') return new RegExp(value.pattern, value.flags)
    return value ?? undefined
  })
  return key === undefined ? cases : cases[key]
}
