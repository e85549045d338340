import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { callerLease } from '../../../../core/answers/caller-lease.ts'
import { embedChunked, rerankChunked } from '../../../../core/answers/embedding.ts'
import { requireCall } from '../../../../core/answers/engine-call.ts'
import type { AnswerDependencies } from '../../../../core/answers/model-request.ts'
import { createAnswers } from '../../../../core/answers/pipeline.ts'
import type { ModelLease, Question } from '../../../../core/answers/question.ts'
import { RunningAnswers } from '../../../../core/answers/running-answers.ts'
import { settingsFor } from '../../../../core/config/model-settings.ts'
import type { EngineFields, Engines, TokenUsage } from '../../../../core/contracts/engines.ts'
import type { Lease } from '../../../../core/contracts/leases.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { clientSignal } from '../../../../core/http/client-disconnect.ts'
import { endWithFailure, openReplyStream } from '../../../../core/http/reply-stream.ts'
import { Loose } from '../../../../core/http/request-fields.ts'
import type { TokenTally } from '../../../../core/http/request-record.ts'
import { ANSWER_ERRORS, json, nativeRouter } from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { parseRequestedName, publicModelName } from '../../../../core/models/model-name.ts'
import { listModes } from '../../../../core/models/model-operations.ts'
import { DEFAULT_SAMPLING_OPTIONS, parseKeepAlive, parseOptions } from '../../../../core/models/options.ts'
import {
  type AskBody,
  AskSchema,
  type DescribedModel,
  deltasLine,
  MEMBER_LINES,
  ONCE_OPERATIONS,
  type OnceCall,
  packVectors,
  parseTrailers
} from './ask-protocol.ts'

const MAX_DESCRIBED = 100

export function askRoutes(
  app: FastifyInstance,
  deps: AnswerDependencies & { engines: Pick<Engines, 'providerOf'> }
): void {
  const route = nativeRouter(app, 'Cluster')
  const answers = new RunningAnswers()
  const asking = createAnswers(deps)

  route('POST /api/cluster/ask', 'askForFront', 'Answer for a gateway', {
    role: 'operator',
    description:
      'What a gateway asks of its members: the calls of an engine. Answers are lines of JSON, each a list of deltas, or with `bytes` ' +
      'an OpenAI chat stream; a failure after its first byte is the trailer `x-corral-failure`. `owner` and `turn` stand ' +
      "for the gateway's client: prompts of different owners are kept apart, and clients share slots fairly.",
    body: AskSchema,
    response: {
      200: {
        description: 'The answer',
        content: {
          'application/json': { schema: Loose({ value: Type.Unknown() }, { title: 'ClusterAnswer' }) },
          'application/x-ndjson': {
            schema: Type.String({ description: 'Lists of deltas; for a load its progress' })
          },
          'text/event-stream': { schema: Loose({ data: Type.String() }, { description: 'An OpenAI chat stream' }) }
        }
      }
    },
    errors: ANSWER_ERRORS,
    handler: async (request, reply) => {
      const { body } = request
      const model = parseRequestedName(body.model)
      const variant = catalogFor(deps.catalog, request.caller).get(model)
      requireOwn(variant)
      actFor(request, body)
      if (body.trial && request.caller.role === 'admin') request.server.drain.admit(reply, true)
      const lease: ModelLease = {
        model,
        options: parseOptions(body.options).load,
        keepAlive: parseKeepAlive(body.keep_alive),
        ...(body.mode && { mode: body.mode }),
        ...(body.slots && { slots: body.slots }),
        // These need no slot.
        ...((body.call === 'properties' || body.call === 'slotStates') && { loadOnly: true })
      }
      if (body.call === 'endThought') {
        const named = { id: body.control ?? '', owner: request.caller.owner, model: variant }
        return { value: await answers.endThought(named, clientSignal(reply)) }
      }
      if (body.call === 'load') return await load(deps, request, reply, lease, variant)
      const fields = (body.request ?? {}) as EngineFields
      const { call } = body
      if (isOnce(call)) {
        const asked = { operation: ONCE_OPERATIONS[call], body: fields, lease }
        const value = await asking.once(reply, asked, (leased, fields, tally) => callOnce(leased, call, fields, tally))
        return { value }
      }
      const running = body.control && answers.begin(body.control, request.caller.owner, variant, true)
      try {
        const used: (TokenUsage | undefined)[] = []
        const trailers = parseTrailers(reply)
        const { failure } = trailers
        const question: Question = {
          ...{ operation: call, body: fields, lease, variant, ...running },
          overflow: 'error',
          whole: body.whole ?? false,
          countEach: body.count_each ?? false,
          stopText: body.stop_text ?? false,
          native: body.native ?? false,
          used(usage, choice) {
            used[choice] = usage
            trailers.used(used)
          }
        }
        const channel = body.bytes
          ? { ...MEMBER_LINES, contentType: 'text/event-stream', failure, bytes: () => (bytes: Buffer) => bytes }
          : { ...MEMBER_LINES, failure }
        await asking.stream(reply, question, channel, () => {
          if (body.bytes) {
            throw new CorralError(
              'not_implemented',
              'This model is not answered in bytes here. Ask for deltas instead.'
            )
          }
          return { add: deltasLine, end: () => '' }
        })
      } finally {
        if (running) running.end()
      }
    }
  })

  route('POST /api/cluster/describe', 'describeModels', 'Describe models for a gateway', {
    role: 'operator',
    audited: false,
    bodySize: 'large',
    body: Loose(
      {
        models: Type.Array(Type.String(), {
          maxItems: MAX_DESCRIBED,
          description: 'Their names; [] means all models'
        })
      },
      { title: 'ClusterDescribe' }
    ),
    response: {
      200: json(
        'The models that are here',
        Loose(
          { models: Type.Array(Loose({ key: Type.String(), digest: Type.String() })) },
          { title: 'DescribedModels' }
        )
      )
    },
    errors: ['invalid_model_name'],
    handler: async ({ body, caller, raw }) => {
      // All clients of the gateway come from its address.
      app.connectionGuard.exemptGateway(raw.socket.remoteAddress)
      const catalog = catalogFor(deps.catalog, caller)
      const wanted =
        body.models.length > 0
          ? body.models.flatMap(name => catalog.find(parseRequestedName(name)) ?? [])
          : catalog.list()
      return { models: wanted.filter(isOwn).map(variant => described(deps, variant)) }
    }
  })
}

const isOnce = (call: string): call is OnceCall => Object.hasOwn(ONCE_OPERATIONS, call)

/** Models of this server's own nodes are not listed. Otherwise requests could run in circles. */
const isOwn = ({ format }: Model) => format !== 'cluster'

function requireOwn(variant: Model): void {
  if (isOwn(variant)) return
  throw new CorralError(
    'model_not_found',
    `The model "${variant.publicName}" is not here but at a member of this server, and requests from gateways are not passed on. Make that member one of the gateway itself.`,
    { param: 'model' }
  )
}

/** Acts for the gateway's client. Ids are derived from the gateway's key, so it cannot act as anybody else's client. */
function actFor(request: FastifyRequest, { owner, turn, idle }: AskBody): void {
  const { caller } = request
  request.caller = {
    ...caller,
    gateway: caller.owner,
    owner: `${caller.owner}>${owner ?? ''}`,
    turn: `${caller.turn}>${turn ?? owner ?? ''}`,
    ...(idle && { idle })
  }
  // The gateway has many clients. Here too, each of them is limited to its share.
  const { bodyMemory, connectionGuard } = request.server
  bodyMemory.takeAgain(request)
  connectionGuard.takeFor(request.caller.turn, request.raw.socket)
}

async function callOnce(lease: Lease, call: OnceCall, fields: EngineFields, tally: TokenTally): Promise<unknown> {
  const { engine, signal } = lease
  switch (call) {
    case 'embed': {
      const { input = [], truncate, most } = fields as { input?: string[]; truncate?: boolean; most?: number }
      const limits = { ...(truncate !== undefined && { truncate }), ...(most !== undefined && { most }) }
      return packVectors(await embedChunked(lease, input, tally, limits))
    }
    case 'rerank': {
      const { query = '', documents = [] } = fields as { query?: string; documents?: string[] }
      return await rerankChunked(lease, { query, documents }, tally)
    }
    case 'detokenize':
      return await requireCall(lease, 'detokenize')((fields.tokens ?? []) as number[], { signal })
    case 'properties':
      return (await engine.properties?.({ signal })) ?? null
    case 'slotStates':
      return (await engine.slotStates?.({ signal })) ?? null
    default:
      return await requireCall(lease, call)(fields, { signal })
  }
}

async function load(
  { scheduler }: AnswerDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  { model: _, ...lease }: ModelLease,
  variant: Model
): Promise<void> {
  request.server.drain.admit(reply)
  const stream = openReplyStream(reply, MEMBER_LINES)
  await endWithFailure(stream, request, parseTrailers(reply).failure, async () => {
    const leased = await scheduler.lease({
      ...lease,
      ...callerLease(reply),
      model: publicModelName(variant),
      signal: clientSignal(reply),
      onProgress: progress => void stream.write(`${JSON.stringify(progress)}\n`),
      loadOnly: true
    })
    leased.release()
    stream.end()
  })
}

export function described(
  { config, engines }: Pick<AnswerDependencies, 'config' | 'engines'>,
  variant: Model
): DescribedModel {
  const { publicName, key, label, isDefault, digest, size, modifiedAt, format, metadata, model, defaults } = variant
  const builtIn: Record<string, unknown> = DEFAULT_SAMPLING_OPTIONS
  const { sampling } = settingsFor(config, variant)
  const configured = Object.entries(sampling).filter(([name, value]) => value !== builtIn[name])
  return {
    ...{ owner: model.owner, name: model.name, publicName, key, label, isDefault },
    ...{ digest, size, modifiedAt, format, metadata },
    // This server's configuration applies behind a gateway too. The built-in defaults are the same there.
    defaults: { ...defaults, options: { ...defaults?.options, ...Object.fromEntries(configured) } },
    modes: listModes(variant).filter(mode => engines.providerOf(variant, mode) !== undefined)
  }
}
