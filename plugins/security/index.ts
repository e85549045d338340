import type { IncomingMessage } from 'node:http'
import { hostname } from 'node:os'
import { Type } from 'typebox'
import { definePlugin } from '../../core/plugins/plugin.ts'
import {
  accessHooks,
  type Exposure,
  HOST_PATTERN,
  judgeBind,
  nameKey,
  ORIGIN_PATTERN,
  originPattern
} from './access.ts'

export default definePlugin({
  name: 'security',
  api: 1,
  description: 'Who may call: Host, Origin, CORS and API keys',
  offers: ['access'],
  options: Type.Object(
    {
      origins: Type.Array(
        Type.String({ pattern: ORIGIN_PATTERN, title: 'an origin such as https://chat.example.org, "*" or "null"' }),
        {
          default: [],
          description:
            'Pages that may call besides those of this machine, such as https://chat.example.org or https://*.example.org; "*" is all, "null" is pages without an origin'
        }
      ),
      hosts: Type.Array(Type.String({ pattern: HOST_PATTERN, title: 'a host name without scheme and port' }), {
        default: [],
        description: 'Host names that this machine is called by besides localhost and its own, such as behind a proxy'
      }),
      api_keys: Type.Array(Type.String({ pattern: '^\\S+$', writeOnly: true, title: 'a text without spaces' }), {
        default: [],
        description: 'Keys of which each request must carry one; none are needed where the list is empty'
      }),
      insecure: Type.Boolean({
        default: false,
        description: 'Allow listening beyond this machine without API keys'
      })
    },
    { additionalProperties: false }
  ),
  setup({ config, log }, options) {
    const judge = (host: string, port: number, setting?: string): Exposure => {
      const exposure = judgeBind(host, { keys: options.api_keys.length, insecure: options.insecure }, setting)
      if (exposure === 'open') {
        log.warn(
          `INSECURE: everyone who can reach ${host}:${port} can use, load and delete models. Set security.api_keys to ask for keys.`
        )
      }
      return exposure
    }
    const own = judge(config.host, config.port)
    /** How the requests of other listeners came. */
    const exposures = new WeakMap<IncomingMessage, Exposure>()
    return {
      services: {
        access: {
          admit({ host, port }, setting) {
            const exposure = judge(host, port, setting)
            return request => void exposures.set(request, exposure)
          }
        }
      },
      hooks: accessHooks({
        checkHost: request => (exposures.get(request) ?? own) === 'local',
        hostNames: new Set([hostname(), ...options.hosts].map(nameKey)),
        origins: options.origins.map(originPattern),
        keys: options.api_keys
      })
    }
  }
})
