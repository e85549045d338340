import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { Access } from '../../../../core/contracts/built-in-services.ts'
import type { Catalog } from '../../../../core/contracts/models.ts'
import type { EventStreams } from '../../../../core/contracts/native-api.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { Given, Loose, Text } from '../../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, jsonOrStream, nativeRouter } from '../../../../core/http/response-schemas.ts'
import { bareName, parseRequestedName } from '../../../../core/models/model-name.ts'
import { parseBytes } from '../../../../core/system/bytes.ts'
import { parseDuration } from '../../../../core/system/duration.ts'
import { parseAnyJson } from '../../../../core/system/json-object.ts'
import { CaptureRecordSchema, CaptureSchema, type Captures } from './captures.ts'

const TAG = 'Captures'
const MAX_TIME = 24 * 3_600_000
const USUAL_SIZE = '64MiB'
const MAX_SIZE = 2 ** 30

interface Dependencies {
  captures: Captures
  access: Access
  catalog: Catalog
  streams: EventStreams
}

export function captureRoutes({ captures, access, catalog, streams }: Dependencies): FastifyPluginAsync {
  return async instance => {
    const route = nativeRouter(instance, TAG)
    const params = Type.Object({ id: Type.String() })

    route('POST /api/captures', 'startCapture', 'Start recording requests and answers', {
      role: 'admin',
      description:
        'Records the requests of a key, to a model, or of a key to a model. Their answers have the header `x-corral-captured`. The capture ends automatically, at the latest when the server stops.',
      body: Loose({
        key: Given(Text('Name of a key')),
        model: Given(Text('<owner>/<name>, or <owner>/<name>:<variant> for one variant')),
        for: Given(Type.Union([Type.String(), Type.Number()], { description: 'Such as 10m; at most 24h. Required' })),
        max_bytes: Given(
          Type.Union([Type.String(), Type.Number()], {
            description: `Size in bytes at which the capture ends (${USUAL_SIZE})`
          })
        )
      }),
      response: { 200: json('The capture', CaptureSchema) },
      errors: ['invalid_option', 'key_not_found', 'invalid_model_name', 'model_not_found', ...DISK_ERRORS],
      handler: async ({ body, caller }) => {
        const key = body.key ?? undefined
        const owner = key === undefined ? undefined : access.ownerOf(key)
        const wrong = (code: ErrorCode, message: string) => new CorralError(code, message, { param: 'key' })
        if (key !== undefined && owner === undefined) {
          throw wrong('key_not_found', 'There is no key with that name. "corral key list" shows the keys.')
        }
        if (key === undefined && body.model == null) {
          throw wrong('invalid_option', 'Say which requests to capture: give "key", "model" or both.')
        }
        return await captures.start({
          key,
          owner,
          model: body.model == null ? undefined : knownModel(catalog, body.model),
          time: upTo(
            MAX_TIME,
            parseDuration(body.for),
            'for',
            'a duration up to 24h. Write 10m, 2h or a number of seconds'
          ),
          maxBytes: upTo(
            MAX_SIZE,
            parseBytes(body.max_bytes ?? USUAL_SIZE),
            'max_bytes',
            'a size up to 1GiB. Write 64MiB or a number of bytes'
          ),
          by: caller.name ?? caller.address
        })
      }
    })

    route('GET /api/captures', 'listCaptures', 'List captures', {
      role: 'admin',
      response: {
        200: json('Active and stored captures, newest first', Loose({ captures: Type.Array(CaptureSchema) }))
      },
      handler: async () => ({ captures: captures.list() })
    })

    route('GET /api/captures/:id', 'getCapture', 'Show captured requests and answers', {
      role: 'admin',
      audited: true,
      params,
      response: {
        200: jsonOrStream('Never', CaptureRecordSchema, {
          event: 'A request, once it has ended',
          item: CaptureRecordSchema,
          types: streams.types
        })
      },
      errors: ['capture_not_found'],
      handler: async (request, reply) => {
        const path = await captures.recordsOf(request.params.id)
        return await streams.reply(reply, async stream => {
          for await (const line of createInterface({
            input: createReadStream(path),
            crlfDelay: Number.POSITIVE_INFINITY
          })) {
            const record = parseAnyJson(line)
            // A crash may have truncated a line.
            if (record) await stream.send(record)
          }
          return undefined
        })
      }
    })

    route('POST /api/captures/:id/stop', 'stopCapture', 'End a capture', {
      role: 'admin',
      description: 'The records are stored for `audit.capture_keep` days.',
      params,
      response: { 200: json('The capture', CaptureSchema) },
      errors: ['capture_not_found'],
      handler: async ({ params: { id } }) => await captures.stop(id)
    })

    route('DELETE /api/captures/:id', 'deleteCapture', 'End a capture and delete its records', {
      role: 'admin',
      params,
      response: { 200: json('Deleted', Type.Object({ status: Type.Literal('deleted') })) },
      errors: ['capture_not_found'],
      handler: async ({ params: { id } }) => {
        await captures.remove(id)
        return { status: 'deleted' as const }
      }
    })
  }
}

/** Returns the public name of an installed model. @throws CorralError */
function knownModel(catalog: Pick<Catalog, 'get'>, text: string): string {
  const name = parseRequestedName(text)
  const { publicName, model } = catalog.get(name)
  return name.variant === undefined ? bareName(model) : publicName
}

function upTo(max: number, value: number | undefined, param: string, wanted: string): number {
  if (value !== undefined && value > 0 && value <= max) return value
  throw new CorralError('invalid_option', `"${param}" is not ${wanted}.`, { param })
}
