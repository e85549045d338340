import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { renderApiDocument } from './api-document.ts'
import { renderDoctorDocs } from './doctor-docs.ts'
import { renderFailureDocs } from './failure-docs.ts'

const documents = { ...renderDoctorDocs(), ...renderFailureDocs(), ...(await renderApiDocument()) }
for (const [name, text] of Object.entries(documents)) {
  const path = join(packageRoot, 'docs', name)
  writeFileSync(path, text)
  console.log(`Wrote ${path}`)
}
