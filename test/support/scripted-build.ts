import { chmodSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { engineBuildFolder } from './engine-build.ts'
import { newFolder } from './folder.ts'

/**
 * The real llama-server, except for two KV cache types: with one it never becomes ready, with the other it fails to
 * load.
 */
export const NEVER_READY = { cache_type_k: 'q5_0' }
export const FAILS_TO_LOAD = { cache_type_k: 'q5_1' }

/** A folder for CORRAL_LLAMA_CPP in which loads can be made to hang or fail. */
export function scriptedBuild(t: Pick<Test, 'teardown'>): string {
  const folder = newFolder(t)
  const script = join(folder, 'llama-server')
  writeFileSync(
    script,
    `#!/bin/sh
case "$*" in
  *"--cache-type-k ${NEVER_READY.cache_type_k}"*) exec tail -f /dev/null ;;
  *"--cache-type-k ${FAILS_TO_LOAD.cache_type_k}"*) echo "failed to initialize the context: as scripted" >&2; exit 1 ;;
esac
exec "${join(engineBuildFolder(), 'llama-server')}" "$@"
`
  )
  chmodSync(script, 0o755)
  return folder
}
