import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { Identity } from '../../../../plugins/machines/link/link-certificate.ts'
import { until } from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'

/* Machines with addresses of their own: network namespaces on a bridge. Needs root and iproute2. */

const ip = (...words: string[]) => void execFileSync('ip', words, { stdio: 'pipe' })
const unique = `c${process.pid.toString(36)}`

/** Why namespaces cannot be made here, or undefined if they can. */
export function whyNoNetwork(): string | undefined {
  const name = `${unique}-try`
  const made = spawnSync('ip', ['netns', 'add', name], { encoding: 'utf8' })
  if (made.status !== 0) return `network namespaces cannot be made: ${made.error?.message ?? made.stderr.trim()}`
  const bridge = spawnSync('ip', ['-n', name, 'link', 'add', 'name', 'bridge0', 'type', 'bridge'], { encoding: 'utf8' })
  ip('netns', 'del', name)
  return bridge.status === 0 ? undefined : `bridges cannot be made: ${bridge.stderr.trim()}`
}

export interface TestNetwork {
  /** The words that run a program on a machine. */
  launcher(machine: string): string[]
  address(machine: string): string
  /** Gives a machine another address: its last number, or a whole one. */
  move(machine: string, to: number | string): void
  /** Drops all packets that a machine sends to another one, or no longer. */
  cut(machine: string, other: string, isCut: boolean): void
}

/** Runs a test with machines in one network of IPv4 or IPv6, and removes them. */
export async function withNetwork(
  t: Test,
  machines: string[],
  work: (network: TestNetwork) => Promise<void>,
  isSix = false
) {
  const spaceOf = (machine: string) => `${unique}-${machine}`
  const inside = (machine: string, ...words: string[]) => ip('-n', spaceOf(machine), ...words)
  const addresses = new Map<string, string>()
  const hub = spaceOf('hub')
  const place = (machine: string, address: string) => {
    if (isSix) inside(machine, '-6', 'addr', 'add', `${address}/64`, 'dev', 'eth0', 'nodad')
    else inside(machine, 'addr', 'add', `${address}/24`, 'broadcast', '10.99.0.255', 'dev', 'eth0')
    inside(machine, isSix ? '-6' : '-4', 'route', 'replace', 'default', 'dev', 'eth0')
    addresses.set(machine, address)
  }
  t.teardown(() => {
    for (const name of [...machines.map(spaceOf), hub]) spawnSync('ip', ['netns', 'del', name])
  })
  ip('netns', 'add', hub)
  ip('-n', hub, 'link', 'add', 'name', 'bridge0', 'type', 'bridge', 'mcast_snooping', '0')
  ip('-n', hub, 'link', 'set', 'bridge0', 'up')
  for (const [index, machine] of machines.entries()) {
    const space = spaceOf(machine)
    ip('netns', 'add', space)
    ip('-n', space, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', `p${index}`, 'netns', hub)
    ip('-n', hub, 'link', 'set', `p${index}`, 'master', 'bridge0', 'up')
    for (const device of ['lo', 'eth0']) inside(machine, 'link', 'set', device, 'up')
    place(machine, isSix ? `fd99::${index + 1}` : `10.99.0.${index + 1}`)
  }
  await work({
    launcher: machine => ['ip', 'netns', 'exec', spaceOf(machine)],
    address: machine => addresses.get(machine)!,
    move(machine, to) {
      inside(machine, 'addr', 'flush', 'dev', 'eth0', 'scope', 'global')
      place(machine, typeof to === 'number' ? `10.99.0.${to}` : to)
    },
    cut(machine, other, isCut) {
      inside(machine, 'route', isCut ? 'add' : 'del', 'blackhole', addresses.get(other)!)
    }
  })
}

/** A server that pretends to be a machine at the port of linked machines, with this certificate. */
export async function startTlsServer(t: Test, launcher: string[], { certificate, key }: Identity) {
  const folder = newFolder(t)
  writeFileSync(join(folder, 'cert.pem'), certificate)
  writeFileSync(join(folder, 'key.pem'), key)
  const program = `
    const { readFileSync } = require('node:fs')
    const [cert, key] = ['cert.pem', 'key.pem'].map(name => readFileSync(name))
    require('node:https').createServer({ cert, key, requestCert: true, rejectUnauthorized: false }, (request, response) => {
      console.log(request.method + ' ' + request.url)
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ machine: 'liar', port: 11436, addresses: [], macs: [] }))
    }).listen(11436, '0.0.0.0', () => console.log('ready'))`
  const [command, ...words] = [...launcher, process.execPath, '-e', program]
  const child = spawn(command!, words, { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => child.kill('SIGKILL'))
  let output = ''
  child.stdout.setEncoding('utf8').on('data', text => (output += text))
  await until('the server listens', () => output.includes('ready'))
  return { requests: () => output.trim().split('\n').slice(1) }
}
