import type { FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { CLIENT_LEFT } from '../../../core/http/request-record.ts'
import { ROLES } from '../../../core/http/roles.ts'
import { printable } from '../../../core/system/printable.ts'

/** Characters of a name that a client sent. */
const MAX_TARGET_LENGTH = 200
/** What is longer is no name, and not looked at. */
const MAX_NAME_LENGTH = 2000

const Count = Type.Integer({ minimum: 0 })

export const AuditEntrySchema = Loose(
  {
    time: Time('When it was over'),
    requestId: Type.Optional(Type.String({ description: 'As in the header x-request-id and in the log' })),
    traceId: Type.Optional(Type.String({ description: 'Of the trace that the caller named in traceparent' })),
    key: Type.Optional(Type.String({ description: "Name of the caller's key" })),
    session: Type.Optional(Type.String({ description: 'Id of the session of a browser that it came by' })),
    role: Type.Optional(Type.Enum([...ROLES])),
    address: Type.Optional(Type.String({ description: '"local" by the private socket' })),
    surface: Type.Optional(Type.String({ description: 'The API that was asked, such as api-openai' })),
    operation: Type.Optional(
      Type.String({ description: 'chat, embeddings …; for all but questions to models the operationId of the route' })
    ),
    method: Type.Optional(Type.String()),
    route: Type.Optional(Type.String({ description: 'Pattern of the path; absent where there is no such route' })),
    model: Type.Optional(Type.String()),
    target: Type.Optional(Type.String({ description: 'What else it was about, as it was sent' })),
    status: Type.Optional(Type.Integer({ description: `Of the reply; ${CLIENT_LEFT} where the client left before` })),
    code: Type.Optional(Type.String({ description: 'Of the error' })),
    ms: Type.Optional(Type.Integer({ description: 'Milliseconds that the request took' })),
    wait: Type.Optional(Type.Integer({ description: 'Milliseconds of these that it waited for an engine' })),
    tokens: Type.Optional(Loose({ in: Count, cached: Count, out: Count }, { description: 'cached are part of in' })),
    event: Type.Optional(
      Type.String({
        description:
          'In the place of a request: started, stopped, key_created, key_replaced, key_revoked, session_created, session_ended, refusals_omitted, lines_lost, capture_ended …'
      })
    ),
    by: Type.Optional(Type.String({ description: 'What an event came from, such as keys.json' }))
  },
  { title: 'AuditEntry' }
)
export type AuditEntry = Static<typeof AuditEntrySchema>

/** How a request is told: not at all, always, or as one of many that were refused. */
export type Telling = 'no' | 'yes' | 'refusal'

const READS = new Set(['GET', 'HEAD', 'OPTIONS'])
const DENIED = new Set([401, 403, 429])

/**
 * Whether the audit log has a request that is over.
 * @param reads whether it has those too that change nothing and ask no model
 */
export function tellingOf({ method, routeOptions, record }: FastifyRequest, reads: boolean): Telling {
  const { role, audited = !READS.has(method) } = routeOptions.config ?? {}
  const { status, leased } = record
  const isDenied = DENIED.has(status)
  if (role === 'anyone' && !isDenied) return 'no'
  if (!audited && !reads && !isDenied) return 'no'
  // What was asked for may have been done although its client did not wait for the reply.
  return status >= 400 && status !== CLIENT_LEFT && leased === undefined ? 'refusal' : 'yes'
}

/** What the audit log says of a request that is over: who, what, how it ended; nothing of what was said. */
export function entryOf(request: FastifyRequest, now: Date): AuditEntry {
  const { id, method, caller, record, routeOptions } = request
  const { use, status, failure, began, ended, waitBegan, leased, tokens } = record
  const code = failure?.code ?? (status === CLIENT_LEFT ? 'client_left' : undefined)
  // What is undefined is not written.
  return {
    time: now.toISOString(),
    requestId: id,
    traceId: record.trace?.traceId,
    key: caller.name,
    session: caller.session?.id,
    // Of a caller who is not known, it would only say what others may without a key.
    role: status === 401 ? undefined : caller.role,
    address: caller.address,
    surface: use?.surface,
    operation: use ? use.operation : routeOptions.schema?.operationId,
    method: use ? undefined : method,
    route: use ? undefined : routeOptions.url,
    model: use?.model,
    target: use ? undefined : targetOf(request),
    status,
    code,
    ms: Math.round(ended - began),
    wait: waitBegan === undefined ? undefined : Math.round((leased ?? ended) - waitBegan),
    tokens: leased === undefined ? undefined : { in: tokens.prompt, cached: tokens.cached, out: tokens.completion }
  }
}

/** Fields of a body that say what it is about; the first that are given count. */
const TARGETS = [['model'], ['name'], ['source', 'destination'], ['part', 'level'], ['runtime', 'version'], ['id']]

/** What an action is about: what its path names, else its body. Addresses lose what may be secret in them. */
function targetOf({ params, body }: FastifyRequest): string | undefined {
  const inPath = Object.values((params ?? {}) as Record<string, unknown>).join('/')
  const fields = (body ?? {}) as Record<string, unknown>
  const inBody = TARGETS.map(names =>
    names
      .map(name => fields[name])
      .filter(each => typeof each === 'string')
      .join(' ')
  )
  const named = inPath || inBody.find(each => each !== '')
  if (named === undefined) return undefined
  if (named.length > MAX_NAME_LENGTH) return `(${named.length} characters)`
  return printable(named.replace(/[?#].*$/s, '').replace(/\/\/[^/]*@/g, '//'), MAX_TARGET_LENGTH)
}
