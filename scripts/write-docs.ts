import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/package-info.ts'
import { renderDoctorDocs } from './doctor-docs.ts'
import { renderFailureDocs } from './failure-docs.ts'

for (const [name, text] of Object.entries({ ...renderDoctorDocs(), ...renderFailureDocs() })) {
  const path = join(packageRoot, 'docs', name)
  writeFileSync(path, text)
  console.log(`Wrote ${path}`)
}
