import { randomBytes } from 'node:crypto'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { Catalog } from '../../../../core/contracts/models.ts'
import { Sha256, Time } from '../../../../core/contracts/native-records.ts'
import type { Progress } from '../../../../core/contracts/progress.ts'
import { requireFiles, type Storage, type StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { clientSignal } from '../../../../core/http/client-disconnect.ts'
import { endWithFailure, openReplyStream } from '../../../../core/http/reply-stream.ts'
import { Given, Loose, Titled } from '../../../../core/http/request-fields.ts'
import { DOWNLOAD_ERRORS, FILE_ERRORS, json, nativeRouter } from '../../../../core/http/response-schemas.ts'
import { FILE_REPLIES, sendStoredFile } from '../../../../core/http/stored-file-reply.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { parseModelName, parseRequestedName } from '../../../../core/models/model-name.ts'
import { dateAt } from '../../../../core/system/clock.ts'
import { type DescribedModel, MEMBER_LINES, parseTrailers } from '../asking/ask-protocol.ts'
import { OfferSchema, type SourceFiles } from './source-files.ts'

interface Dependencies {
  storage: Storage
  catalog: Catalog
  sources: SourceFiles
  describe(variant: StoredVariant): DescribedModel
}

const TicketSchema = Titled('CopyTicket', {
  ticket: Type.String({ description: 'Valid once' }),
  expires_at: Time()
})

export function copyRoutes({ storage, catalog, sources, describe }: Dependencies): FastifyPluginAsync {
  const tickets = new Tickets()

  function granted({ key, revision }: Pick<StoredVariant, 'key' | 'revision'>): StoredVariant {
    const variant = storage.find(parseModelName(key))
    if (variant?.revision === revision) return variant
    throw new CorralError('model_not_found', 'The model of this ticket is no longer here. Ask for a new ticket.')
  }

  return async instance => {
    const route = nativeRouter(instance, 'Cluster')

    route('POST /tickets', 'issueTicket', 'Let another server copy a model', {
      role: 'operator',
      description:
        'A gateway passes the ticket to the member that lacks the model, which then needs no key here. It is valid once, for one model.',
      body: Loose({ model: Type.String({ minLength: 1, description: 'Its name here' }) }, { title: 'TicketRequest' }),
      response: { 200: json('The ticket', TicketSchema) },
      errors: [...FILE_ERRORS, 'forbidden_model'],
      handler: async ({ body, caller }) => {
        const variant = requireFiles(catalogFor(catalog, caller).get(parseRequestedName(body.model)))
        const { ticket, expiresAt } = tickets.issue(variant)
        return { ticket, expires_at: expiresAt.toISOString() }
      }
    })

    route('POST /tickets/redeem', 'redeemTicket', 'Redeem a ticket for a model', {
      role: 'anyone',
      description: 'The ticket authorizes the caller.',
      body: Loose({ ticket: Type.String({ minLength: 1, maxLength: 200 }) }, { title: 'RedeemRequest' }),
      response: { 200: json('The files to copy', OfferSchema) },
      errors: ['unauthorized', 'model_not_found'],
      handler: async ({ body }) => {
        const { grant, token } = tickets.redeem(body.ticket)
        const { model, label, revision, format, digest, origin, defaults, files } = granted(grant)
        const { owner, name } = model
        return {
          ...{ owner, name, label, revision, format, digest, origin, token },
          ...(defaults && { defaults }),
          files: files.map(({ path, size, sha256, role }) => ({ path, size, sha256, role }))
        }
      }
    })

    route('GET,HEAD /files/:sha256', 'readModelFile', 'Read a file of a model with a ticket', {
      role: 'anyone',
      description:
        'With "Authorization: Bearer <token>", as returned when the ticket was redeemed. One range at a time.',
      params: Type.Object({ sha256: Type.String({ description: 'Of the file, as it was offered: 64 hex digits' }) }),
      headers: Type.Object({
        authorization: Type.Optional(Type.String({ description: 'Bearer <token>' })),
        range: Type.Optional(Type.String({ description: 'Such as bytes=0-1023' })),
        'if-range': Type.Optional(Type.String({ description: 'The etag that the range refers to' }))
      }),
      response: FILE_REPLIES,
      errors: ['unauthorized', 'model_not_found'],
      handler: async (request, reply) => {
        const variant = granted(tickets.admitted(request.headers.authorization))
        const file = variant.files.find(({ sha256 }) => sha256 === request.params.sha256)
        if (file) return await sendStoredFile(request, reply, storage, variant, file)
        throw new CorralError(
          'model_not_found',
          'The model of this ticket has no such file. Read the files that were offered when it was redeemed.',
          { param: 'sha256' }
        )
      }
    })

    route('POST /copy', 'copyFromMember', 'Copy a model from another server', {
      role: 'operator',
      description:
        'A gateway asks this of the member that lacks a model. Pauses when the client disconnects; the next request resumes it. The last line has the model; a failure after the first byte is the trailer `x-corral-failure`.',
      body: Loose(
        {
          source: Type.String({
            minLength: 1,
            maxLength: 200,
            description: 'Name of the server that has the model, for messages'
          }),
          url: Type.String({ pattern: '^https?://[^/?#@]+/?$', description: 'Its address' }),
          tls_name: Given(
            Type.String({
              pattern: '^[A-Za-z0-9.:_-]{1,255}$',
              description: 'The name in its certificate, if different'
            })
          ),
          ticket: Type.String({
            minLength: 1,
            maxLength: 200,
            description: 'The ticket that it has issued for the model'
          }),
          digest: Sha256("The model's digest; other files are refused")
        },
        { title: 'MemberCopy' }
      ),
      response: {
        200: {
          description: 'Lines of JSON: progress, and last `model`',
          content: { 'application/x-ndjson': { schema: Type.String() } }
        }
      },
      errors: [...DOWNLOAD_ERRORS, 'copy_failed', 'model_exists', 'pull_cancelled', 'rate_limited'],
      handler: async (request, reply) => {
        const { source: name, url, tls_name: tlsName, ticket, digest } = request.body
        if (!URL.canParse(url)) {
          const message = '"url" is not the address of a server. Use one such as http://10.0.0.11:11435.'
          throw new CorralError('invalid_request', message, { param: 'url' })
        }
        const stream = openReplyStream(reply, MEMBER_LINES)
        const signal = clientSignal(reply)
        const onProgress = (progress: Progress) => void stream.write(`${JSON.stringify({ progress })}\n`)
        await endWithFailure(stream, request, parseTrailers(reply).failure, async () => {
          const source = { name, url, ticket, ...(tlsName ? { tlsName } : {}) }
          const variant = await sources.copy(source, digest, request.caller, signal, onProgress)
          stream.end(`${JSON.stringify({ model: describe(variant) })}\n`)
        })
      }
    })
  }
}

const TICKET_TTL_MS = 60_000
/** Milliseconds without a request until the files of a model can no longer be read. Other pulls may run first. */
const GRANT_IDLE_MS = 6 * 60 * 60_000
/** Maximum tickets and maximum tokens at a time. The oldest are dropped. */
const MAX_COUNT = 1000

type Grant = Pick<StoredVariant, 'key' | 'revision'> & { until: number }

class Tickets {
  readonly #tickets = new Map<string, Grant>()
  readonly #tokens = new Map<string, Grant>()

  /** Issues a ticket for one model, for one server to redeem. */
  issue({ key, revision }: StoredVariant): { ticket: string; expiresAt: Date } {
    const until = performance.now() + TICKET_TTL_MS
    const ticket = keep(this.#tickets, { key, revision, until })
    return { ticket, expiresAt: dateAt(until) }
  }

  /** @returns what the ticket permits, and the token to read the files with @throws CorralError `unauthorized` */
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

function keep(grants: Map<string, Grant>, grant: Grant): string {
  const now = performance.now()
  for (const [name, { until }] of grants) if (until < now || grants.size >= MAX_COUNT) grants.delete(name)
  const name = randomBytes(32).toString('base64url')
  grants.set(name, grant)
  return name
}
