import { hostname, networkInterfaces } from 'node:os'
import { type ConfigPlaces, findFile, findHome } from '../core/config/config-file.ts'
import type { LoadedConfig } from '../core/config/load.ts'
import type { Owner } from '../core/system/data-directory.ts'
import { type DataPaths, dataPaths } from '../core/system/data-paths.ts'
import { isObject } from '../core/system/json-object.ts'
import type { ServerPlace } from './server-client.ts'

export interface ServerSettings {
  host: string
  port: number
  secure: boolean
  /** Whether the host was given as a URL (`https://…`), which never refers to a server of this command. */
  isAddress?: boolean
  /** Sent as a bearer token. */
  apiKey: string | undefined
  paths: Pick<DataPaths, 'home' | 'ownerFile'>
  /** Origins of host, port and data directory, as in `LoadedConfig.origins`. */
  origins: Readonly<Record<string, string>>
}

/**
 * Reads only the settings that determine the server, because the schemas of all plugins would take long to import.
 * @returns undefined if a value may be invalid. Loading the whole configuration then reports the error
 * @throws ConfigError if the file cannot be read
 */
export async function readServerSettings(places: ConfigPlaces): Promise<ServerSettings | undefined> {
  const { flags, env } = places
  const { home, origin } = findHome(places)
  const paths = dataPaths(home, undefined)
  const file = await findFile(places, paths.home)
  let written: Record<string, unknown> = {}
  if (file) {
    const { readYaml } = await import('../core/config/yaml-file.ts')
    const { value, mistakes } = readYaml(file.bytes.toString('utf8'))
    if (mistakes.length > 0 || !isObject(value ?? {})) return undefined
    written = (value ?? {}) as Record<string, unknown>
  }
  const security = written.security ?? {}
  const tls = written.tls ?? {}
  if (!isObject(security) || !isObject(tls)) return undefined
  const origins: Record<string, string> = { home: origin }
  const pick = (name: 'host' | 'port', usual: unknown): unknown => {
    const variable = `CORRAL_${name.toUpperCase()}`
    const given = [
      { value: flags[name], origin: `flag --${name}` },
      { value: env[variable]?.trim() || undefined, origin: `env ${variable}` },
      { value: written[name] ?? undefined, origin: 'file' }
    ].find(({ value }) => value !== undefined)
    if (given) origins[name] = given.origin
    return given?.value ?? usual
  }
  const named = addressParts(pick('host', '127.0.0.1'))
  const { host, secure = typeof tls.certificate === 'string' && tls.certificate !== '' } = named
  // A URL without a port means the default port of its scheme, not the configured port of this machine.
  const own = flags.port === undefined ? named.port : undefined
  const portText = own ?? pick('port', 11435)
  if (own !== undefined) origins.port = origins.host!
  const port = typeof portText === 'string' && /^\d+$/.test(portText) ? Number(portText) : portText
  const keys = env.CORRAL_API_KEYS?.trim() ? env.CORRAL_API_KEYS.split(',') : (security.api_keys ?? [])
  if (typeof host !== 'string' || host === '' || !isPort(port)) return undefined
  if (!Array.isArray(keys) || !keys.every(key => typeof key === 'string')) return undefined
  const apiKey = keys.map(key => key.trim()).find(key => key !== '')
  return { host, port, secure, isAddress: named.secure !== undefined, apiKey, paths, origins }
}

/** Whether a flag or the environment names the server. */
export function namesServer({ flags, env }: Pick<ConfigPlaces, 'flags' | 'env'>): boolean {
  const variables = [env.CORRAL_HOST, env.CORRAL_PORT]
  return flags.host !== undefined || flags.port !== undefined || variables.some(value => value?.trim())
}

/** Splits the value of `--host`: a host, or for commands a URL such as `https://models.example.org`. */
function addressParts(text: unknown): { host: unknown; port?: number; secure?: boolean } {
  if (typeof text !== 'string' || !/^https?:\/\//i.test(text) || !URL.canParse(text)) return { host: text }
  const { protocol, hostname: host, port } = new URL(text)
  const secure = protocol === 'https:'
  return { host, secure, port: Number(port || (secure ? 443 : 80)) }
}

const isPort = (value: unknown): value is number =>
  typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= 65_535

/** The same settings from a loaded configuration. */
export function toServerSettings({ core, sections, paths, origins }: LoadedConfig): ServerSettings {
  const keys = sections.security?.api_keys
  const apiKey = Array.isArray(keys) && typeof keys[0] === 'string' ? keys[0] : undefined
  return { host: core.host, port: core.port, secure: core.tls.certificate !== '', apiKey, paths, origins }
}

/**
 * Decides where to look. A named address on another machine is the only candidate, because the command must not act on
 * this one. A named data directory is served by the server that claims it or by none.
 */
export function planAddresses(
  settings: Pick<ServerSettings, 'host' | 'port' | 'isAddress' | 'origins'> & { secure?: boolean },
  isLocal: (host: string) => boolean = isThisMachine
) {
  const { host, port, secure, isAddress, origins } = settings
  const isNamed = (setting: string) => /^(flag|env) /.test(origins[setting] ?? '')
  const address = port === 0 ? undefined : clientAddress(host, port, secure)
  const hasName = isNamed('host') || isNamed('port')
  return {
    /** Address from a flag or the environment, if any. */
    named: hasName ? address : undefined,
    /** Whether it comes from a flag, which excludes a server of the data directory at another address. */
    byFlag: ['host', 'port'].some(setting => origins[setting]?.startsWith('flag ')),
    /** Whether the server of the data directory may be used, and one may be started if none is running. */
    local: !hasName || (!isAddress && isLocal(host)),
    /** Configured or default address, tried if no server uses the data directory. */
    usual: hasName || isNamed('home') ? undefined : address
  }
}

/** The client address of a server that listens on this host. A wildcard address includes loopback. */
export function clientAddress(host: string, port: number, secure = false): string {
  const bare = host.replace(/^\[(.*)\]$/, '$1')
  const reached = bare === '0.0.0.0' ? '127.0.0.1' : bare === '::' ? '::1' : bare
  return `${secure ? 'https' : 'http'}://${reached.includes(':') ? `[${reached}]` : reached}:${port}`
}

/** The client address of a server, from its recorded listening address. Undefined if it does not listen yet. */
export function recordedAddress(address: string): string | undefined {
  const url = URL.canParse(address) ? new URL(address) : undefined
  if (url?.protocol !== 'http:' && url?.protocol !== 'https:') return undefined
  const secure = url.protocol === 'https:'
  const port = Number(url.port || (secure ? 443 : 80))
  return port === 0 ? undefined : clientAddress(url.hostname, port, secure)
}

/** How to reach a server at this address. @param owner the server that claims the data directory, which may be it */
export function toServerPlace(
  address: string,
  home: string,
  owner: Pick<Owner, 'host' | 'address' | 'socket'> | undefined
): ServerPlace {
  if (!owner || recordedAddress(owner.address) !== address) {
    return { address, why: `it is not known to be the server of ${home}` }
  }
  if (owner.host !== hostname()) return { address, why: `the server of ${home} runs on ${owner.host}` }
  if (owner.socket === undefined) return { address, why: `the server of ${home} has no private socket` }
  return { address, socket: owner.socket }
}

function isThisMachine(host: string): boolean {
  const name = host.replace(/^\[(.*)\]$/, '$1').toLowerCase()
  if (['localhost', '0.0.0.0', '::', hostname().toLowerCase()].includes(name)) return true
  if (name.endsWith('.localhost') || /^127\./.test(name) || name === '::1') return true
  return Object.values(networkInterfaces()).some(list => list?.some(({ address }) => address.toLowerCase() === name))
}
