import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import {
  bundledPackages,
  listPackages,
  pagePackages,
  renderBillOfMaterials,
  renderDependencies,
  renderNotices
} from '../../scripts/supply-chain.ts'

const written = (name: string) => readFileSync(join(packageRoot, name), 'utf8')

t.test('the bill of materials and the notices match the locked packages', async t => {
  t.ok(written('sbom.cdx.json') === renderBillOfMaterials(), 'sbom.cdx.json: run "npm run docs:write"')
  t.ok(written('THIRD_PARTY_NOTICES.md') === renderNotices(), 'THIRD_PARTY_NOTICES.md: run "npm run docs:write"')
  t.ok(written('docs/dependencies.md') === renderDependencies(), 'docs/dependencies.md: run "npm run docs:write"')
  const { files } = JSON.parse(written('package.json'))
  for (const name of ['sbom.cdx.json', 'THIRD_PARTY_NOTICES.md', 'docs/dependencies.md'])
    t.ok(files.includes(name), `${name} is in the package`)
})

t.test('the package installs nothing else and runs nothing', async t => {
  const manifest = JSON.parse(written('package.json'))
  t.same(Object.keys(manifest.dependencies ?? {}), [])
  t.same(Object.keys(manifest.optionalDependencies ?? {}), [])
  t.ok(Object.keys(manifest.peerDependencies).every(name => manifest.peerDependenciesMeta[name].optional))
  // prepack runs only when the package is made.
  t.notMatch(Object.keys(manifest.scripts).join(), /(^|,)(pre|post)?(install|uninstall|prepare)(,|$)|bindings/)
})

t.test('every package in the bundle is listed', async t => {
  const folder = join(packageRoot, 'dist', 'bundle')
  const listed = new Set(bundledPackages(JSON.parse(written('package-lock.json'))).map(({ name }) => name))
  const maps = readdirSync(folder).filter(name => name.endsWith('.js.map'))
  const sources = maps.flatMap(name => JSON.parse(written(join('dist', 'bundle', name))).sources as string[])
  const used = new Set(sources.flatMap(path => /.*node_modules\/((@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []))
  // Parts of the packages of the Model Context Protocol.
  for (const part of ['src', '@modelcontextprotocol/core-internal']) used.delete(part)
  t.ok(used.size > 100, `${used.size} packages`)
  t.same([...used].filter(name => !listed.has(name)).sort(), [])
  for (const name of ['@embedpdf/pdfium', '@evan/opus', 'wasm-media-encoders', 'fastify', 'ioredis', 'minizlib'])
    t.ok(listed.has(name), name)
})

t.test('npm finds the same dependencies between them', async t => {
  const flags = ['ls', '--all', '--package-lock-only', '--json']
  const tree = JSON.parse(
    execFileSync('npm', flags, { cwd: packageRoot, encoding: 'utf8', stdio: 'pipe', maxBuffer: 1e9 })
  )
  const { dependencies, components } = JSON.parse(renderBillOfMaterials())
  const shipped = new Set<string>(components.filter(({ purl }: any) => purl).map((one: any) => one['bom-ref']))
  const edges = new Set<string>()
  const visit = (from: string, { dependencies = {} }: any) => {
    for (const [name, node] of Object.entries<any>(dependencies)) {
      const to = `${name}@${node.version}`
      if (shipped.has(to)) edges.add(`${from} ${to}`)
      if (node.version) visit(to, node)
    }
  }
  visit(`${tree.name}@${tree.version}`, tree)
  const refs = new Set(dependencies.map(({ ref }: any) => ref))
  const own = dependencies.flatMap(({ ref, dependsOn }: any) => dependsOn.map((other: string) => `${ref} ${other}`))
  t.same(own.toSorted(), [...edges].filter(edge => refs.has(edge.split(' ')[0])).sort())
  const listed = components.filter(({ description }: any) => /^built into/.test(description))
  t.ok(listed.some(({ name, description }: any) => name === 'preact' && description === 'built into the page'))
  t.same(listed.map((component: any) => component['bom-ref']).sort(), [...refs].slice(1).sort())
  t.ok(listed.every(({ hashes }: any) => /^[0-9a-f]{128}$/.test(hashes[0].content)))
})

t.test('only packages with an allowed licence are shipped', async t => {
  const locked = (license?: string) => ({
    packages: { '': { version: '1' }, 'node_modules/a': { version: '1.2.3', ...(license && { license }) } }
  })
  const shippedPackages = (lock: any) => listPackages(lock, () => true)
  for (const license of ['GPL-3.0', 'AGPL-3.0-only', 'SEE LICENSE IN x', 'MIT AND GPL-2.0']) {
    t.throws(() => shippedPackages(locked(license)), /a 1\.2\.3 has the licence/, license)
  }
  t.throws(() => shippedPackages(locked()), /"none"/)
  t.match(shippedPackages(locked('(MIT OR GPL-2.0)')), [{ name: 'a' }])
  t.same(
    listPackages(locked('GPL-3.0'), () => false),
    [],
    'packages for development are not shipped'
  )
})

t.test('the notices contain the text of each licence', async t => {
  const notices = written('THIRD_PARTY_NOTICES.md')
  const { packages } = JSON.parse(written('package-lock.json'))
  const all = [...bundledPackages({ packages }), ...pagePackages({ packages })]
  for (const { name, version } of all) t.ok(notices.includes(`${name} ${version} (`), name)
  for (const words of [
    'Permission is hereby granted',
    'Apache License',
    'Blue Oak Model License',
    'swagger-ui-dist 5',
    'LAME 3.100 (LGPL-2.0-or-later)',
    'GNU LIBRARY GENERAL PUBLIC LICENSE',
    'libopus (BSD-3-Clause)',
    'The FreeType Project LICENSE',
    'libwebp (BSD-3-Clause)'
  ]) {
    t.ok(notices.includes(words), words)
  }
})
