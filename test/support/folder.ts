import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'

/** Creates a temporary folder that is removed after the test. */
export function newFolder(t: Pick<Test, 'teardown'>): string {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}
