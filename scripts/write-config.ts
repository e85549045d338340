import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { renderDefaultConfig } from '../core/config/config-text.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { builtInPlugins } from '../plugins/built-in.ts'

const path = join(packageRoot, 'config.yaml')
writeFileSync(path, renderDefaultConfig(builtInPlugins))
console.log(`Wrote ${path}`)
