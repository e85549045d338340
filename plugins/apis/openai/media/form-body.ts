import type { FastifyInstance, FastifyRequest } from 'fastify'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { freeBody, readWholeBody } from '../../../../core/http/whole-body.ts'

/** The keywords of a form field's schema that count. */
interface FieldSchema {
  type?: string
  anyOf?: FieldSchema[]
}

/** More than any form of the API has. */
const MAX_PARTS = 100

/**
 * Lets routes take multipart forms too, as if they were the JSON that their schemas describe: files become base64, and
 * texts values of their field's type.
 */
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

/** The values of each field, in their order; lists may be named `field[]`. */
async function readForm(contentType: string, body: Buffer): Promise<Map<string, string[]>> {
  // Forms are rare: the reader is imported with the first one.
  const { Busboy } = await import('@fastify/busboy')
  const fields = new Map<string, string[]>()
  const add = (field: string, value: string) => {
    const name = field.replace(/\[\d*\]$/, '')
    fields.set(name, [...(fields.get(name) ?? []), value])
  }
  try {
    const form = new Busboy({
      headers: { 'content-type': contentType },
      // The whole form is there already, and nobody reads a part without headers: with less room the reader would wait for ever.
      fileHwm: body.length + 1,
      limits: { fieldSize: body.length, parts: MAX_PARTS }
    })
    await new Promise<void>((resolve, reject) => {
      // Whatever the reader's types say, a part need not have a name.
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
            // The form was refused before, and its memory is gone.
            reject(error)
          }
        })
        file.on('error', reject)
      })
      form.once('partsLimit', () => reject(new Error(`it has more than ${MAX_PARTS} parts`)))
      form.once('finish', resolve)
      form.on('error', reject)
      form.end(body)
    })
  } catch (error) {
    throw new CorralError('invalid_request', `The form (multipart/form-data) cannot be read: ${errorMessage(error)}.`)
  }
  return fields
}

/** A form's texts as a value of their field's type; the route's validation refuses those that are none. */
function fieldValue(values: string[], schema: FieldSchema): unknown {
  const types = [schema, ...(schema.anyOf ?? [])].map(({ type }) => type)
  if (types.includes('array')) return values
  const text = values.at(-1)!
  if ((types.includes('number') || types.includes('integer')) && /^-?\d+(\.\d+)?$/.test(text)) return Number(text)
  if (types.includes('boolean') && /^(true|false)$/i.test(text)) return text.toLowerCase() === 'true'
  return text
}
