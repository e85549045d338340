import { execFileSync } from 'node:child_process'
import { findExecutable } from '../../core/system/child-process.ts'

export interface Tools {
  nginx: string
  curl: string
  aria2c: string
  sha256sum: string
}

const PACKAGES: Record<keyof Tools, string> = {
  nginx: 'nginx-core',
  curl: 'curl',
  aria2c: 'aria2',
  sha256sum: 'coreutils'
}

function find(name: string): string | undefined {
  return findExecutable(name, process.env, ['/usr/sbin', '/usr/local/sbin'])
}

/**
 * The programs that the benchmark needs; installed with apt-get where that is possible.
 * @throws Error that names those that are missing
 */
export function findTools(): Tools {
  const names = Object.keys(PACKAGES) as (keyof Tools)[]
  const missing = () => names.filter(name => find(name) === undefined)
  if (missing().length > 0 && process.getuid?.() === 0 && find('apt-get') !== undefined) {
    const packages = missing().map(name => PACKAGES[name])
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
    execFileSync('apt-get', ['update', '-qq'], { stdio: ['ignore', 'ignore', 'inherit'], env })
    execFileSync('apt-get', ['install', '-y', '-qq', '--no-install-recommends', ...packages], {
      stdio: ['ignore', 'ignore', 'inherit'],
      env
    })
  }
  if (missing().length > 0)
    throw new Error(`The benchmark needs ${missing().join(', ')}. Install them and run it again.`)
  return Object.fromEntries(names.map(name => [name, find(name)!])) as unknown as Tools
}
