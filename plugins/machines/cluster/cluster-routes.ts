import { randomBytes } from 'node:crypto'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { EventStreams } from '../../../core/contracts/native-api.ts'
import {
  Done,
  MemberSchema,
  PlanStepSchema,
  PrefixesSchema,
  PullEventSchema,
  ReplicasSchema,
  Sha256,
  Time
} from '../../../core/contracts/native-records.ts'
import { type Progress, progressText } from '../../../core/contracts/progress.ts'
import { requireFiles, type Storage, type StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, errorCodes } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { endWithFailure, openReplyStream } from '../../../core/http/reply-stream.ts'
import { Given, Loose, Titled } from '../../../core/http/request-fields.ts'
import {
  DISK_ERRORS,
  DOWNLOAD_ERRORS,
  FILE_ERRORS,
  json,
  jsonOrStream,
  nativeRouter
} from '../../../core/http/response-schemas.ts'
import { FILE_REPLIES, sendStoredFile } from '../../../core/http/stored-file-reply.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { bareName, parseModelName, parseRequestedName } from '../../../core/models/model-name.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { serverId } from '../../../core/system/server-id.ts'
import { type DescribedModel, MEMBER_LINES, parseTrailers } from './asking/ask-protocol.ts'
import { type Copies, type CopyFailure, sourceAt } from './copying/copies.ts'
import { OfferSchema, type SourceFiles } from './copying/source-files.ts'
import type { ClusterNode } from './nodes/node.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { ALL, type ReplicaKeeper } from './replica-keeper.ts'
import { RolloutSchema } from './rollout/rollout-record.ts'
import type { Rollouts } from './rollout/rollouts.ts'

const randomName = () => randomBytes(32).toString('base64url')

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

const TICKET_TTL_MS = 60_000
/** Milliseconds without a request until the files of a model can no longer be read. Other pulls may run first. */
const GRANT_IDLE_MS = 6 * 60 * 60_000
/** Maximum tickets and maximum tokens at a time. The oldest are dropped. */
const MAX_COUNT = 1000

/** Models that may be read, by ticket or token. */
type Grants = Map<string, Pick<StoredVariant, 'key' | 'revision'> & { until: number }>

export function copyRoutes(app: FastifyInstance, { storage, catalog, sources, describe }: Dependencies): void {
  const tickets: Grants = new Map()
  const tokens: Grants = new Map()

  function grant(grants: Grants, { key, revision }: StoredVariant, ms: number, name = randomName()) {
    const until = performance.now() + ms
    setNewest(grants, name, { key, revision, until }, MAX_COUNT)
    return { name, expiresAt: dateAt(until) }
  }

  /** Returns the model that a name grants, which is used up. @throws CorralError `unauthorized`, `model_not_found` */
  function redeem(grants: Grants, name: string, refusal: string): StoredVariant {
    const found = grants.get(name)
    grants.delete(name)
    if (!found || found.until < performance.now()) throw new CorralError('unauthorized', refusal)
    const variant = storage.find(parseModelName(found.key))
    if (variant?.revision === found.revision) return variant
    throw new CorralError('model_not_found', 'The model of this ticket is no longer here. Ask for a new ticket.')
  }

  const route = nativeRouter(app, 'Cluster')

  route('POST /api/cluster/tickets', 'issueTicket', 'Let another server copy a model', {
    role: 'operator',
    description:
      'A gateway passes the ticket to the member that lacks the model, which then needs no key here. It is valid once, for one model.',
    body: Loose({ model: Type.String({ minLength: 1, description: 'Its name here' }) }, { title: 'TicketRequest' }),
    response: { 200: json('The ticket', TicketSchema) },
    errors: [...FILE_ERRORS, 'forbidden_model'],
    handler: async ({ body, caller }) => {
      const variant = requireFiles(catalogFor(catalog, caller).get(parseRequestedName(body.model)))
      const { name: ticket, expiresAt } = grant(tickets, variant, TICKET_TTL_MS)
      return { ticket, expires_at: expiresAt.toISOString() }
    }
  })

  route('POST /api/cluster/tickets/redeem', 'redeemTicket', 'Redeem a ticket for a model', {
    role: 'anyone',
    description: 'The ticket authorizes the caller.',
    body: Loose({ ticket: Type.String({ minLength: 1, maxLength: 200 }) }, { title: 'RedeemRequest' }),
    response: { 200: json('The files to copy', OfferSchema) },
    errors: ['unauthorized', 'model_not_found'],
    handler: async ({ body }) => {
      const variant = redeem(
        tickets,
        body.ticket,
        'This ticket was not issued here, has been used, or has expired. A ticket can be used once, within a minute. Ask for another one (POST /api/cluster/tickets).'
      )
      const { name: token } = grant(tokens, variant, GRANT_IDLE_MS)
      const { model, label, revision, format, digest, origin, defaults, files } = variant
      const { owner, name } = model
      return {
        ...{ owner, name, label, revision, format, digest, origin, token },
        ...(defaults && { defaults }),
        files: files.map(({ path, size, sha256, role }) => ({ path, size, sha256, role }))
      }
    }
  })

  route('GET,HEAD /api/cluster/files/:sha256', 'readModelFile', 'Read a file of a model with a ticket', {
    role: 'anyone',
    description: 'With "Authorization: Bearer <token>", as returned when the ticket was redeemed. One range at a time.',
    params: Type.Object({ sha256: Type.String({ description: 'Of the file, as it was offered: 64 hex digits' }) }),
    headers: Type.Object({
      authorization: Type.Optional(Type.String({ description: 'Bearer <token>' })),
      range: Type.Optional(Type.String({ description: 'Such as bytes=0-1023' })),
      'if-range': Type.Optional(Type.String({ description: 'The etag that the range refers to' }))
    }),
    response: FILE_REPLIES,
    errors: ['unauthorized', 'model_not_found'],
    handler: async (request, reply) => {
      const token = /^Bearer +(\S+) *$/i.exec(request.headers.authorization ?? '')?.[1] ?? ''
      const variant = redeem(
        tokens,
        token,
        'Files of models are sent only to servers that have redeemed a ticket. This token is unknown or has expired. Redeem another ticket.'
      )
      grant(tokens, variant, GRANT_IDLE_MS, token)
      const file = variant.files.find(({ sha256 }) => sha256 === request.params.sha256)
      if (file) return await sendStoredFile(request, reply, storage, variant, file)
      throw new CorralError(
        'model_not_found',
        'The model of this ticket has no such file. Read the files that were offered when it was redeemed.',
        { param: 'sha256' }
      )
    }
  })

  route('POST /api/cluster/copy', 'copyFromMember', 'Copy a model from another server', {
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
        digest: Sha256("The model's digest; other files are refused"),
        label: Given(
          Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$', description: 'Store it as this variant' })
        )
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
      const { source: name, url, tls_name: tlsName, ticket, digest, label } = request.body
      if (!URL.canParse(url)) {
        const message = '"url" is not the address of a server. Use one such as http://10.0.0.11:11435.'
        throw new CorralError('invalid_request', message, { param: 'url' })
      }
      const stream = openReplyStream(reply, MEMBER_LINES)
      const signal = clientSignal(reply)
      const onProgress = (progress: Progress) => void stream.write(`${JSON.stringify({ progress })}\n`)
      await endWithFailure(stream, request, parseTrailers(reply).failure, async () => {
        const source = { name, url, ticket, ...(tlsName ? { tlsName } : {}) }
        const variant = await sources.copy(source, digest, request.caller, signal, onProgress, label ?? undefined)
        stream.end(`${JSON.stringify({ model: describe(variant) })}\n`)
      })
    }
  })
}

const ClusterSchema = Loose(
  {
    id: Type.String({ description: 'Of this server; a new one after each start' }),
    members: Type.Array(MemberSchema),
    sources: Type.Array(
      Loose({
        name: Type.String({ description: 'config.yaml, dns, or the name of a plugin' }),
        members: Type.Integer({ minimum: 0, description: 'How many members it reports' }),
        fault: Type.Optional(Type.String({ description: 'Why it cannot report members now; known members stay' })),
        wanted: Type.Optional(
          Type.Integer({ minimum: 0, description: 'How many members it is asked for; absent if it cannot add any' })
        )
      }),
      { description: 'How members are found' }
    ),
    replicas: Type.Array(ReplicasSchema, {
      description: 'Models that are in memory or always should be, and at how many members'
    }),
    prefixes: Type.Optional(PrefixesSchema),
    rollout: Type.Optional(RolloutSchema),
    wanted: Type.Optional(
      Type.Integer({
        minimum: 0,
        description: 'How many members there should be, for autoscalers; absent while none is known'
      })
    ),
    plan: Type.Array(PlanStepSchema, {
      description: 'Steps that are in progress, or wait, to get models where they should be'
    })
  },
  { title: 'Cluster' }
)

const DrainedSchema = Loose(
  { member: MemberSchema, by: Type.Enum(['member', 'front'], { description: 'Who does it' }) },
  { title: 'DrainedMember' }
)

export function clusterRoutes(
  app: FastifyInstance,
  members: ClusterNodes,
  replicas: ReplicaKeeper,
  rollouts: Pick<Rollouts, 'current'>
): void {
  const route = nativeRouter(app, 'Cluster')

  route('GET /api/cluster', 'getCluster', 'Show the members of this server', {
    role: 'operator',
    description: 'Also why an unreachable member gets no requests. Without members, this server answers alone.',
    response: { 200: json('The members', ClusterSchema) },
    handler: async () => ({
      id: serverId,
      members: members.records(),
      sources: members.roster.sources().map(({ name, members, fault }) => ({
        name,
        members,
        ...(fault !== undefined && { fault }),
        ...(replicas.wanted(name) !== undefined && { wanted: replicas.wanted(name) })
      })),
      replicas: replicas.records(),
      prefixes: members.prefixesRecord(),
      ...(rollouts.current && { rollout: rollouts.current }),
      wanted: replicas.wanted(ALL),
      plan: replicas.plan()
    })
  })

  const setDraining = (drains: boolean) => ({
    role: 'admin' as const,
    body: Loose({ member: Type.String({ minLength: 1, description: 'Its name' }) }, { title: 'ClusterDrain' }),
    response: { 200: json('The member', DrainedSchema) },
    errors: errorCodes('member_not_found member_unreachable'),
    async handler({ body }: FastifyRequest<{ Body: { member: string } }>, reply: FastifyReply) {
      const member = members.require(body.member)
      const isOwn = await drainThere(member, drains, clientSignal(reply))
      member.hold(!isOwn && drains)
      const by = isOwn ? ('member' as const) : ('front' as const)
      reply.log.info({ member: member.name, by }, drains ? 'a member drains' : 'a member takes requests again')
      return { member: member.record([]), by }
    }
  })
  route('POST /api/cluster/drain', 'drainMember', 'Drain a member', {
    ...setDraining(true),
    description:
      'The member refuses all new requests and finishes its current ones (its own `POST /api/drain`, which ' +
      "needs an admin's key to be set for it). With an operator's key only this server stops sending requests there: " +
      '`by` is then `front`, and the notes of the member say how to make it refuse the requests of everybody.'
  })
  route('DELETE /api/cluster/drain', 'undrainMember', 'Let a member take requests again', setDraining(false))
}

/** @returns whether the key for the node allows it. @throws CorralError `member_unreachable` */
async function drainThere(member: ClusterNode, drains: boolean, signal: AbortSignal): Promise<boolean> {
  try {
    await member.tell('/api/drain', { method: drains ? 'POST' : 'DELETE', signal })
    return true
  } catch (error) {
    signal.throwIfAborted()
    if (error instanceof CorralError && error.code === 'forbidden_role') return false
    throw new CorralError(
      'member_unreachable',
      `The member "${member.name}" was not drained: ${member.explain(error)}.`
    )
  }
}

interface PullDependencies {
  members: ClusterNodes
  copies: Copies
  sources: SourceFiles
  catalog: Catalog
  streams: EventStreams
}

/** Progress of a copy as an event of `POST /api/pull`. */
function copyEvent({ publicName }: Model, progress: Progress) {
  const { completed, total } = progress
  const isCounted = completed !== undefined && total !== undefined
  return { status: progressText(progress), ...(isCounted && { digest: publicName, completed, total }) }
}

/** Pulls at nodes, which need not use the internet for a model that another node has. */
export function pullRoute(
  app: FastifyInstance,
  { members, copies, sources, catalog, streams }: PullDependencies
): void {
  function known(name: string, allowed: Parameters<typeof catalogFor>[1]): Model | undefined {
    try {
      const found = catalogFor(catalog, allowed).find(parseRequestedName(name))
      return found?.format === 'cluster' ? found : undefined
    } catch (error) {
      // An address of a hub: the node resolves it.
      if (error instanceof CorralError && error.code === 'invalid_model_name') return undefined
      throw error
    }
  }

  const route = nativeRouter(app, 'Cluster')
  const replies = (description: string) => ({
    200: jsonOrStream(description, Done('success'), {
      event: 'Progress; the last event is a success or an error',
      item: PullEventSchema,
      types: ['text/event-stream', 'application/x-ndjson']
    })
  })
  const Fields = {
    member: Type.String({ minLength: 1, description: 'Its name' }),
    stream: Given(Type.Boolean({ default: true }))
  }

  route('POST /api/cluster/fetch', 'fetchFromMember', 'Copy a model of a member to this server', {
    role: 'operator',
    description: 'Works without a hub and without internet access. Each file is checked by its digest.',
    body: Loose(
      { ...Fields, model: Type.String({ minLength: 1, description: 'Its name here' }) },
      { title: 'MemberFetch' }
    ),
    response: replies('This server has it'),
    errors: [
      ...DISK_ERRORS,
      ...errorCodes('member_not_found member_unreachable copy_failed checksum_mismatch hub_unreachable model_exists'),
      ...errorCodes('invalid_model_name model_not_found pull_cancelled forbidden_model unsupported_capability')
    ],
    handler: async ({ body, caller }, reply) => {
      const member = members.require(body.member)
      const signal = clientSignal(reply)
      const variant = catalogFor(catalog, caller).get(parseRequestedName(body.model))
      const success = { status: 'success' as const }
      if (variant.format !== 'cluster') return success
      const name = members.nameAt(member, variant)
      if (name === undefined) {
        const message = `The member "${member.name}" does not have "${variant.publicName}". "corral list" shows the models of all members.`
        throw new CorralError('model_not_found', message, { param: 'member' })
      }
      const copy = async (onStatus: (status: object) => void) => {
        const source = await sourceAt(member, name, signal).catch(error => {
          throw signal.aborted || error instanceof CorralError ? error : unreachable(member, error)
        })
        const onProgress = (progress: Progress) => onStatus(copyEvent(variant, progress))
        await sources.copy(source, variant.digest, caller, signal, onProgress)
      }
      if (body.stream === false) return await copy(() => {}).then(() => success)
      return await streams.reply(reply, async stream => {
        const { label, size, model } = variant
        void stream.send({ status: `pulling ${body.model}`, model: bareName(model), label, size })
        await copy(event => void stream.send(event))
        return success
      })
    }
  })

  route('POST /api/cluster/pull', 'pullAtMember', 'Pull a model at a member', {
    role: 'operator',
    description:
      'A model of another member is copied from there. Anything else, and models that no member can send any more, the member pulls from their hub, as with its own `POST /api/pull`, whose other fields are passed on.',
    body: Loose(
      { ...Fields, model: Type.String({ minLength: 1, description: 'As for POST /api/pull' }) },
      { title: 'MemberPull' }
    ),
    response: replies('The member has it'),
    errors: [
      ...DOWNLOAD_ERRORS,
      ...errorCodes(
        'member_not_found member_unreachable copy_failed invalid_model_name repo_not_found model_exists hub_forbidden',
        'pull_cancelled address_not_allowed unsupported_capability forbidden_model'
      )
    ],
    handler: async (request, reply) => {
      const { member: name, ...body } = request.body
      const member = members.require(name)
      const signal = clientSignal(reply)
      const isPlain = !('as' in body || 'dry_run' in body || 'detach' in body)
      const variant = isPlain ? known(body.model, request.caller) : undefined
      const has = (other: ClusterNode) => other.models.get(variant!.key)?.digest === variant!.digest
      const holders = () => members.all().filter(other => other.view.state !== 'away' && has(other))
      if (!variant || has(member) || holders().length === 0) return await passOn()

      const success = { status: 'success' }
      const copied = async (onStatus: (status: object) => void) => {
        let failure: CopyFailure | undefined
        const onProgress = (progress: Progress) => onStatus(copyEvent(variant, progress))
        for (const from of holders()) {
          failure = await copies.copy(variant, { member, from }, other => other === name, signal, onProgress)
          if (!failure || failure.member !== undefined) break
        }
        if (failure && failure.error.code !== 'copy_failed') throw failure.error
        return !failure
      }
      if (body.stream === false) return (await copied(() => {})) ? success : await passOn()
      return await streams.reply(reply, async stream => {
        const { label, size, model, publicName } = variant
        void stream.send({ status: `pulling ${body.model}`, model: bareName(model), label, size })
        const isCopied = await copied(event => void stream.send(event))
        const whole = { ...body, model: publicName, stream: false }
        if (!isCopied) await answered(member.tell('/api/pull', { body: whole, signal }))
        return success
      })

      /** @throws CorralError of the node, or `member_unreachable` */
      function answered<Answer>(pending: Promise<Answer>): Promise<Answer> {
        return pending.catch(error => {
          signal.throwIfAborted()
          throw error instanceof CorralError ? error : unreachable(member, error)
        })
      }

      /** Repeats the client's request at the node and passes its answer on. */
      async function passOn() {
        const { accept, 'x-stream-format': format } = request.headers
        const headers = { ...(accept && { accept }), ...(format && { 'x-stream-format': String(format) }) }
        const until = AbortSignal.any([signal, member.presence])
        const sent = member.connection.send('POST', '/api/pull', { body, signal: until, headers })
        const answer = await answered(sent)
        const type = answer.headers['content-type']
        return await reply
          .code(answer.status)
          .header('content-type', String(type ?? 'application/json'))
          .header('cache-control', 'no-cache, no-transform')
          .send(answer.body)
      }
    }
  })
}

const unreachable = (member: ClusterNode, error: unknown) =>
  new CorralError(
    'member_unreachable',
    `The member "${member.name}" was not asked: ${member.explain(error)}. GET /api/cluster shows its state.`
  )
