import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { Bytes } from '../../../core/config/core-schema.ts'
import type { AdminEvent } from '../../../core/contracts/hooks.ts'
import type { ToolCallEvent } from '../../../core/contracts/tool-host.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { auditRoutes } from './audit-routes.ts'
import { type AuditOptions, AuditTrail } from './audit-trail.ts'
import { captureRoutes } from './captures/capture-routes.ts'
import { Captures } from './captures/captures.ts'

const AuditSection = Type.Object(
  {
    reads: Type.Boolean({
      default: false,
      description: 'Also log requests that change nothing and run no model, such as lists'
    }),
    max_size: Bytes({
      default: '64MiB',
      description: 'Size at which a new file is started; a new one is also started every day'
    }),
    max_files: Type.Integer({
      default: 16,
      minimum: 1,
      description: 'Maximum number of full files; the oldest are deleted'
    }),
    keep: Type.Integer({ default: 30, minimum: 1, maximum: 36_500, description: 'Days that full files are kept' }),
    capture_keep: Type.Integer({
      default: 7,
      minimum: 1,
      maximum: 36_500,
      description: 'Days that captured requests and answers are kept'
    })
  },
  { additionalProperties: false }
)
type AuditSection = Static<typeof AuditSection>

export default definePlugin({
  name: 'audit',
  api: 1,
  description: 'Audit log under logs/audit; prompts and answers are recorded only during a capture',
  optional: true,
  needs: ['nativeApi', 'access', 'catalog'],
  options: AuditSection,
  async setup({ hooks, log, paths, service }, options) {
    const trail = new AuditTrail(join(paths.logs, 'audit'), read(options), log)
    const captures = new Captures(
      { folder: join(paths.logs, 'captures'), log, hooks, note: event => trail.note(event) },
      options.capture_keep
    )
    await captures.open()
    const { streams } = service('nativeApi')
    return {
      on: Object.assign(captures.hooks, {
        administered({ change, target, by }: AdminEvent) {
          trail.note({ event: change, target, by })
          if (change === 'key_revoked') captures.keyRevoked(target)
        },
        toolCalled({ server, tool, digest, result, milliseconds: ms, caller, requestId }: ToolCallEvent) {
          const { name, role, address } = caller
          const by = { ...(name !== undefined && { key: name }), role, address, requestId }
          trail.note({ event: 'tool_called', target: `${server}.${tool}`, ...by, code: result, ms, digest })
        }
      }),
      hooks: async app =>
        app.onRequestEnd(request => {
          trail.take(request)
          captures.take(request)
        }),
      routes: async app => {
        // Requests are still answered while plugins stop.
        app.addHook('onClose', async () => {
          await captures.close()
          await trail.close()
        })
        await app.register(auditRoutes(trail, streams('sse')))
        const access = service('access')
        await app.register(captureRoutes({ captures, access, catalog: service('catalog'), streams: streams('ndjson') }))
      },
      reload(next: AuditSection) {
        trail.configure(read(next))
        captures.keep = next.capture_keep
      },
      stop: () => trail.lines.flush()
    }
  }
})

function read({ reads, max_size, max_files, keep }: AuditSection): AuditOptions {
  return { reads, maxSize: parseBytes(max_size)!, maxFiles: max_files, keep }
}
