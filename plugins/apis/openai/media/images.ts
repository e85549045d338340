import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import type { ApiDependencies } from '../../../../core/answers/api-dependencies.ts'
import { eventChannel } from '../../../../core/answers/event-channel.ts'
import { requireImage } from '../../../../core/answers/media-parts.ts'
import type { Question } from '../../../../core/answers/question.ts'
import type { Delta, EngineFields, TokenUsage } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import { openaiErrorEvent, openaiRouter } from '../../../../core/http/openai-error.ts'
import { Given, ignored, keep_alive, ListOf, Loose, named } from '../../../../core/http/request-fields.ts'
import { ANSWER_ERRORS, jsonOrStream } from '../../../../core/http/response-schemas.ts'
import { DONE, frame } from '../answer.ts'

/* Images in OpenAI's format (https://platform.openai.com/docs/api-reference/images), for engines with `draw`. */

const FORM = 'multipart/form-data'
/** Pixels of a whole request. A larger one would occupy an engine for hours. */
const MAX_PIXELS = 2 ** 25

const File = Type.Unsafe<string>({
  type: 'string',
  contentMediaType: 'application/octet-stream',
  description: 'PNG, JPEG or WebP; in JSON as base64 or as a data URL'
})

const ImageRequest = Loose({
  ...named,
  prompt: Given(Type.String({ description: 'What to draw, or what to change' })),
  image: Given(Type.Union([File, Type.Array(File, { maxItems: 16 })])),
  mask: Given(File),
  n: Given(Type.Integer({ minimum: 1, description: 'Number of images; 1 if absent' })),
  size: Given(
    Type.String({
      pattern: '^(auto|[1-9]\\d{0,4}x[1-9]\\d{0,4})$',
      description: '<width>x<height> in pixels, or auto for what the engine prefers'
    })
  ),
  response_format: Given(Type.Enum(['b64_json', 'url'], { description: 'Only b64_json is supported' })),
  output_format: Given(Type.Enum(['png', 'jpeg', 'webp'])),
  output_compression: Given(Type.Integer({ minimum: 0, maximum: 100 })),
  negative_prompt: Given(Type.String({ description: 'What not to draw, for engines that support it' })),
  seed: Given(Type.Integer({ description: 'Makes images repeatable, for engines that support it' })),
  keep_alive,
  stream: Given(Type.Boolean({ description: 'Whether to send each image as an event' })),
  ...ignored('quality', 'style', 'background', 'moderation', 'user', 'partial_images', 'input_fidelity')
})
type ImageRequest = Static<typeof ImageRequest>

const Images = Loose({
  created: Type.Integer({ description: 'Seconds since the epoch' }),
  data: ListOf({ b64_json: Type.String(), revised_prompt: Type.Optional(Type.String()) })
})
const REPLY = jsonOrStream('The images', Images, {
  event:
    'For each image, `data: {"type":"image_generation.completed","b64_json":…}` (`image_edit.completed` if there was an image), then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.'
})

const OPERATIONS = {
  draw: ['/images/generations', 'createImage', 'Make images from a text', ['prompt']],
  edit_image: ['/images/edits', 'createImageEdit', 'Change images as a text says', ['image', 'prompt']],
  vary_image: ['/images/variations', 'createImageVariation', 'Make variations of an image', ['image']]
} as const
type ImageOperation = keyof typeof OPERATIONS

export function imageRoutes(app: FastifyInstance, deps: ApiDependencies): void {
  const route = openaiRouter(app, 'OpenAI audio and images')
  for (const [operation, [path, operationId, summary]] of Object.entries(OPERATIONS)) {
    route(`POST ${path}`, operationId, summary, {
      description: `Needs a model with the capability "${operation}".`,
      consumes: operation === 'draw' ? ['application/json'] : [FORM, 'application/json'],
      body: ImageRequest,
      bodySize: 'large',
      response: { 200: REPLY },
      errors: ANSWER_ERRORS,
      handler: (request, reply) => makeImages(deps, request, reply, operation as ImageOperation)
    })
  }
}

async function makeImages(
  deps: ApiDependencies,
  request: FastifyRequest<{ Body: ImageRequest }>,
  reply: FastifyReply,
  operation: ImageOperation
): Promise<unknown> {
  const { variant, lease } = deps.answers.read(request.body, request.caller)
  const question: Question = {
    operation,
    body: imageFields(request.body, operation),
    lease,
    variant,
    overflow: 'error'
  }
  const created = () => Math.floor(Date.now() / 1000)
  if (!request.body.stream) {
    const made = await deps.answers.whole(reply, question, () => new MadeImages())
    return { created: created(), data: made.images, ...made.usage() }
  }
  const type = operation === 'draw' ? 'image_generation.completed' : 'image_edit.completed'
  const channel = eventChannel(deps.heartbeat(), openaiErrorEvent)
  return await deps.answers.stream(reply, question, channel, () => {
    const made = new MadeImages()
    return {
      add: deltas =>
        made
          .add(deltas)
          .map(image => frame({ type, ...image, created_at: created() }))
          .join(''),
      end: () => DONE
    }
  })
}

/** Builds the engine's request. @throws CorralError `invalid_request`, `unsupported_capability` */
export function imageFields(request: ImageRequest, operation: ImageOperation): EngineFields {
  const { prompt, image, mask, n, size, response_format, output_format, output_compression, negative_prompt, seed } =
    request
  for (const field of OPERATIONS[operation][3]) {
    if (!request[field]?.length) {
      throw new CorralError('invalid_request', `"${field}" is missing. Send it.`, { param: field })
    }
  }
  if (response_format === 'url') {
    throw new CorralError('unsupported_capability', 'Images have no URLs here. Use the response_format "b64_json".', {
      param: 'response_format'
    })
  }
  const [width = 0, height = 0] = (size ?? '').split('x').map(Number)
  if (width * height * (n ?? 1) > MAX_PIXELS) {
    const message = `"size" and "n" ask for more than ${MAX_PIXELS} pixels. Ask for smaller or fewer images.`
    throw new CorralError('over_limit', message, { param: 'size' })
  }
  const images = [image ?? []].flat()
  const fields = {
    prompt,
    n,
    size: size === 'auto' ? undefined : size,
    output_format,
    output_compression,
    negative_prompt,
    seed,
    ...(operation !== 'draw' && {
      images: images.map((each, at) => requireImage(each, images.length > 1 ? `image[${at}]` : 'image')),
      mask: mask && requireImage(mask, 'mask')
    })
  }
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null))
}

/** Collects images from an engine's deltas, which have one in `json` each. */
class MadeImages {
  readonly images: Record<string, unknown>[] = []
  #usage: TokenUsage | undefined

  add(deltas: readonly Delta[]): Record<string, unknown>[] {
    const more = deltas.flatMap(({ json }) => (json ? [json] : []))
    this.#usage = deltas.at(-1)?.usage ?? this.#usage
    this.images.push(...more)
    return more
  }

  usage() {
    if (!this.#usage) return {}
    const { promptTokens: input_tokens, completionTokens: output_tokens } = this.#usage
    return { usage: { input_tokens, output_tokens, total_tokens: input_tokens + output_tokens } }
  }
}
