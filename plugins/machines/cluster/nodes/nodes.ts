import { promises as dns } from 'node:dns'
import { isIPv6 } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Elsewhere } from '../../../../core/contracts/built-in-services.ts'
import type { BroughtModel, Model } from '../../../../core/contracts/models.ts'
import type { MemberRecord, PrefixesRecord } from '../../../../core/contracts/native-records.ts'
import type { KnownMember, MemberSource } from '../../../../core/contracts/services.ts'
import type { StateTopic } from '../../../../core/contracts/state-events.ts'
import { CorralError, errorMessage, isSystemError } from '../../../../core/errors.ts'
import { formatModelName } from '../../../../core/models/model-name.ts'
import type { DescribedModel } from '../asking/ask-protocol.ts'
import { ClusterView } from '../placement/choose-node.ts'
import { PrefixMemory } from '../placement/prefix-memory.ts'
import type { Asker } from '../rollout/next-step.ts'
import { isOtherRevision, otherRevision } from '../rollout/revision-names.ts'
import { type AcceptedFiles, ClusterNode, type ListedNode, type NodeOptions } from './node.ts'

interface MembersOptions {
  settings: Pick<NodeOptions, 'connectTimeout' | 'ca' | 'silence'>
  /** Called when records of this topic may have changed. */
  stateChanged(topic: StateTopic): void
  /** Called when the input of placement may have changed. */
  changed(): void
  /** Called when an engine of a node is gone. `model` is as `modelKey` returns it. */
  unloaded(member: string, model: string): void
  log: FastifyBaseLogger
}

/** All nodes of this server, their models, and the requests sent to them. */
export class ClusterNodes {
  readonly view = new ClusterView()
  readonly prefixes = new PrefixMemory()
  readonly roster: Roster
  readonly #members = new Map<string, ClusterNode>()
  readonly #options: MembersOptions
  /** Returns the nodes that a request for a model may not go to, if a rollout divides the requests. */
  divide: ((model: string, asker: Asker) => ReadonlySet<string>) | undefined
  /** Returns what a rollout does at a node now. */
  rolloutAt: ((member: string) => string | undefined) | undefined
  /** Removed nodes that still answer. */
  readonly #leaving = new Set<ClusterNode>()
  /** The models for the catalog, rebuilt when a node's models have changed. */
  #brought: readonly BroughtModel[] = []
  readonly #known = new WeakMap<DescribedModel, BroughtModel>()
  /** By key: the names of models on this server. */
  #names = new Map<string, string>()
  #isListed = false
  /** Requests for text since the start, by why they went to their node. */
  readonly #routed: PrefixesRecord['requests'] = { prefix: 0, session: 0, other: 0 }

  constructor(options: MembersOptions) {
    this.#options = options
    this.roster = createRoster(members => this.#take(members), options.log)
  }

  /** Follows the sources. Resolves when each node known by then was reached, or could not be. */
  async open(): Promise<void> {
    this.roster.open()
    await Promise.all([...this.#members.values()].map(({ met }) => met))
  }

  async close(): Promise<void> {
    await this.roster.close()
    await Promise.all([...this.#members.values(), ...this.#leaving].map(member => member.close()))
  }

  get(name: string): ClusterNode | undefined {
    return this.#members.get(name)
  }

  all(): ClusterNode[] {
    return [...this.#members.values()]
  }

  /** Returns the node with this name. @throws CorralError `member_not_found` */
  require(name: string): ClusterNode {
    const member = this.#members.get(name)
    if (member) return member
    const names = [...this.#members.keys()]
    const known = names.length === 0 ? 'There are none.' : `There are ${names.slice(0, 20).join(', ')}.`
    throw new CorralError('member_not_found', `There is no member "${name}". ${known}`, { param: 'member' })
  }

  /** Returns the models of all nodes for the catalog. Returns the same objects until something changes. */
  brought(): readonly BroughtModel[] {
    if (!this.#isListed) this.#list()
    return this.#brought
  }

  /** Returns the nodes' description of a model, by the key of its variant. */
  described(key: string): DescribedModel | undefined {
    for (const { models } of this.#members.values()) {
      const model = models.get(key)
      if (model) return model
    }
    return undefined
  }

  nameAt(member: ClusterNode, { key }: Pick<Model, 'key'>): string | undefined {
    const model = member.models.get(key)
    return model && formatModelName({ owner: model.owner, name: model.name, variant: model.label })
  }

  elsewhere(): Omit<Elsewhere, 'replicas' | 'wanted'> {
    return { ...this.held(), members: this.records(), prefixes: this.prefixesRecord() }
  }

  /** Counts a request for text that goes to a node. @param why as `chooseNode` returns it */
  routed(why: string): void {
    this.#routed[why === 'prefix' || why === 'session' ? why : 'other']++
  }

  prefixesRecord(): PrefixesRecord | undefined {
    if (this.#members.size === 0) return undefined
    return { conversations: this.prefixes.size.sequences, requests: { ...this.#routed } }
  }

  /** Returns the models in the nodes' memory, under the names of this server. */
  held(): Pick<Elsewhere, 'running' | 'loading'> {
    const held = this.all().map(member => member.held(key => this.#names.get(key)))
    return { running: held.flatMap(({ running }) => running), loading: held.flatMap(({ loading }) => loading) }
  }

  records(): MemberRecord[] {
    const builds = this.all().flatMap(({ build, view }) => (view.state === 'away' ? [] : (build ?? [])))
    const usual = mostFrequent(builds)
    return this.all().map(member => {
      const { build } = member
      const isOther = build !== undefined && usual !== undefined && build !== usual
      const record = member.record(isOther ? [`It runs build ${build}, and most others run ${usual}.`] : [])
      const rollout = this.rolloutAt?.(member.name)
      return rollout === undefined ? record : { ...record, rollout }
    })
  }

  #take(listed: readonly ListedNode[]): void {
    const { log, settings } = this.#options
    const wanted = new Map(listed.map(member => [member.name, member]))
    for (const [name, member] of this.#members) {
      const now = wanted.get(name)
      if (now && isSame(now, member.known)) wanted.delete(name)
      else this.#remove(member)
    }
    for (const member of wanted.values()) {
      try {
        const joined = new ClusterNode(member, {
          ...settings,
          changed: (member, what) => this.#changed(member, what),
          unloaded: ({ name, view }, model) => {
            if (view.models.get(model)?.storedTokens) this.prefixes.emptySlots(name, model)
            else this.prefixes.forget(name, model)
            this.#options.unloaded(name, model)
          },
          findTwin: (member, id) => this.all().find(other => other !== member && other.id === id),
          log
        })
        this.#members.set(member.name, joined)
        this.view.set(joined.view)
      } catch (error) {
        log.error({ member: member.name, reason: errorMessage(error) }, 'a member cannot be connected to')
      }
    }
    this.#relist()
    this.#options.stateChanged('member')
    this.#options.changed()
  }

  /** Removes a node. It gets no more requests, and finishes its current ones. */
  #remove(member: ClusterNode): void {
    this.#members.delete(member.name)
    this.view.remove(member.name)
    this.prefixes.forget(member.name)
    void member.leave()
    this.#leaving.add(member)
    const look = () => {
      if (member.sent > 0) return void setTimeout(look, 1000).unref()
      this.#leaving.delete(member)
      void member.close()
    }
    look()
  }

  #changed(member: ClusterNode, what: 'state' | 'models' | 'figures'): void {
    const { stateChanged } = this.#options
    if (this.#members.get(member.name) === member) {
      if (what === 'models') this.#relist()
      else if (what === 'state') this.view.set(member.view)
    }
    stateChanged('member')
    stateChanged('engine')
    this.#options.changed()
  }

  /** Decides again which files count for each model. */
  #relist(): void {
    this.#isListed = false
    const models = this.all().flatMap(({ models }) => [...models.values()])
    const accepted = acceptedFiles(models, this.all())
    for (const member of this.#members.values()) member.refresh(accepted)
    this.#options.stateChanged('model')
  }

  #list(): void {
    this.#isListed = true
    const all = this.all().flatMap(({ models }) => [...models.values()].filter(({ key }) => !isOtherRevision(key)))
    // The first node that has a model describes it.
    const models = new Map(all.toReversed().map(model => [model.key, model]))
    /** By `owner/name` in lower case: the variant that most nodes have as the default one. */
    const usual = mostFrequentBy(all.flatMap(model => (model.isDefault ? [[bareKey(model), model.label]] : [])))
    const isDefault = (model: DescribedModel) => usual.get(bareKey(model)) === model.label
    const ordered = [...models.values()].sort(
      (a, b) => compare(bareKey(a), bareKey(b)) || Number(isDefault(b)) - Number(isDefault(a)) || compare(a.key, b.key)
    )
    this.#names = new Map()
    const seen = new Set<string>()
    this.#brought = ordered.map(model => {
      const name = bareKey(model)
      const isFirst = !seen.has(name)
      seen.add(name)
      this.#names.set(model.key, isFirst ? `${model.owner}/${model.name}` : getName(model))
      const known = this.#known.get(model)
      if (known) return known
      const { metadata, size, digest, modifiedAt, defaults } = model
      const { contextLength, capabilities } = metadata
      const brought = {
        ...{ name: getName(model), capabilities, metadata, size, digest, modifiedAt },
        ...(contextLength !== undefined && { contextLength }),
        ...(defaults && { defaults })
      }
      this.#known.set(model, brought)
      return brought
    })
    // The catalog reads a frozen list once.
    Object.freeze(this.#brought)
  }
}

/**
 * Returns which files count for each model. If nodes differ, the majority decides. Ties go to the first value. During a
 * rollout, both revisions of a node that has both count.
 */
export function acceptedFiles(
  models: readonly Pick<DescribedModel, 'key' | 'digest'>[],
  members: readonly { models: ReadonlyMap<string, Pick<DescribedModel, 'digest'>> }[]
): AcceptedFiles {
  const usual = mostFrequentBy(models.map(({ key, digest }) => [key, digest]))
  const accepted = new Map([...usual].map(([key, digest]) => [key, new Set([digest])]))
  for (const { models } of members) {
    for (const [key, { digest }] of models) {
      const other = models.get(otherRevision(key))
      if (other) accepted.get(key)!.add(digest).add(other.digest)
      // Clients never ask for it by its own name.
      accepted.delete(otherRevision(key))
    }
  }
  return accepted
}

const bareKey = ({ owner, name }: DescribedModel) => `${owner}/${name}`.toLowerCase()
const getName = ({ owner, name, label }: DescribedModel) => `${owner}/${name}:${label}`
const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0)

const isSame = (a: ListedNode, b: ListedNode) =>
  a.url === b.url && a.key === b.key && a.zone === b.zone && a.tlsName === b.tlsName && a.pinned?.ca === b.pinned?.ca

/** Returns the most frequent value of each key. Ties go to the first value. */
function mostFrequentBy(pairs: readonly (readonly string[])[]): Map<string, string> {
  const values = new Map<string, string[]>()
  for (const [key, value] of pairs as [string, string][]) {
    const known = values.get(key)
    if (known) known.push(value)
    else values.set(key, [value])
  }
  return new Map([...values].map(([key, list]) => [key, mostFrequent(list)!]))
}

/** Returns the most frequent item of a list. Ties go to the first item. */
function mostFrequent<Item>(items: readonly Item[]): Item | undefined {
  const counts = new Map<Item, number>()
  for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1)
  const most = Math.max(...counts.values())
  return [...counts].find(([, count]) => count === most)?.[0]
}

interface FollowedSource {
  source: MemberSource
  members: readonly KnownMember[]
  hasTold: boolean
  /** Why it cannot report its nodes now. Known nodes stay. */
  fault: string | undefined
  end(): Promise<void> | void
}

export type Roster = ReturnType<typeof createRoster>

/** Collects the nodes that the sources report. @param changed gets all nodes */
export function createRoster(
  changed: (members: readonly ListedNode[]) => void,
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
) {
  const sources = new Map<string, FollowedSource>()
  let isOpen = false

  function set(source: MemberSource, members: readonly KnownMember[] = []): void {
    const followed: FollowedSource = { source, members, hasTold: false, fault: undefined, end: () => {} }
    sources.set(source.name, followed)
    if (isOpen) follow(followed)
  }

  async function remove(name: string): Promise<void> {
    const followed = sources.get(name)
    if (!followed) return
    sources.delete(name)
    report()
    await followed.end()
  }

  function follow(followed: FollowedSource): void {
    const { source } = followed
    const isMine = () => isOpen && sources.get(source.name) === followed
    const fault = (reason: string | undefined) => {
      if (!isMine() || followed.fault === reason) return
      followed.fault = reason
      if (reason === undefined) log.info({ source: source.name }, 'a source of members works again')
      else log.warn({ source: source.name, reason }, 'a source of members fails; the known members stay')
    }
    try {
      followed.end = source.follow({
        changed: members => {
          if (!isMine()) return
          followed.hasTold = true
          followed.members = members.filter(member => isUsable(member))
          const wrong = members.find(member => !isUsable(member))
          fault(wrong && `its member "${wrong.name}" has an invalid address: ${wrong.url}`)
          report()
        },
        fault
      })
    } catch (error) {
      // A plugin's fault must not affect the other sources.
      fault(errorMessage(error))
    }
  }

  function report(): void {
    const listed = new Map<string, ListedNode>()
    const addresses = new Set<string>()
    for (const [source, { members }] of sources) {
      for (const member of members) {
        const { origin } = new URL(member.url)
        // Two sources may report the same server.
        if (addresses.has(origin)) continue
        addresses.add(origin)
        const name = listed.has(member.name) ? `${member.name}@${source}` : member.name
        listed.set(name, { ...member, name, source })
      }
    }
    changed([...listed.values()])
  }

  return {
    sources: () => [...sources].map(([name, { fault, members }]) => ({ name, fault, members: members.length })),

    /** Names of the sources that can add machines and have reported their nodes. */
    growing: () => [...sources].flatMap(([name, { source, hasTold }]) => (source.want && hasTold ? [name] : [])),

    /** Adds a source, which is followed after `open`. @returns removes it. @throws Error if its name is taken */
    add(source: MemberSource): () => void {
      if (sources.has(source.name)) throw new Error(`A source of members named "${source.name}" already exists.`)
      set(source)
      return () => void remove(source.name).catch(error => log.warn(error, 'a source of members did not end'))
    },

    /** Replaces the source with this name. The nodes of the old source stay until the new one reports its own. */
    async replace(source: MemberSource): Promise<void> {
      const before = sources.get(source.name)
      set(source, before?.members)
      await before?.end()
    },

    remove,

    open(): void {
      isOpen = true
      for (const followed of sources.values()) follow(followed)
    },

    async close(): Promise<void> {
      isOpen = false
      await Promise.all([...sources.values()].map(({ end }) => end()))
    },

    /** Tells a source that can add machines its minimum number of nodes. */
    want: (name: string, members: number) => sources.get(name)?.source.want?.(members)
  }
}

const isUsable = ({ url }: KnownMember): boolean => URL.canParse(url) && /^https?:$/.test(new URL(url).protocol)

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
