import { existsSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { formatBytes } from '../../core/system/bytes.ts'
import { checkDigests, compareFile, type Difference, type Reading } from '../../core/system/file-digests.ts'
import { packageRoot, version } from '../../core/system/package-info.ts'
import { plural } from '../../core/system/plural.ts'
import { MANIFEST_FILE, type VariantRecord } from '../../plugins/models/storage/manifest.ts'
import { BuildsDirectory } from '../../runtimes/llama-cpp/builds-directory.ts'
import { EXIT, interruption } from '../command-failure.ts'
import { type CommandContext, type Options, openConfig } from '../context.ts'
import { printable, printResult } from '../output.ts'
import { showProgress } from '../progress-display.ts'
import { namesIn, readManifests } from '../stored-manifests.ts'

/** What was compared with what was recorded, and how. */
interface Checked {
  kind: 'corral' | 'build' | 'engine' | 'model'
  name: string
  result: string
  differences: Difference[]
}

/** Compares files with the digests recorded when they were packed, installed or downloaded. Changes nothing. */
export async function verify(context: CommandContext, { deep = false, json }: Options<'deep' | 'json'>): Promise<void> {
  const { paths } = await openConfig(context)
  const progress = await showProgress('reading', { plain: deep ? 'lines' : 'nothing' })
  const checked: Checked[] = []
  try {
    let read = 0
    const reading: Reading = {
      signal: interruption(),
      onBytes: bytes => {
        read += bytes
        progress.status(`reading files (${formatBytes(read)})`)
      }
    }
    checked.push(await verifyPackage(reading))
    checked.push(...(await verifyBuilds(new BuildsDirectory(paths.runtimes), reading)))
    for (const folder of ['speech', 'images']) checked.push(...(await verifyEngines(join(paths.home, folder), reading)))
    checked.push(...(await verifyModels(paths.models, deep, reading)))
  } finally {
    progress.clear()
  }
  const ok = checked.every(({ differences }) => differences.length === 0)
  printResult(json, { ok, deep, checked }, () => checked.map(format).join('\n'))
  if (!ok) process.exitCode = EXIT.failure
}

function format({ name, result, differences }: Checked): string {
  const lines = differences.map(({ path, problem }) => `  ! ${path} ${problem}`)
  return printable(
    [`${name}: ${differences.length > 0 ? plural(differences.length, 'difference') : result}`, ...lines].join('\n')
  )
}

async function verifyPackage(reading: Reading): Promise<Checked> {
  const own = { kind: 'corral', name: `corral ${version}` } as const
  // A checkout contains more than the package.
  if (existsSync(join(packageRoot, 'scripts', 'pack.mjs'))) {
    return {
      ...own,
      result: `a checkout in ${packageRoot}: not verified, since only packages have a list of digests`,
      differences: []
    }
  }
  const list = await checkDigests(packageRoot, reading)
  if (!list) return { ...own, result: '', differences: [{ path: 'SHA256SUMS', problem: 'is missing' }] }
  const result = `${plural(list.files, 'file')} as packed (SHA-256 of SHA256SUMS: ${list.list})`
  return { ...own, result, differences: list.differences }
}

async function verifyBuilds(builds: BuildsDirectory, reading: Reading): Promise<Checked[]> {
  const checked: Checked[] = []
  for (const { build } of builds.records(true)) {
    const list = builds.owns(build) ? await checkDigests(build.directory, reading) : undefined
    const server = build.executables.server
    const differences =
      list?.differences ??
      (await compareFile(join(server, '..'), { path: basename(server), sha256: build.digest }, reading))
    const result = list
      ? `${plural(list.files, 'file')} as installed`
      : 'llama-server as verified; its other files have no digests'
    checked.push({ kind: 'build', name: `llama.cpp ${build.id}`, result, differences })
  }
  return checked
}

/** Verifies the servers that corral installed in a folder, such as whisper.cpp's. */
async function verifyEngines(folder: string, reading: Reading): Promise<Checked[]> {
  const checked: Checked[] = []
  for (const name of await namesIn(folder)) {
    const list = await checkDigests(join(folder, name), reading)
    if (!list) continue
    const result = `${plural(list.files, 'file')} as installed`
    checked.push({ kind: 'engine', name, result, differences: list.differences })
  }
  return checked
}

async function verifyModels(models: string, deep: boolean, reading: Reading): Promise<Checked[]> {
  const checked: Checked[] = []
  for (const { model, directory, value, fault } of await readManifests(models)) {
    if (!value) {
      checked.push({ kind: 'model', name: model, result: '', differences: [{ path: MANIFEST_FILE, problem: fault! }] })
    }
    for (const variant of value?.variants ?? []) {
      const differences: Difference[] = []
      for (const file of variant.files) {
        differences.push(...(await compareStored(directory, variant, file, deep, reading)))
      }
      const how = deep ? 'with the recorded SHA-256' : 'with the recorded size and date (--deep reads them)'
      const result = `${plural(variant.files.length, 'file')} ${how}`
      checked.push({ kind: 'model', name: `${model}:${variant.label}`, result, differences })
    }
  }
  return checked
}

/** Compares a model's file. A file that was written after its manifest is read, whatever `deep` says. */
async function compareStored(
  directory: string,
  { revision, modifiedAt }: VariantRecord,
  { path, size, sha256 }: VariantRecord['files'][number],
  deep: boolean,
  reading: Reading
): Promise<Difference[]> {
  const folder = join(directory, revision)
  const found = await stat(join(folder, ...path.split('/'))).catch(() => undefined)
  const isOlder = found !== undefined && found.mtimeMs <= Date.parse(modifiedAt)
  return await compareFile(folder, { path, size, ...((deep || !isOlder) && { sha256 }) }, reading)
}
