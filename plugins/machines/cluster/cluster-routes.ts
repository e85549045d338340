import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { MemberSchema, ReplicasSchema } from '../../../core/contracts/native-records.ts'
import { CorralError, errorCodes } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { serverId } from '../../../core/system/server-id.ts'
import { callNode, explainFailure } from './asking/node-call.ts'
import type { ClusterNode } from './nodes/node.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import type { ReplicaKeeper } from './replica-keeper.ts'

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
    })
  },
  { title: 'Cluster' }
)

const DrainedSchema = Loose(
  { member: MemberSchema, by: Type.Enum(['member', 'front'], { description: 'Who does it' }) },
  { title: 'DrainedMember' }
)

export function clusterRoutes(members: ClusterNodes, replicas: ReplicaKeeper): FastifyPluginAsync {
  return async instance => {
    const route = nativeRouter(instance, 'Cluster')

    route('GET /cluster', 'getCluster', 'Show the members of this server', {
      role: 'operator',
      description: 'Also why an unreachable member gets no requests. Without members, this server answers alone.',
      response: { 200: json('The members', ClusterSchema) },
      handler: async () => ({
        id: serverId,
        members: members.records(),
        sources: members.roster.sources.map(({ name, members, fault }) => ({
          name,
          members,
          ...(fault !== undefined && { fault }),
          ...(replicas.wanted(name) !== undefined && { wanted: replicas.wanted(name) })
        })),
        replicas: replicas.records()
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
    route('POST /cluster/drain', 'drainMember', 'Drain a member', {
      ...setDraining(true),
      description:
        'The member refuses all new requests and finishes its current ones (its own `POST /api/drain`, which ' +
        "needs an admin's key to be set for it). With an operator's key only this server stops sending requests there: " +
        '`by` is then `front`, and the notes of the member say how to make it refuse the requests of everybody.'
    })
    route('DELETE /cluster/drain', 'undrainMember', 'Let a member take requests again', setDraining(false))
  }
}

/** @returns whether the key for the node allows it. @throws CorralError `member_unreachable` */
async function drainThere(member: ClusterNode, drains: boolean, signal: AbortSignal): Promise<boolean> {
  try {
    const reply = await callNode(member, '/api/drain', { method: drains ? 'POST' : 'DELETE', signal })
    await reply.body.dump()
    return true
  } catch (error) {
    signal.throwIfAborted()
    if (error instanceof CorralError && error.code === 'forbidden_role') return false
    const why = explainFailure(member, error)
    throw new CorralError('member_unreachable', `The member "${member.name}" was not drained: ${why}.`)
  }
}
