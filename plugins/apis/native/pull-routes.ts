import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import type { FileProgress, Pull, PullPlan } from '../../../core/contracts/downloads.ts'
import type { EventStream } from '../../../core/contracts/native-api.ts'
import {
  Done,
  type PlanReply,
  type PullEvent,
  PullEventSchema,
  PullPlanSchema,
  PullSchema,
  RecommendationSchema,
  RepositoryCardSchema,
  SearchReplySchema
} from '../../../core/contracts/native-records.ts'
import { type Progress, progressText } from '../../../core/contracts/progress.ts'
import { CorralError, type ErrorCode, errorCodes, invalidRequest } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Given, Loose, named, Text, Titled } from '../../../core/http/request-fields.ts'
import { DOWNLOAD_ERRORS, FILE_ERRORS, HUB_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { bareName } from '../../../core/models/model-name.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { requestedName } from './records.ts'

const PullRequestSchema = Titled('PullRequest', {
  model: Given(Text('[hf:|csghub:|modelscope:]<owner>/<name>[:<variant>][@<revision>], or a URL')),
  name: named.name,
  as: Given(Text('Name to store the model under')),
  stream: Given(Type.Boolean({ default: true })),
  detach: Given(Type.Boolean({ default: false })),
  dry_run: Given(Type.Boolean({ default: false })),
  update: Given(Type.Boolean({ default: false }))
})
const { model, name } = PullRequestSchema.properties
const CardRequestSchema = Titled('CardRequest', { model, name })
const PullsRequestSchema = Titled('PullsRequest', {
  ...named,
  id: Given(Text('Id of the pull; its model may be sent instead'))
})
const PauseRequestSchema = Titled('PauseRequest', {
  ...PullsRequestSchema.properties,
  unless_shared: Given(Type.Boolean({ default: false }))
})
const NAMED: ErrorCode[] = ['invalid_model_name', 'model_not_found']
const SEARCH_ERRORS = errorCodes(
  'invalid_request hub_forbidden hub_unreachable hub_rate_limited repo_not_found rate_limited'
)
const WAITING = 'waiting for other pulls'
const PULL_ERRORS: ErrorCode[] = [...FILE_ERRORS, ...HUB_ERRORS, 'rate_limited', 'pull_cancelled', ...DOWNLOAD_ERRORS]

const withWarnings = (pull: Pull | undefined) => ({
  status: 'success' as const,
  ...(pull && pull.warnings.length > 0 && { warnings: [...pull.warnings] })
})

export function pullRoutes(app: FastifyInstance, { downloads, streams, naming }: NativeDependencies): void {
  const route = nativeRouter(app, 'Pulls')

  route('POST /pull', 'pullModel', 'Download a model from a hub', {
    role: 'operator',
    body: PullRequestSchema,
    response: {
      200: streams.eventsReply(
        'The model is stored; with `dry_run`, what would be downloaded',
        Type.Union([PullPlanSchema, Done('success')]),
        'Progress of each file; the last event is a success or an error',
        PullEventSchema
      ),
      202: json('The pull continues in the background', PullSchema)
    },
    errors: PULL_ERRORS,
    handler: async ({ body, caller }, reply) => {
      const model = requestedName(body)
      const success = { status: 'success' }
      const source = naming.atHub ? naming.atHub(model) : model
      if (source === undefined) {
        if (body.stream === false) return success
        return await streams.reply(reply, async stream => {
          void stream.send({ status: `pulling ${model}` })
          return success
        })
      }
      const pullRequest = {
        model: source,
        ...(body.as && { as: body.as }),
        ...(body.update && { update: true }),
        caller
      }
      const signal = clientSignal(reply)

      if (body.dry_run) return planReply(await downloads.plan(pullRequest, { signal }))
      if (body.detach) {
        const pull = await downloads.pull(await downloads.plan(pullRequest, { signal }), { detached: true, caller })
        return pull ? await reply.code(202).send(pull.record()) : success
      }
      if (body.stream === false) {
        const pull = await downloads.pull(await downloads.plan(pullRequest, { signal }), { detached: false, caller })
        await pull?.watch(() => undefined, signal)
        return withWarnings(pull)
      }
      return await streams.reply(reply, async stream => {
        const onProgress = (progress: Progress) => {
          stream.status = progressText(progress)
        }
        onProgress({ phase: 'pulling', subject: model })
        const plan = await downloads.plan(pullRequest, { signal, onProgress })
        const pull = await downloads.pull(plan, { detached: false, caller })
        void stream.send({ status: `pulling ${model}`, ...planSummary(plan) })
        const events = newestEvents(stream)
        const onEvent = (files: FileProgress[]) => {
          stream.status = `pulling ${model}`
          events.add(files)
        }
        const onWaiting = () => {
          stream.status = WAITING
          void stream.send({ status: WAITING })
        }
        await pull?.watch(onEvent, signal, onWaiting)
        events.flush()
        return withWarnings(pull)
      })
    }
  })

  route('GET /search', 'searchHubs', 'Search hubs for models', {
    role: 'operator',
    querystring: Type.Object({
      q: Text('Words in the name'),
      hub: Type.Optional(
        Text('huggingface, modelscope, csghub, corral-hub or all; those in downloads.search by default')
      ),
      limit: Type.Optional(
        Type.String({
          pattern: '^(?:[1-9]|[1-4][0-9]|50)$',
          description: 'Maximum number of models per hub: 1 to 50, by default 10'
        })
      )
    }),
    response: json('The search results', SearchReplySchema),
    errors: SEARCH_ERRORS,
    handler: async ({ query: { q, hub, limit = '10' }, caller }, reply) => {
      const words = q.trim().replace(/\s+/g, ' ')
      if (words === '' || words.length > 200 || /\p{Cc}/u.test(words)) {
        throw invalidRequest('q', '"q" must contain words of a model name, with at most 200 characters.')
      }
      return await downloads.search({ words, hub, limit: Number(limit), caller }, { signal: clientSignal(reply) })
    }
  })

  route('POST /card', 'showCard', 'Show what a repository says about itself', {
    role: 'operator',
    body: CardRequestSchema,
    response: json('The README, licence and capabilities', RepositoryCardSchema),
    errors: [...NAMED, ...SEARCH_ERRORS, ...HUB_ERRORS],
    handler: async ({ body, caller }, reply) =>
      await downloads.card({ model: requestedName(body), caller }, { signal: clientSignal(reply) })
  })

  route('GET /recommended', 'listRecommended', 'Recommend models for this machine', {
    role: 'operator',
    response: json(
      'For each purpose, the largest that fits first',
      Loose({ models: Type.Array(RecommendationSchema) })
    ),
    handler: async () => ({ models: await downloads.recommended() })
  })

  route('GET /pulls', 'listPulls', 'List unfinished pulls', {
    role: 'operator',
    response: json('Oldest first', Loose({ pulls: Type.Array(PullSchema) })),
    handler: async () => ({ pulls: downloads.list() })
  })

  route('GET /pulls/:id', 'getPull', 'Show the progress of a pull', {
    role: 'operator',
    params: Type.Object({ id: Text('Id of a pull, or the model it downloads') }),
    response: json('The pull', PullSchema),
    errors: ['model_not_found'],
    handler: async ({ params: { id } }) => {
      const record = downloads.list().find(pull => pull.id === id || pull.model.toLowerCase() === id.toLowerCase())
      if (record) return record
      throw new CorralError(
        'model_not_found',
        `There is no pull ${JSON.stringify(id)}. List the pulls with GET /api/pulls.`,
        { param: 'id' }
      )
    }
  })

  const body = PullsRequestSchema
  const response = json('The pull', PullSchema)
  route('POST /pulls/pause', 'pausePull', 'Pause a pull', {
    role: 'operator',
    body: PauseRequestSchema,
    response,
    errors: NAMED,
    handler: async ({ body }) => {
      return await downloads.pause(requireId(body), { unlessShared: body.unless_shared === true })
    }
  })

  route('POST /pulls/resume', 'resumePull', 'Resume a pull in the background', {
    role: 'operator',
    body,
    response,
    errors: PULL_ERRORS,
    handler: async ({ body, caller }) => await downloads.resume(requireId(body), caller)
  })

  route('POST /pulls/cancel', 'cancelPull', 'Cancel a pull and delete its data', {
    role: 'operator',
    body,
    response: json('Cancelled', Done('cancelled')),
    errors: NAMED,
    handler: async ({ body }) => {
      await downloads.cancel(requireId(body))
      return { status: 'cancelled' }
    }
  })
}

/** @throws CorralError `invalid_request` if the request names no pull */
function requireId(body: Static<typeof PullsRequestSchema>): string {
  const id = body.id || requestedName(body)
  if (id) return id
  throw invalidRequest('id', 'The request names no pull. Send its "id", or the "model" it downloads.')
}

function newestEvents(stream: EventStream) {
  const waiting = new Map<string, FileProgress>()
  let full = false
  const flush = () => {
    if (waiting.size === 0) return
    const drained = stream.send(...[...waiting.values()].map(fileEvent))
    waiting.clear()
    if (!drained) return
    full = true
    void drained.then(() => {
      full = false
      flush()
    })
  }
  return {
    add(files: FileProgress[]) {
      for (const file of files) waiting.set(file.path, file)
      if (!full) flush()
    },
    flush
  }
}

function fileEvent({ path, completed, total }: FileProgress): PullEvent {
  return { status: `downloading ${path}`, digest: path, total, completed }
}

function planSummary({ name, label, format, size, reason, warnings, present }: PullPlan): Omit<PullEvent, 'status'> {
  return { model: bareName(name), label, format, size, reason, warnings, present }
}

function planReply({ name, repository, files, isLocal: _, libraryName: __, ...plan }: PullPlan): PlanReply {
  const { hub, id, revision, address, gated } = repository
  return {
    model: bareName(name),
    ...plan,
    repository: { hub, id, revision, address, gated },
    files: files.map(({ storedPath: _, ...file }) => file)
  }
}
