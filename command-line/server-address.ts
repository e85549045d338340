import { hostname, networkInterfaces } from 'node:os'
import { type ConfigPlaces, findFile, findHome } from '../core/config/config-file.ts'
import type { LoadedConfig } from '../core/config/load.ts'
import type { Owner } from '../core/system/data-directory.ts'
import { type DataPaths, dataPaths } from '../core/system/data-paths.ts'
import { isObject } from '../core/system/json-object.ts'
import type { ServerPlace } from './server-client.ts'

/** The settings by which a command finds its server. */
export interface ServerSettings {
  host: string
  port: number
  /** Whether it is reached by TLS. */
  secure: boolean
  /** Whether the host was written as an address (`https://…`), which no server of this command would have. */
  isAddress?: boolean
  /** Sent as a bearer token. */
  apiKey: string | undefined
  paths: Pick<DataPaths, 'home' | 'ownerFile'>
  /** Where host, port and data directory were set, as in `LoadedConfig.origins`. */
  origins: Readonly<Record<string, string>>
}

/**
 * Reads only the settings by which a server is found. The whole configuration has the schemas of all plugins, and
 * importing these takes many times as long as what most commands do.
 * @returns undefined when a value is not clearly valid: loading the whole configuration then says what is wrong with it
 * @throws ConfigError when the file cannot be read
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
  // An address without a port means the usual one of its scheme, whatever this machine's own server has.
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

/** Whether a flag or the environment says where the server is. */
export function namesServer({ flags, env }: Pick<ConfigPlaces, 'flags' | 'env'>): boolean {
  const variables = [env.CORRAL_HOST, env.CORRAL_PORT]
  return flags.host !== undefined || flags.port !== undefined || variables.some(value => value?.trim())
}

/** What `--host` names: a host, or for commands also an address such as `https://models.example.org`. */
function addressParts(text: unknown): { host: unknown; port?: number; secure?: boolean } {
  if (typeof text !== 'string' || !/^https?:\/\//i.test(text) || !URL.canParse(text)) return { host: text }
  const { protocol, hostname: host, port } = new URL(text)
  const secure = protocol === 'https:'
  return { host, secure, port: Number(port || (secure ? 443 : 80)) }
}

const isPort = (value: unknown): value is number =>
  typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= 65_535

/** The same settings of a configuration that is loaded already. */
export function serverSettingsOf({ core, sections, paths, origins }: LoadedConfig): ServerSettings {
  const keys = sections.security?.api_keys
  const apiKey = Array.isArray(keys) && typeof keys[0] === 'string' ? keys[0] : undefined
  return { host: core.host, port: core.port, secure: core.tls.certificate !== '', apiKey, paths, origins }
}

/** Where a command looks for a server, in this order. */
export interface AddressPlan {
  /** An address from a flag or the environment; undefined where neither has one. */
  named: string | undefined
  /** Whether it comes from a flag: then a server elsewhere that holds the data directory is not the one meant. */
  byFlag: boolean
  /** Whether the server that holds the data directory counts, and one may be started when none runs. */
  local: boolean
  /** The address of the configuration file or the default one, tried when no server holds the data directory. */
  usual: string | undefined
}

/**
 * Decides where to look. A named address on another machine is the only place that counts: a command meant for that
 * machine must not act on this one. A named data directory is served by its holder or by nobody: another server on the
 * usual port serves other models.
 */
export function planAddresses(
  {
    host,
    port,
    secure,
    isAddress,
    origins
  }: Pick<ServerSettings, 'host' | 'port' | 'isAddress' | 'origins'> & { secure?: boolean },
  isLocal: (host: string) => boolean = isThisMachine
): AddressPlan {
  const isNamed = (setting: string) => /^(flag|env) /.test(origins[setting] ?? '')
  const byFlag = ['host', 'port'].some(setting => origins[setting]?.startsWith('flag '))
  const address = port === 0 ? undefined : clientAddress(host, port, secure)
  const local = !isAddress && isLocal(host)
  if (isNamed('host') || isNamed('port')) return { named: address, byFlag, local, usual: undefined }
  return { named: undefined, byFlag, local: true, usual: isNamed('home') ? undefined : address }
}

/** The address at which clients reach a server that listens on this host; "all interfaces" includes loopback. */
export function clientAddress(host: string, port: number, secure = false): string {
  const bare = host.replace(/^\[(.*)\]$/, '$1')
  const reached = bare === '0.0.0.0' ? '127.0.0.1' : bare === '::' ? '::1' : bare
  return `${secure ? 'https' : 'http'}://${reached.includes(':') ? `[${reached}]` : reached}:${port}`
}

/** The address that a server recorded, as clients reach it; undefined while the server does not listen yet. */
export function recordedAddress(address: string): string | undefined {
  const url = URL.canParse(address) ? new URL(address) : undefined
  if (url?.protocol !== 'http:' && url?.protocol !== 'https:') return undefined
  const secure = url.protocol === 'https:'
  const port = Number(url.port || (secure ? 443 : 80))
  return port === 0 ? undefined : clientAddress(url.hostname, port, secure)
}

/**
 * How a server at this address is reached: by its private socket only if it is the one that holds the data directory.
 * @param owner the server that holds it, if any
 */
export function placeOf(
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
