/*
 * Several corrals as one. A front answers for its members: it lists their models beside its own, and sends each request
 * to the member that answers it best. Which members there are it learns from sources.
 */

/** A server that answers for this one, as a way to know members tells of it. */
export interface KnownMember {
  /** Stable, and unique among the members of its source. */
  name: string
  /** Its address, such as `https://10.0.0.7:11500`. */
  url: string
  /** The key of an operator there. */
  key?: string
  /** The name that its certificate is made out to, where the address has another one. */
  tlsName?: string
}

/** A way to know members. */
export interface MemberSource {
  readonly name: string
  /**
   * Calls `changed` with all members, now and whenever they change. While it cannot know, it calls `fault` with why
   * (undefined once it knows again); the members that were known stay meanwhile.
   * @returns ends that
   */
  follow(told: {
    changed(members: readonly KnownMember[]): void
    fault(reason: string | undefined): void
  }): () => Promise<void> | void
  /** Where it can add machines: how many of its members there should be at least. Fewer are wanted again later. */
  want?(members: number): void
}

/** The members of this server. */
export interface Cluster {
  /** Adds a way to know members. @returns removes it, with its members. @throws Error when its name is taken */
  addSource(source: MemberSource): () => void
}
