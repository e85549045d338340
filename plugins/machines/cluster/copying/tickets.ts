import { randomBytes } from 'node:crypto'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { dateAt } from '../../../../core/system/clock.ts'

/** Milliseconds for which a ticket can be redeemed. */
const TICKET_LIFE = 60_000
/** Milliseconds without a request after which the files of a model cannot be read any longer: other pulls may go first. */
const IDLE = 6 * 60 * 60_000
/** Most of each at a time; the oldest go first. */
const MAX_COUNT = 1000

/** Which files may be read: those of one revision of one model. */
type Grant = Pick<StoredVariant, 'key' | 'revision'> & { until: number }

/** Leave to copy models of this server. It is kept in memory: with the server it ends. */
export class Tickets {
  readonly #tickets = new Map<string, Grant>()
  readonly #tokens = new Map<string, Grant>()

  /** Makes a ticket for one model, good for one server that redeems it. */
  issue({ key, revision }: StoredVariant): { ticket: string; expiresAt: Date } {
    const until = performance.now() + TICKET_LIFE
    const ticket = keep(this.#tickets, { key, revision, until })
    return { ticket, expiresAt: dateAt(until) }
  }

  /**
   * Uses a ticket up.
   * @returns what it is for, and the token to read the files with
   * @throws CorralError `unauthorized`
   */
  redeem(ticket: string): { grant: Pick<Grant, 'key' | 'revision'>; token: string } {
    const grant = this.#tickets.get(ticket)
    this.#tickets.delete(ticket)
    if (!grant || grant.until < performance.now()) {
      throw new CorralError(
        'unauthorized',
        'This ticket was not made here, has been used, or is too old. A ticket is good once, for a minute: ask for another one (POST /api/cluster/tickets).'
      )
    }
    return { grant, token: keep(this.#tokens, { ...grant, until: performance.now() + IDLE }) }
  }

  /** What may be read with the token of an `Authorization` header. @throws CorralError `unauthorized` */
  admitted(authorization: string | undefined): Pick<Grant, 'key' | 'revision'> {
    const token = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1] ?? ''
    const grant = this.#tokens.get(token)
    if (!grant || grant.until < performance.now()) {
      this.#tokens.delete(token)
      throw new CorralError(
        'unauthorized',
        'Files of models are sent to servers that have redeemed a ticket for them. This token is of none, or too old: redeem another ticket.'
      )
    }
    grant.until = performance.now() + IDLE
    return grant
  }
}

/** Keeps a grant under a name that nobody can guess. */
function keep(grants: Map<string, Grant>, grant: Grant): string {
  const now = performance.now()
  for (const [name, { until }] of grants) if (until < now || grants.size >= MAX_COUNT) grants.delete(name)
  const name = randomBytes(32).toString('base64url')
  grants.set(name, grant)
  return name
}
