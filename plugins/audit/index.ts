import { join } from 'node:path'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { Bytes } from '../../core/config/core-schema.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseBytes } from '../../core/system/bytes.ts'
import { auditRoutes } from './audit-routes.ts'
import { AuditTrail } from './audit-trail.ts'

export default definePlugin({
  name: 'audit',
  api: 1,
  description: 'Who did what, in files of JSON lines under logs/audit; never what was said',
  optional: true,
  needs: ['nativeApi'],
  options: Type.Object(
    {
      reads: Type.Boolean({
        default: false,
        description: 'Also write down requests that change nothing and ask no model, such as lists'
      }),
      max_size: Bytes({
        default: '64MiB',
        description: 'Size at which a new file is begun; one is begun each day too'
      }),
      max_files: Type.Integer({ default: 16, minimum: 1, description: 'Most full files; the oldest ones go' }),
      keep: Type.Integer({ default: 30, minimum: 1, maximum: 36_500, description: 'Days that full files are kept' })
    },
    { additionalProperties: false }
  ),
  setup({ log, paths, service }, options) {
    const trail = new AuditTrail(
      join(paths.logs, 'audit'),
      {
        maxSize: parseBytes(options.max_size)!,
        keep: options.keep,
        maxFiles: options.max_files,
        reads: options.reads
      },
      log
    )
    const observe: FastifyPluginAsync = async app => app.onRequestEnd(request => trail.take(request))
    return {
      on: { administered: ({ change, target, by }) => trail.note({ event: change, target, by }) },
      hooks: observe,
      routes: async app => {
        // Requests go on while plugins stop.
        app.addHook('onClose', () => trail.close())
        await app.register(auditRoutes(trail, service('nativeApi').streams('sse')))
      },
      stop: () => trail.flush()
    }
  }
})
