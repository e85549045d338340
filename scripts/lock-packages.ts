/**
 * Writes `plugins/models/conversion/packages`, `plugins/machines/ray/packages` and `runtimes/remote/speech/packages`: the
 * Python packages of the converter, of Ray and of piper, with the SHA-256 of each wheel, for all Python versions and
 * platforms. `--small` writes only Ray's and piper's. The
 * converter's packages follow the requirements of the llama.cpp in `.cache/engine` and new releases. Thorough tests and
 * long trials of the conversion check that it still works.
 *
 * Needs uv on the PATH. If torch's index of CPU wheels cannot be reached, the existing wheels stay as long as torch's
 * version does not change.
 */

import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { RAY_LOCK } from '../plugins/machines/ray/ray-cluster.ts'
import { LOCKS, lockedFor } from '../plugins/models/conversion/python-environment.ts'
import { PIPER_LOCK } from '../runtimes/remote/speech/find-piper.ts'
import { cachedRuntimes } from './cached-engine.ts'
import { readRequirements } from './converter-requirements.ts'

const folder = join(packageRoot, 'plugins', 'models', 'conversion', 'packages')
const OLDEST_PYTHON = '3.10'
const CPU_INDEX = 'https://download.pytorch.org/whl/cpu'
/** Packages that the converter imports without requiring them, or that have no wheels in the required version. */
const MORE = ['pyyaml', 'tqdm', 'requests']
const EXCEPTIONS: Record<string, string[]> = {
  'numpy~=2.2.6': ["numpy~=2.2.6 ; python_version < '3.14'", "numpy>=2.3 ; python_version >= '3.14'"]
}
/** All nodes of a cluster need the same version. This version has been tested. */
const RAY = ['ray==2.60.0']
const PIPER = ['piper-tts==1.8.0', 'flask>=3,<4']
/** Packages that torch requires for NVIDIA GPUs. */
const CUDA = /^(torch|triton|nvidia-.*|cuda-.*)$/

/** The resolved packages with hashes, by name. */
function resolved(requirements: string[]): { name: string; text: string }[] {
  const work = mkdtempSync(join(tmpdir(), 'corral-lock-'))
  try {
    const [input, output] = [join(work, 'packages.in'), join(work, 'packages.lock')]
    writeFileSync(input, `${requirements.join('\n')}\n`)
    const options = ['--universal', '--generate-hashes', '--only-binary', ':all:', '--no-annotate', '--no-header']
    const args = ['pip', 'compile', ...options, '--python-version', OLDEST_PYTHON, input, '-o', output, '--quiet']
    const { status, error } = spawnSync('uv', args, { stdio: ['ignore', 'ignore', 'inherit'] })
    if (status !== 0) throw new Error(`uv ${error ? `cannot be started (${error.message})` : 'failed'}.`)
    return readFileSync(output, 'utf8')
      .split(/\n(?=\S)/)
      .map(text => ({ name: /^[\w.-]+/.exec(text)![0], text: text.trimEnd() }))
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

/** The CPU wheels of torch for Linux, from the index or the existing file. */
async function cpuTorch(version: string): Promise<string> {
  let page: string
  try {
    page = await (await fetch(`${CPU_INDEX}/torch/`)).text()
  } catch (error) {
    const path = join(folder, LOCKS.torchCpu)
    const present = existsSync(path) ? readFileSync(path, 'utf8') : ''
    if (!present.includes(`torch==${version}+cpu `)) throw error
    console.log(`${CPU_INDEX} cannot be reached, so ${LOCKS.torchCpu} is unchanged.`)
    return present
  }
  const wheel = /torch-([\d.]+)(?:%2B|\+)cpu-cp3(\d+)-cp3\2-manylinux_\w+_(x86_64|aarch64)\.whl#sha256=([0-9a-f]{64})/g
  const lines = [...page.matchAll(wheel)]
    .filter(([, found]) => found === version)
    .map(
      ([, , minor, machine, sha256]) =>
        `torch==${version}+cpu ; ${lockedFor(machine!, Number(minor))} \\\n    --hash=sha256:${sha256}`
    )
  if (lines.length === 0) throw new Error(`${CPU_INDEX} has no wheels of torch ${version} for Linux.`)
  return `${[...new Set(lines)].sort().join('\n')}\n`
}

for (const [path, requirements] of new Map([
  [RAY_LOCK, RAY],
  [PIPER_LOCK, PIPER]
])) {
  const locked = resolved(requirements)
  writeFileSync(path, `${locked.map(({ text }) => text).join('\n')}\n`)
  console.log(`Wrote ${path} (${locked.length} packages)`)
}
if (process.argv.includes('--small')) process.exit()

const { directory } = await cachedRuntimes().conversionTools({})
const wanted = await readRequirements(directory)
const packages = resolved([...wanted.flatMap(line => EXCEPTIONS[line] ?? [line]), ...MORE])
const joinTexts = (isWanted: (name: string) => boolean) =>
  packages
    .filter(({ name }) => isWanted(name))
    .map(({ text }) => text)
    .join('\n')
const version = /^torch==([\d.]+)/m.exec(joinTexts(name => name === 'torch'))![1]!
writeFileSync(join(folder, LOCKS.packages), `${joinTexts(name => !CUDA.test(name))}\n`)
writeFileSync(join(folder, LOCKS.torch), `${joinTexts(name => CUDA.test(name))}\n`)
writeFileSync(join(folder, LOCKS.torchCpu), await cpuTorch(version))
console.log(`Wrote ${folder} (${packages.length} packages, torch ${version})`)
