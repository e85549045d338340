import { type LookupAddress, lookup } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import ipaddr from 'ipaddr.js'
import { CorralError } from '../errors.ts'
import { bareHost, isPrivateName, isPublicAddress, normalizedAddress } from './private-address.ts'

/** The entry that allows every address. */
export const EVERY_ADDRESS = '*'

/** Whether a text is valid in a list of allowed private addresses: a host name, an address, a network or `*`. */
export function isAllowedEntry(text: string): boolean {
  if (text === EVERY_ADDRESS) return true
  if (text.includes('/')) return ipaddr.isValidCIDR(text) && isIP(text.slice(0, text.indexOf('/'))) !== 0
  return isIP(text) !== 0 || (/^[^\s:/?#@[\]\\*]+$/.test(text) && !/^[\d.]+$/.test(text))
}

function isAllowed(address: string, allowed: readonly string[]): boolean {
  if (allowed.includes(EVERY_ADDRESS) || isPublicAddress(address)) return true
  const meant = normalizedAddress(address)
  return allowed.filter(isNetwork).some(entry => {
    const [network, bits] = networkOf(entry)
    return network.kind() === meant.kind() && meant.match(network, bits)
  })
}

const isNetwork = (entry: string) => entry.includes('/') || isIP(entry) !== 0

function networkOf(entry: string): [ReturnType<typeof normalizedAddress>, number] {
  if (entry.includes('/')) return ipaddr.parseCIDR(entry)
  const address = normalizedAddress(entry)
  return [address, address.kind() === 'ipv4' ? 32 : 128]
}

function namesHost(host: string, allowed: readonly string[]): boolean {
  return allowed.some(entry => entry === EVERY_ADDRESS || bareHost(entry) === host)
}

/**
 * Refuses a host that can be refused without a lookup: an address that is neither public nor listed, or a name that
 * exists only in private networks. Call it before every request, whatever connection the request will use.
 * @param allowed private hosts, addresses and networks that may be reached
 * @param isLookedUp whether the name will be looked up here, not by a proxy
 * @throws CorralError `address_not_allowed`
 */
export function requireAllowedHost(hostname: string, allowed: readonly string[], isLookedUp: boolean): void {
  const host = bareHost(hostname)
  if (namesHost(host, allowed)) return
  if (isIP(host) !== 0) {
    if (!isAllowed(host, allowed)) throw addressNotAllowed(hostname)
  } else if (isPrivateName(host) && !(isLookedUp && allowed.some(isNetwork))) throw addressNotAllowed(hostname)
}

/**
 * A `lookup` for sockets that returns only addresses that may be connected to. Sockets connect to exactly the checked
 * addresses, so a name cannot change its address in between. A name with any other address is refused as a whole.
 * Sockets do not call it for addresses: see `requireAllowedHost`.
 * @param resolve looks up names
 */
export function allowedLookup(allowed: readonly string[], resolve: typeof lookup = lookup): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname, { ...options, all: true }, (error, found: LookupAddress[]) => {
      const [first] = found ?? []
      if (error || !first) return callback(error, [])
      const isFine = namesHost(bareHost(hostname), allowed) || found.every(({ address }) => isAllowed(address, allowed))
      if (!isFine) return callback(addressNotAllowed(hostname), [])
      if (options.all) callback(null, found)
      else callback(null, first.address, first.family)
    })
  }
}

/** The error is the same for every refused address, so that it does not reveal what is there. */
function addressNotAllowed(hostname: string): CorralError {
  const message =
    `"${hostname}" is not at a public address, and this server fetches from private addresses only if its settings name them. ` +
    'An admin may add it to "downloads.private_addresses" in config.yaml. The user who runs the server can use ' +
    '"corral pull" on its machine without a setting.'
  return new CorralError('address_not_allowed', message, { param: 'model' })
}
