import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { builtInPlugins } from '../plugins/built-in.ts'
import { renderAddresses } from './address-docs.ts'
import { renderApiDocument } from './api-document.ts'
import { renderConfigDocs } from './config-docs.ts'
import { renderDoctorDocs } from './doctor-docs.ts'
import { renderErrorDocs } from './error-docs.ts'
import { renderFailureDocs } from './failure-docs.ts'
import { renderManPage } from './man-page.ts'
import { renderModelDocs } from './model-docs.ts'

const documents = {
  ...renderAddresses(),
  ...renderConfigDocs(builtInPlugins),
  ...renderDoctorDocs(),
  ...renderErrorDocs(),
  ...renderFailureDocs(),
  ...(await renderManPage()),
  ...renderModelDocs(),
  ...(await renderApiDocument())
}
for (const [name, text] of Object.entries(documents)) {
  const path = join(packageRoot, 'docs', name)
  writeFileSync(path, text)
  console.log(`Wrote ${path}`)
}
