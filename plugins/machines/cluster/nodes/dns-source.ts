import { promises as dns } from 'node:dns'
import { isIPv6 } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KnownMember, MemberSource } from '../../../../core/contracts/services.ts'
import { errorMessage, isSystemError } from '../../../../core/errors.ts'

/** The option `dns`, with the milliseconds between two lookups. */
type DnsSettings = { name: string; port: number; tls: boolean; key: string; interval: number }

/** Finds nodes behind a DNS name, which is looked up regularly: each address, or each target of an SRV record. */
export function dnsSource({ name, port, tls, key, interval }: DnsSettings): MemberSource {
  async function members(): Promise<KnownMember[]> {
    const more = key === '' ? {} : { key }
    const scheme = tls ? 'https' : 'http'
    if (name.startsWith('_')) {
      return (await dns.resolveSrv(name)).map(({ name, port }) => ({
        name: `${name}:${port}`,
        url: `${scheme}://${name}:${port}`,
        ...more
      }))
    }
    // The system resolves the name, so that search domains and the hosts file apply as usual.
    return (await dns.lookup(name, { all: true })).map(({ address }) => {
      const host = `${isIPv6(address) ? `[${address}]` : address}:${port}`
      // The certificate is issued for the name, not for changing addresses.
      return { name: host, url: `${scheme}://${host}`, ...more, ...(tls && { tlsName: name }) }
    })
  }

  return {
    name: 'dns',
    follow({ changed, fault }) {
      const ended = new AbortController()
      const { signal } = ended
      let before = ''
      const look = async () => {
        while (!signal.aborted) {
          try {
            const found = (await members()).sort((a, b) => (a.name < b.name ? -1 : 1))
            if (signal.aborted) return
            if (found.length === 0) throw new Error('it has no addresses')
            fault(undefined)
            const now = found.map(({ url }) => url).join(' ')
            if (now !== before) changed(found)
            before = now
          } catch (error) {
            const why = isSystemError(error, 'ENOTFOUND', 'ENODATA') ? 'there is no such name' : errorMessage(error)
            if (!signal.aborted) fault(`The DNS name "${name}" has no members: ${why}.`)
          }
          await sleep(interval, undefined, { signal, ref: false }).catch(() => {})
        }
      }
      void look()
      return () => ended.abort()
    }
  }
}
