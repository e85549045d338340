import { BlockList, isIP } from 'node:net'

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8)
LOOPBACK.addAddress('::1', 'ipv6')

const PRIVATE = new BlockList()
for (const [address, bits] of [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.168.0.0', 16]
] as const) {
  PRIVATE.addSubnet(address, bits)
}
PRIVATE.addAddress('::', 'ipv6')
PRIVATE.addAddress('::1', 'ipv6')
PRIVATE.addSubnet('fc00::', 7, 'ipv6')
PRIVATE.addSubnet('fe80::', 10, 'ipv6')

/** A URL's host name without brackets and the dot of the root. */
function bare(hostname: string): string {
  return hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.$/, '')
    .toLowerCase()
}

function listed(list: BlockList, host: string): boolean {
  const version = isIP(host)
  return version !== 0 && list.check(host, version === 6 ? 'ipv6' : 'ipv4')
}

/** Whether a URL's host name is this machine itself. Names other than `localhost` are not looked up. */
export function isLoopback(hostname: string): boolean {
  const host = bare(hostname)
  return host === 'localhost' || host.endsWith('.localhost') || listed(LOOPBACK, host)
}

/**
 * Whether a URL's host name says that it is on this machine or in a private network: by its address, or as a name that
 * no public server has.
 */
export function isPrivateHost(hostname: string): boolean {
  const host = bare(hostname)
  if (isLoopback(host) || listed(PRIVATE, host)) return true
  return isIP(host) === 0 && (!host.includes('.') || /\.(local|lan|internal|home|intranet|home\.arpa)$/.test(host))
}
