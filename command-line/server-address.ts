import { hostname, networkInterfaces } from 'node:os'
import type { LoadedConfig } from '../core/config/load.ts'

/** Where a command looks for a server, in this order. */
export interface AddressPlan {
  /** An address that a flag or the environment names; undefined where none does. */
  given: string | undefined
  /** Whether a flag names it: then a server that holds the data directory elsewhere is not the one that is meant. */
  byFlag: boolean
  /** Whether the server that holds the data directory counts, and one may be started when none runs. */
  local: boolean
  /** The address of the configuration file or the default one, tried when no server holds the data directory. */
  usual: string | undefined
}

/**
 * Decides where to look. A named address on another machine is the only place that counts: a command that is meant for
 * that machine must not act on this one. A named data directory is served by its holder or by nobody: what else listens
 * on the usual port serves other models.
 */
export function planAddresses(
  { core, origins }: Pick<LoadedConfig, 'core' | 'origins'>,
  isLocal: (host: string) => boolean = isThisMachine
): AddressPlan {
  const named = (setting: string) => /^(flag|env) /.test(origins[setting] ?? '')
  const byFlag = ['host', 'port'].some(setting => origins[setting]?.startsWith('flag '))
  const address = core.port === 0 ? undefined : clientAddress(core.host, core.port)
  if (named('host') || named('port')) return { given: address, byFlag, local: isLocal(core.host), usual: undefined }
  return { given: undefined, byFlag, local: true, usual: named('home') ? undefined : address }
}

/** The address to reach a server at that listens on this host; "all interfaces" is reached through loopback. */
export function clientAddress(host: string, port: number): string {
  const bare = host.replace(/^\[(.*)\]$/, '$1')
  const reached = bare === '0.0.0.0' ? '127.0.0.1' : bare === '::' ? '::1' : bare
  return `http://${reached.includes(':') ? `[${reached}]` : reached}:${port}`
}

/** The address of a server as it recorded it, as a client reaches it; undefined when it is none yet. */
export function recordedAddress(address: string): string | undefined {
  const url = URL.canParse(address) ? new URL(address) : undefined
  const port = Number(url?.port || 80)
  return url?.protocol !== 'http:' || port === 0 ? undefined : clientAddress(url.hostname, port)
}

function isThisMachine(host: string): boolean {
  const name = host.replace(/^\[(.*)\]$/, '$1').toLowerCase()
  if (['localhost', '0.0.0.0', '::', hostname().toLowerCase()].includes(name)) return true
  if (name.endsWith('.localhost') || /^127\./.test(name) || name === '::1') return true
  return Object.values(networkInterfaces()).some(list => list?.some(({ address }) => address.toLowerCase() === name))
}
