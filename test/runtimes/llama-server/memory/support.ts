import { spawn } from 'node:child_process'
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../../../core/models/load-options.ts'
import type { LaunchSpec } from '../../../../runtimes/llama-server/launch-spec.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { newFolder } from '../../../support/folder.ts'
import { writeSparseGguf } from '../../../support/gguf-writer.ts'
import { engineSpec } from '../support.ts'
import { getParts } from './model-shapes.ts'

export const MIB = 2 ** 20
export const GIB = 2 ** 30

/** MiB in a table of llama-server, all rows together. */
export interface Reported {
  model: number
  context: number
  compute: number
}

/** Writes a model of this shape without weights, as a sparse file. */
export function writeShape(folder: string, name: string): string {
  const path = join(folder, `${name}.gguf`)
  writeSparseGguf(path, getParts(name))
  return path
}

const AMX_LIBRARY = /sapphirerapids/

/** Whether the engine of the tests packs weights for AMX here. */
export const AMX =
  process.platform === 'linux' &&
  /\bamx_int8\b/.test(readFileSync('/proc/cpuinfo', 'utf8')) &&
  readdirSync(engineBuildFolder()).some(name => AMX_LIBRARY.test(name))

/** Returns a folder with the engine build but without its AMX code, which fails on some shapes. */
export function buildWithoutAmx(t: Pick<Test, 'teardown'>): string {
  if (!AMX) return engineBuildFolder()
  const folder = newFolder(t)
  cpSync(engineBuildFolder(), folder, {
    recursive: true,
    verbatimSymlinks: true,
    filter: path => !AMX_LIBRARY.test(path)
  })
  return folder
}

/** Returns llama-server's estimate before it loads a model: the first table that it prints. Then stops it. */
export async function reportOf(build: string, modelPath: string, args: readonly string[]): Promise<Reported> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-table-'))
  const fixed = ['--model', modelPath, '--host', join(folder, 'engine.sock'), '--log-jsonl', '--no-ui']
  const child = spawn(join(build, 'llama-server'), [...fixed, ...args])
  let output = ''
  try {
    return await new Promise<Reported>((resolve, reject) => {
      const read = (chunk: Buffer) => {
        output += chunk
        const line = /^\{"type":"fit_memory_breakdown".*\}$/m.exec(output)
        if (!line) return
        const { rows } = JSON.parse(line[0]).data as { rows: Reported[] }
        const sum = (column: keyof Reported) => rows.reduce((total, row) => total + row[column], 0)
        resolve({ model: sum('model'), context: sum('context'), compute: sum('compute') })
      }
      child.stdout.on('data', read)
      child.stderr.on('data', read)
      child.on('close', () => reject(new Error(`llama-server printed no table:\n${output.slice(-2000)}`)))
    })
  } finally {
    child.kill('SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Describes an engine. The model file need not exist. */
export function specOf(
  modelPath: string,
  options: Partial<LoadOptions> = {},
  given: Partial<LaunchSpec> = {}
): LaunchSpec {
  const variant: LaunchSpec['variant'] = {
    ...engineSpec().variant,
    key: 'some/model:q4_k_m',
    directory: join(modelPath, '..'),
    metadata: { capabilities: ['completion'], info: {} }
  }
  return engineSpec({
    alias: 'some/model',
    modelPath,
    options: { ...DEFAULT_LOAD_OPTIONS, ...options },
    variant,
    ...given
  })
}
