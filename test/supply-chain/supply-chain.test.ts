import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { pagePackages, renderBillOfMaterials, renderNotices, shippedPackages } from '../../scripts/supply-chain.ts'

const written = (name: string) => readFileSync(join(packageRoot, name), 'utf8')

t.test('the bill of materials and the notices match the locked packages', async t => {
  t.ok(written('sbom.cdx.json') === renderBillOfMaterials(), 'sbom.cdx.json: run "npm run docs:write"')
  t.ok(written('THIRD_PARTY_NOTICES.md') === renderNotices(), 'THIRD_PARTY_NOTICES.md: run "npm run docs:write"')
  const { files } = JSON.parse(written('package.json'))
  for (const name of ['sbom.cdx.json', 'THIRD_PARTY_NOTICES.md'])
    t.ok(files.includes(name), `${name} is in the package`)
})

t.test('npm finds the same packages and dependencies', async t => {
  // `npm sbom --omit dev` leaves out what developers use too.
  const flags = ['ls', '--all', '--omit', 'dev', '--package-lock-only', '--json']
  const tree = JSON.parse(execFileSync('npm', flags, { cwd: packageRoot, encoding: 'utf8', stdio: 'pipe' }))
  const edges = new Set<string>()
  const visit = (from: string, { dependencies = {} }: any) => {
    for (const [name, node] of Object.entries<any>(dependencies)) {
      if (!node.version) continue
      edges.add(`${from} ${name}@${node.version}`)
      visit(`${name}@${node.version}`, node)
    }
  }
  visit(`${tree.name}@${tree.version}`, tree)
  const { dependencies, components } = JSON.parse(renderBillOfMaterials())
  const own = dependencies.flatMap(({ ref, dependsOn }: any) => dependsOn.map((other: string) => `${ref} ${other}`))
  t.same(own.toSorted(), [...edges].sort())
  const needed = new Set(own.map((edge: string) => edge.split(' ')[1]))
  const bundled = ['swagger-ui-dist', 'corral/tiny-chat', 'LAME', 'libvorbis', 'libopus']
  const inPage = components.filter(({ description }: any) => description === 'built into the page')
  t.ok(inPage.some(({ name }: any) => name === 'preact'))
  const listed = components.filter((each: any) => !bundled.includes(each.name) && !inPage.includes(each))
  t.same(listed.map((component: any) => component['bom-ref']).sort(), [...needed].sort())
  t.ok(listed.every(({ hashes }: any) => /^[0-9a-f]{128}$/.test(hashes[0].content)))
})

t.test('only packages with an allowed licence are shipped', async t => {
  const locked = (license?: string, more: object = {}) => ({
    packages: { '': { version: '1' }, 'node_modules/a': { version: '1.2.3', ...(license && { license }), ...more } }
  })
  for (const license of ['GPL-3.0', 'AGPL-3.0-only', 'SEE LICENSE IN x', 'MIT AND GPL-2.0']) {
    t.throws(() => shippedPackages(locked(license)), /a 1\.2\.3 has the licence/, license)
  }
  t.throws(() => shippedPackages(locked()), /"none"/)
  t.match(shippedPackages(locked('(MIT OR GPL-2.0)')), [{ name: 'a' }])
  t.same(shippedPackages(locked('GPL-3.0', { dev: true })), [], 'development packages are not shipped')
})

t.test('the notices contain the text of each licence', async t => {
  const notices = written('THIRD_PARTY_NOTICES.md')
  const { packages } = JSON.parse(written('package-lock.json'))
  const all = [...shippedPackages({ packages }), ...pagePackages({ packages })]
  for (const { name, version } of all) t.ok(notices.includes(`${name} ${version} (`), name)
  for (const words of [
    'Permission is hereby granted',
    'Apache License',
    'Blue Oak Model License',
    'swagger-ui-dist 5',
    'LAME 3.100 (LGPL-2.0-or-later)',
    'GNU LIBRARY GENERAL PUBLIC LICENSE',
    'libopus (BSD-3-Clause)'
  ]) {
    t.ok(notices.includes(words), words)
  }
})
