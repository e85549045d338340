import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { renderBillOfMaterials, renderDependencies, renderNotices } from './supply-chain.ts'

for (const [name, text] of [
  ['sbom.cdx.json', renderBillOfMaterials()],
  ['THIRD_PARTY_NOTICES.md', renderNotices()],
  [join('docs', 'dependencies.md'), renderDependencies()]
] as const) {
  writeFileSync(join(packageRoot, name), text)
  console.log(`Wrote ${join(packageRoot, name)}`)
}
