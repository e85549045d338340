/**
 * Writes `plugins/models/conversion/packages` and `plugins/machines/ray/packages`: the converter's Python packages, and Ray's, with
 * the SHA-256 of each of their wheels, for all Pythons and platforms; `--ray` writes Ray's alone. Of the converter's, what changes is what the converter of the llama.cpp in `.cache/engine` asks for, and what has
 * come out since; the conversion's thorough tests and long trials show whether it still works.
 *
 * It needs uv on the PATH. Where the index with torch for processors cannot be reached, the wheels that the file names
 * already stay, as long as torch's version does.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { RAY_LOCK } from '../plugins/machines/ray/ray-python.ts'
import { LOCKS, lockedFor } from '../plugins/models/conversion/package-locks.ts'
import { readRequirements } from '../plugins/models/conversion/python-environment.ts'
import { cachedRuntimes } from './cached-engine.ts'

const folder = join(packageRoot, 'plugins', 'models', 'conversion', 'packages')
const OLDEST_PYTHON = '3.10'
const CPU_INDEX = 'https://download.pytorch.org/whl/cpu'
/** What the converter imports without naming it, and what has no wheels in the version that it names. */
const MORE = ['pyyaml', 'tqdm', 'requests']
const EXCEPTIONS: Record<string, string[]> = {
  'numpy~=2.2.6': ["numpy~=2.2.6 ; python_version < '3.14'", "numpy>=2.3 ; python_version >= '3.14'"]
}
/** All nodes of a cluster must have the same version. What it does at the edges was tried with this one. */
const RAY = 'ray==2.60.0'
/** What torch brings for NVIDIA's cards. */
const CUDA = /^(torch|triton|nvidia-.*|cuda-.*)$/

/** The packages that fit together, with hashes: one text for each, by its name. */
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

/** The wheels of torch for processors on Linux, from the index or as they were. */
async function cpuTorch(version: string): Promise<string> {
  let page: string
  try {
    page = await (await fetch(`${CPU_INDEX}/torch/`)).text()
  } catch (error) {
    const path = join(folder, LOCKS.torchCpu)
    const present = existsSync(path) ? readFileSync(path, 'utf8') : ''
    if (!present.includes(`torch==${version}+cpu `)) throw error
    console.log(`${CPU_INDEX} cannot be reached; ${LOCKS.torchCpu} stays as it is.`)
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

const ray = resolved([RAY])
writeFileSync(RAY_LOCK, `${ray.map(({ text }) => text).join('\n')}\n`)
console.log(`Wrote ${RAY_LOCK} (${ray.length} packages)`)
if (process.argv.includes('--ray')) process.exit()

const { directory } = await cachedRuntimes().conversionTools({})
const wanted = await readRequirements(directory)
const packages = resolved([...wanted.flatMap(line => EXCEPTIONS[line] ?? [line]), ...MORE])
const textOf = (isWanted: (name: string) => boolean) =>
  packages
    .filter(({ name }) => isWanted(name))
    .map(({ text }) => text)
    .join('\n')
const version = /^torch==([\d.]+)/m.exec(textOf(name => name === 'torch'))![1]!
const madeFor = wanted.map(line => `# for ${line}`).join('\n')
writeFileSync(join(folder, LOCKS.packages), `${madeFor}\n${textOf(name => !CUDA.test(name))}\n`)
writeFileSync(join(folder, LOCKS.torch), `${textOf(name => CUDA.test(name))}\n`)
writeFileSync(join(folder, LOCKS.torchCpu), await cpuTorch(version))
console.log(`Wrote ${folder} (${packages.length} packages, torch ${version})`)
