import { randomBytes } from 'node:crypto'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { dateAt } from '../../../../core/system/clock.ts'

/** Milliseconds for which a ticket can be redeemed. */
const TICKET_TTL_MS = 60_000
/** Milliseconds without a request until the files of a model can no longer be read. Other pulls may run first. */
const GRANT_IDLE_MS = 6 * 60 * 60_000
/** Maximum tickets and maximum tokens at a time. The oldest are dropped. */
const MAX_COUNT = 1000

/** The readable files: those of one revision of one model. */
type Grant = Pick<StoredVariant, 'key' | 'revision'> & { until: number }

/** Permissions to copy models of this server, in memory only. */
export class Tickets {
  readonly #tickets = new Map<string, Grant>()
  readonly #tokens = new Map<string, Grant>()

  /** Issues a ticket for one model, for one server to redeem. */
  issue({ key, revision }: StoredVariant): { ticket: string; expiresAt: Date } {
    const until = performance.now() + TICKET_TTL_MS
    const ticket = keep(this.#tickets, { key, revision, until })
    return { ticket, expiresAt: dateAt(until) }
  }

  /**
   * Redeems a ticket.
   * @returns what it permits, and the token to read the files with
   * @throws CorralError `unauthorized`
   */
  redeem(ticket: string): { grant: Pick<Grant, 'key' | 'revision'>; token: string } {
    const grant = this.#tickets.get(ticket)
    this.#tickets.delete(ticket)
    if (!grant || grant.until < performance.now()) {
      throw new CorralError(
        'unauthorized',
        'This ticket was not issued here, has been used, or has expired. A ticket can be used once, within a minute. Ask for another one (POST /api/cluster/tickets).'
      )
    }
    return { grant, token: keep(this.#tokens, { ...grant, until: performance.now() + GRANT_IDLE_MS }) }
  }

  /** Returns what the token of an `Authorization` header permits. @throws CorralError `unauthorized` */
  admitted(authorization: string | undefined): Pick<Grant, 'key' | 'revision'> {
    const token = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1] ?? ''
    const grant = this.#tokens.get(token)
    if (!grant || grant.until < performance.now()) {
      this.#tokens.delete(token)
      throw new CorralError(
        'unauthorized',
        'Files of models are sent only to servers that have redeemed a ticket. This token is unknown or has expired. Redeem another ticket.'
      )
    }
    grant.until = performance.now() + GRANT_IDLE_MS
    return grant
  }
}

/** Stores a grant under an unguessable name. */
function keep(grants: Map<string, Grant>, grant: Grant): string {
  const now = performance.now()
  for (const [name, { until }] of grants) if (until < now || grants.size >= MAX_COUNT) grants.delete(name)
  const name = randomBytes(32).toString('base64url')
  grants.set(name, grant)
  return name
}
