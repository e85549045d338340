import { promises as dns } from 'node:dns'
import { isIPv6 } from 'node:net'
import type { KnownMember, MemberSource } from '../../../../core/contracts/cluster.ts'
import { errorMessage, isSystemError } from '../../../../core/errors.ts'

export interface DnsSettings {
  /** The name of a headless Service, or of an SRV record with `_service._tcp.` in front. Empty means none. */
  name: string
  port: number
  tls: boolean
  key: string
  /** Milliseconds between two lookups. */
  interval: number
}

/** Looks names up. Tests replace it. */
export interface Lookups {
  /** By the system, so that search domains and the hosts file apply as for all programs. */
  addresses(name: string): Promise<string[]>
  services(name: string): Promise<{ name: string; port: number }[]>
}

const systemLookups: Lookups = {
  addresses: async name => (await dns.lookup(name, { all: true })).map(({ address }) => address),
  services: name => dns.resolveSrv(name)
}

/** Finds nodes behind a DNS name, which is looked up regularly: each address, or each target of an SRV record. */
export function dnsSource(settings: DnsSettings, lookups: Lookups = systemLookups): MemberSource {
  const { name, port, tls, key, interval } = settings
  const isService = name.startsWith('_')

  async function members(): Promise<KnownMember[]> {
    const more = key === '' ? {} : { key }
    const scheme = tls ? 'https' : 'http'
    if (isService) {
      const targets = await lookups.services(name)
      return targets.map(({ name, port }) => ({ name: `${name}:${port}`, url: `${scheme}://${name}:${port}`, ...more }))
    }
    return (await lookups.addresses(name)).map(address => {
      const host = `${isIPv6(address) ? `[${address}]` : address}:${port}`
      // The certificate is issued for the name, not for changing addresses.
      return { name: host, url: `${scheme}://${host}`, ...more, ...(tls && { tlsName: name }) }
    })
  }

  return {
    name: 'dns',
    follow({ changed, fault }) {
      let timer: NodeJS.Timeout | undefined
      let before = ''
      let isOver = false
      const look = async () => {
        try {
          const found = (await members()).sort((a, b) => (a.name < b.name ? -1 : 1))
          if (isOver) return
          if (found.length === 0) throw new Error('it has no addresses')
          fault(undefined)
          const now = found.map(({ url }) => url).join(' ')
          if (now !== before) changed(found)
          before = now
        } catch (error) {
          const why = isSystemError(error, 'ENOTFOUND', 'ENODATA') ? 'there is no such name' : errorMessage(error)
          if (!isOver) fault(`The DNS name "${name}" has no members: ${why}.`)
        }
        if (!isOver) timer = setTimeout(look, interval).unref()
      }
      void look()
      return () => {
        isOver = true
        clearTimeout(timer)
      }
    }
  }
}
