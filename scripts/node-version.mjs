// Exits with a clear message if Node.js is too old. Otherwise importing corral would fail with an obscure error.
import { readFileSync } from 'node:fs'

const { engines } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'))
const [needed, wantedMajor, wantedMinor] = /(\d+)\.(\d+)/.exec(engines.node)
const [major, minor] = process.versions.node.split('.').map(Number)
if (major < Number(wantedMajor) || (major === Number(wantedMajor) && minor < Number(wantedMinor))) {
  process.stderr.write(
    `error: corral needs Node.js ${needed} or later, but this is ${process.version} (${process.execPath}).\n` +
      'Get a newer version from https://nodejs.org/en/download or your package manager, and try again.\n'
  )
  process.exit(1)
}
