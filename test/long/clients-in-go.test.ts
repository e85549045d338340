import { join } from 'node:path'
import t from 'tap'
import { programFolders, tryLanguage } from '../clients/programs.ts'

// The first build takes minutes.
t.setTimeout(1_200_000)

const program = join(programFolders('Go').built, process.platform === 'win32' ? 'clients.exe' : 'clients')
tryLanguage(t, {
  language: 'Go',
  tools: ['go'],
  fetch: ['go', 'mod', 'download'],
  build: () => ['go', 'build', '-mod=readonly', '-o', program, '.'],
  start: () => [program]
})
