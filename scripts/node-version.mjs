// Ends the process where Node.js is too old, in words: what corral imports would end it with those of Node.js.
import { readFileSync } from 'node:fs'

const { engines } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'))
const [needed, wantedMajor, wantedMinor] = /(\d+)\.(\d+)/.exec(engines.node)
const [major, minor] = process.versions.node.split('.').map(Number)
if (major < Number(wantedMajor) || (major === Number(wantedMajor) && minor < Number(wantedMinor))) {
  process.stderr.write(
    `error: corral needs Node.js ${needed} or later, and this is ${process.version} (${process.execPath}).\n` +
      'Get a newer one from https://nodejs.org/en/download or your package manager, and try again.\n'
  )
  process.exit(1)
}
