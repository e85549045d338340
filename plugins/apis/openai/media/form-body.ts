import type { FastifyInstance, FastifyRequest } from 'fastify'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { freeBody, readWholeBody } from '../../../../core/http/whole-body.ts'

interface FieldSchema {
  type?: string
  anyOf?: FieldSchema[]
}

/** No form of the API has as many parts. */
const MAX_FORM_PARTS = 100

/** Accepts multipart forms as JSON: files become base64, and texts get the type of their field in the schema. */
export function acceptForms(app: FastifyInstance): void {
  app.addContentTypeParser('multipart/form-data', (request, payload, done) => {
    readWholeBody(payload, request.routeOptions.bodyLimit!, (error, bytes) => {
      if (!bytes) return done(error)
      readFields(request, bytes)
        .finally(() => freeBody(bytes))
        .then(fields => done(null, fields), done)
    })
  })
}

async function readFields(request: FastifyRequest, body: Buffer): Promise<Record<string, unknown>> {
  const schema = request.routeOptions.schema?.body as { properties?: Record<string, FieldSchema> } | undefined
  const { properties = {} } = schema ?? {}
  const given = await readForm(request.headers['content-type']!, body)
  return Object.fromEntries(
    [...given].map(([name, values]) => [
      name,
      fieldValue(values, Object.hasOwn(properties, name) ? properties[name]! : {})
    ])
  )
}

/** Reads the values of each field. Lists may be named `field[]`. */
async function readForm(contentType: string, body: Buffer): Promise<Map<string, string[]>> {
  // Forms are rare, so the parser is imported on demand.
  const { Busboy } = await import('@fastify/busboy')
  const fields = new Map<string, string[]>()
  const add = (field: string, value: string) => {
    const name = field.replace(/\[\d*\]$/, '')
    fields.set(name, [...(fields.get(name) ?? []), value])
  }
  try {
    const form = new Busboy({
      headers: { 'content-type': contentType },
      // The parser must be able to buffer the whole form. It would wait forever for someone to read a part without
      // headers.
      fileHwm: body.length + 1,
      limits: { fieldSize: body.length, parts: MAX_FORM_PARTS }
    })
    await new Promise<void>((resolve, reject) => {
      // Contrary to the parser's types, a part may have no name.
      const take = (name: string | undefined, value: string) => {
        if (name === undefined) reject(new Error('one of its parts has no name'))
        else add(name, value)
      }
      form.on('field', take)
      form.on('file', (name, file) => {
        const chunks: Buffer[] = []
        file.on('data', chunk => chunks.push(chunk))
        file.once('end', () => {
          try {
            take(name, Buffer.concat(chunks).toString('base64'))
          } catch (error) {
            // The form was already refused and its memory was freed.
            reject(error)
          }
        })
        file.on('error', reject)
      })
      form.once('partsLimit', () => reject(new Error(`it has more than ${MAX_FORM_PARTS} parts`)))
      form.once('finish', resolve)
      form.on('error', reject)
      form.end(body)
    })
  } catch (error) {
    throw new CorralError('invalid_request', `The form (multipart/form-data) cannot be read: ${errorMessage(error)}.`)
  }
  return fields
}

/** Converts the texts of a field to its type. The route's validation refuses values that do not fit. */
function fieldValue(values: string[], schema: FieldSchema): unknown {
  const types = [schema, ...(schema.anyOf ?? [])].map(({ type }) => type)
  if (types.includes('array')) return values
  const text = values.at(-1)!
  if ((types.includes('number') || types.includes('integer')) && /^-?\d+(\.\d+)?$/.test(text)) return Number(text)
  if (types.includes('boolean') && /^(true|false)$/i.test(text)) return text.toLowerCase() === 'true'
  return text
}
