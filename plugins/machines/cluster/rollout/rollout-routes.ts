import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import type { Catalog } from '../../../../core/contracts/models.ts'
import { Done, Sha256 } from '../../../../core/contracts/native-records.ts'
import { requireFiles, type Storage } from '../../../../core/contracts/storage.ts'
import { CorralError, errorCodes, invalidRequest } from '../../../../core/errors.ts'
import { Given, Loose, Text, Titled } from '../../../../core/http/request-fields.ts'
import { DISK_ERRORS, FILE_ERRORS, json, nativeRouter } from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../../core/models/model-name.ts'
import { version } from '../../../../core/system/package-info.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import { otherRevision } from './revision-names.ts'
import { RolloutSchema } from './rollout-record.ts'
import type { RolloutRequest, Rollouts } from './rollouts.ts'

/** Milliseconds after which a node forgets the rollout of a gateway that has not renewed its claim. */
const CLAIM_MS = 60_000

/** The node's side of a rollout. */
export function nodeRoutes(app: FastifyInstance, { storage, catalog }: { storage: Storage; catalog: Catalog }): void {
  const route = nativeRouter(app, 'Cluster')
  let claim = { rollout: '', until: 0 }

  route('POST /api/cluster/claim', 'claimMember', 'Let a rollout of a gateway change this server', {
    role: 'admin',
    audited: false,
    description: 'Repeated by the gateway. Another rollout is refused until a minute after the last repetition.',
    body: Titled('ClusterClaim', {
      rollout: Type.String({ minLength: 1, maxLength: 100, description: 'Id of the rollout' }),
      ends: Given(Type.Boolean({ description: 'Whether the rollout has ended' }))
    }),
    response: { 200: json('It may', Done('success')) },
    errors: errorCodes('rollout_running'),
    handler: async ({ body: { rollout, ends } }) => {
      const now = performance.now()
      if (claim.rollout !== rollout && claim.until > now) {
        throw new CorralError(
          'rollout_running',
          'Another gateway has a rollout that changes this server. Wait until it has ended, or undo it there ("corral rollout undo").'
        )
      }
      claim = { rollout, until: ends ? 0 : now + CLAIM_MS }
      return { status: 'success' as const }
    }
  })

  route('POST /api/cluster/exchange', 'exchangeRevision', 'Use the other stored revision of a model', {
    role: 'admin',
    description: 'A rollout stores a second revision as the variant `<label>-rollout`. This exchanges the two.',
    body: Titled('ClusterExchange', {
      model: Type.String({ minLength: 1, description: 'Its name here' }),
      digest: Sha256('The digest of the wanted revision')
    }),
    response: { 200: json('The model has this revision', Done('success')) },
    errors: [...FILE_ERRORS, ...DISK_ERRORS, 'forbidden_model'],
    handler: async ({ body: { model, digest }, caller }) => {
      const one = requireFiles(catalogFor(catalog, caller).get(parseRequestedName(model)))
      if (one.digest !== digest) {
        const label = otherRevision(one.label)
        if (storage.find({ ...one.model, variant: label })?.digest !== digest) {
          const message = `"${one.publicName}" has no other revision with this digest here. Start the rollout again.`
          throw new CorralError('model_not_found', message, { param: 'digest' })
        }
        await storage.exchange({ ...one.model, variant: one.label }, label)
      }
      return { status: 'success' as const }
    }
  })
}

const StartSchema = Titled('RolloutStart', {
  kind: Type.Enum(['model', 'llama', 'corral'], { description: 'What is updated' }),
  target: Given(
    Text("The model's name; a llama.cpp build (b11347 or an installed id); corral's version, by default this server's")
  ),
  from: Given(Text('Of a model: the member that has the new files. Without it, they come from the hub')),
  canary: Given(
    Type.Object(
      {
        share: Given(Type.Number({ minimum: 0, maximum: 1, description: 'Share of conversations' })),
        key: Given(Text('Name of a key')),
        after: Given(Type.Number({ minimum: 0, description: 'Milliseconds until it continues by itself' }))
      },
      { description: 'After the first member, updated members get only these requests until the rollout is continued' }
    )
  ),
  ask: Given(Type.String({ minLength: 1, maxLength: 10_000, description: 'A question for updated members' })),
  expect: Given(Type.String({ minLength: 1, maxLength: 1000, description: 'Text that the answer must contain' }))
})

/** The gateway's side. */
export function rolloutRoutes(
  app: FastifyInstance,
  { rollouts, members, catalog }: { rollouts: Rollouts; members: ClusterNodes; catalog: Catalog }
): void {
  const route = nativeRouter(app, 'Cluster')
  const one = json('The rollout', Loose({ rollout: RolloutSchema }, { title: 'RolloutReply' }))

  route('GET /api/cluster/rollout', 'getRollout', 'Show the current or last rollout', {
    role: 'operator',
    response: {
      200: json('The rollout', Loose({ rollout: Type.Optional(RolloutSchema) }, { title: 'LastRollout' }))
    },
    handler: async () => ({ ...(rollouts.current && { rollout: rollouts.current }) })
  })

  route('POST /api/cluster/rollout', 'startRollout', 'Update all members, one after the other', {
    role: 'admin',
    description:
      'Each member is drained, updated, asked, and takes requests again. If that fails, it is restored and the rollout stops. Needs an admin key for the members.',
    body: StartSchema,
    response: { 200: one },
    errors: [
      ...errorCodes('rollout_running member_not_found member_unreachable invalid_model_name model_not_found'),
      ...errorCodes('forbidden_model unsupported_capability'),
      ...DISK_ERRORS
    ],
    handler: async ({ body, caller }) => {
      const { kind, from, ask, expect, canary } = body
      const given = { ...(ask && { ask }), ...(expect && { expect }) }
      const { share, key: keyName, after } = canary ?? {}
      const request = {
        ...{ kind, ...given },
        ...((share || keyName) && {
          canary: { ...(share && { share }), ...(keyName && { key: keyName }), ...(after && { after }) }
        })
      }
      // Guests belong to somebody else.
      const all = members.all().filter(({ view }) => !view.isGuest)
      if (from && kind !== 'model') throw invalidRequest('from', '"from" is for models only. Leave it out.')
      if (kind !== 'model') {
        const target = body.target || (kind === 'corral' ? version : undefined)
        if (!target) throw invalidRequest('target', '"target" must name a llama.cpp build, such as b11347.')
        return { rollout: await rollouts.start({ ...request, target }, all) }
      }
      const model = catalogFor(catalog, caller).get(parseRequestedName(body.target ?? ''))
      const { key, publicName: target, format } = model
      const nodes = all.filter(({ models }) => models.has(key))
      if (format !== 'cluster' || nodes.length === 0) {
        throw invalidRequest('target', `"${target}" is a model of this server and of no member. Pull it here instead.`)
      }
      const more: Partial<RolloutRequest> = {}
      if (from) {
        const digest = members.require(from).models.get(key)?.digest
        if (digest === undefined)
          throw invalidRequest('from', `"${from}" does not have "${target}". Store it there first.`)
        Object.assign(more, { from, digest })
      }
      return { rollout: await rollouts.start({ ...request, target, key, ...more }, nodes) }
    }
  })

  route('PUT /api/cluster/rollout', 'changeRollout', 'Pause, continue or undo the rollout', {
    role: 'admin',
    description:
      'pause: updates no further member. continue: continues, also after a failure, and ends a canary. undo: restores all updated members; impossible after a rollout of a model has ended.',
    body: Titled('RolloutChange', { action: Type.Enum(['pause', 'continue', 'undo']) }),
    response: { 200: one },
    errors: [...errorCodes('rollout_not_found'), ...DISK_ERRORS],
    handler: async ({ body: { action } }) => {
      const act = { pause: 'pause', continue: 'resume', undo: 'undo' } as const
      return { rollout: await rollouts[act[action]]() }
    }
  })
}
