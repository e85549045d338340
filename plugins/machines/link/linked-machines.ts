import { hostname, networkInterfaces } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { Agent, request } from 'undici'
import type { KnownMember, MemberSource } from '../../../core/contracts/services.ts'
import { errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { parseJson } from '../../../core/system/json-file.ts'
import { CERTIFICATE_NAME, type Identity } from './link-certificate.ts'
import {
  type About,
  AboutSchema,
  HELLO_PATH,
  latestAddresses,
  MACHINE_NAME,
  type Machine,
  originOf
} from './link-records.ts'
import type { LinkStore } from './link-store.ts'

/** Milliseconds between two visits to a reachable machine, and to an absent machine (first and maximum). */
const VISIT_MS = 15_000
const FIRST_RETRY_MS = 2000
const MAX_RETRY_MS = 60_000
/** Milliseconds that always pass between two visits. */
const MIN_PAUSE_MS = 500
/** Milliseconds that a machine has for an answer. */
const HELLO_TIMEOUT_MS = 5000

export type Presence = 'here' | 'absent' | 'refused'

interface State {
  presence: Presence
  since: Date
  /** Its address, while it is here. */
  url?: string
  /** Why it is absent. */
  reason: string
  /** Origins from announcements. Anybody can send these, so they are tried but never stored. */
  announced: string[]
  /** Ends the current wait until the next visit. */
  wake: AbortController
  /** Ends its visits. */
  ended: AbortController
  agent: Agent
}

interface LinkedMachinesOptions {
  store: LinkStore
  /** What this machine tells others about itself. */
  about(): About
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

/** Visits each linked machine regularly at its latest address, and reports the machines that answer to the cluster. */
export class LinkedMachines implements MemberSource {
  readonly name = 'link'
  readonly #options: LinkedMachinesOptions
  readonly #states = new Map<string, State>()
  #report: (members: readonly KnownMember[]) => void = () => {}

  constructor(options: LinkedMachinesOptions) {
    this.#options = options
  }

  follow({ changed }: Parameters<MemberSource['follow']>[0]): () => Promise<void> {
    this.#report = changed
    this.refresh()
    return async () => {
      this.#report = () => {}
      for (const state of this.#states.values()) await end(state)
      this.#states.clear()
    }
  }

  /** Begins and ends visits as the list of linked machines says. */
  refresh(): void {
    const { store } = this.#options
    for (const [id, state] of this.#states) {
      if (store.withId(id)) continue
      this.#states.delete(id)
      void end(state)
    }
    for (const machine of store.all()) {
      if (this.#states.has(machine.id)) continue
      const state: State = {
        ...{ presence: 'absent', since: new Date(), reason: 'it has not answered yet', announced: [] },
        ...{ wake: new AbortController(), ended: new AbortController() },
        agent: pinnedAgent(store.identity, machine)
      }
      this.#states.set(machine.id, state)
      // Its connection ends when it leaves. The next visit finds out.
      state.agent.on('disconnect', () => state.wake.abort())
      void this.#follow(machine.id, state)
    }
    this.#tell()
  }

  /** An announcement names addresses of a machine, which are tried soon if it is absent. */
  announced(id: string, addresses: readonly string[], port: number): void {
    const state = this.#states.get(id)
    if (!state) return
    state.announced = addresses.map(address => originOf(address, port))
    if (state.presence !== 'here') state.wake.abort()
  }

  /** A machine has told its addresses, which are tried soon if it is absent. */
  async told(id: string, addresses: readonly string[], port: number): Promise<void> {
    const { store } = this.#options
    const machine = store.withId(id)
    if (!machine) return
    const latest = latestAddresses(...addresses, ...machine.addresses)
    if (port !== machine.port || latest.join() !== machine.addresses.join()) {
      await store.update(id, { addresses: latest, port })
    }
    const state = this.#states.get(id)
    if (state && state.presence !== 'here') state.wake.abort()
  }

  presence(id: string) {
    const { presence = 'absent', since, reason = '', url } = this.#states.get(id) ?? {}
    return { presence, since, reason, url }
  }

  async #follow(id: string, state: State): Promise<void> {
    const { signal } = state.ended
    let wait = FIRST_RETRY_MS
    while (!signal.aborted) {
      state.wake = new AbortController()
      const machine = this.#options.store.withId(id)
      if (!machine) break
      await this.#visit(machine, state)
      if (signal.aborted) break
      wait = state.presence === 'here' ? FIRST_RETRY_MS : Math.min(MAX_RETRY_MS, wait * 2)
      const pause = state.presence === 'here' ? VISIT_MS : wait
      // Anybody can send announcements, which must not cause a flood of connections.
      await sleep(MIN_PAUSE_MS, undefined, { signal, ref: false }).catch(() => {})
      await sleep(pause, undefined, { signal: AbortSignal.any([signal, state.wake.signal]), ref: false }).catch(
        () => {}
      )
    }
  }

  /** Greets a machine at its last address, otherwise at all of its addresses at once. */
  async #visit(machine: Machine, state: State): Promise<void> {
    const own = machine.addresses.map(address => originOf(address, machine.port))
    const origins = [...new Set([...own, ...state.announced])]
    let reason = ''
    const greet = async (origin: string) => {
      const answer = await this.#hello(origin, state)
      return { origin, answer }
    }
    try {
      const { origin, answer } = await (state.url === undefined
        ? Promise.any(origins.map(greet))
        : greet(state.url).catch(() => Promise.any(origins.map(greet))))
      this.#set(machine, state, answer === undefined ? 'refused' : 'here', { url: origin })
      if (answer) await this.#remember(machine, origin, answer)
      return
    } catch (error) {
      const [first = error] = error instanceof AggregateError ? error.errors : [error]
      reason = errorMessage(first)
    }
    if (!state.ended.signal.aborted) this.#set(machine, state, 'absent', { reason })
  }

  /** @returns what it says of itself; undefined if it no longer knows this machine @throws Error if it is not there */
  async #hello(origin: string, { agent, ended }: State): Promise<About | undefined> {
    const { statusCode, body } = await request(origin + HELLO_PATH, {
      method: 'POST',
      dispatcher: agent,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(this.#options.about()),
      signal: AbortSignal.any([ended.signal, abortAfter(HELLO_TIMEOUT_MS)])
    })
    const text = await body.text()
    if (statusCode === 403) return undefined
    const { value, fault } = parseJson(text, AboutSchema)
    if (statusCode !== 200 || !value)
      throw new Error(`it answered with status ${statusCode}${fault ? `: ${fault}` : ''}`)
    return value
  }

  async #remember({ id, addresses, port, macs }: Machine, origin: string, about: About): Promise<void> {
    const latest = latestAddresses(hostOf(origin), ...about.addresses, ...addresses)
    const isSame = [latest, about.macs, about.port].join() === [addresses, macs, port].join()
    if (isSame) return
    await this.#options.store.update(id, { addresses: latest, port: about.port, macs: about.macs }).catch(error => {
      this.#options.log.warn({ reason: errorMessage(error) }, 'the addresses of a linked machine were not saved')
    })
  }

  #set({ name }: Machine, state: State, presence: Presence, { url, reason = '' }: { url?: string; reason?: string }) {
    const isSame = presence === state.presence && url === state.url
    state.reason = reason
    if (isSame) return
    if (presence !== state.presence) {
      state.since = new Date()
      this.#options.log.info({ machine: name, ...(reason && { reason }) }, `a linked machine is ${presence}`)
    }
    state.presence = presence
    if (url === undefined) delete state.url
    else state.url = url
    this.#tell()
  }

  /** Absent machines are not reported, so that nobody waits for them. */
  #tell(): void {
    const { identity, all } = this.#options.store
    this.#report(
      all().flatMap(machine => {
        const { presence, url } = this.#states.get(machine.id) ?? {}
        if (presence !== 'here' || url === undefined) return []
        return [{ name: machine.name, url, isGuest: true, pinned: pinnedTls(identity, machine) }]
      })
    )
  }
}

async function end({ ended, agent }: State): Promise<void> {
  ended.abort()
  await agent.destroy()
}

const pinnedTls = ({ certificate, key }: Identity, machine: Pick<Machine, 'certificate'>) => ({
  ca: machine.certificate,
  cert: certificate,
  key,
  servername: CERTIFICATE_NAME
})

const pinnedAgent = (identity: Identity, machine: Pick<Machine, 'certificate'>) =>
  new Agent({ connect: { ...pinnedTls(identity, machine), timeout: HELLO_TIMEOUT_MS } })

const hostOf = (origin: string) => new URL(origin).hostname.replace(/^\[|\]$/g, '')

/** What this machine tells others about itself. @param name from the settings; the host name if empty */
export function describeMachine(name: string, port: number): About {
  const all = Object.values(networkInterfaces()).flatMap(found => found ?? [])
  const outer = all.filter(({ internal, address }) => !internal && !/^fe80:/i.test(address))
  const ordered = outer.toSorted((a, b) => a.family.localeCompare(b.family))
  const macs = new Set(outer.map(({ mac }) => mac.toLowerCase()).filter(mac => mac !== '00:00:00:00:00:00'))
  const own = hostname().replace(/\..*$/, '').slice(0, 64)
  const given = name === '' ? own : name
  return {
    machine: new RegExp(MACHINE_NAME).test(given) ? given : 'corral',
    port,
    addresses: latestAddresses(...ordered.map(({ address }) => address)),
    macs: [...macs].slice(0, 16)
  }
}
