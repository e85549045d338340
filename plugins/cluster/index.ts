import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, Type } from 'typebox'
import { surfaceDependencies } from '../../core/answers/model-request.ts'
import { ConfigError } from '../../core/config/config-error.ts'
import { Path, Timeout } from '../../core/config/core-schema.ts'
import type { MemberSource } from '../../core/contracts/cluster.ts'
import { messageOf } from '../../core/errors.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { askRoutes } from './asking/ask-routes.ts'
import { clusterProvider } from './cluster-provider.ts'
import { clusterRoutes } from './cluster-routes.ts'
import { dnsSource } from './members/dns-source.ts'
import { Members } from './members/members.ts'

/** The source of members that config.yaml lists. */
const CONFIGURED = 'config.yaml'

const Key = (description: string) => Type.String({ writeOnly: true, description })

const options = Type.Object(
  {
    members: Type.Array(
      Type.Object(
        {
          name: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$', description: 'What it is called here' }),
          url: Type.String({ pattern: '^https?://[^/?#]+/?$', description: 'Its address' }),
          key: Type.Optional(Key('The key of an operator there'))
        },
        { additionalProperties: false }
      ),
      {
        default: [],
        description: 'Servers that answer for this one: a corral on each, with their models listed here',
        examples: [[{ name: 'node-1', url: 'http://10.0.0.11:11435', key: '…' }]]
      }
    ),
    dns: Type.Object(
      {
        name: Type.String({
          default: '',
          description:
            'A name whose addresses are all members, as of a headless Service; an SRV record as _corral._tcp.<name>'
        }),
        port: Type.Integer({ default: 11435, minimum: 1, maximum: 65535, description: 'Where it is no SRV record' }),
        tls: Type.Boolean({ default: false, description: 'They are reached by HTTPS' }),
        key: Type.String({
          default: '',
          writeOnly: true,
          description: 'The key of an operator at each of them; empty uses CORRAL_CLUSTER_KEY'
        }),
        interval: Timeout({ default: '10s', description: 'Time between two lookups' })
      },
      { additionalProperties: false, description: 'Members by their DNS name' }
    ),
    ca: Path({
      default: '',
      description: "File in PEM format that members' certificates are checked with, beside what this system trusts",
      restart: true
    }),
    connect_timeout: Timeout({
      default: '5s',
      description: 'Longest time for a connection to a member',
      restart: true
    }),
    silence: Timeout({
      default: '10s',
      description:
        'A member that says nothing for so long is lost, with what it answers; one in order speaks every 2 s',
      restart: true
    })
  },
  { additionalProperties: false }
)
type Options = Static<typeof options>

/** Longest wait (milliseconds) for members at the start: later ones are listed when they are there. */
const MEETING = 5000

export default definePlugin({
  name: 'cluster',
  api: 1,
  description: 'Several corrals as one: members whose models are listed and answered here',
  optional: true,
  offers: ['cluster'],
  needs: ['catalog', 'engines', 'scheduler'],
  options,
  setup(context, given) {
    const { log, hooks } = context
    check(given)
    const members = new Members({
      settings: {
        connectTimeout: parseDuration(given.connect_timeout)!,
        silence: parseDuration(given.silence)!,
        ca: given.ca
      },
      stateChanged: topic => hooks.stateChanged(topic),
      log
    })
    for (const source of configuredSources(given)) members.addSource(source)
    context.service('catalog').add({ name: 'cluster', models: () => members.brought() })
    context.service('engines').add(clusterProvider(members))
    const surface = surfaceDependencies(context, 'cluster', () => '10s')
    const ask = askRoutes({ ...surface, optionsAtTop: false })
    return {
      services: { cluster: { addSource: source => members.addSource(source) } },
      routes: async app => {
        await app.register(clusterRoutes(members), { prefix: '/api' })
        await app.register(ask, { prefix: '/api/cluster' })
      },
      async start() {
        await Promise.race([members.open(), sleep(MEETING, undefined, { ref: false })])
      },
      check,
      async reload(next: Options) {
        const sources = configuredSources(next)
        for (const source of sources) await members.roster.replace(source)
        for (const name of [CONFIGURED, 'dns']) {
          if (!sources.some(source => source.name === name)) await members.roster.remove(name)
        }
      },
      stop: () => members.close()
    }
  }
})

/** @throws ConfigError for what no schema finds */
function check({ members, ca }: Options): void {
  const wrong = (setting: string, message: string) => new ConfigError([{ where: setting, setting, message }])
  for (const [index, { name, url }] of members.entries()) {
    if (!URL.canParse(url)) throw wrong(`cluster.members.${index}.url`, `This is no address: ${url}.`)
    if (members.findIndex(other => other.name === name) !== index) {
      throw wrong(`cluster.members.${index}.name`, `Two members are called "${name}". Give each its own name.`)
    }
  }
  try {
    if (ca !== '') readFileSync(ca)
  } catch (error) {
    throw wrong('cluster.ca', `The file cannot be read: ${messageOf(error)}`)
  }
}

function configuredSources({ members, dns }: Options): MemberSource[] {
  const sources: MemberSource[] = []
  if (members.length > 0) {
    sources.push({
      name: CONFIGURED,
      follow({ changed }) {
        changed(members.map(({ url, ...member }) => ({ ...member, url: new URL(url).origin })))
        return () => {}
      }
    })
  }
  const key = dns.key || (process.env.CORRAL_CLUSTER_KEY ?? '')
  if (dns.name !== '') sources.push(dnsSource({ ...dns, key, interval: parseDuration(dns.interval)! }))
  return sources
}
