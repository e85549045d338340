import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import { ResultFileSchema } from '../../../core/answers/hosted-calls.ts'
import { unknownToolServer } from '../../../core/answers/offered-tools.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Loose, Text, Titled } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { ROLES } from '../../../core/http/roles.ts'
import type { ToolServers } from './tool-servers.ts'

const Tool = Titled('HostTool', {
  name: Text('Its name at the server'),
  description: Type.String(),
  parameters: Loose({}, { description: 'JSON schema of its arguments' }),
  readOnly: Type.Boolean({ description: 'Whether the server says that it changes nothing' }),
  asks: Type.Boolean({ description: 'Whether a user must approve each call' })
})

const Server = Titled('ToolServer', {
  name: Type.String(),
  transport: Type.Enum(['stdio', 'http', 'built-in']),
  state: Type.Enum(['running', 'stopped', 'failed'], { description: 'Servers are started when they are first used' }),
  fault: Type.Optional(Text('Why it failed last')),
  roles: Type.Array(Type.Enum([...ROLES])),
  ask: Type.Enum(['never', 'writes', 'always']),
  isolated: Type.Boolean({ description: 'Whether each key gets its own process' }),
  tools: Type.Optional(Type.Array(Type.String(), { description: 'Names of its tools, once it was started' }))
})

const Resource = Titled('ToolResource', {
  uri: Type.String(),
  name: Type.String(),
  description: Type.String(),
  type: Text('Its media type, as the server says')
})

const Prompt = Titled('ToolPrompt', {
  name: Type.String(),
  description: Type.String(),
  arguments: Type.Array(Loose({ name: Type.String(), description: Type.String(), required: Type.Boolean() }))
})

const PromptMessage = Titled('ToolPromptMessage', {
  role: Type.Enum(['user', 'assistant']),
  text: Type.String(),
  files: Type.Optional(Type.Array(ResultFileSchema, { description: 'An image or another file instead of a text' }))
})

/** @param servers absent if none is configured */
export function toolRoutes(app: FastifyInstance, servers: ToolServers | undefined): void {
  const route = nativeRouter(app, 'Tools')
  const require = (server: string) => {
    if (servers) return servers
    throw unknownToolServer({ server, param: 'id' })
  }
  const params = Type.Object({ id: Type.String({ description: 'Name of the server' }) })
  route('GET /api/mcp', 'listToolServers', 'List the servers of tools', {
    description: 'Those that the caller may use. Addresses, programs and secrets are not shown.',
    response: {
      200: json('The servers', Loose({ servers: Type.Array(Server) }))
    },
    handler: async ({ caller }) => ({ servers: servers?.describe(caller) ?? [] })
  })
  route('GET /api/mcp/:id', 'listTools', 'List the tools of a server, and start it if needed', {
    params,
    response: { 200: json('The tools', Loose({ tools: Type.Array(Tool) })) },
    errors: ['invalid_request', 'tools_unavailable'],
    handler: async ({ params: { id: server }, caller }, reply) => {
      const tools = await require(server).list({ server, param: 'id' }, caller, clientSignal(reply))
      return { tools: tools.map(({ server: _, ...tool }) => tool) }
    }
  })
  route('GET /api/mcp/:id/resources', 'listResources', 'List the resources of a tool server that can be read', {
    params,
    response: { 200: json('The resources', Loose({ resources: Type.Array(Resource) })) },
    errors: ['invalid_request', 'tools_unavailable'],
    handler: async ({ params: { id }, caller }, reply) => ({
      resources: await require(id).resources({ server: id, param: 'id' }, caller, clientSignal(reply))
    })
  })
  route('GET /api/mcp/:id/resource', 'readResource', 'Read a resource of a tool server', {
    params,
    querystring: Type.Object({ uri: Type.String({ description: 'A URI that the server lists' }) }),
    response: { 200: json('Its contents', Loose({ files: Type.Array(ResultFileSchema) })) },
    errors: ['invalid_request', 'over_limit', 'tools_unavailable'],
    handler: async ({ params: { id: server }, query: { uri }, caller, id: requestId }, reply) => {
      const request = { server, caller, requestId, signal: clientSignal(reply) }
      return { files: await require(server).readResource(uri, request) }
    }
  })
  route('GET /api/mcp/:id/prompts', 'listPrompts', 'List the prompts of a tool server', {
    params,
    response: { 200: json('The prompts', Loose({ prompts: Type.Array(Prompt) })) },
    errors: ['invalid_request', 'tools_unavailable'],
    handler: async ({ params: { id }, caller }, reply) => ({
      prompts: await require(id).prompts({ server: id, param: 'id' }, caller, clientSignal(reply))
    })
  })
  route('POST /api/mcp/:id/prompt', 'getPrompt', 'Fill a prompt of a tool server', {
    params,
    audited: false,
    body: Loose({
      prompt: Type.String({ minLength: 1, description: 'The name of a prompt that the server lists' }),
      arguments: Type.Optional(Type.Record(Type.String(), Type.String()))
    }),
    response: { 200: json('Its messages', Loose({ messages: Type.Array(PromptMessage) })) },
    errors: ['invalid_request', 'over_limit', 'tools_unavailable'],
    handler: async (
      { params: { id: server }, body: { prompt, arguments: given = {} }, caller, id: requestId },
      reply
    ) => {
      const request = { server, caller, requestId, signal: clientSignal(reply) }
      return { messages: await require(server).getPrompt(prompt, given, request) }
    }
  })
  route('POST /api/mcp/:id/call', 'callTool', 'Call a tool', {
    role: 'operator',
    description: 'The caller decides, so that no other approval is needed.',
    params,
    body: Loose({ tool: Type.String({ minLength: 1 }), arguments: Type.Optional(Loose({})) }),
    response: {
      200: json(
        'The result',
        Loose({
          output: Text('Text of the result'),
          failed: Type.Boolean(),
          files: Type.Optional(Type.Array(ResultFileSchema, { description: 'Its images and other files' }))
        })
      )
    },
    errors: ['invalid_request', 'tools_unavailable'],
    handler: async (
      { params: { id: server }, body: { tool, arguments: given = {} }, caller, id: requestId },
      reply
    ) => {
      const signal = clientSignal(reply)
      const host = require(server)
      await host.list({ server, tools: [tool], param: 'tool' }, caller, signal)
      const call = { server, tool, arguments: JSON.stringify(given) }
      return await host.call({ call, approved: true, caller, requestId, signal })
    }
  })
}
