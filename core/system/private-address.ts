import { isIP } from 'node:net'
import { networkInterfaces } from 'node:os'
import ipaddr from 'ipaddr.js'

/** Where clouds answer their machines with secrets, at an address that looks public. */
const CLOUD_SERVICES = new Set(['168.63.129.16'])
/** Addresses of the internet; everything else in IPv6 is special or not given out. */
const GLOBAL_IPV6 = ipaddr.parseCIDR('2000::/3')

/** A URL's host name without brackets and the dot of the root. */
export function bareHost(hostname: string): string {
  return hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.$/, '')
    .toLowerCase()
}

/** An address, as IPv4 where it is only a spelling of one or is translated to one on its way (RFC 6052). */
export function meantAddress(text: string) {
  const address = ipaddr.process(text.replace(/%.*$/, ''))
  const bytes = address.toByteArray()
  const isTranslated = bytes.length === 16 && address.match(ipaddr.parseCIDR('64:ff9b::/96'))
  return isTranslated ? ipaddr.fromByteArray(bytes.slice(12)) : address
}

/** Whether an address is this machine itself, by its range. */
function isLoopbackAddress(host: string): boolean {
  return isIP(host) !== 0 && meantAddress(host).range() === 'loopback'
}

/**
 * Whether an address is one of the internet: none of a private or special range, none of a cloud's services for its
 * machines, and none of this machine's own, where more may be open than the network sees.
 * @param own addresses of this machine
 */
export function isPublicAddress(text: string, own: ReadonlySet<string> = ownAddresses()): boolean {
  const address = meantAddress(text)
  const spelled = address.toString()
  if (address.range() !== 'unicast' || CLOUD_SERVICES.has(spelled) || own.has(spelled)) return false
  return address.kind() === 'ipv4' || address.match(GLOBAL_IPV6)
}

function ownAddresses(): Set<string> {
  const all = Object.values(networkInterfaces()).flatMap(addresses => addresses ?? [])
  return new Set(all.map(({ address }) => meantAddress(address).toString()))
}

/** Whether a URL's host name is this machine itself. Names other than `localhost` are not looked up. */
export function isLoopback(hostname: string): boolean {
  const host = bareHost(hostname)
  return host === 'localhost' || host.endsWith('.localhost') || isLoopbackAddress(host)
}

/** Whether a name is one that no public server has. */
export function isPrivateName(hostname: string): boolean {
  const host = bareHost(hostname)
  if (isIP(host) !== 0) return false
  return !host.includes('.') || /\.(localhost|local|lan|internal|home|intranet|home\.arpa)$/.test(host)
}

/**
 * Whether a URL's host name says that it is on this machine or in a private network: by its address, or as a name that
 * no public server has.
 */
export function isPrivateHost(hostname: string): boolean {
  const host = bareHost(hostname)
  return isIP(host) === 0 ? isPrivateName(host) : !isPublicAddress(host)
}
