import type { FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'
import { Integer, Loose, Text, Titled } from '../../../core/http/request-fields.ts'
import { CLIENT_LEFT } from '../../../core/http/request-record.ts'
import { ROLES } from '../../../core/http/roles.ts'
import { printable } from '../../../core/system/printable.ts'

const MAX_TARGET_LENGTH = 200
/** Longer values cannot be names and are not recorded. */
const MAX_NAME_LENGTH = 2000

const Count = Type.Integer({ minimum: 0 })

export const AuditEntrySchema = Titled('AuditEntry', {
  time: Time('When the request ended'),
  requestId: Type.Optional(Text('As in the header x-request-id and in the log')),
  traceId: Type.Optional(Text('Trace id from the traceparent header of the request')),
  key: Type.Optional(Text("Name of the caller's key")),
  session: Type.Optional(Text('Id of the browser session that sent the request')),
  role: Type.Optional(Type.Enum([...ROLES])),
  address: Type.Optional(Text('"local" for the private socket')),
  surface: Type.Optional(Text('The API that was called, such as api-openai')),
  operation: Type.Optional(
    Text('chat, embeddings …; for requests that do not run a model, the operationId of the route')
  ),
  method: Type.Optional(Type.String()),
  route: Type.Optional(Text('Path pattern of the route; absent if there is no such route')),
  model: Type.Optional(Type.String()),
  target: Type.Optional(Text('Anything else the request was about, as the client sent it')),
  status: Type.Optional(Integer(`Of the reply; ${CLIENT_LEFT} if the client disconnected first`)),
  code: Type.Optional(Text('Error code')),
  ms: Type.Optional(Integer('Duration of the request in milliseconds')),
  wait: Type.Optional(Integer('Milliseconds of that spent waiting for an engine')),
  tokens: Type.Optional(
    Loose({ in: Count, cached: Count, out: Count }, { description: '"cached" is included in "in"' })
  ),
  event: Type.Optional(
    Text(
      'For entries that are not requests: started, stopped, key_created, key_replaced, key_revoked, session_created, session_ended, tool_called, refusals_omitted, lines_lost, capture_ended …'
    )
  ),
  by: Type.Optional(Text('What caused the event, such as keys.json')),
  digest: Type.Optional(Text('SHA-256 of the arguments of a called tool'))
})
export type AuditEntry = Static<typeof AuditEntrySchema>

const READS = new Set(['GET', 'HEAD', 'OPTIONS'])
const DENIED = new Set([401, 403, 429])

/** Whether a finished request is logged, or only within the limit for refusals. @param reads includes mere reads */
export function auditDecision(
  { method, routeOptions, record }: FastifyRequest,
  reads: boolean
): 'no' | 'yes' | 'refusal' {
  const { role, audited = !READS.has(method) } = routeOptions.config ?? {}
  const { status, leased } = record
  const isDenied = DENIED.has(status)
  if (role === 'anyone' && !isDenied) return 'no'
  if (!audited && !reads && !isDenied) return 'no'
  // The action may have taken effect although the client did not wait for the reply.
  return status >= 400 && status !== CLIENT_LEFT && leased === undefined ? 'refusal' : 'yes'
}

/** Builds the audit entry for a finished request: caller, action and result, but no prompts or answers. */
export function toAuditEntry(request: FastifyRequest, now: Date): AuditEntry {
  const { id, method, caller, record, routeOptions } = request
  const { use, status, failure, began, ended, waitBegan, leased, tokens } = record
  const code = failure?.code ?? (status === CLIENT_LEFT ? 'client_left' : undefined)
  // JSON.stringify leaves out undefined fields.
  return {
    time: now.toISOString(),
    requestId: id,
    traceId: record.trace?.traceId,
    key: caller.name,
    session: caller.session?.id,
    // An unknown caller has no role of its own, only that of keyless callers.
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

/** Body fields that name the target. The first group that is present is used. */
const TARGETS = [['model'], ['name'], ['source', 'destination'], ['part', 'level'], ['runtime', 'version'], ['id']]

/** Names the target of an action from its path, otherwise from its body. Credentials in URLs are removed. */
function targetOf({ params, body }: FastifyRequest): string | undefined {
  const inPath = Object.values((params ?? {}) as Record<string, unknown>).join('/')
  const fields = (body ?? {}) as Record<string, unknown>
  const inBody = TARGETS.map(names =>
    names.map(name => fields[name]).filter(each => each !== '' && typeof each === 'string')
  )
  const named = inPath || inBody.find(each => each.length > 0)?.join(' ')
  if (!named) return undefined
  if (named.length > MAX_NAME_LENGTH) return `(${named.length} characters)`
  return printable(named.replace(/[?#].*$/s, '').replace(/\/\/[^/]*@/g, '//'), MAX_TARGET_LENGTH)
}
