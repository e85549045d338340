import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import t from 'tap'
import type { Services } from '../../core/contracts/services.ts'
import type { PlainPlugin, PluginOffer } from '../../core/plugins/plugin.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { Registrations } from '../../core/plugins/registrations.ts'
import echo from '../../examples/echo-engine/index.ts'
import { startTestCorral } from '../../testing/index.ts'
import { sample } from '../support/thorough.ts'

const DEMO = 'corral/tiny-chat'
const ask = { model: DEMO, messages: [{ role: 'user', content: 'Hello there' }] }

const never = async () => Promise.reject(new Error('asked'))
const plugin = (more: Partial<PlainPlugin<any>> & Pick<PlainPlugin<any>, 'setup'>) =>
  definePlugin<any>({ name: 'bad', api: 1, optional: true, ...more })

/** Adds a model, an engine that serves all models, a hub, short names and a source of builds. */
function addAll(services: Pick<Services, 'catalog' | 'downloads' | 'engines' | 'runtimes'>): void {
  services.catalog.add({ name: 'bad', models: () => [{ name: 'bad/parrot', capabilities: ['completion'] }] })
  services.catalog.addNames(() => ({ owner: 'corral', name: 'tiny-chat' }))
  services.engines.add({ name: 'bad', serves: () => 10_000, start: never })
  services.downloads.addHub({ name: 'bad', title: 'Bad', prefixes: ['bad:'], repository: never, locate: never })
  services.runtimes.addSource({ name: 'bad', description: 'Bad', instant: true } as never)
}

t.test('everything that a plugin added is removed when it fails in any step', async t => {
  const fail = (): never => {
    throw new Error('no luck')
  }
  const on = { request: fail }
  const table: Record<string, (addAndFail: () => never) => PluginOffer> = {
    setup: addAndFail => addAndFail(),
    hooks: addAndFail => ({
      on,
      hooks: async app => {
        app.decorate('badDecorator', 1)
        addAndFail()
      }
    }),
    routes: addAndFail => ({
      on,
      routes: async app => {
        app.get('/bad', async () => 'bad')
        addAndFail()
      }
    }),
    start: start => ({ on, start })
  }
  for (const [step, offerOf] of sample(Object.entries(table), 2)) {
    let late = () => {}
    const bad = plugin({
      needs: ['catalog', 'engines', 'downloads', 'runtimes'],
      setup(context) {
        const { service } = context
        late = () => {
          const [catalog, engines] = [service('catalog'), service('engines')]
          addAll({ catalog, engines, downloads: service('downloads'), runtimes: service('runtimes') })
        }
        return offerOf(() => {
          late()
          return fail()
        })
      }
    })
    const corral = await startTestCorral({ plugins: [bad] })
    t.match(await corral.plugin('bad'), { state: 'failed', reason: /no luck/ }, step)
    const answer = await corral.json('/v1/chat/completions', ask)
    t.match(answer, { status: 200, body: { choices: [{ message: { content: 'Hello there' } }] } }, step)
    const { models } = (await corral.json('/api/tags')).body
    t.match(models, { length: 1, 0: { model: DEMO } }, step)
    t.match(await corral.json('/v1/chat/completions', { ...ask, model: 'unheard-of' }), { status: 404 }, step)
    t.match(await corral.json('/api/pull', { model: 'bad:a/b', stream: false }), {
      status: 400,
      body: { error: /not the prefix of an enabled hub/ }
    })
    t.equal((await corral.json('/bad')).status, 404)
    t.throws(late, /"bad" was left out, so it cannot add anything/, 'and it cannot add more later')
    await corral.close()
  }
})

t.test('additions of a plugin through a decorator are removed too', async t => {
  const late = plugin({
    setup() {
      let application: FastifyInstance
      return {
        routes: async app => {
          application = app
        },
        start() {
          addAll(application as never)
          throw new Error('no luck')
        }
      }
    }
  })
  const corral = await startTestCorral({ plugins: [late] })
  t.teardown(() => corral.close())
  t.match(await corral.plugin('bad'), { state: 'failed', reason: /no luck/ })
  t.equal((await corral.json('/v1/chat/completions', ask)).status, 200)
  t.notMatch(JSON.stringify((await corral.json('/api/tags')).body), 'bad/parrot')
})

t.test('a plugin fails if it uses names that are taken', async t => {
  const mine = { name: 'mine', title: 'Mine', prefixes: ['mine:'], repository: never, locate: never }
  const hubWith = (more: object) => ({ ...mine, ...more })
  const table: [object, RegExp][] = [
    [hubWith({ name: 'huggingface' }), /There is already a hub named "huggingface"/],
    [hubWith({ prefixes: ['HF:'] }), /cannot have the prefix "HF:": it belongs to the hub "huggingface"/],
    [hubWith({ prefixes: ['hf:meta-llama/'] }), /it belongs to the hub "huggingface"/],
    [hubWith({ prefixes: ['https://huggingface.co/'] }), /it belongs to the hub "huggingface"/],
    [hubWith({ prefixes: ['corral/'] }), /models of the owner "corral" could no longer be named/],
    [hubWith({ prefixes: [''] }), /must look like "name:"/]
  ]
  for (const [index, [added, reason]] of sample([...table.entries()], 3)) {
    // A name that sorts before all built-in ones, loaded in two ways.
    const early = plugin({
      name: 'aaa',
      optional: index % 2 === 0,
      needs: ['downloads'],
      setup(context) {
        context.service('downloads').addHub(added as never)
        return {}
      }
    })
    if (index % 2 === 1) {
      await t.rejects(startTestCorral({ plugins: [early] }), { plugin: 'aaa', message: reason })
      continue
    }
    const corral = await startTestCorral({ plugins: [early] })
    t.match(await corral.plugin('aaa'), { state: 'failed', reason })
    t.match(await corral.plugin('huggingface'), { state: 'active' })
    await corral.close()
  }
})

t.test("a plugin's model with the name of another model is left out and logged", async t => {
  const thief = plugin({
    name: 'aaa',
    needs: ['catalog'],
    setup(context) {
      const models = ['corral/tiny-chat', 'echo/parrot', 'aaa/fine'].map(name => ({ name, capabilities: [], size: 7 }))
      context.service('catalog').add({ name: 'aaa', models: () => models })
      return {}
    }
  })
  const corral = await startTestCorral({ plugins: [echo, { ...thief, name: 'zzz' }] })
  t.teardown(() => corral.close())
  const { models } = (await corral.json('/api/tags')).body
  t.same(
    models.map(({ model, format }: { model: string; format: string }) => [model, format]),
    [
      ['corral/tiny-chat', 'gguf'],
      ['echo/parrot', 'echo'],
      ['aaa/fine', 'aaa']
    ]
  )
  t.equal(models.at(-1).size, 7)
  t.match(corral.log(), /The plugin \\"aaa\\" lists the model \\"corral\/tiny-chat\\", which is left out/)
  t.match(corral.log(), /lists the model \\"echo\/parrot\\", which is left out: \\"echo\\" brings one/)
})

t.test('an engine provider whose "serves" throws does not affect other engines', async t => {
  const broken = plugin({
    needs: ['engines'],
    setup(context) {
      const serves = () => {
        throw new Error('no idea')
      }
      context.service('engines').add({ name: 'bad', serves, start: async () => Promise.reject(new Error('never')) })
      return {}
    }
  })
  const corral = await startTestCorral({ plugins: [broken] })
  t.teardown(() => corral.close())
  for (let round = 0; round < 2; round++) t.equal((await corral.json('/v1/chat/completions', ask)).status, 200)
  t.equal(corral.log().split('The engine provider \\"bad\\" throws in \\"serves\\"').length, 2, 'it is logged once')
})

t.test("mistakes in a plugin's definition and offers are errors that name it", async t => {
  const table: [Parameters<typeof plugin>[0], code: string, message: RegExp][] = [
    [
      { setup: () => ({ route: async () => {} }) as object },
      'plugin_offer_mismatch',
      /"route" in what "setup" returned.*"routes"/
    ],
    [{ setup: () => ({ onn: {} }) as object }, 'plugin_offer_mismatch', /"onn".*did you mean "on"/],
    [{ setup: () => ({ on: { reqest() {} } }) as object }, 'plugin_offer_mismatch', /"reqest" in "on".*"request"/],
    [
      { setup: () => ({ on: { request: 1 } }) as object },
      'plugin_offer_mismatch',
      /"request" in "on" is not a function/
    ],
    [
      { setup: () => ({ start: 'now' }) as never },
      'plugin_offer_mismatch',
      /"start" in what "setup" returned is not a/
    ],
    [{ setup: () => 7 as never }, 'plugin_offer_mismatch', /its "setup" did not return an object/],
    [
      { options: { type: 'object', properties: { a: { type: 'integer', default: 'one' } } }, setup: () => ({}) },
      'plugin_options_invalid',
      /schema of plugin "bad" is unusable: the default of bad\.a is not valid, because it must be integer/
    ],
    [
      { setup: () => ({ routes: async app => void app.post('/v1/chat/completions', async () => 1) }) },
      'plugin_register_failed',
      /its route POST \/v1\/chat\/completions belongs to the plugin "api-openai"/
    ],
    [
      { setup: () => ({ routes: async app => void app.get('/api/pulls/:any', async () => 1) }) },
      'plugin_register_failed',
      /its route GET \/api\/pulls\/:any belongs to the plugin "api-native"/
    ]
  ]
  for (const [sketch, code, message] of table) {
    await t.rejects(startTestCorral({ plugins: [plugin({ ...sketch, optional: false })] }), {
      plugin: 'bad',
      code,
      message
    })
  }
})

t.test('options of a plugin may use the formats of JSON Schema, and misspelled options are errors', async t => {
  const formats = {
    type: 'object',
    properties: { at: { type: 'string', format: 'uri', default: 'https://example.org' } }
  }
  const key = 'security: { api_keys: [a-key-of-an-admin-for-this-test] }\n'
  const admin = { authorization: 'Bearer a-key-of-an-admin-for-this-test' }
  const uri = plugin({ options: formats as never, setup: () => ({ reload() {} }) })
  const corral = await startTestCorral({ plugins: [uri], config: `${key}bad: { at: "http://example.org/a" }` })
  t.teardown(() => corral.close())
  for (const [config, message] of [
    ['bad: { at: no address }', /bad\.at must be .*uri/],
    ['bad: { att: "http://example.org" }', /bad has no setting "att"; did you mean bad\.at\?/]
  ] as const) {
    await t.rejects(startTestCorral({ plugins: [uri], config }), { code: 'invalid_config', message })
    writeFileSync(join(corral.home, 'config.yaml'), key + config)
    t.match(await corral.json('/api/reload', {}, admin), {
      status: 409,
      body: { code: 'invalid_config', error: message }
    })
  }
})

t.test('a hook that never ends fails its request with the names of plugin and hook', async t => {
  const never = () => new Promise<void>(() => {})
  const slow = plugin({
    setup: () => ({
      on: {
        request: ({ body }) => (JSON.stringify(body).includes('request') ? never() : undefined),
        event: ({ content }) => (content?.includes('event') ? never() : undefined)
      },
      hooks: async app => {
        app.addHook('preHandler', async ({ url }) => (url === '/api/version' ? await never() : undefined))
        app.addHook('onRequest', (request, reply, done) => {
          if (request.url === '/own') reply.send('answered by the hook itself')
          else done()
        })
      }
    })
  })
  const corral = await startTestCorral({ plugins: [slow], config: 'limits: { hook_timeout: 100ms }' })
  t.teardown(() => corral.close())
  const failed = (hook: string) => ({
    status: 500,
    body: { code: 'hook_timeout', error: `The plugin "bad" took longer than 100 ms in its hook "${hook}"` }
  })
  const say = (content: string, stream = false) => ({ model: DEMO, messages: [{ role: 'user', content }], stream })
  const shown = ({ status, body }: { status: number; body: { code: string; error: string } }) => ({
    status,
    body: { code: body.code, error: body.error?.replace(/ \(limits.*/, '') }
  })
  for (const hook of ['request', 'event'])
    t.same(shown(await corral.json('/api/chat', say(`an ${hook}`))), failed(hook))
  t.same(shown(await corral.json('/api/version')), failed('preHandler'))
  const events = await corral.events('/api/chat', say('begin an event', true))
  t.match(events.at(-1), { done_reason: 'error', code: 'hook_timeout' })
  t.equal((await corral.json('/api/chat', say('fine'))).status, 200)
  t.equal(await (await fetch(`${corral.url}/own`)).text(), 'answered by the hook itself')
})

t.test('headers that a plugin sets in "onSend" are sent with streams too', async t => {
  const headers = plugin({
    setup: () => ({
      hooks: async app => {
        app.addHook('onSend', async (_, reply) => {
          await new Promise(setImmediate)
          reply.header('x-promised', 'yes')
        })
        app.addHook('onSend', (request, reply, payload, done) => {
          if (request.headers['x-fail']) throw new Error('no headers')
          reply.header('x-called-back', 'yes')
          done(null, payload)
        })
      }
    })
  })
  const corral = await startTestCorral({ plugins: [headers] })
  t.teardown(() => corral.close())
  const send = (path: string, stream: boolean, more: Record<string, string> = {}) =>
    fetch(corral.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...more },
      body: JSON.stringify({ ...ask, stream })
    })
  for (const path of ['/v1/chat/completions', '/api/chat', '/ollama/api/chat', '/api/load']) {
    for (const [stream, more] of [[false], [true], [true, { 'x-corral-resumable': 'true' }]] as const) {
      const reply = await send(path, stream, more)
      t.equal(reply.status, 200)
      for (const name of ['x-promised', 'x-called-back']) t.equal(reply.headers.get(name), 'yes', `${name} of ${path}`)
      await reply.text()
    }
    const failed = await send(path, true, { 'x-fail': '1' })
    t.match([failed.status, await failed.text()], [500, /"bad\\?" failed in its hook \\"onSend/], path)
  }
})

t.test('a reload switches outside plugins off, and on again with their routes', async t => {
  let setups = 0
  let signal: AbortSignal | undefined
  const apart = plugin({
    needs: ['catalog', 'engines', 'downloads', 'runtimes'],
    setup(context) {
      setups++
      signal = context.signal
      const { service } = context
      const [catalog, engines] = [service('catalog'), service('engines')]
      addAll({ catalog, engines, downloads: service('downloads'), runtimes: service('runtimes') })
      const refuse = () => {
        throw context.error('invalid_request', 'Not while I am here.')
      }
      return { on: { request: refuse } }
    }
  })
  const routed = plugin({
    name: 'routed',
    setup: () => ({ routes: async app => void app.get('/routed', async () => ({ here: true })) })
  })
  const security = 'security: { api_keys: [an-admin-of-this-test] }'
  const admin = { authorization: 'Bearer an-admin-of-this-test' }
  const corral = await startTestCorral({ plugins: [apart, routed], config: security })
  t.teardown(() => corral.close())
  const get = (path: string, body?: unknown) => corral.json(path, body, admin)
  const plugins = async () => (await get('/api/plugins')).body.plugins
  const reload = async (bad: boolean, routed: boolean) => {
    writeFileSync(
      join(corral.home, 'config.yaml'),
      `${security}\nbad: { enabled: ${bad} }\nrouted: { enabled: ${routed} }\n`
    )
    return (await get('/api/reload', {})).body
  }
  const chat = async () => (await get('/v1/chat/completions', ask)).status
  const listed = async () => JSON.stringify((await get('/api/tags')).body).includes('bad/parrot')
  t.same([await chat(), await listed(), (await get('/routed')).status], [400, true, 200])

  t.match(await reload(false, false), { applied: [{ setting: 'bad.enabled' }, { setting: 'routed.enabled' }] })
  t.same([await chat(), await listed()], [200, false])
  t.ok(signal?.aborted, 'its signal is aborted')
  t.match(await get('/routed'), { status: 404, body: { error: /"routed", which is switched off/ } })
  t.match(
    (await plugins()).find(({ name }: { name: string }) => name === 'bad'),
    { state: 'disabled' }
  )
  t.notMatch(JSON.stringify((await get('/openapi.json')).body), '/routed')

  t.match(await reload(true, true), {
    applied: [{ setting: 'bad.enabled' }, { setting: 'routed.enabled' }],
    restart: []
  })
  t.same([setups, await chat(), await listed(), (await get('/routed')).status], [2, 400, true, 200])
  t.match(
    (await plugins()).find(({ name }: { name: string }) => name === 'bad'),
    { state: 'active' }
  )
})

t.test('an addition that a plugin has removed itself is not removed again', async t => {
  const added = new Registrations('mine')
  const removed: string[] = []
  const service = added.view({
    addThing: (name: string) => () => void removed.push(name),
    follow: (name: string) => () => void removed.push(name)
  })
  service.addThing('a')
  service.follow('b')()
  service.follow('c')
  t.same(removed, ['b'])
  added.undo(error => t.fail(String(error)))
  t.same(removed, ['b', 'c', 'a'], 'the latest first')
})
