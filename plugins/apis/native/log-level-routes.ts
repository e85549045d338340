import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { LOG_LEVELS } from '../../../core/config/core-schema.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { json, nativeRoute } from '../../../core/http/response-schemas.ts'
import type { LogLevels } from '../../../core/system/log-levels.ts'

const Level = Type.Enum([...LOG_LEVELS])
const LevelsSchema = Type.Object(
  {
    default: Level,
    parts: Type.Record(Type.String(), Level, { description: 'Plugins and parts of the core, each with its level' })
  },
  { title: 'LogLevels', additionalProperties: true }
)

/** Routes to show and change log levels at run time. */
export function logLevelRoutes(levels: LogLevels): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    const show = nativeRoute('Server', 'getLogLevels', 'Show the log levels', {
      role: 'admin',
      response: { 200: json('The levels', LevelsSchema) }
    })
    app.get('/log-levels', show, async () => levels.report())

    const change = nativeRoute('Server', 'setLogLevel', 'Change a log level', {
      role: 'admin',
      description:
        'The change lasts until the server stops. Without `part` it sets the default for all parts without a level of their own. Without `level` the part uses the default again.',
      body: Loose({
        part: Type.Optional(Type.Union([Type.String(), Type.Null()])),
        level: Type.Optional(Type.Union([Type.String(), Type.Null()], { description: LOG_LEVELS.join(', ') }))
      }),
      response: { 200: json('The new levels', LevelsSchema) },
      errors: ['invalid_option']
    })
    app.put('/log-levels', change, async ({ body }) => {
      levels.set(body.part ?? undefined, body.level ?? undefined)
      return levels.report()
    })
  }
}
