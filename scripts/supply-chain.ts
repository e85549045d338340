import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'

/*
 * Software bill of materials, licence notices and the list of dependencies. They are generated only from
 * package-lock.json, node_modules, and the builds of the bundle and the page, so they are the same on every machine.
 */

/** Licences that allow redistribution with a notice. */
export const ALLOWED_LICENSES: ReadonlySet<string> = new Set([
  '0BSD',
  'Apache-2.0',
  'BlueOak-1.0.0',
  'BSD-2-Clause',
  'BSD-3-Clause',
  'CC0-1.0',
  'ISC',
  'MIT',
  'MIT-0',
  'Unlicense'
])

/** Licences of packages whose package.json names none, from their licence files. */
const UNDECLARED = new Map([['khroma@2.1.0', 'MIT']])

export interface LockedPackage {
  version: string
  license?: string
  integrity?: string
  resolved?: string
  dependencies?: Record<string, string>
  optionalDependencies?: Record<string, string>
  peerDependencies?: Record<string, string>
  devDependencies?: Record<string, string>
}

interface Lock {
  packages: Record<string, LockedPackage>
}

interface Shipped {
  name: string
  version: string
  license: string
  /** Folders in node_modules that contain it. */
  paths: string[]
  locked: LockedPackage
}

const MODULES = 'node_modules/'
const nameIn = (path: string) => path.slice(path.lastIndexOf(MODULES) + MODULES.length)

/** Packages whose types are part of the types for plugins, and whose code is not in the bundle. */
const ONLY_TYPES = ['@fastify/fast-json-stringify-compiler', 'fast-json-stringify']

/** Returns the packages that are built into corral's bundle, and those whose types it contains. */
export function bundledPackages(lock: Lock): Shipped[] {
  const paths: string[] = readJson('dist', 'bundle', 'packages.json')
  const inBundle = new Set(
    paths.map(path =>
      lock.packages[path] ? path : resolve(lock, /^node_modules\/(@[^/]+\/)?[^/]+/.exec(path)![0], nameIn(path))
    )
  )
  return listPackages(lock, path => inBundle.has(path) || ONLY_TYPES.includes(nameIn(path)))
}

/** Returns the packages that are built into the page only. */
export function pagePackages(lock: Lock): Shipped[] {
  const inPage = new Set<string>(readJson('dist', 'plugins', 'page', 'browser', 'packages.json'))
  const inBundle = new Set(bundledPackages(lock).map(toRef))
  return listPackages(
    lock,
    path => inPage.has(nameIn(path)) && !inBundle.has(toRef({ name: nameIn(path), ...lock.packages[path]! }))
  )
}

/**
 * Returns the locked packages with these paths, each version once, by name.
 * @throws Error if a licence is missing or not allowed
 */
export function listPackages({ packages }: Lock, isWanted: (path: string) => boolean): Shipped[] {
  const shipped = new Map<string, Shipped>()
  for (const [path, locked] of Object.entries(packages)) {
    if (path === '' || !isWanted(path)) continue
    const name = nameIn(path)
    const { version } = locked
    const license = locked.license ?? UNDECLARED.get(`${name}@${version}`) ?? 'none'
    // If there is a choice (`MIT OR GPL-2.0`), one allowed licence is enough.
    const choices = license.replace(/[()]/g, '').split(' OR ')
    if (!choices.some(choice => ALLOWED_LICENSES.has(choice))) {
      throw new Error(
        `${name} ${version} has the licence "${license}", which is not allowed. Replace the package, or add the licence to ALLOWED_LICENSES.`
      )
    }
    const known = shipped.get(`${name}@${version}`)
    if (known) known.paths.push(path)
    else shipped.set(`${name}@${version}`, { name, version, license, paths: [path], locked })
  }
  return [...shipped.values()].sort((a, b) => (toRef(a) < toRef(b) ? -1 : 1))
}

const toRef = ({ name, version }: { name: string; version: string }) => `${name}@${version}`
const toPurl = ({ name, version }: { name: string; version: string }) =>
  `pkg:npm/${name.replace('@', '%40')}@${version}`

/** Resolves a dependency of a package: in its own folder, or in that of an outer package. */
function resolve({ packages }: Lock, from: string, name: string): string | undefined {
  for (let at = from; ; ) {
    const path = at === '' ? `node_modules/${name}` : `${at}/node_modules/${name}`
    if (packages[path]) return path
    if (at === '') return undefined
    const outer = at.lastIndexOf('/node_modules/')
    at = outer === -1 ? '' : at.slice(0, outer)
  }
}

/** Returns those of the shipped packages that a package needs. */
function dependsOn(lock: Lock, path: string, shipped: ReadonlySet<string>): string[] {
  const { dependencies, optionalDependencies, peerDependencies, devDependencies } = lock.packages[path]!
  // corral's own peers (OpenTelemetry) are optional. What it is built from are dependencies for development.
  const own = path === '' ? devDependencies : peerDependencies
  const refs = Object.keys({ ...dependencies, ...optionalDependencies, ...own }).flatMap(name => {
    const found = resolve(lock, path, name)
    return found === undefined ? [] : [`${name}@${lock.packages[found]!.version}`]
  })
  return [...new Set(refs)].filter(ref => shipped.has(ref)).sort()
}

const BUNDLED = [
  {
    name: 'swagger-ui-dist',
    license: 'Apache-2.0',
    why: 'the page /docs, as @fastify/swagger-ui brings it',
    notice: 'Copyright 2020-2021 SmartBear Software Inc. Its licence: https://www.apache.org/licenses/LICENSE-2.0'
  }
]

/** Libraries that packages contain as WebAssembly, without their notices. */
const COMPILED = [
  {
    name: 'LAME',
    version: '3.100',
    license: 'LGPL-2.0-or-later',
    text: 'lame.txt',
    why: 'in wasm-media-encoders, which writes MP3',
    notice:
      'Copyright the LAME project. Source: https://lame.sourceforge.io, built as https://github.com/arseneyr/wasm-media-encoders says. It is in a separate file, dist/bundle/mp3.wasm, which you may replace with your own build.'
  },
  {
    name: 'libopus',
    version: undefined,
    license: 'BSD-3-Clause',
    text: 'libopus.txt',
    why: 'in @evan/opus, which writes and reads Opus',
    notice: ''
  },
  {
    name: 'libwebp',
    version: undefined,
    license: 'BSD-3-Clause',
    text: 'libwebp.txt',
    why: 'in @jsquash/webp, which reads WebP',
    notice: ''
  },
  {
    name: 'libraries of PDFium',
    version: undefined,
    license:
      'Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND FTL AND IJG AND libpng-2.0 AND MIT AND Unicode-3.0 AND Zlib',
    text: 'pdfium-libraries.txt',
    why: 'in @embedpdf/pdfium, which reads PDFs',
    notice: ''
  }
]

const readJson = (...path: string[]) => JSON.parse(readFileSync(join(packageRoot, ...path), 'utf8'))

function bundled() {
  const { devDependencies } = readJson('node_modules', '@fastify', 'swagger-ui', 'package.json')
  return BUNDLED.map(part => ({ ...part, version: String(devDependencies[part.name]) }))
}

export function renderBillOfMaterials(): string {
  const lock: Lock = readJson('package-lock.json')
  const own = readJson('package.json')
  const [bundle, page] = [bundledPackages(lock), pagePackages(lock)]
  const all = [...bundle, ...page]
  const refs = new Set(all.map(toRef))
  const licenses = (license: string) =>
    license.includes(' ') ? [{ expression: license }] : [{ license: { id: license } }]
  const component = { name: own.name, version: own.version, description: own.description }
  const bom = {
    $schema: 'http://cyclonedx.org/schema/bom-1.5.schema.json',
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    version: 1,
    metadata: {
      component: {
        'bom-ref': toRef(component),
        type: 'application',
        ...component,
        purl: toPurl(component),
        licenses: licenses(own.license)
      }
    },
    components: [
      ...all.map(({ name, version, license, locked: { integrity, resolved } }, at) => ({
        'bom-ref': `${name}@${version}`,
        type: 'library',
        name,
        version,
        description: `built into ${at < bundle.length ? 'the bundle' : 'the page'}`,
        purl: toPurl({ name, version }),
        ...(integrity?.startsWith('sha512-') && {
          hashes: [{ alg: 'SHA-512', content: Buffer.from(integrity.slice(7), 'base64').toString('hex') }]
        }),
        licenses: licenses(license),
        ...(resolved && { externalReferences: [{ type: 'distribution', url: resolved }] })
      })),
      ...bundled().map(({ name, version, license, why }) => ({
        'bom-ref': `${name}@${version}`,
        type: 'library',
        name,
        version,
        description: why,
        purl: toPurl({ name, version }),
        licenses: licenses(license)
      })),
      ...COMPILED.map(({ name, version, license, why }) => ({
        'bom-ref': name,
        type: 'library',
        name,
        ...(version !== undefined && { version }),
        description: why,
        licenses: licenses(license)
      })),
      {
        'bom-ref': 'corral/tiny-chat',
        type: 'machine-learning-model',
        name: 'corral/tiny-chat',
        version: own.version,
        description: 'The demo model in plugins/models/storage/demo-model, trained from scratch on its own data',
        licenses: licenses('MIT')
      }
    ],
    dependencies: [
      { ref: toRef(own), dependsOn: dependsOn(lock, '', refs) },
      ...all.map(({ name, version, paths }) => ({
        ref: `${name}@${version}`,
        dependsOn: [...new Set(paths.flatMap(path => dependsOn(lock, path, refs)))].sort()
      }))
    ]
  }
  return `${JSON.stringify(bom, undefined, 2)}\n`
}

function licenseTexts(path: string): string[] {
  const folder = join(packageRoot, path)
  if (!existsSync(folder)) throw new Error(`${path} is not installed. Run: npm ci`)
  return readdirSync(folder)
    .filter(name => /^(licen[cs]e|copying|notice)(\.|-|$)/i.test(name))
    .sort()
    .map(name => readFileSync(join(folder, name), 'utf8').replaceAll('\r\n', '\n').trim())
}

const INTRODUCTION = `# Third-party notices

corral contains parts of the packages below. Each is used under its own licence, which follows. The demo model
(plugins/models/storage/demo-model) is part of corral and has the same licence. Files that corral downloads at run time on
request (models, llama.cpp builds, Python packages of the converter) have their own licences and are not part of the package.
sbom.cdx.json lists the same packages in a machine-readable form, and docs/dependencies.md says what each is for.
`

/** The notices as Markdown, with the texts of all licences. Packages with the same text share it. */
export function renderNotices(): string {
  const sections = new Map<string, string[]>()
  const lock: Lock = readJson('package-lock.json')
  for (const { name, version, license, paths } of [...bundledPackages(lock), ...pagePackages(lock)]) {
    const texts = licenseTexts(paths[0]!)
    const text =
      texts.length > 0
        ? texts.join('\n\n')
        : `The package declares its licence (${license}), but contains no text of it.`
    sections.set(text, [...(sections.get(text) ?? []), `${name} ${version} (${license})`])
  }
  const parts = [...sections].map(([text, names]) => {
    const indented = text.split('\n').map(line => (line.trim() === '' ? '' : `    ${line.trimEnd()}`))
    return `\n## ${names.join(', ')}\n\n${indented.join('\n')}\n`
  })
  const inside = bundled().map(
    ({ name, version, license, why, notice }) =>
      `\n## ${name} ${version} (${license})\n\nIn the package: ${why}. ${notice}\n`
  )
  const compiled = COMPILED.map(({ name, version, license, text, why, notice }) => {
    const lines = readFileSync(join(packageRoot, 'packaging', 'notices', text), 'utf8')
      .trimEnd()
      .split('\n')
    const indented = lines.map(line => (line.trim() === '' ? '' : `    ${line.trimEnd()}`)).join('\n')
    const about = `Compiled ${why}. ${notice}`.trim()
    return `\n## ${[name, version].join(' ').trim()} (${license})\n\n${about}\n\n${indented}\n`
  })
  return [INTRODUCTION, ...inside, ...compiled, ...parts].join('')
}

/** Why corral needs the packages that its own source imports. */
const REASONS: Readonly<Record<string, string>> = readJson('scripts', 'package-reasons.json')

/** The list of dependencies as Markdown. @throws Error if the reason for a package is missing, or not needed any more */
export function renderDependencies(): string {
  const lock: Lock = readJson('package-lock.json')
  const [bundle, page] = [bundledPackages(lock), pagePackages(lock)]
  const refs = new Set([...bundle, ...page].map(toRef))
  const parents = new Map<string, string[]>()
  for (const { name, paths } of [...bundle, ...page]) {
    for (const ref of paths.flatMap(path => dependsOn(lock, path, refs)))
      parents.set(ref, [...new Set([...(parents.get(ref) ?? []), name])])
  }
  const own = Object.keys(lock.packages['']!.devDependencies!)
  const unused = new Set(Object.keys(REASONS))
  const row = (one: Shipped) => {
    const needing = parents.get(toRef(one))?.map(parent => `\`${parent}\``)
    const isOwn = own.includes(one.name) && one.paths.includes(`${MODULES}${one.name}`)
    const why = isOwn || !needing ? REASONS[one.name] : needing.join(', ')
    if (why === undefined) throw new Error(`Say in scripts/package-reasons.json what ${one.name} is for.`)
    unused.delete(one.name)
    return `| \`${one.name}\` | ${one.version} | ${one.license} | ${why} |\n`
  }
  const table = (packages: readonly Shipped[]) =>
    `| package | version | licence | for |\n|---|---|---|---|\n${packages.map(row).join('')}`
  const text = `# Dependencies

<!-- Generated by "npm run docs:write". -->

The npm package of corral has no dependencies and no install scripts. It contains the packages below, in the versions of
\`package-lock.json\`, so nothing else is downloaded when you install it. Only tracing needs more: \`corral serve\` names the
packages and the command that installs them if \`tracing.endpoint\` is set. [THIRD_PARTY_NOTICES.md](../THIRD_PARTY_NOTICES.md) has
the texts of all licences, and [sbom.cdx.json](../sbom.cdx.json) is a bill of materials in the format of CycloneDX.

If the last column names a package, that package needs this one.

## In the server and the commands

${table(bundle)}
## In the web page only

${table(page)}
## Compiled into these packages

| part | version | licence | where |
|---|---|---|---|
${[...bundled(), ...COMPILED].map(({ name, version = '', license, why }) => `| ${name} | ${version} | ${license} | ${why} |\n`).join('')}`
  if (unused.size > 0) throw new Error(`Remove ${[...unused].join(', ')} from scripts/package-reasons.json.`)
  return text
}
