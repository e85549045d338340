import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'
import { engineBuildFolder } from '../../test/support/engine-build.ts'

/** What answers behind corral: llama-server, or a stand-in for it that calculates nothing. */
export const ENGINES = ['real', 'burst', 'paced', 'fast'] as const
export type EngineKind = (typeof ENGINES)[number]

/** Tokens a second in each stream: about reading speed, and fast enough that the cost of tokens dominates. */
export const PACES = { paced: 20, fast: 400 }

/**
 * A folder for CORRAL_LLAMA_CPP whose llama-server is the stand-in when it is to load a model, and the real one when it is
 * asked about itself.
 */
function standInBuild(pace: 'burst' | number, more: string): { folder: string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-build-'))
  // Its process is found by this name.
  const node = join(folder, 'llama-server-node')
  symlinkSync(process.execPath, node)
  const program = join(packageRoot, 'dist', 'scripts', 'bench', 'stand-in-engine.js')
  const server = join(folder, 'llama-server')
  writeFileSync(
    server,
    `#!/bin/sh
case " $* " in *" --model "*) exec '${node}' '${program}' ${pace} "$@" ${more} ;; esac
exec '${join(engineBuildFolder(), 'llama-server')}' "$@"
`
  )
  chmodSync(server, 0o755)
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) }
}

/**
 * Runs `use` with the folder of an engine's build, for CORRAL_LLAMA_CPP.
 * @param pace tokens a second in each stream of one that keeps a pace, in the place of its own
 * @param slots how many a stand-in has, in the place of what it is asked for: llama-server has 256 at most
 */
export async function withEngineBuild<T>(
  kind: EngineKind,
  use: (folder: string) => Promise<T>,
  { pace, slots }: { pace?: number; slots?: number } = {}
): Promise<T> {
  if (kind === 'real') return await use(engineBuildFolder())
  const build = standInBuild(
    kind === 'burst' ? kind : (pace ?? PACES[kind]),
    slots === undefined ? '' : `--parallel ${slots}`
  )
  try {
    return await use(build.folder)
  } finally {
    build.remove()
  }
}
