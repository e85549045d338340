import type { EventEmitter } from 'node:events'
import { Bonjour } from 'bonjour-service'
import type { FastifyBaseLogger } from 'fastify'
import { latestAddresses } from './link-records.ts'

/** DNS-SD types (RFC 6763): machines that are linked, and machines that show a code. */
const LINKED = 'corral-link'
const PAIRING = 'corral-pair'

/** A machine that announces itself. Nothing in an announcement is secret, and nothing in it is trusted. */
export interface Announced {
  addresses: string[]
  port: number
}

/** Finds machines in the local network by multicast DNS, and lets them find this one. */
export type Discovery = ReturnType<typeof openDiscovery>

export function openDiscovery(log: Pick<FastifyBaseLogger, 'warn'>) {
  // One broken network interface must not end anything: machines can also be named.
  const fault = (error: Error) => log.warn({ reason: error.message }, 'machines cannot be found in the network')
  const mdns = new Bonjour({}, fault)
  // Errors of this socket would end the process. The library's types hide it.
  const { server } = mdns as unknown as { server: { mdns: EventEmitter } }
  server.mdns.on('error', fault)
  const stops = new Map<string, () => void>()

  function announce(type: string, name: string, port: number, txt: Record<string, string>) {
    stops.get(type)?.()
    const service = mdns.publish({ name, type, port, txt, probe: false })
    service.on('error', () => {})
    stops.set(type, () => service.stop?.())
  }

  return {
    /** Announces that this machine is linked. It says its id, and no names of other machines. */
    announceLinked: (id: string, port: number) => announce(LINKED, `corral ${id}`, port, { id }),
    announceCode: (id: string, port: number, hint: string) => announce(PAIRING, `corral ${id}`, port, { hint }),
    endCode() {
      stops.get(PAIRING)?.()
      stops.delete(PAIRING)
    },
    /** Calls `found` for each linked machine that appears, also after its address has changed. */
    follow(found: (id: string, at: Announced) => void): void {
      mdns.find({ type: LINKED }, service => {
        const { id } = (service.txt ?? {}) as { id?: unknown }
        if (typeof id === 'string') found(id, toAnnounced(service))
      })
    },
    /** Looks for machines that show a code with this beginning. Ends when one was found, or with the signal. */
    async findCode(hint: string, signal: AbortSignal): Promise<Announced[]> {
      const found: Announced[] = []
      await new Promise<void>(resolve => {
        const browser = mdns.find({ type: PAIRING }, service => {
          if ((service.txt as { hint?: unknown } | undefined)?.hint !== hint) return
          found.push(toAnnounced(service))
          end()
        })
        const again = setInterval(() => browser.update(), 1000)
        const end = () => {
          clearInterval(again)
          browser.stop()
          resolve()
        }
        signal.addEventListener('abort', end, { once: true })
      })
      return found
    },
    async close(): Promise<void> {
      await new Promise<void>(resolve => mdns.unpublishAll(() => resolve()))
      mdns.destroy()
    }
  }
}

function toAnnounced(service: { addresses?: string[]; referer?: { address: string }; port: number }): Announced {
  const addresses = [service.referer?.address ?? [], service.addresses ?? []].flat()
  return { addresses: latestAddresses(...addresses.filter(address => !/^fe80:/i.test(address))), port: service.port }
}
