import { once } from 'node:events'
import type { FastifyInstance } from 'fastify'
import pino from 'pino'
import t, { type Test } from 'tap'
import { Type } from 'typebox'
import { ConfigError } from '../../core/config/config-error.ts'
import { loadConfig } from '../../core/config/load.ts'
import type { ServiceName } from '../../core/contracts/services.ts'
import { createApplication } from '../../core/http/application.ts'
import { ListenError } from '../../core/http/listening.ts'
import type { PluginContext, PluginDefinition, PluginOffer } from '../../core/plugins/plugin.ts'
import { PluginHost, type PluginHostOptions } from '../../core/plugins/plugin-host.ts'
import { planPlugins } from '../../core/plugins/plugin-order.ts'
import { LogLevels } from '../../core/system/log-levels.ts'
import { readCases } from '../support/fixture.ts'

interface Sketch {
  name?: string
  optional?: boolean
  offers?: string[]
  needs?: string[]
  api?: number
  setup?: (context: PluginContext, options: Record<string, unknown>) => PluginOffer | Promise<PluginOffer>
}

/** A plugin of the contract, whose services may have any names. */
function plugin(name: string, { offers = [], needs = [], api = 1, setup, ...rest }: Sketch = {}): PluginDefinition {
  return {
    name,
    api: api as 1,
    description: `The plugin ${name}`,
    offers: offers as ServiceName[],
    needs: needs as ServiceName[],
    options: Type.Object({ size: Type.Integer({ default: 1, description: 'Size' }) }),
    setup: (context, options) =>
      setup ? setup(context, options) : { services: Object.fromEntries(offers.map(offer => [offer, { from: name }])) },
    ...rest
  }
}

const fail = (message: string) => (): never => {
  throw new Error(message)
}
const never = () => new Promise<void>(() => {})
/** An offer with a route that answers with its own name. */
const page = (name: string, more: PluginOffer = {}, answer = name): PluginOffer => ({
  routes: async app => void app.get(`/${name}`, async () => answer),
  ...more
})
const enabled = () => true
const listed = (sketches: Sketch[]) => sketches.map(({ name = '', ...sketch }) => plugin(name, sketch))
const names = (list: readonly PluginDefinition[]) => list.map(({ name }) => name)

function permutations<T>(list: T[]): T[][] {
  if (list.length < 2) return [list]
  return list.flatMap((first, i) =>
    permutations([...list.slice(0, i), ...list.slice(i + 1)]).map(rest => [first, ...rest])
  )
}

interface LogLine {
  level: number
  msg: string
  plugin?: string
}

async function host(
  t: Test,
  definitions: PluginDefinition[],
  { yaml = '', ...options }: { yaml?: string } & Partial<PluginHostOptions> = {}
) {
  const cwd = t.testdir({ 'config.yaml': yaml })
  const config = await loadConfig({ flags: {}, env: { CORRAL_HOME: cwd }, cwd, definitions })
  const lines: LogLine[] = []
  const log = pino({ level: 'debug' }, { write: (line: string) => void lines.push(JSON.parse(line)) })
  const made = new PluginHost({
    definitions,
    config,
    logs: new LogLevels(log),
    signal: new AbortController().signal,
    ...options
  })
  const app = await createApplication(config.core, pino({ level: 'silent' }))
  t.teardown(() => app.close())
  const run = async () => {
    await made.register(app)
    await app.ready()
    await made.start()
  }
  const states = () => Object.fromEntries(made.report().map(({ name, state }) => [name, state]))
  return { host: made, app, run, states, lines }
}

t.test('planPlugins orders plugins by their needs, whatever the order of the list', async t => {
  const list = listed(readCases('plugin-cases.yaml', 'ordered'))
  for (const shuffled of permutations(list)) {
    const order = names(planPlugins(shuffled, enabled).order)
    if (order.join() !== 'runtimes,storage,scheduler,api,aside') t.fail(`${names(shuffled)} gave ${order}`)
  }
  t.equal(planPlugins(list, enabled).order.length, 5)
})

t.test('planPlugins refuses lists that cannot work', async t => {
  const table: [Sketch[], code: string, message: RegExp][] = readCases('plugin-cases.yaml', 'refused')
  for (const [sketches, code, message] of table) {
    const definitions = listed(sketches)
    for (const list of [definitions, [...definitions].reverse()]) {
      t.throws(() => planPlugins(list, enabled), { name: 'PluginError', code, message }, code)
    }
  }
})

t.test('planPlugins leaves out optional plugins that cannot run, with those that need them', async t => {
  const { plugins, reasons } = readCases<{ plugins: Sketch[]; reasons: object }>('plugin-cases.yaml', 'optional')
  const list = listed(plugins)
  for (const shuffled of [list, [...list].reverse()]) {
    const { order, leftOut } = planPlugins(shuffled, ({ name }) => name !== 'off')
    t.same(names(order), ['base'])
    const given = leftOut.map(({ definition, state, reason }) => [definition.name, [state, reason]])
    t.match(Object.fromEntries(given), reasons)
  }
  t.throws(() => planPlugins([plugin('a', { needs: ['w'] }), list[4]!], ({ name }) => name !== 'off'), {
    code: 'plugin_service_missing',
    message: /"off", which offers it, is disabled/
  })
  const either = [plugin('one', { offers: ['x'], optional: true }), plugin('two', { offers: ['x'] })]
  t.same(names(planPlugins(either, ({ name }) => name === 'two').order), ['two'], 'a disabled rival does not count')
})

t.test('host runs setup, services, hooks, routes, start and stop in order', async t => {
  const calls: string[] = []
  const step = (name: string, offer: PluginOffer = {}): PluginOffer => ({
    start: () => void calls.push(`start ${name}`),
    stop: async () => void calls.push(`stop ${name}`),
    ...offer
  })
  const store = { list: () => ['m'] }
  const definitions = [
    plugin('web', {
      needs: ['storage'],
      setup: (context, options) => {
        calls.push(`setup web ${options.size}`)
        const storage = context.service('storage') as unknown as typeof store
        t.throws(() => context.service('scheduler'), { code: 'plugin_service_undeclared', message: /"scheduler"/ })
        t.equal(context.config.port, 11435)
        t.ok(Object.isFrozen(context.config) && Object.isFrozen(options))
        return step('web', {
          routes: async app => {
            app.addHook('onRequest', async (_, reply) => void reply.header('x-only-web', 'yes'))
            app.get('/list', async () => ({ list: storage.list(), decorated: 'storage' in app }))
          }
        })
      }
    }),
    plugin('storage', {
      offers: ['storage'],
      setup: () => {
        calls.push('setup storage')
        return step('storage', { services: { storage: store } as object })
      }
    }),
    plugin('guard', {
      setup: () =>
        step('guard', {
          hooks: async app => {
            app.addHook('onRequest', async (_, reply) => void reply.header('x-guard', 'yes'))
          }
        })
    }),
    plugin('other', { setup: () => page('other') })
  ]
  const { host: made, app, run, states } = await host(t, definitions, { yaml: 'web:\n  size: 7' })
  t.same(new Set(Object.values(states())), new Set(['waiting']))
  await run()
  await made.start()
  const list = await app.inject('/list')
  t.same(list.json(), { list: ['m'], decorated: true })
  t.match(list.headers, { 'x-guard': 'yes', 'x-only-web': 'yes' })
  const other = await app.inject('/other')
  t.equal(other.headers['x-guard'], 'yes', "hooks apply to every plugin's routes")
  t.notOk(other.headers['x-only-web'], 'what routes add stays in their own scope')
  t.equal(made.service('storage'), store as unknown)
  t.throws(() => made.service('scheduler'), { code: 'plugin_service_missing' })
  await Promise.all([made.stop(), made.stop()])
  t.same(calls, [
    'setup storage',
    'setup web 7',
    ...['guard', 'storage', 'web'].map(name => `start ${name}`),
    ...['web', 'storage', 'guard'].map(name => `stop ${name}`)
  ])
  t.match(made.report(), [
    { name: 'guard', description: 'The plugin guard', state: 'active' },
    { name: 'other', state: 'active' },
    { name: 'storage', state: 'active' },
    { name: 'web', state: 'active' }
  ])
})

/** How a plugin fails, the step in which it does, and the resulting code and reason. */
const x = (offer: PluginOffer) => () => ({ services: { x: {} } as object, ...offer })
const failures: [title: string, setup: NonNullable<Sketch['setup']>, code: string, reason: RegExp][] = [
  ['setup throws', fail('no disk'), 'plugin_setup_failed', /"bad" could not be set up: no disk\./],
  ['setup rejects', async () => Promise.reject('plain text'), 'plugin_setup_failed', /plain text/],
  ['setup never ends', () => never() as never, 'plugin_timeout', /could not be set up: it took longer than/],
  ['offers less than it says', () => ({}), 'plugin_offer_mismatch', /"x" is named in "offers" but was not returned/],
  [
    'offers more than it says',
    () => ({ services: { x: {}, storage: {} } as object }),
    'plugin_offer_mismatch',
    /"storage" was returned but is not named/
  ],
  [
    'routes throw',
    x({ routes: async () => fail('bad routes')() }),
    'plugin_register_failed',
    /could not be registered: bad routes/
  ],
  [
    'a route is taken',
    x(page('good')),
    'plugin_register_failed',
    /its route GET \/good belongs to the plugin "(good|bad)"; give it another path/
  ],
  ['hooks throw', x({ hooks: async () => fail('bad hooks')() }), 'plugin_register_failed', /bad hooks/],
  ['start throws', x(page('bad', { start: fail('no port') })), 'plugin_start_failed', /could not be started: no port/],
  ['start never ends', x({ start: never }), 'plugin_timeout', /could not be started: it took longer than/]
]

for (const [title, setup, code, reason] of failures) {
  t.test(`host leaves out a plugin when ${title}`, async t => {
    const deadlines = { setup: 150, start: 150, stop: 150 }
    const stopped: string[] = []
    const good = plugin('good', { setup: () => page('good', { stop: () => void stopped.push('good') }) })
    let signal: AbortSignal | undefined
    const bad = (optional: boolean) =>
      plugin('bad', {
        offers: ['x'],
        optional,
        setup: async (context, options) => {
          signal = context.signal
          const offer = await setup(context, options)
          return { ...offer, stop: () => void stopped.push('bad') }
        }
      })
    const needy = plugin('needy', {
      needs: ['x'],
      optional: true,
      setup: () => page('needy', { stop: () => void stopped.push('needy') })
    })

    const tolerant = await host(t, [needy, bad(true), good], { deadlines })
    await tolerant.run()
    t.same(tolerant.states(), { bad: 'failed', good: 'active', needy: 'failed' })
    const report = Object.fromEntries(tolerant.host.report().map(entry => [entry.name, entry.reason]))
    t.match(report.bad, reason)
    t.match(report.needy, /"needy" needs the service "x" of "bad", which failed/)
    t.match(tolerant.lines, [{ level: 50, plugin: 'bad', msg: reason }], 'it is logged')
    t.equal((await tolerant.app.inject('/good')).body, 'good')
    t.equal((await tolerant.app.inject('/needy')).statusCode, 404)
    t.equal((await tolerant.app.inject('/bad')).statusCode, 404)
    t.equal(signal?.aborted, true, 'what its setup began is aborted')
    t.throws(() => tolerant.host.service('x' as ServiceName), { code: 'plugin_service_missing' })
    await tolerant.host.stop()
    const handedOver = !title.startsWith('setup')
    t.equal(stopped.includes('bad'), handedOver, 'it is stopped if it was set up')
    t.equal(stopped.at(-1), 'good')
    t.same([...new Set(stopped)], stopped, 'each at most once')

    stopped.length = 0
    const strict = await host(t, [bad(false), good], { deadlines })
    const error = await strict.run().catch(error => error)
    t.match(error, { name: 'PluginError', code, message: reason })
    if (title !== 'a route is taken') t.equal(error.plugin, 'bad')
    await strict.host.stop()
    t.equal(stopped.includes('bad'), handedOver)
  })
}

t.test('routes and hooks of a failed plugin are removed, and the boot continues', async t => {
  /** Routes with a hook, and then this. */
  const half = (then: (app: FastifyInstance) => unknown): PluginOffer => ({
    async routes(app) {
      app.get('/half', async () => 'half')
      app.addHook('onRequest', async (_, reply) => void reply.header('x-bad', 'yes'))
      then(app)
    }
  })
  const hooks = async (app: FastifyInstance) => {
    app.addHook('onRequest', async (_, reply) => void reply.header('x-bad', 'yes'))
    app.addHook('onSend', (_request, reply, payload, done) => {
      reply.header('x-bad', 'yes')
      done(null, payload)
    })
    throw new Error('half way')
  }
  const table: [title: string, offer: PluginOffer, reason: RegExp][] = [
    [
      'a nested Fastify plugin throws synchronously',
      half(app => void app.register(fail('nested'))),
      /could not be registered: nested/
    ],
    [
      'a nested Fastify plugin rejects, unawaited',
      half(app => void app.register(() => Promise.reject(new Error('later')))),
      /could not be registered: later/
    ],
    ['hooks fail half way', { hooks }, /could not be registered: half way/],
    ['routes never end', { routes: never }, /could not be registered: it took longer than/],
    [
      'a schema cannot be used',
      half(app => app.post('/schema', { schema: { body: { type: 'nonsense' } } }, async () => 'ok')),
      /the schema of POST \/schema \(body\) cannot be used: .*nonsense|schema is invalid/
    ],
    [
      'an onReady hook fails',
      half(app => app.addHook('onReady', async () => Promise.reject(new Error('not ready')))),
      /could not be registered: not ready/
    ]
  ]
  for (const [title, offer, reason] of table) {
    const bad = { ...plugin('bad', { optional: true, setup: () => offer }), path: '/plugins/bad.mjs' }
    const good = plugin('good', { setup: () => page('good') })
    const heir = plugin('heir', { optional: true, setup: () => page('heir') })
    const { app, run, states, host: made } = await host(t, [bad, good, heir], { deadlines: { register: 300 } })
    await run()
    t.same(states(), { bad: 'failed', good: 'active', heir: 'active' }, title)
    const found = made.report().find(({ name }) => name === 'bad')
    t.match(found, { reason, path: '/plugins/bad.mjs' }, title)
    const { body, headers } = await app.inject('/good')
    t.equal(body, 'good')
    t.equal(headers['x-bad'], undefined, 'its hooks do nothing')
    t.equal((await app.inject('/heir')).body, 'heir')
    t.equal((await app.inject('/half')).statusCode, 404)
    t.match((await app.inject({ method: 'POST', url: '/half' })).json(), { code: 'route_not_found' })
  }
})

t.test('the error of a Fastify hook names its plugin, and the server continues', async t => {
  const bad = plugin('bad', {
    optional: true,
    setup: ({ error }) => ({
      hooks: async app => {
        app.addHook('onRequest', async ({ url }) => {
          if (url === '/async') throw new TypeError('boom')
          if (url === '/refused') throw error('unauthorized', 'Not you.')
        })
        app.addHook('preHandler', ({ url }, _reply, done) => {
          if (url === '/sync') throw new TypeError('boom')
          done(url === '/callback' ? new TypeError('boom') : undefined)
        })
      }
    })
  })
  const good = plugin('good', { setup: () => page(':any', {}, 'good') })
  const { app, run } = await host(t, [bad, good])
  await run()
  for (const [url, hook] of [
    ['/async', 'onRequest'],
    ['/sync', 'preHandler'],
    ['/callback', 'preHandler']
  ]) {
    const reply = await app.inject(url!)
    t.equal(reply.statusCode, 500)
    const error = `The plugin "bad" failed in its hook "${hook}". The server's log says why.`
    t.match(reply.json(), { code: 'internal', error })
  }
  t.match((await app.inject('/refused')).json(), { code: 'unauthorized', error: 'Not you.' })
  t.equal((await app.inject('/fine')).body, 'good')
})

t.test('each plugin is registered once, on the application itself', async t => {
  const calls: string[] = []
  const once = (name: string, optional: boolean) =>
    plugin(name, {
      optional,
      setup: () => ({
        hooks: async () => void calls.push(`hooks ${name}`),
        routes: async app => {
          calls.push(`routes ${name}`)
          app.get('/same', async () => name)
        }
      })
    })
  const { app, run, states } = await host(t, [once('a', true), once('b', false), once('c', true)])
  await run()
  t.same(calls, ['hooks a', 'hooks b', 'hooks c', 'routes b', 'routes a', 'routes c'])
  t.same(states(), { a: 'failed', b: 'active', c: 'failed' }, 'a required plugin keeps a route that others want')
  t.equal((await app.inject('/same')).body, 'b')
})

t.test('the report says what plugins offer', async t => {
  const rich = plugin('rich', {
    offers: ['x'],
    setup: () => ({
      services: { x: {} } as object,
      on: { request: () => {}, pullFinished: () => {} },
      routes: async app => {
        app.get('/rich', async () => 'ok')
        app.post('/rich', async () => 'ok')
      }
    })
  })
  const user = plugin('user', {
    needs: ['x'],
    optional: true,
    setup: ({ plugins }) => ({ start: () => void t.equal(plugins().length, 2) })
  })
  const { host: made, run } = await host(t, [rich, user])
  await run()
  const common = { api: 1, optional: false, state: 'active', needs: [], services: [], routes: [], hooks: [] }
  t.same(made.report(), [
    {
      ...common,
      name: 'rich',
      description: 'The plugin rich',
      services: ['x'],
      routes: ['GET /rich', 'POST /rich'],
      hooks: ['request', 'pullFinished']
    },
    { ...common, name: 'user', description: 'The plugin user', optional: true, needs: ['x'] }
  ])
})

t.test('an offer that comes after the deadline is stopped', async t => {
  const release = new AbortController()
  const stopped = new AbortController()
  const late = plugin('late', {
    optional: true,
    setup: async () => {
      await once(release.signal, 'abort')
      return { stop: () => stopped.abort() }
    }
  })
  const { run, states } = await host(t, [late], { deadlines: { setup: 50 } })
  await run()
  t.same(states(), { late: 'failed' })
  const end = once(stopped.signal, 'abort')
  release.abort()
  await end
})

t.test('a stop that fails or hangs does not keep others from stopping', async t => {
  const stopped: string[] = []
  const stops = {
    a: () => void stopped.push('a'),
    b: never,
    c: () => Promise.reject(new Error('stuck')),
    d: () => void stopped.push('d')
  }
  const definitions = Object.entries(stops).map(([name, stop]) => plugin(name, { setup: () => ({ stop }) }))
  const { host: made, run, lines } = await host(t, definitions, { deadlines: { stop: 50 } })
  await run()
  await made.stop()
  t.same(stopped, ['d', 'a'])
  t.match(
    lines.filter(({ level }) => level === 50),
    [
      { plugin: 'c', msg: /did not stop cleanly: stuck/ },
      { plugin: 'b', msg: /did not stop cleanly: it took longer than 50 ms/ }
    ]
  )
})

t.test('enabled: false leaves a plugin out', async t => {
  const web = plugin('web', { optional: true, setup: () => t.fail('it was set up') as never })
  const { run, host: made } = await host(t, [web, plugin('base')], { yaml: 'web: {enabled: false}' })
  await run()
  t.match(made.report(), [
    { name: 'base', state: 'active' },
    { name: 'web', state: 'disabled', reason: /enabled/ }
  ])
})

t.test('the first of two optional plugins keeps their common route', async t => {
  const same = (name: string) => plugin(name, { optional: true, setup: () => page('same', {}, name) })
  const { run, app, states } = await host(t, [same('second'), same('first')])
  await run()
  t.same(states(), { first: 'active', second: 'failed' })
  t.equal((await app.inject('/same')).body, 'first')
})

t.test('a shutdown ends the start', async t => {
  const controller = new AbortController()
  const first = plugin('first', {
    setup: () => {
      controller.abort()
      return {}
    }
  })
  const { run } = await host(t, [first, plugin('second')], { signal: controller.signal })
  await t.rejects(run(), { code: 'shutting_down' })
})

t.test('a service cannot have a name that the application uses', async t => {
  const clash = (optional: boolean) => plugin('clash', { offers: ['inject'], optional })
  const strict = await host(t, [clash(false)])
  await t.rejects(strict.run(), { code: 'plugin_register_failed', plugin: 'clash', message: /inject/ })
  const tolerant = await host(t, [clash(true)])
  await tolerant.run()
  t.same(tolerant.states(), { clash: 'failed' })
})

t.test('a setting that cannot be met ends the start, even for an optional plugin', async t => {
  const mistake = new ConfigError([{ where: 'x', message: 'No.' }])
  const setUp = await host(t, [plugin('wrong', { optional: true, setup: () => Promise.reject(mistake) })])
  await t.rejects(setUp.run(), mistake)
  const taken = new ListenError('Port 1 is taken.')
  const start = () => Promise.reject(taken)
  const started = await host(t, [plugin('late', { optional: true, setup: () => ({ start }) })])
  await t.rejects(started.run(), taken)
})
