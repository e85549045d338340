import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** A llama-server that only says what it is, as text of a shell script. */
export function fakeServer({ version = '0.5.0-dev (build 1, commit de3ff81)', devices = ['  (none)'] } = {}): string {
  return `#!/bin/sh
case "$1" in
  --version) echo "0.00.000.262 I srv  llama_server: initializing ..."; echo "version: ${version}" >&2;;
  --list-devices) echo "Available devices:"; printf '%s\\n' ${devices.map(device => `'${device}'`).join(' ')};;
  *) exit 1;;
esac
`
}

/** Writes programs that may be run into a folder. */
export function writePrograms(directory: string, programs: Record<string, string>): string {
  mkdirSync(directory, { recursive: true })
  for (const [name, text] of Object.entries(programs)) {
    writeFileSync(join(directory, name), text)
    chmodSync(join(directory, name), 0o755)
  }
  return directory
}

/** For what never converts. */
export async function noConverter(): Promise<never> {
  throw new Error('there is no converter here')
}

/** A log that remembers its messages. */
export function memoryLog() {
  const lines: string[] = []
  const write = (_: object, message: string) => {
    lines.push(message)
  }
  return { lines, debug() {}, info: write, warn: write }
}
