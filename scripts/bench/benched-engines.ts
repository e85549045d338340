import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'
import { engineBuildFolder } from '../../test/support/engine-build.ts'

/** Engines behind corral: llama-server, or a stand-in that computes nothing. */
export const ENGINES = ['real', 'burst', 'paced', 'fast'] as const
export type EngineKind = (typeof ENGINES)[number]

/** Tokens per second per stream: about reading speed, and fast enough that the cost of tokens dominates. */
export const PACES = { paced: 20, fast: 400 }

/**
 * A folder for CORRAL_LLAMA_CPP with a llama-server that is the stand-in when it loads a model, and the real one when
 * it is asked for its version or devices.
 */
function standInBuild(pace: 'burst' | number, more: string): { folder: string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-build-'))
  // The benchmark finds the process by this name.
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
 * Runs `use` with the folder of an engine build, for CORRAL_LLAMA_CPP.
 * @param pace tokens per second per stream, instead of the engine's default pace
 * @param slots slots of a stand-in, instead of the requested number. llama-server has at most 256
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
