import { join } from 'node:path'
import t from 'tap'
import { programFolders, tryLanguage } from '../clients/programs.ts'

// The first build compiles hundreds of packages.
t.setTimeout(3_000_000)

const target = programFolders('Rust').built
tryLanguage(t, {
  language: 'Rust',
  tools: ['cargo'],
  fetch: ['cargo', 'fetch', '--locked'],
  build: () => ['cargo', 'build', '--locked', '--offline'],
  start: () => [join(target, 'debug', process.platform === 'win32' ? 'clients.exe' : 'clients')],
  env: { CARGO_TARGET_DIR: target }
})
