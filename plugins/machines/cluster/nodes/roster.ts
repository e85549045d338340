import type { KnownMember, MemberSource } from '../../../../core/contracts/services.ts'
import { errorMessage } from '../../../../core/errors.ts'

/** A node as its source reports it, with a name unique among all nodes. */
export interface ListedNode extends KnownMember {
  readonly source: string
}

interface FollowedSource {
  source: MemberSource
  members: readonly KnownMember[]
  hasTold: boolean
  /** Why it cannot report its nodes now. Known nodes stay. */
  fault: string | undefined
  end(): Promise<void> | void
}

/** All nodes that the sources report. */
export class Roster {
  readonly #sources = new Map<string, FollowedSource>()
  readonly #changed: (members: readonly ListedNode[]) => void
  readonly #faulty: (source: string, fault: string | undefined) => void
  #isOpen = false

  /** `changed` gets all nodes. `faulty` is called when a source fails, and when it works again. */
  constructor(told: {
    changed(members: readonly ListedNode[]): void
    faulty(source: string, fault: string | undefined): void
  }) {
    this.#changed = told.changed
    this.#faulty = told.faulty
  }

  get sources(): { name: string; fault: string | undefined; members: number }[] {
    return [...this.#sources].map(([name, { fault, members }]) => ({ name, fault, members: members.length }))
  }

  /** Adds a source, which is followed after `open`. @returns removes it. @throws Error if its name is taken */
  add(source: MemberSource): () => void {
    if (this.#sources.has(source.name)) throw new Error(`A source of members named "${source.name}" already exists.`)
    this.#set(source)
    return () => void this.remove(source.name).catch(error => this.#faulty(source.name, errorMessage(error)))
  }

  /** Replaces the source with this name. The nodes of the old source stay until the new one reports its own. */
  async replace(source: MemberSource): Promise<void> {
    const before = this.#sources.get(source.name)
    this.#set(source, before?.members)
    await before?.end()
  }

  #set(source: MemberSource, members: readonly KnownMember[] = []): void {
    const followed: FollowedSource = { source, members, hasTold: false, fault: undefined, end: () => {} }
    this.#sources.set(source.name, followed)
    if (this.#isOpen) this.#follow(followed)
  }

  async remove(name: string): Promise<void> {
    const followed = this.#sources.get(name)
    if (!followed) return
    this.#sources.delete(name)
    this.#report()
    await followed.end()
  }

  open(): void {
    this.#isOpen = true
    for (const followed of this.#sources.values()) this.#follow(followed)
  }

  async close(): Promise<void> {
    this.#isOpen = false
    await Promise.all([...this.#sources.values()].map(({ end }) => end()))
  }

  /** Names of the sources that can add machines and have reported their nodes. */
  get growing(): string[] {
    return [...this.#sources].flatMap(([name, { source, hasTold }]) => (source.want && hasTold ? [name] : []))
  }

  /** Tells a source that can add machines its minimum number of nodes. */
  want(name: string, members: number): void {
    this.#sources.get(name)?.source.want?.(members)
  }

  #follow(followed: FollowedSource): void {
    const { source } = followed
    const isMine = () => this.#isOpen && this.#sources.get(source.name) === followed
    const fault = (reason: string | undefined) => {
      if (!isMine() || followed.fault === reason) return
      followed.fault = reason
      this.#faulty(source.name, reason)
    }
    try {
      followed.end = source.follow({
        changed: members => {
          if (!isMine()) return
          followed.hasTold = true
          followed.members = members.filter(member => isUsable(member))
          const wrong = members.find(member => !isUsable(member))
          fault(wrong && `its member "${wrong.name}" has an invalid address: ${wrong.url}`)
          this.#report()
        },
        fault
      })
    } catch (error) {
      // A plugin's fault must not affect the other sources.
      fault(errorMessage(error))
    }
  }

  #report(): void {
    const listed = new Map<string, ListedNode>()
    const addresses = new Set<string>()
    for (const [source, { members }] of this.#sources) {
      for (const member of members) {
        const { origin } = new URL(member.url)
        // Two sources may report the same server.
        if (addresses.has(origin)) continue
        addresses.add(origin)
        const name = listed.has(member.name) ? `${member.name}@${source}` : member.name
        listed.set(name, { ...member, name, source })
      }
    }
    this.#changed([...listed.values()])
  }
}

const isUsable = ({ url }: KnownMember): boolean => URL.canParse(url) && /^https?:$/.test(new URL(url).protocol)
