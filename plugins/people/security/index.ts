import type { IncomingMessage } from 'node:http'
import { hostname } from 'node:os'
import { join } from 'node:path'
import proxyAddress from '@fastify/proxy-addr'
import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import { ConfigError } from '../../../core/config/config-error.ts'
import { errorMessage } from '../../../core/errors.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { addAccessHooks } from './access-hook.ts'
import { FailedAttempts } from './failed-attempts.ts'
import { callerFinder } from './find-caller.ts'
import { HOST_PATTERN, isLoopbackHost, nameKey, ORIGIN_PATTERN, originPattern } from './host-and-origin.ts'
import { keyFilePath } from './key-file.ts'
import { keyRoutes } from './key-routes.ts'
import { LONG_KEY, openKeyStore } from './key-store.ts'
import { openKeyUses } from './key-uses.ts'
import { sessionRoutes } from './session-routes.ts'
import { SessionStore } from './session-store.ts'

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
            'Origins whose pages may call, besides those of this machine, such as https://chat.example.org or https://*.example.org; "*" allows all, "null" allows pages without an origin'
        }
      ),
      hosts: Type.Array(Type.String({ pattern: HOST_PATTERN, title: 'a host name without scheme and port' }), {
        default: [],
        description:
          "Host names of this server besides localhost and the machine's own, such as its name behind a proxy"
      }),
      api_keys: Type.Array(Type.String({ pattern: '^\\S+$', writeOnly: true, title: 'text without spaces' }), {
        default: [],
        description:
          'API keys of admins, besides those made with "corral key create"; once there is a key, every request needs one'
      }),
      trusted_proxies: Type.Array(
        Type.String({ pattern: '^[0-9A-Fa-f:.]+(/\\d{1,3})?$', title: 'an address, or a range such as 10.0.0.0/8' }),
        {
          default: [],
          description:
            "Addresses of reverse proxies: their X-Forwarded-For header is used as the client's address, and requests through them need a key"
        }
      ),
      session_days: Type.Integer({
        minimum: 0,
        maximum: 400,
        default: 30,
        description: 'Days that a browser stays signed in with its key, if its user wants that; 0 forbids it'
      }),
      insecure: Type.Boolean({
        default: false,
        description: 'Allow listening beyond this machine without API keys'
      })
    },
    { additionalProperties: false, needsTrust: true }
  ),
  async setup({ config, hooks, log, paths }, options) {
    let { insecure, session_days: days } = options
    let trusted = trustedProxies(options.trusted_proxies)
    const proxies = (address: string, hop: number) => trusted(address, hop)
    const keys = await openKeyStore(keyFilePath(paths), options.api_keys, log, (change, target, owner) =>
      hooks.administered({ change, target, by: 'keys.json', owner })
    )
    warnOfShort(options.api_keys, log)
    const sessions = new SessionStore(join(paths.home, 'sessions.json'), keys, log, (change, target, by) =>
      hooks.administered({ change, target, by })
    )
    await sessions.load()
    const uses = await openKeyUses(join(paths.home, 'key-uses.json'), owner => keys.markOf(owner) !== undefined, log)
    const attempts = new FailedAttempts(log)
    let { hosts } = options
    /** Addresses of additional listeners, with the settings that name them. */
    const admitted: { host: string; setting: string }[] = []
    const judge = (host: string, port: number, setting?: string): Exposure => {
      const exposure = judgeBind(host, { keys: keys.required, insecure }, setting)
      if (exposure === 'open') {
        log.warn(
          `INSECURE: everyone who can reach ${host}:${port} can use, load and delete models. Create a key to require keys: corral key create <name>`
        )
      }
      if (exposure === 'keys' && config.tls.certificate === '' && options.trusted_proxies.length === 0) {
        log.info(
          `Keys, prompts and answers are sent to ${host}:${port} without encryption. Set tls.certificate and tls.key, or put a proxy with TLS in front and name it in security.trusted_proxies.`
        )
      }
      return exposure
    }
    const own = judge(config.host, config.port)
    const namesOf = ({ hosts }: { hosts: string[] }) => new Set([hostname(), ...hosts].map(nameKey))
    let hostNames = namesOf(options)
    let origins = options.origins.map(originPattern)
    /** Exposures of requests that came through other listeners. */
    const exposures = new WeakMap<IncomingMessage, Exposure>()
    /** Requests that came through a local listener that requires no key. */
    const keyless = new WeakSet<IncomingMessage>()
    return {
      services: {
        access: {
          admit({ host, port }, setting, isKeyless = false) {
            const exposure = judge(host, port, setting)
            admitted.push({ host, setting })
            return request => {
              exposures.set(request, exposure)
              if (isKeyless && exposure === 'local') keyless.add(request)
            }
          },
          ownerOf: name => keys.ownerOf(name),
          callerOf: owner => keys.callerOf(owner)
        }
      },
      hooks: async app => {
        // All clients of a proxy share its connections.
        app.connectionGuard.exempt(address => address !== '' && proxies(address, 0))
        addAccessHooks(app, {
          hostCheck({ raw }) {
            if ((exposures.get(raw) ?? own) === 'local') return 'names'
            // With keys, a malicious page cannot do anything, whatever name it calls.
            return keys.required ? 'none' : 'names and addresses'
          },
          hostNames: () => hostNames,
          origins: () => origins,
          noteUse: uses.note,
          findCaller: callerFinder({ keys, sessions, attempts, keyless, insecure: () => insecure, proxies })
        })
      },
      routes: async app => {
        await app.register(keyRoutes(keyFilePath(paths), keys, uses))
        await app.register(
          sessionRoutes({ sessions, host: config.host, names: () => hosts, days: () => days, attempts })
        )
      },
      check(next: typeof options) {
        trustedProxies(next.trusted_proxies)
        // Once there was a key, keys stay required.
        const allowed = { keys: keys.required || next.api_keys.length > 0, insecure: next.insecure }
        for (const { host, setting } of [{ host: config.host, setting: 'host' }, ...admitted]) {
          judgeBind(host, allowed, setting)
        }
      },
      reload(next: typeof options) {
        trusted = trustedProxies(next.trusted_proxies)
        insecure = next.insecure
        days = next.session_days
        hosts = next.hosts
        hostNames = namesOf(next)
        origins = next.origins.map(originPattern)
        if (keys.configure(next.api_keys)) warnOfShort(next.api_keys, log)
      },
      async stop() {
        await Promise.all([sessions.close(), uses.close()])
        keys.close()
      }
    }
  }
})

function warnOfShort(keys: readonly string[], log: Pick<FastifyBaseLogger, 'warn'>): void {
  const short = keys.filter(key => key.length < LONG_KEY).length
  if (short === 0) return
  log.warn(
    `${short} of the keys in security.api_keys (or CORRAL_API_KEYS) ${short === 1 ? 'is' : 'are'} shorter than ${LONG_KEY} characters and can be guessed. Create keys with: corral key create <name> --role admin`
  )
}

/** @throws ConfigError if an entry is not an address or range */
function trustedProxies(addresses: readonly string[]): (address: string, hop: number) => boolean {
  const setting = 'security.trusted_proxies'
  try {
    return addresses.length === 0 ? () => false : proxyAddress.compile([...addresses])
  } catch (error) {
    const message = `${errorMessage(error)}. Write addresses such as 10.0.0.7, or ranges such as 10.0.0.0/8.`
    throw new ConfigError([{ where: setting, setting, message }])
  }
}

/** Who can reach an address: only local programs, anyone with a key, or anyone. */
type Exposure = 'local' | 'keys' | 'open'

/** Returns how exposed a listening address is. @throws ConfigError if the configuration does not allow that */
export function judgeBind(host: string, options: { keys: boolean; insecure: boolean }, setting = 'host'): Exposure {
  if (isLoopbackHost(host)) return 'local'
  if (options.keys) return 'keys'
  if (options.insecure) return 'open'
  throw new ConfigError([
    {
      where: setting,
      setting,
      message: `Listening on ${host} lets every machine that can reach it use this server, and no API key protects it. Create one with "corral key create <name>", or set security.api_keys (or CORRAL_API_KEYS), or listen on 127.0.0.1, or allow this with security.insecure: true (or CORRAL_INSECURE=1).`
    }
  ])
}
