import type { Engines } from './engines.ts'
import type { Downloads } from './hubs.ts'
import type { Scheduler } from './leases.ts'
import type { Catalog } from './models.ts'
import type { Storage } from './storage.ts'

/* A gateway lists its nodes' models beside its own. It learns its nodes from sources. */

export interface KnownMember {
  /** Stable, and unique among the nodes of its source. */
  name: string
  /** Its address, such as `https://10.0.0.7:11500`. */
  url: string
  /** An operator's key on the node. */
  key?: string
  /** The name in its certificate, if it differs from the address. */
  tlsName?: string
  /** For a machine that exactly one certificate identifies, and that identifies this one the same way. */
  pinned?: PinnedTls
  /** It belongs to somebody who uses it: it gets requests, but no copies and no replicas of models. */
  isGuest?: boolean
  /** Replicas of a model are spread over zones, such as racks. */
  zone?: string
}

/** Certificates in PEM. Only a machine with the certificate `ca` is accepted. `cert` and `key` identify this machine. */
export interface PinnedTls {
  ca: string
  cert: string
  key: string
  /** The name in the other machine's certificate. */
  servername: string
}

/** A source of nodes. */
export interface MemberSource {
  readonly name: string
  /**
   * Calls `changed` with all nodes, first immediately and then whenever they change. If it cannot list them, it calls
   * `fault` with the reason, and with undefined once it can again. The known nodes stay until then.
   * @returns stops following
   */
  follow(told: {
    changed(members: readonly KnownMember[]): void
    fault(reason: string | undefined): void
  }): () => Promise<void> | void
  /** For sources that can add machines: the minimum number of their nodes. Later calls may ask for fewer. */
  want?(members: number): void
}

/** The nodes of this server. */
export interface Cluster {
  /** Adds a source of nodes. @returns removes it and its nodes. @throws Error if its name is taken */
  addSource(source: MemberSource): () => void
}

/** The services of plugins, by name. Plugins and `built-in-services.ts` add others by declaration merging. */
export interface Services {
  storage: Storage
  catalog: Catalog
  downloads: Downloads
  scheduler: Scheduler
  engines: Engines
  cluster: Cluster
}
export type ServiceName = keyof Services & string
