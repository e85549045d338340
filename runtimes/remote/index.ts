import { type Static, Type } from 'typebox'
import { Timeout } from '../../core/config/core-schema.ts'
import type { EngineMode } from '../../core/contracts/engines.ts'
import type { BroughtModel, Capability } from '../../core/contracts/models.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { createRemoteEngine } from './remote-engine.ts'
import { createRemoteServers, type RemoteServers } from './remote-servers.ts'

/** The capability that a mode needs. */
const NEEDED: Partial<Record<EngineMode, Capability>> = { chat: 'completion', embedding: 'embedding' }

const RemoteModel = Type.Object(
  {
    model: Type.String({ minLength: 1, description: 'Its name there' }),
    servers: Type.Array(
      Type.Object(
        {
          url: Type.String({ pattern: '^https?://', description: 'Address of the hosted-chat API, with /v1' }),
          key: Type.Optional(Type.String({ writeOnly: true, description: 'API key' }))
        },
        { additionalProperties: false }
      ),
      { minItems: 1, description: 'Servers that have it' }
    ),
    context: Type.Optional(Type.Integer({ minimum: 1, description: 'Tokens of context; 4096 where absent' })),
    capabilities: Type.Optional(
      Type.Array(Type.Enum(['completion', 'tools', 'thinking', 'vision', 'embedding']), {
        description: 'What it can; completion and tools where absent'
      })
    )
  },
  { additionalProperties: false }
)
type RemoteModel = Static<typeof RemoteModel>

const DEFAULT_CONTEXT = 4096

export default definePlugin({
  name: 'remote',
  api: 1,
  description: 'Models of servers elsewhere that speak hosted chat',
  optional: true,
  needs: ['engines', 'catalog'],
  options: Type.Object(
    {
      models: Type.Record(Type.String(), RemoteModel, {
        default: {},
        description: 'By <owner>/<name>: its name there, and its servers, which share the requests',
        examples: [
          {
            'far/tiny': {
              model: 'its-name-there',
              servers: [{ url: 'http://127.0.0.1:9001/v1', key: '…' }, { url: 'http://127.0.0.1:9002/v1' }],
              context: 4096,
              capabilities: ['completion', 'tools']
            }
          }
        ]
      }),
      health_interval: Timeout({ default: '10s', description: 'Time between looks whether servers are well' }),
      connect_timeout: Timeout({ default: '5s', description: 'Longest time for a connection, and for such a look' })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const { log } = context
    const settings = new Map<string, RemoteModel>()
    const servers = new Map<string, RemoteServers>()
    const models: BroughtModel[] = Object.entries(options.models).map(([name, remote]) => {
      parseModelName(name)
      const capabilities: Capability[] = remote.capabilities ?? ['completion', 'tools']
      settings.set(name.toLowerCase(), remote)
      servers.set(
        name.toLowerCase(),
        createRemoteServers(name, remote.servers, {
          interval: parseDuration(options.health_interval)!,
          timeout: parseDuration(options.connect_timeout)!,
          log
        })
      )
      return { name, capabilities, contextLength: remote.context ?? DEFAULT_CONTEXT }
    })
    if (models.length > 0) context.service('catalog').add({ name: 'remote', models: () => models })
    context.service('engines').add({
      name: 'remote',
      serves({ format, metadata }, mode) {
        const needed = NEEDED[mode]
        return format === 'remote' && needed && metadata.capabilities.includes(needed) ? 1 : 0
      },
      // What a request says of its engine makes no difference to a server elsewhere.
      loadOptions: () => ({}),
      async start(spec) {
        const { model, isDefault, publicName } = spec.variant
        const name = (isDefault ? `${model.owner}/${model.name}` : publicName).toLowerCase()
        const remote = settings.get(name) ?? settings.get(spec.variant.key)!
        const contextSize = remote.context ?? DEFAULT_CONTEXT
        return createRemoteEngine(spec, servers.get(name) ?? servers.get(spec.variant.key)!, {
          model: remote.model,
          contextSize
        })
      },
      async close() {
        await Promise.all([...servers.values()].map(each => each.close()))
      }
    })
    return {}
  }
})
