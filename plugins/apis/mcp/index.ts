import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import type { CorralError } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { useErrorFormat } from '../../../core/http/error-format.ts'
import { Loose, Titled } from '../../../core/http/request-fields.ts'
import { jsonOrStream, routerWith } from '../../../core/http/response-schemas.ts'
import { hasRole, type Role } from '../../../core/http/roles.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { OpenMap } from '../../../core/system/open-tables.ts'
import type { MayUse, McpServer } from './mcp-server.ts'

export default definePlugin({
  name: 'api-mcp',
  api: 1,
  description: 'corral as an MCP server under /mcp: tools for MCP clients, with the roles and limits of the REST API',
  optional: true,
  options: Type.Object({}, { additionalProperties: false, restart: true }),
  setup() {
    let server: Promise<McpServer> | undefined
    let mayUse: MayUse
    return {
      hooks: async app => {
        mayUse = rememberRoles(app)
      },
      on: { stateChanged: topic => void (topic === 'model' && server?.then(({ modelsChanged }) => modelsChanged())) },
      routes: async app => {
        // The SDK takes time and memory, which servers without MCP clients save.
        const load = () => import('./mcp-server.ts').then(({ createServer }) => createServer(app, mayUse))
        await app.register(async mount => mcpRoute(mount, () => (server ??= load())), { prefix: '/mcp' })
      }
    }
  }
})

function rememberRoles(app: FastifyInstance): MayUse {
  const roles = new Map<string, Role | 'anyone'>()
  app.addHook('onRoute', ({ method, url, config }) => {
    if (!config?.leftOut) for (const each of [method].flat()) roles.set(`${each} ${url}`, config?.role ?? 'user')
  })
  return ({ role }, route) => roles.has(route) && hasRole(role, roles.get(route) as Role)
}

function rpcErrorBody({ code, message, details, status }: CorralError): Record<string, unknown> {
  const rpcCode = code === 'invalid_json' ? -32700 : status === 400 ? -32600 : -32000
  return { jsonrpc: '2.0', id: null, error: { code: rpcCode, message, data: { ...details, code } } }
}

const RpcMessage = Titled('JsonRpcMessage', { jsonrpc: Type.Literal('2.0') })
const rpcRouter = routerWith(codes => {
  const data = Loose({ code: Type.Enum([...codes]) })
  return Loose({ error: Loose({ code: Type.Integer(), message: Type.String(), data: Type.Optional(data) }) })
})

function mcpRoute(app: FastifyInstance, load: () => Promise<McpServer>): void {
  useErrorFormat(app, rpcErrorBody)
  /** Active requests by session and id. Before 2026-07-28, clients cancel a request with another one. */
  const running = new OpenMap<string, AbortController>()
  const closing = new AbortController()
  app.addHook('preClose', async () => closing.abort())
  rpcRouter(app, 'MCP')('POST ', 'mcp', 'Send a message of the Model Context Protocol', {
    audited: false,
    bodySize: 'large',
    body: RpcMessage,
    response: {
      200: jsonOrStream('The reply', RpcMessage, { event: 'Progress, then the reply', item: RpcMessage }),
      202: { description: 'A notification was received', content: {} }
    },
    async handler(request, reply) {
      const { caller, headers } = request
      const { method, id, params } = request.body as Record<string, unknown>
      const keyOf = (id: unknown) => JSON.stringify([caller.owner, headers['mcp-session-id'], id])
      if (method === 'notifications/cancelled' && isObject(params)) running.get(keyOf(params.requestId))?.abort()
      // Sessions are not stored. Their ids only distinguish clients, whose request ids may be equal.
      if (method === 'initialize') reply.header('mcp-session-id', request.id)
      const cancelled = new AbortController()
      const ends = [clientSignal(reply), cancelled.signal]
      if (headers['mcp-session-id'] !== undefined && id !== undefined) {
        running.set(keyOf(id), cancelled)
        reply.raw.once('close', () => running.get(keyOf(id)) === cancelled && running.delete(keyOf(id)))
      }
      // Clients listen for changes as long as they run.
      if (method === 'subscriptions/listen') ends.push(closing.signal)
      const { respond } = await load()
      return await reply.send(await respond(request, AbortSignal.any(ends)))
    }
  })
}
