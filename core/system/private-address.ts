import { isIP } from 'node:net'
import { networkInterfaces } from 'node:os'
import ipaddr from 'ipaddr.js'

/** Addresses that look public, but at which clouds answer their machines with secrets. */
const CLOUD_SERVICES = new Set(['168.63.129.16'])
/** Addresses of the internet; all other IPv6 addresses are special or unassigned. */
const GLOBAL_IPV6 = ipaddr.parseCIDR('2000::/3')

/** A URL's host name without brackets and the trailing dot. */
export function bareHost(hostname: string): string {
  return hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.$/, '')
    .toLowerCase()
}

/** Parses an address, as IPv4 if it is only another spelling of one or is translated to one on its way (RFC 6052). */
export function normalizedAddress(text: string) {
  const address = ipaddr.process(text.replace(/%.*$/, ''))
  const bytes = address.toByteArray()
  const isTranslated = bytes.length === 16 && address.match(ipaddr.parseCIDR('64:ff9b::/96'))
  return isTranslated ? ipaddr.fromByteArray(bytes.slice(12)) : address
}

/** Whether an address is public: not in a special range, not a cloud's service, and not this machine's own. */
export function isPublicAddress(text: string, own: ReadonlySet<string> = ownAddresses()): boolean {
  const address = normalizedAddress(text)
  const spelled = address.toString()
  if (address.range() !== 'unicast' || CLOUD_SERVICES.has(spelled) || own.has(spelled)) return false
  return address.kind() === 'ipv4' || address.match(GLOBAL_IPV6)
}

function ownAddresses(): Set<string> {
  const all = Object.values(networkInterfaces()).flatMap(addresses => addresses ?? [])
  return new Set(all.map(({ address }) => normalizedAddress(address).toString()))
}

/** Whether a URL's host name is this machine itself. Names other than `localhost` are not looked up. */
export function isLoopback(hostname: string): boolean {
  const host = bareHost(hostname)
  if (isIP(host) !== 0) return normalizedAddress(host).range() === 'loopback'
  return host === 'localhost' || host.endsWith('.localhost')
}

/** Whether no public server can have this name. */
export function isPrivateName(hostname: string): boolean {
  const host = bareHost(hostname)
  if (isIP(host) !== 0) return false
  return !host.includes('.') || /\.(localhost|local|lan|internal|home|intranet|home\.arpa)$/.test(host)
}

/** Whether a URL's host is this machine or private: a private address, or a name that no public server has. */
export function isPrivateHost(hostname: string): boolean {
  const host = bareHost(hostname)
  return isIP(host) === 0 ? isPrivateName(host) : !isPublicAddress(host)
}
