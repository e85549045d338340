import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { Catalog, Model } from '../../../../core/contracts/models.ts'
import type { EventStreams } from '../../../../core/contracts/native-api.ts'
import { Done, PullEventSchema } from '../../../../core/contracts/native-records.ts'
import { type Progress, progressText } from '../../../../core/contracts/progress.ts'
import { CorralError, errorCodes } from '../../../../core/errors.ts'
import { clientSignal } from '../../../../core/http/client-disconnect.ts'
import { Given, Loose } from '../../../../core/http/request-fields.ts'
import { DOWNLOAD_ERRORS, jsonOrStream, nativeRouter } from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { bareName, parseRequestedName } from '../../../../core/models/model-name.ts'
import { parseFailedReply } from '../asking/ask-protocol.ts'
import type { ClusterNode } from '../nodes/node.ts'
import { connectionFault } from '../nodes/node-connection.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import type { Copies, CopyFailure } from './copies.ts'

type Dependencies = { members: ClusterNodes; copies: Copies; catalog: Catalog; streams: EventStreams }

/** Pulls at nodes, which need not use the internet for a model that another node has. */
export function pullRoute({ members, copies, catalog, streams }: Dependencies): FastifyPluginAsync {
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

  return async instance => {
    const route = nativeRouter(instance, 'Cluster')
    route('POST /pull', 'pullAtMember', 'Pull a model at a member', {
      role: 'operator',
      description:
        'A model of another member is copied from there. Anything else, and models that no member can send any more, the member pulls from their hub, as with its own `POST /api/pull`, whose other fields are passed on.',
      body: Loose(
        {
          member: Type.String({ minLength: 1, description: 'Its name' }),
          model: Type.String({ minLength: 1, description: 'As for POST /api/pull' }),
          stream: Given(Type.Boolean({ default: true }))
        },
        { title: 'MemberPull' }
      ),
      response: {
        200: jsonOrStream('The member has it', Done('success'), {
          event: 'Progress; the last event is a success or an error',
          item: PullEventSchema,
          types: ['text/event-stream', 'application/x-ndjson']
        })
      },
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
          const onProgress = (progress: Progress) => {
            const { completed, total } = progress
            const isCounted = completed !== undefined && total !== undefined
            onStatus({
              status: progressText(progress),
              ...(isCounted && { digest: variant.publicName, completed, total })
            })
          }
          for (const from of holders()) {
            failure = await copies.copy(variant, { member, from }, other => other === name, signal, onProgress)
            if (!failure || failure.member !== undefined) break
          }
          if (failure && failure.error.code !== 'copy_failed') throw failure.error
          return !failure
        }
        if (body.stream === false) return (await copied(() => {})) ? success : await passOn()
        return await streams.reply(request, reply, async stream => {
          const { label, size, model, publicName } = variant
          void stream.send({ status: `pulling ${body.model}`, model: bareName(model), label, size })
          const isCopied = await copied(event => void stream.send(event))
          if (!isCopied) await fromHub(member, { ...body, model: publicName, stream: false }, signal)
          return success
        })

        /** Repeats the client's request at the node and passes its answer on. */
        async function passOn() {
          const { accept, 'x-stream-format': format } = request.headers
          const headers = { ...(accept && { accept }), ...(format && { 'x-stream-format': String(format) }) }
          const answer = await asked(member, body, signal, headers)
          const type = answer.headers['content-type']
          return await reply
            .code(answer.statusCode)
            .header('content-type', String(type ?? 'application/json'))
            .header('cache-control', 'no-cache, no-transform')
            .send(answer.body)
        }
      }
    })
  }
}

/** Repeats a pull at a node, and returns any answer. @throws CorralError `member_unreachable` */
async function asked(member: ClusterNode, body: object, signal: AbortSignal, headers: Record<string, string> = {}) {
  const both = AbortSignal.any([signal, member.presence])
  return await member.connection.send('POST', '/api/pull', { body, signal: both, headers }).catch(error => {
    signal.throwIfAborted()
    throw new CorralError(
      'member_unreachable',
      `The member "${member.name}" was not asked: ${connectionFault(error)}. GET /api/cluster shows its state.`
    )
  })
}

async function fromHub(member: ClusterNode, body: object, signal: AbortSignal): Promise<void> {
  const { statusCode, headers, body: reply } = await asked(member, body, signal)
  const text = await reply.text()
  if (statusCode === 200) return
  throw (
    parseFailedReply(text, headers) ??
    new CorralError('member_unreachable', `The member "${member.name}" answered with status ${statusCode}.`)
  )
}
