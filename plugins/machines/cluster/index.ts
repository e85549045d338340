import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, Type } from 'typebox'
import { ConfigError } from '../../../core/config/config-error.ts'
import { type CoreConfig, Duration, Path, Timeout } from '../../../core/config/core-schema.ts'
import { type EffectiveSettings, settingsFor } from '../../../core/config/model-settings.ts'
import type { MemberSource } from '../../../core/contracts/services.ts'
import { errorMessage } from '../../../core/errors.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { askRoutes, described } from './asking/ask-routes.ts'
import { clusterProvider } from './cluster-engine.ts'
import { clusterRoutes, copyRoutes, pullRoute } from './cluster-routes.ts'
import { createCopies, nodeFiles } from './copying/copies.ts'
import { sourceFiles } from './copying/source-files.ts'
import { ClusterNodes, dnsSource } from './nodes/nodes.ts'
import type { ClusterView } from './placement/choose-node.ts'
import type { ReplicaBounds } from './placement/replica-count.ts'
import { isInWindow, isTimeZone } from './placement/time-windows.ts'
import { ReplicaKeeper } from './replica-keeper.ts'
import { nodeRoutes, rolloutRoutes } from './rollout/rollout-routes.ts'
import { Rollouts } from './rollout/rollouts.ts'

/** The source of nodes that config.yaml lists. */
const CONFIGURED = 'config.yaml'

const Key = (description: string) => Type.String({ writeOnly: true, description })

const options = Type.Object(
  {
    members: Type.Array(
      Type.Object(
        {
          name: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$', description: 'Its display name' }),
          url: Type.String({ pattern: '^https?://[^/?#]+/?$', description: 'Its address' }),
          key: Type.Optional(Key("An operator's key there")),
          zone: Type.Optional(
            Type.String({ minLength: 1, description: 'Such as its rack; replicas of a model go to different zones' })
          )
        },
        { additionalProperties: false }
      ),
      {
        default: [],
        description: 'Servers that answer for this one: each runs corral, and their models are listed here',
        examples: [[{ name: 'node-1', url: 'http://10.0.0.11:11435', key: '…' }]]
      }
    ),
    dns: Type.Object(
      {
        name: Type.String({
          default: '',
          description:
            'A DNS name whose addresses are all members, such as that of a headless Service; for an SRV record use _corral._tcp.<name>'
        }),
        port: Type.Integer({
          default: 11435,
          minimum: 1,
          maximum: 65535,
          description: 'Port of the members; SRV records have their own'
        }),
        tls: Type.Boolean({ default: false, description: 'Whether they are reached by HTTPS' }),
        key: Type.String({
          default: '',
          writeOnly: true,
          description: "An operator's key at each of them; empty uses CORRAL_CLUSTER_KEY"
        }),
        interval: Timeout({ default: '10s', description: 'Time between two lookups' })
      },
      { additionalProperties: false, description: 'Members found by DNS' }
    ),
    replicas: Type.Object(
      {
        min: Type.Integer({
          default: 0,
          minimum: 0,
          description: 'Number of members that always have each model in memory, as far as there is free memory'
        }),
        max: Type.Integer({
          default: 0,
          minimum: 0,
          description:
            'Maximum number of members that load a model into free memory when its queue is long; 0 is no limit, 1 never adds one'
        }),
        cooldown: Timeout({
          default: '5m',
          description: 'How long fewer members must be enough before one unloads the model, or a machine is given back'
        }),
        idle: Duration({
          default: '0s',
          description:
            'How long a model without a minimum stays in memory without requests; 0 leaves this to the keep_alive of members'
        }),
        copies: Type.Integer({
          default: 0,
          minimum: 0,
          description: 'Number of members that have the files of each model, copied ahead of time'
        }),
        time_zone: Type.String({
          default: '',
          description: "Of the schedules of models, such as Europe/Berlin; empty for the system's"
        })
      },
      {
        additionalProperties: false,
        description: 'At how many members a model is in memory; "replicas" in a model\'s section overrides it'
      }
    ),
    rollout: Type.Object(
      {
        restart_command: Type.Array(Type.String(), {
          default: [],
          description:
            'Program with arguments that restarts a member with another version of corral during a rollout; it gets CORRAL_MEMBER, CORRAL_MEMBER_URL and CORRAL_VERSION',
          examples: [['/usr/local/bin/upgrade-corral']]
        })
      },
      { additionalProperties: false, description: 'Updates of members, one after the other' }
    ),
    ca: Path({
      default: '',
      description: "PEM file with certificates to check those of members with, in addition to the system's",
      restart: true
    }),
    connect_timeout: Timeout({
      default: '5s',
      description: 'Maximum time to connect to a member',
      restart: true
    }),
    silence: Timeout({
      default: '10s',
      description:
        'A member that is silent for this long is lost, with its answers; a healthy one sends something every 2 s',
      restart: true
    })
  },
  { additionalProperties: false, needsTrust: true }
)
type Options = Static<typeof options>

/** Milliseconds that the start waits for nodes. Later ones are listed when they are there. */
const START_WAIT_MS = 5000

export default definePlugin({
  name: 'cluster',
  api: 1,
  description: 'Several corrals as one: models of members are listed and answered here',
  optional: true,
  offers: ['cluster'],
  needs: ['catalog', 'engines', 'scheduler', 'storage', 'downloads', 'nativeApi'],
  options,
  setup(context, given) {
    const { log, hooks, config } = context
    check(given)
    const settings = {
      connectTimeout: parseDuration(given.connect_timeout)!,
      silence: parseDuration(given.silence)!,
      ca: given.ca
    }
    const catalog = context.service('catalog')
    let { replicas, rollout } = given
    const members = new ClusterNodes({
      settings,
      stateChanged: topic => hooks.stateChanged(topic),
      changed: () => keeper.look(),
      unloaded: (member, model) => keeper.unloaded(member, model),
      log
    })
    const copies = createCopies(members, () => hooks.stateChanged('engine'), log)
    const keeper = new ReplicaKeeper({
      members,
      copies,
      getBounds(key) {
        const described = members.described(key)
        const variant = described && catalog.find({ ...described, variant: described.label })
        if (variant?.key !== key || variant.format !== 'cluster') return undefined
        return { variant, bounds: getBounds(replicas, settingsFor(config, variant).replicas, new Date()) }
      },
      *configured() {
        if (replicas.min + replicas.copies > 0) for (const member of members.all()) yield* member.models.keys()
        for (const [name, { replicas: { min, copies, schedule } = {} }] of Object.entries(config.models)) {
          // As with preload, a name without a variant means the default variant.
          const variant = min || copies || schedule ? catalog.find(parseModelName(name)) : undefined
          if (variant) yield variant.key
        }
      },
      cooldown: () => parseDuration(replicas.cooldown)!,
      changed: () => hooks.stateChanged('replicas'),
      log
    })
    const rollouts = new Rollouts({
      ...{ members, home: context.paths.home, log },
      command: () => rollout.restart_command,
      changed: () => hooks.stateChanged('member')
    })
    members.divide = rollouts.divide
    members.rolloutAt = rollouts.at
    members.view.only = onlyNodes(config)
    for (const source of configuredSources(given)) members.roster.add(source)
    catalog.add({ name: 'cluster', models: () => members.brought() })
    context.service('engines').add(clusterProvider(members, copies, keeper, name => catalog.find(name)))
    const [storage, downloads] = [context.service('storage'), context.service('downloads')]
    const authority = given.ca === '' ? undefined : readFileSync(given.ca, 'utf8')
    const sources = sourceFiles({ storage, downloads }, { ...settings, authority }, log)
    downloads.addMirror(nodeFiles(members, sources, log))
    const [scheduler, engines] = [context.service('scheduler'), context.service('engines')]
    const asking = { catalog, scheduler, engines, hooks, config, surface: 'cluster' }
    return {
      services: { cluster: { addSource: source => members.roster.add(source) } },
      routes: async app => {
        clusterRoutes(app, members, keeper, rollouts)
        askRoutes(app, asking)
        copyRoutes(app, { storage, catalog, sources, describe: variant => described(asking, variant) })
        nodeRoutes(app, { storage, catalog })
        rolloutRoutes(app, { rollouts, members, catalog })
        pullRoute(app, { members, copies, sources, catalog, streams: context.service('nativeApi').streams('sse') })
      },
      async start() {
        const met = members.open()
        void met.then(() => keeper.open())
        void met.then(() => rollouts.open())
        await Promise.race([met, sleep(START_WAIT_MS, undefined, { ref: false })])
      },
      check,
      async reload(next: Options) {
        ;({ replicas, rollout } = next)
        keeper.look()
        const sources = configuredSources(next)
        for (const source of sources) await members.roster.replace(source)
        for (const name of [CONFIGURED, 'dns']) {
          if (!sources.some(source => source.name === name)) await members.roster.remove(name)
        }
      },
      async stop() {
        keeper.close()
        await rollouts.close()
        await members.close()
      }
    }
  }
})

/** Returns the limits of a model at a time. Its own section overrides those of all models, and its schedule both. */
function getBounds(all: Options['replicas'], section: EffectiveSettings['replicas'], now: Date): ReplicaBounds {
  const window = section.schedule?.find(({ at }) => isInWindow(at, now, all.time_zone || undefined))
  const own = { ...section, ...window }
  const max = own.max ?? (own.min !== undefined && all.max > 0 ? Math.max(own.min, all.max) : all.max)
  const most = max === 0 ? Number.POSITIVE_INFINITY : max
  return {
    min: Math.min(own.min ?? all.min, most),
    max: most,
    cooldown: parseDuration(all.cooldown)!,
    idle: parseDuration(own.idle ?? all.idle) || undefined,
    copies: own.copies ?? all.copies
  }
}

/** Returns the nodes that a model is bound to by `models.<name>.replicas.nodes`. */
function onlyNodes(config: Pick<CoreConfig, 'models'>): ClusterView['only'] {
  let known: CoreConfig['models'] | undefined
  let bound = new Map<string, ReadonlySet<string>>()
  return key => {
    if (known !== config.models) {
      known = config.models
      const pairs = Object.entries(known).map(([name, { replicas }]) => [name.toLowerCase(), replicas?.nodes] as const)
      bound = new Map(pairs.flatMap(([name, nodes]) => (nodes ? [[name, new Set(nodes)]] : [])))
    }
    if (bound.size === 0) return undefined
    const variant = key.slice(0, key.lastIndexOf('#'))
    return bound.get(variant) ?? bound.get(variant.slice(0, variant.lastIndexOf(':')))
  }
}

/** @throws ConfigError for mistakes that no schema finds */
function check({ members, replicas, ca }: Options): void {
  const wrong = (setting: string, message: string) => new ConfigError([{ where: setting, setting, message }])
  for (const [index, { name, url }] of members.entries()) {
    if (!URL.canParse(url))
      throw wrong(`cluster.members.${index}.url`, `${url} is not an address. Use one such as http://10.0.0.11:11435.`)
    if (members.findIndex(other => other.name === name) !== index) {
      throw wrong(`cluster.members.${index}.name`, `Two members are called "${name}". Give each its own name.`)
    }
  }
  if (replicas.max > 0 && replicas.max < replicas.min) {
    throw wrong(
      'cluster.replicas.max',
      `It is less than cluster.replicas.min, which is ${replicas.min}. Raise it, or use 0 for no limit.`
    )
  }
  if (replicas.time_zone !== '' && !isTimeZone(replicas.time_zone)) {
    throw wrong(
      'cluster.replicas.time_zone',
      `There is no time zone "${replicas.time_zone}". Use one such as Europe/Berlin.`
    )
  }
  try {
    if (ca !== '') readFileSync(ca)
  } catch (error) {
    throw wrong('cluster.ca', `The file cannot be read: ${errorMessage(error)}`)
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
