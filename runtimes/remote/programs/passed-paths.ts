import type { FastifyInstance } from 'fastify'
import { type Dispatcher, FormData, Response } from 'undici'
import { SseParser } from '../../../core/answers/openai-events.ts'
import type { AnswerSink, EngineFields, TokenUsage } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { sendErrors } from '../../../core/http/error-format.ts'
import { openaiErrorBody } from '../../../core/http/openai-error.ts'
import type { PluginContext } from '../../../core/plugins/plugin.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { toUsage } from '../remote-engine.ts'

/*
 * Paths of programs that corral has no route for. Each path is an operation of its models. Its requests have the fields
 * of the JSON, or `multipart/form-data` with those of a form.
 */

/** A file in a form. `data` is base64. */
interface FormFile {
  filename: string
  type: string
  data: string
}

export const PREFIX = '/v1'
const FORM = 'multipart/form-data'

/** @param isListed whether a program has this path in its settings */
export function passedPathRoutes(app: FastifyInstance, context: PluginContext, isListed: (path: string) => boolean) {
  const answers = context.answers({})
  sendErrors(app, openaiErrorBody)
  app.addContentTypeParser(FORM, { parseAs: 'buffer' }, async (request: { headers: object }, bytes: Buffer) => {
    return { [FORM]: await readForm((request.headers as Record<string, string>)['content-type']!, bytes) }
  })
  app.route<{ Params: { '*': string }; Body: unknown }>({
    method: 'POST',
    url: `${PREFIX}/*`,
    // Only listed paths exist, whatever the pattern says.
    config: { role: 'user', bodySize: 'large', leftOut: true },
    schema: { hide: true },
    async handler(request, reply) {
      const operation = `${PREFIX}/${request.params['*']}`
      if (!isListed(operation)) throw app.noRouteError('POST', request.url)
      const { body } = request
      if (!isObject(body)) throw new CorralError('invalid_request', 'The body must be a JSON object or a form.')
      const fields = isObject(body[FORM]) ? body[FORM] : body
      const { lease, variant, overflow } = answers.read({ model: fields.model }, request.caller)
      return await answers.result(reply, { operation, body, lease, variant, overflow })
    }
  })
}

async function readForm(type: string, bytes: Buffer): Promise<Record<string, unknown>> {
  let form: FormData
  try {
    form = await new Response(bytes, { headers: { 'content-type': type } }).formData()
  } catch {
    throw new CorralError('invalid_request', `The form (${FORM}) cannot be read. Check its boundary and parts.`)
  }
  const fields: Record<string, unknown> = {}
  for (const name of new Set(form.keys())) {
    const values = await Promise.all(
      form.getAll(name).map(value => (typeof value === 'string' ? value : readFile(value)))
    )
    fields[name] = values.length === 1 ? values[0] : values
  }
  return fields
}

async function readFile(file: File): Promise<FormFile> {
  return { filename: file.name, type: file.type, data: Buffer.from(await file.arrayBuffer()).toString('base64') }
}

/** The request for the program, which has its own name for the model. */
export function passedBody(fields: EngineFields, model: string): object {
  if (!isObject(fields[FORM])) return { ...fields, model }
  const form = new FormData()
  for (const [name, value] of Object.entries({ ...fields[FORM], model })) {
    for (const each of [value].flat()) {
      if (isObject(each)) {
        const { filename, type, data } = each as unknown as FormFile
        form.append(name, new Blob([Buffer.from(data, 'base64')], { type }), filename)
      } else form.append(name, String(each))
    }
  }
  return form
}

/** Passes the reply of a program on: JSON as a whole, and everything else as it arrives. Counts the usage that it has. */
export async function passReply(body: Dispatcher.ResponseData['body'], type: string, sink: AnswerSink): Promise<void> {
  let usage: TokenUsage | undefined
  if (/^application\/json\b/.test(type)) {
    const bytes = Buffer.from(await body.arrayBuffer())
    const json: unknown = JSON.parse(bytes.toString())
    usage = readUsage(json)
    await sink.take([isObject(json) ? { json } : { bytes, type }])
  } else {
    const events = type.startsWith('text/event-stream') ? new SseParser() : undefined
    for await (const bytes of body as AsyncIterable<Buffer>) {
      for (const payload of events?.push(bytes) ?? []) usage = readUsage(parseAnyJson(payload)) ?? usage
      await sink.take([{ bytes, type }])
    }
  }
  await sink.take([{ finish: 'stop', ...(usage && { usage }) }])
}

const readUsage = (reply: unknown) => (isObject(reply) && isObject(reply.usage) ? toUsage(reply.usage) : undefined)
