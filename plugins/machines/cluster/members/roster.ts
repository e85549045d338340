import type { KnownMember, MemberSource } from '../../../../core/contracts/cluster.ts'
import { errorMessage } from '../../../../core/errors.ts'

/** A member as its source tells of it, under a name of its own among all members. */
export interface ListedMember extends KnownMember {
  /** Name of its source. */
  readonly source: string
}

interface FollowedSource {
  source: MemberSource
  members: readonly KnownMember[]
  hasTold: boolean
  /** Why it cannot know its members now; those that it knew stay. */
  fault: string | undefined
  end(): Promise<void> | void
}

/** All members that the sources tell of. */
export class Roster {
  readonly #sources = new Map<string, FollowedSource>()
  readonly #changed: (members: readonly ListedMember[]) => void
  readonly #faulty: (source: string, fault: string | undefined) => void
  #isOpen = false

  /**
   * @param told.changed called with all members whenever they change
   * @param told.faulty called when a source is at fault, and when it no longer is
   */
  constructor(told: {
    changed(members: readonly ListedMember[]): void
    faulty(source: string, fault: string | undefined): void
  }) {
    this.#changed = told.changed
    this.#faulty = told.faulty
  }

  /** Names of the sources, each with why it is at fault if it is. */
  get sources(): { name: string; fault: string | undefined; members: number }[] {
    return [...this.#sources].map(([name, { fault, members }]) => ({ name, fault, members: members.length }))
  }

  /** Adds a source, which is followed from `open` on. @returns removes it. @throws Error when its name is taken */
  add(source: MemberSource): () => void {
    if (this.#sources.has(source.name)) throw new Error(`There is a source of members named "${source.name}" already.`)
    const followed: FollowedSource = { source, members: [], hasTold: false, fault: undefined, end: () => {} }
    this.#sources.set(source.name, followed)
    if (this.#isOpen) this.#follow(followed)
    return () => void this.remove(source.name).catch(error => this.#faulty(source.name, errorMessage(error)))
  }

  /** Puts a source in the place of the one of its name, whose members stay until the new one tells of its own. */
  async replace(source: MemberSource): Promise<void> {
    const before = this.#sources.get(source.name)
    const followed: FollowedSource = {
      source,
      members: before?.members ?? [],
      hasTold: false,
      fault: undefined,
      end: () => {}
    }
    this.#sources.set(source.name, followed)
    if (this.#isOpen) this.#follow(followed)
    await before?.end()
  }

  /** Takes a source away, and with it its members. */
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

  /** Names of the sources that can add machines and have reported their members. */
  get growing(): string[] {
    return [...this.#sources].flatMap(([name, { source, hasTold }]) => (source.want && hasTold ? [name] : []))
  }

  /** Tells a source that can add machines how many members of it there should be at least. */
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
          fault(wrong && `it tells of a member "${wrong.name}" whose address is none: ${wrong.url}`)
          this.#report()
        },
        fault
      })
    } catch (error) {
      // A plugin's: the other sources go on.
      fault(errorMessage(error))
    }
  }

  #report(): void {
    const listed = new Map<string, ListedMember>()
    const addresses = new Set<string>()
    for (const [source, { members }] of this.#sources) {
      for (const member of members) {
        const { origin } = new URL(member.url)
        // Two sources may tell of the same server.
        if (addresses.has(origin)) continue
        addresses.add(origin)
        const name = listed.has(member.name) ? `${member.name}@${source}` : member.name
        listed.set(name, { ...member, name, source })
      }
    }
    this.#changed([...listed.values()])
  }
}

function isUsable({ url }: KnownMember): boolean {
  return URL.canParse(url) && /^https?:$/.test(new URL(url).protocol)
}
