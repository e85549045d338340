import { type Static, Type } from 'typebox'
import { Group, optional, Timeout } from '../../core/config/core-schema.ts'
import type { EngineMode } from '../../core/contracts/engines.ts'
import type { BroughtModel, Capability } from '../../core/contracts/models.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { isObject } from '../../core/system/json-object.ts'
import type { RemoteServers } from './remote-servers.ts'
import { SERVER_KINDS } from './server-kinds.ts'

const NEEDED: Partial<Record<EngineMode, Capability>> = { chat: 'completion', embedding: 'embedding' }

const RemoteModel = Group({
  model: Type.String({ minLength: 1, description: 'Name of the model on the server' }),
  servers: Type.Array(
    Group({
      url: Type.String({ pattern: '^https?://', description: 'Address of the OpenAI chat API, with /v1' }),
      key: Type.Optional(Type.String({ writeOnly: true, description: 'API key' }))
    }),
    { minItems: 1, description: 'Servers that have the model' }
  ),
  ...optional({
    kind: Type.Enum([...SERVER_KINDS], {
      description: 'Server program, if it needs special treatment: mlx is mlx_lm.server. Leave it out for others'
    }),
    context: Type.Integer({ minimum: 1, description: 'Context size in tokens; 4096 if absent' }),
    capabilities: Type.Array(Type.Enum(['completion', 'tools', 'thinking', 'vision', 'embedding']), {
      description: 'What the model can do; completion and tools if absent'
    })
  })
})
type RemoteModel = Static<typeof RemoteModel>

const DEFAULT_CONTEXT = 4096

export default definePlugin({
  name: 'remote',
  api: 1,
  description: 'Models of remote servers with the OpenAI chat format',
  optional: true,
  needs: ['engines', 'catalog'],
  options: Type.Object(
    {
      models: Type.Record(Type.String(), RemoteModel, {
        default: {},
        needsTrust: true,
        description: 'By <owner>/<name>: name of the model on its servers, and the servers, which share the requests',
        examples: [
          {
            'far/tiny': {
              model: 'its-name-there',
              servers: [{ url: 'http://127.0.0.1:9001/v1', key: '…' }, { url: 'http://127.0.0.1:9002/v1' }],
              kind: 'mlx',
              context: 4096,
              capabilities: ['completion', 'tools']
            }
          }
        ]
      }),
      health_interval: Timeout({ default: '10s', description: 'Time between health checks of servers' }),
      connect_timeout: Timeout({ default: '5s', description: 'Time limit for a connection, and for a health check' })
    },
    { additionalProperties: false, restart: true }
  ),
  models: ({ models }) => Object.keys(isObject(models) ? models : {}),
  async setup(context, options) {
    const { log } = context
    const interval = parseDuration(options.health_interval)!
    const timeout = parseDuration(options.connect_timeout)!
    const remotes = new Map<string, { settings: RemoteModel; servers: RemoteServers }>()
    const configured = Object.entries(options.models)
    if (configured.length === 0) return {}
    // Most configurations have no remote models, and undici takes a tenth of a start.
    const [{ createRemoteServers }, { createRemoteEngine }] = await Promise.all([
      import('./remote-servers.ts'),
      import('./remote-engine.ts')
    ])
    const models: BroughtModel[] = configured.map(([name, settings]) => {
      parseModelName(name)
      const servers = createRemoteServers(name, settings.servers, { interval, timeout, log, kind: settings.kind })
      remotes.set(name.toLowerCase(), { settings, servers })
      const capabilities: Capability[] = settings.capabilities ?? ['completion', 'tools']
      const metadata = { info: { 'remote.model': settings.model } }
      return { name, capabilities, contextLength: settings.context ?? DEFAULT_CONTEXT, metadata }
    })
    const frozen = Object.freeze(models)
    context.service('catalog').add({ name: 'remote', models: () => frozen })
    context.service('engines').add({
      name: 'remote',
      serves({ format, metadata }, mode) {
        const needed = NEEDED[mode]
        return format === 'remote' && needed && metadata.capabilities.includes(needed) ? 1 : 0
      },
      // Load options do not apply to a remote server.
      loadOptions: () => ({}),
      async start(spec) {
        const { model, isDefault, publicName, key } = spec.variant
        const name = isDefault ? `${model.owner}/${model.name}` : publicName
        const { settings, servers } = (remotes.get(name.toLowerCase()) ?? remotes.get(key))!
        const contextSize = settings.context ?? DEFAULT_CONTEXT
        return createRemoteEngine(spec, servers, { model: settings.model, contextSize })
      },
      async close() {
        await Promise.all([...remotes.values()].map(({ servers }) => servers.close()))
      }
    })
    return {}
  }
})
