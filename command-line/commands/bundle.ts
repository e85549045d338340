import { existsSync } from 'node:fs'
import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join, resolve, sep } from 'node:path'
import { type Static, Type } from 'typebox'
import type { ImportedReply } from '../../core/contracts/native-records.ts'
import { parseRequestedName } from '../../core/models/model-name.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { checkDigests, DIGEST_LIST, fileDigest, filesIn, recordDigests } from '../../core/system/file-digests.ts'
import { readJsonFile } from '../../core/system/json-file.ts'
import { packageRoot, version } from '../../core/system/package-info.ts'
import { plural } from '../../core/system/plural.ts'
import { unpackTar } from '../../core/system/unpack.ts'
import type { BuildReply } from '../../plugins/apis/native/runtime-routes.ts'
import { BuildsDirectory } from '../../runtimes/llama-cpp/builds-directory.ts'
import { releaseTag } from '../../runtimes/llama-cpp/kinds/scores.ts'
import { failure, interruption, misuse } from '../command-failure.ts'
import { type CommandContext, modelArgument, type Options, openConfig } from '../context.ts'
import { printable, printNote, printText } from '../output.ts'
import { showProgress, streamWork } from '../progress-display.ts'
import { withServer } from '../server-connection.ts'
import { readManifests } from '../stored-manifests.ts'
import { workOn } from './runtime.ts'

const CONTENTS = 'bundle.json'
const ContentsSchema = Type.Object({
  version: Type.Literal(1),
  corral: Type.String(),
  package: Type.String(),
  build: Type.Optional(
    Type.Object({
      id: Type.String(),
      file: Type.String(),
      runtime: Type.Optional(Type.String()),
      origin: Type.String()
    })
  ),
  /** `path` is what is imported: the model's file, or its folder. */
  models: Type.Array(
    Type.Object({ name: Type.String(), digest: Type.String(), path: Type.String(), license: Type.String() })
  )
})
type Contents = Static<typeof ContentsSchema>

/** Options that make archives of the same files the same. npm's packages have this time too. */
const SAME = { portable: true, mtime: new Date('1985-10-26T08:15:00Z') }

type CreateOptions = Options<never, 'runtime' | 'package'>

export async function bundleCreate(context: CommandContext, file: string, models: string[], options: CreateOptions) {
  const target = resolve(context.cwd, file)
  if (existsSync(target)) throw misuse(`${target} exists already. Name another file, or delete it.`)
  models.forEach(modelArgument)
  const { paths } = await openConfig(context)
  const tar = await import('tar')
  const folder = await mkdtemp(join(dirname(target), '.corral-bundle-'))
  const progress = await showProgress(`writing ${file}`)
  try {
    const contents: Contents = { version: 1, corral: version, package: `corral-${version}.tgz`, models: [] }
    await addPackage(join(folder, contents.package), options.package && resolve(context.cwd, options.package))
    contents.build = await addBuild(new BuildsDirectory(paths.runtimes), folder, options.runtime)
    for (const model of models) contents.models.push(await addModel(paths.models, folder, model))
    await writeFile(join(folder, CONTENTS), `${JSON.stringify(contents, undefined, 2)}\n`)
    await writeFile(join(folder, 'LICENSES.md'), await licenses(contents))
    await recordDigests(folder, interruption())
    const unfinished = join(folder, '..', `${basename(folder)}.tar`)
    try {
      await tar.c({ ...SAME, file: unfinished, cwd: folder, follow: true }, [DIGEST_LIST, ...(await filesIn(folder))])
      interruption().throwIfAborted()
      await rename(unfinished, target)
    } finally {
      await rm(unfinished, { force: true })
    }
  } finally {
    progress.clear()
    await rm(folder, { recursive: true, force: true })
  }
  printText(`${await fileDigest(target)}  ${file}`)
}

/** Packs the installed corral as npm does. @param given the packed file to use instead */
async function addPackage(target: string, given: string | undefined): Promise<void> {
  if (given !== undefined) return await copyFile(given, target)
  const tar = await import('tar')
  const list = await checkDigests(packageRoot)
  if (!list || existsSync(join(packageRoot, 'scripts', 'pack.mjs'))) {
    throw misuse(`${packageRoot} is a checkout. Run "npm pack" there, and give the packed file with --package.`)
  }
  const [changed] = list.differences
  if (changed) throw failure(`${join(packageRoot, changed.path)} ${changed.problem}. Install corral again.`)
  const files = [DIGEST_LIST, ...(await filesIn(packageRoot))]
  await tar.c({ ...SAME, gzip: true, file: target, cwd: packageRoot, prefix: 'package' }, files)
}

/** Packs an installed build in the layout of llama.cpp's releases. @throws CommandFailure if there is none */
async function addBuild(
  builds: BuildsDirectory,
  folder: string,
  choice: string | undefined
): Promise<Contents['build']> {
  if (choice === 'none') return undefined
  const own = builds.records(true).filter(({ build }) => builds.owns(build))
  const wanted = choice ?? builds.selection().selected
  const found =
    wanted === undefined ? own.find(({ failure }) => !failure) : own.find(({ build }) => build.id === wanted)
  if (!found) {
    const what =
      wanted === undefined ? 'corral has installed no llama.cpp build' : `corral has installed no build "${wanted}"`
    throw failure(`${what}. Install one with "corral runtime install", or leave it out with "--runtime none".`)
  }
  const { id, runtime, origin, directory } = found.build
  const [changed] = (await checkDigests(directory))?.differences ?? []
  if (changed) throw failure(`${join(directory, changed.path)} ${changed.problem}. Install ${id} again.`)
  const tar = await import('tar')
  const file = `${id}.tar.gz`
  const names = (await readdir(directory)).filter(name => name !== DIGEST_LIST).sort()
  const prefix = `llama-${releaseTag(id) ?? 'build'}`
  await tar.c({ ...SAME, gzip: true, file: join(folder, file), cwd: directory, prefix }, names)
  return { id, file, ...(runtime !== undefined && { runtime }), origin }
}

/** Adds links to a model's files. @throws CommandFailure if it is not stored here */
async function addModel(models: string, folder: string, text: string): Promise<Contents['models'][number]> {
  const { owner, name, variant: label } = parseRequestedName(text)
  const wanted = `${owner}/${name}`.toLowerCase()
  const found = (await readManifests(models)).find(({ model }) => model.toLowerCase() === wanted)
  const wantedLabel = (label ?? found?.value?.default)?.toLowerCase()
  const variant = found?.value?.variants.find(each => each.label.toLowerCase() === wantedLabel)
  if (!found || !variant) throw failure(`The model ${text} is not stored here. "corral list" shows what is.`)
  const at = `models/${found.model}/${variant.label}`
  for (const { path } of variant.files) {
    const to = join(folder, ...`${at}/${path}`.split('/'))
    await mkdir(dirname(to), { recursive: true })
    await symlink(join(found.directory, variant.revision, ...path.split('/')), to)
  }
  const main = variant.format === 'gguf' ? variant.files.find(({ role }) => role === 'model') : undefined
  const stated = variant.defaults?.license ?? variant.metadata.info['general.license']
  const license = stated === undefined ? 'not stated' : String(stated)
  const { digest } = variant
  return { name: `${found.model}:${variant.label}`, digest, path: main ? `${at}/${main.path}` : at, license }
}

async function licenses({ build, models }: Contents): Promise<string> {
  const built = build
    ? `\n## llama.cpp ${build.id}\n\nMIT, from ${build.origin}. Its files are in ${build.file}.\n`
    : ''
  const stated = models.map(({ name, license }) => `\n## ${name}\n\n${license}\n`).join('')
  const own = await readFile(join(packageRoot, 'LICENSE'), 'utf8')
  const others = await readFile(join(packageRoot, 'THIRD_PARTY_NOTICES.md'), 'utf8')
  return `# Licences\n\n## corral\n\n${own}${built}${stated}\n${others}`
}

export async function bundleInstall(context: CommandContext, file: string, { sha256 }: Options<never, 'sha256'>) {
  const path = resolve(context.cwd, file)
  const signal = interruption()
  const { paths } = await openConfig(context)
  if (!existsSync(path)) throw misuse(`There is no file ${path}.`)
  const digest = await fileDigest(path, { signal })
  if (sha256 !== undefined && digest !== sha256.toLowerCase()) {
    throw failure(`${path} has the SHA-256 ${digest} instead of ${sha256}. Copy it again.`)
  }
  await mkdir(paths.cache, { recursive: true })
  const folder = await mkdtemp(join(paths.cache, 'bundle-'))
  try {
    await unpackTar(path, folder)
    const list = await checkDigests(folder, { signal })
    const contents = (await readJsonFile(join(folder, CONTENTS), ContentsSchema))?.value
    if (!list || !contents) throw failure(`${path} is not a file that "corral bundle create" wrote.`)
    const [changed] = list.differences
    if (changed) throw failure(`${path} is damaged: ${changed.path} ${changed.problem}. Copy it again.`)
    await install(context, folder, contents, paths.models)
    if (contents.corral !== version) {
      const commands = `tar -xf ${file} ${contents.package} && npm install --global ./${contents.package}`
      printNote(
        `The file has corral ${contents.corral}, and this is ${version}. Install the other one with: ${commands}`
      )
    }
    const size = plural(contents.models.length, 'model')
    printNote(`installed ${contents.build ? `${contents.build.id} and ` : ''}${size} (SHA-256 ${digest})`)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function install(context: CommandContext, folder: string, { build, models }: Contents, stored: string) {
  const inside = (path: string) => {
    const found = resolve(folder, path)
    if (!found.startsWith(folder + sep)) throw failure(`"${path}" in ${CONTENTS} is outside the file.`)
    return found
  }
  if (build) {
    const archive = inside(build.file)
    const request = { archive, sha256: await fileDigest(archive), runtime: build.runtime, companions: [] }
    const labels = { first: `preparing ${build.id}`, what: `installation of ${build.id}` }
    const made = await workOn<BuildReply>(context, '/api/runtimes/install', request, labels)
    await workOn<BuildReply>(context, '/api/runtimes/use', { runtime: made.build.id }, labels)
    printNote(`New engines use ${made.build.id} (llama.cpp ${made.build.version}).`)
  }
  await withServer(context, 'aside', async ({ client }) => {
    const here = (await readManifests(stored)).flatMap(({ model, value }) =>
      (value?.variants ?? []).map(({ label, digest }) => `${model}:${label} ${digest}`.toLowerCase())
    )
    for (const { name, digest, path } of models) {
      // A model from a hub is not replaced by an import, even of the same files.
      if (here.includes(`${name} ${digest}`.toLowerCase())) {
        printNote(`${printable(name)} is already here`)
        continue
      }
      const labels = { first: `reading ${name}`, what: `import of ${name}` }
      const body = { path: inside(path), model: name }
      const { model } = await streamWork<ImportedReply>(client, '/api/import', body, labels)
      printNote(`imported ${printable(model.name)} (${formatBytes(model.size)})`)
    }
  })
}
