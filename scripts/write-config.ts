import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { builtInPlugins } from '../plugins/built-in.ts'
import { renderDefaultConfig } from './default-config.ts'

const path = join(packageRoot, 'config.yaml')
writeFileSync(path, renderDefaultConfig(builtInPlugins))
console.log(`Wrote ${path}`)
