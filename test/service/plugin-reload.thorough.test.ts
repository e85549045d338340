import { mkdirSync, utimesSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { sample, thorough } from '../support/thorough.ts'

/* Plugins that are added, changed and removed while the server runs. */

let changes = 0

/** Writes a file with a new time, since a test may change it twice within a tick of the clock. */
function write(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, text)
  const time = new Date(Date.now() + ++changes * 1000)
  utimesSync(path, time, time)
}

/** A plugin with a model, a filter, a setting and a route, which all tell its version. */
const everything = (version: string, more = '') => `
  import { word } from './word.mjs'
  const engine = spec => {
    let end
    return {
      id: 'e' + Math.random(), provider: 'mine', spec, contextSize: 4096, slots: 8, memory: undefined,
      exited: new Promise(resolve => { end = resolve }),
      async chat(request, sink) {
        await sink.take([{ content: 'engine ${version}' }, { finish: 'stop' }])
      },
      stop: async () => end({ code: 0, signal: null, expected: true }),
      logTail: () => []
    }
  }
  export default {
    name: 'mine', api: 1, optional: true, needs: ['engines', 'catalog'],
    options: { type: 'object', properties: { size: { type: 'integer', default: 3 } }, additionalProperties: false },
    setup(context, { size }) {
      context.service('catalog').add({ name: 'mine', models: () => [{ name: 'mine/${version}', capabilities: ['completion'] }] })
      context.service('engines').add({
        name: 'mine', serves: model => model.format === 'mine' ? 1 : 0, loadOptions: () => ({}), start: async spec => engine(spec)
      })
      ${more}
      return {
        on: { request: request => request.setHeader('x-mine', '${version}') },
        routes: async app => {
          app.get('/mine', async () => ({ version: '${version}', word, size }))
          app.get('/mine/slow', async (request, reply) => {
            reply.raw.write('begun ')
            await new Promise(resolve => setTimeout(resolve, 3000))
            reply.raw.end('ended ${version}')
          })
        },
        stop: () => console.log('STOPPED ${version}')
      }
    }
  }`

async function start(t: Test, config = '', files: Record<string, string> = {}) {
  const folder = newFolder(t)
  for (const [name, text] of Object.entries(files)) write(join(folder, name), text)
  const corral = await startCorral(t, { home: folder, config })
  const file = (name: string) => join(folder, name)
  const reload = async (text: string) => {
    corral.configure(text)
    return await corral.json('/api/reload', {}, { local: true })
  }
  const routes = async () => JSON.stringify((await corral.json('/openapi.json')).body.paths)
  const chat = async (model: string) => {
    const reply = await corral.send('/v1/chat/completions', { model, messages: [{ role: 'user', content: 'Hi' }] })
    const body: any = await reply.json()
    return [reply.status, reply.headers.get('x-mine'), body.choices?.[0].message.content]
  }
  return { ...corral, file, reload, routes, chat, get: (path: string) => corral.json(path) }
}

t.test('a reload adds a plugin, replaces it by its new version, and removes it', async t => {
  const { file, reload, routes, chat, get, log, send } = await start(t)
  const list = 'plugins: [./mine.mjs]\n'
  write(file('word.mjs'), `export const word = 'old'`)
  write(file('mine.mjs'), everything('one'))
  t.equal((await get('/mine')).status, 404)
  t.match(await reload(`${list}mine: { size: 5 }\n`), {
    status: 200,
    body: { restart: [], plugins: [{ name: 'mine', change: 'added' }] }
  })
  t.match(await get('/mine'), { status: 200, body: { version: 'one', word: 'old', size: 5 } })
  t.match(await routes(), '"/mine"')
  t.same(await chat('mine/one'), [200, 'one', 'engine one'])
  t.match((await get('/mine/other')).body, { code: 'route_not_found' })
  t.match(await send('/mine', {}), { status: 405 })

  t.comment('nothing has changed')
  t.match(await reload(`${list}mine: { size: 5 }\n`), { body: { applied: [], restart: [], plugins: [] } })

  t.comment('its settings have changed, which it cannot take while it runs')
  t.match(await reload(list), { body: { restart: [{ setting: 'mine.size' }], plugins: [] } })

  t.comment('its code has changed, while a request is in progress')
  const slow = send('/mine/slow')
  const begun = (await slow).body!.getReader()
  await begun.read()
  write(file('word.mjs'), `export const word = 'new'`)
  write(file('mine.mjs'), everything('two'))
  t.match(await reload(list), { body: { restart: [], plugins: [{ name: 'mine', change: 'replaced' }] } })
  t.match(await get('/mine'), { status: 200, body: { version: 'two', word: 'new', size: 3 } })
  t.same(await chat('mine/two'), [200, 'two', 'engine two'])
  t.equal((await chat('mine/one'))[0], 404)
  t.same((await chat(DEMO)).slice(0, 2), [200, 'two'])
  t.notMatch(log(), 'STOPPED one')
  t.equal(Buffer.from((await begun.read()).value!).toString(), 'ended one')
  await until('the old version has stopped', () => log().includes('STOPPED one'))

  t.comment('it is switched off and on')
  t.match(await reload(`${list}mine: { enabled: false }\n`), { body: { applied: [{ setting: 'mine.enabled' }] } })
  t.match(await get('/mine'), { status: 404, body: { error: /"mine", which is switched off/ } })
  t.same((await chat(DEMO)).slice(0, 2), [200, null])
  t.notMatch(await routes(), '"/mine"')
  await reload(list)
  t.match((await get('/mine')).body, { version: 'two' })

  t.match(await reload(''), { body: { plugins: [{ name: 'mine', change: 'removed' }] } })
  t.match(await get('/mine'), { status: 404, body: { error: /There is no route/ } })
  t.equal((await chat('mine/two'))[0], 404)
  t.same((await chat(DEMO)).slice(0, 2), [200, null])
  await until('it has stopped', () => log().split('STOPPED two').length === 3)
})

t.test('a plugin that fails leaves everything as it was, and the reload says why', async t => {
  const list = 'plugins: [./mine.mjs]\n'
  const { file, reload, chat, get } = await start(t)
  write(file('word.mjs'), `export const word = 'old'`)
  write(file('mine.mjs'), everything('good'))
  write(
    file('other.mjs'),
    `export default { name: 'other', api: 1, setup: () => ({ routes: async app => void app.get('/other', async () => 1) }) }`
  )
  t.match(await reload(`plugins: [./mine.mjs, ./other.mjs]\n`), { status: 200 })
  const faults: [text: string, code: string, message: RegExp][] = [
    ['syntax error', 'invalid_config', /mine\.mjs/],
    ['export const nothing = 1', 'invalid_config', /mine\.mjs has no plugin/],
    [everything('bad', 'throw new Error("out of sorts")'), 'reload_failed', /"mine" \(.*mine\.mjs\).*out of sorts/],
    [
      everything('bad', 'context.service("engines").add({ name: "llama-server" })'),
      'reload_failed',
      /"mine".*llama-server/
    ],
    [
      everything('bad').replaceAll("'/mine'", "'/other'"),
      'reload_failed',
      /its route GET \/other belongs to the plugin "other"/
    ],
    [
      everything('bad').replaceAll("'/mine'", "'/api/tags'"),
      'reload_failed',
      /GET \/api\/tags belongs to the plugin "api-native"/
    ],
    [
      everything('bad').replace('stop: () =>', 'start: () => { throw new Error("no start") }, stop: () =>'),
      'reload_failed',
      /no start/
    ],
    [
      everything('bad').replace('stop: () =>', 'hooks: async () => {}, stop: () =>'),
      'reload_failed',
      /hooks for all routes.*restart/
    ],
    [everything('bad').replace('api: 1', 'api: 9'), 'reload_failed', /version 9/]
  ]
  for (const [text, code, message] of sample(faults, 2)) {
    write(file('mine.mjs'), text)
    const { status, body } = await reload('plugins: [./mine.mjs, ./other.mjs]\ndefaults: { temperature: 0.5 }\n')
    t.ok(status >= 400, text.slice(-80))
    t.match(body, { code, error: message }, text.slice(0, 80))
    t.match((await get('/mine')).body, { version: 'good' })
    t.match((await get('/other')).status, 200)
    t.same(await chat('mine/good'), [200, 'good', 'engine good'])
  }
  write(file('mine.mjs'), everything('better'))
  t.match(await reload(list), {
    body: {
      plugins: [
        { name: 'mine', change: 'replaced' },
        { name: 'other', change: 'removed' }
      ]
    }
  })
  t.match((await get('/mine')).body, { version: 'better' })
  t.equal((await get('/other')).status, 404)
})

t.test('requests during reloads are answered by either version', thorough, async t => {
  const list = 'plugins: [./mine.mjs]\n'
  const { file, reload, get, chat } = await start(t, list.replace('[./mine.mjs]', '[]'))
  write(file('word.mjs'), `export const word = 'old'`)
  write(file('mine.mjs'), everything('v0').replace('mine/v0', 'mine/same'))
  await reload(list)
  let asks = true
  const failures: unknown[] = []
  const asking = [0, 1, 2].map(async () => {
    while (asks) {
      const route = await get('/mine')
      if (route.status !== 200) failures.push(route)
      const answer = await chat('mine/same')
      if (answer[0] !== 200) failures.push(answer)
    }
  })
  for (let at = 1; at <= 4; at++) {
    write(file('mine.mjs'), everything(`v${at}`).replace(`mine/v${at}`, 'mine/same'))
    // Two at once: the second one finds nothing new.
    const reports = await Promise.all([reload(list), reload(list)])
    t.same(
      reports.map(({ body }) => body.plugins.length),
      [1, 0]
    )
    t.match((await get('/mine')).body, { version: `v${at}` })
  }
  asks = false
  await Promise.all(asking)
  t.same(failures, [])
})

t.test('all files of a package count, and plugins with hooks for all routes wait for a restart', async t => {
  const hooked = (version: string) => `export default { name: 'hooked', api: 1, setup: () => ({
    hooks: async app => app.addHook('onRequest', async (_, reply) => void reply.header('x-hooked', '${version}'))
  }) }`
  const part = (version: string) => `module.exports = '${version}'`
  const { file, reload, get, send } = await start(t, 'plugins: [./hooked.mjs]\n', {
    'hooked.mjs': hooked('one'),
    'pack/package.json': '{ "main": "main.cjs" }',
    'pack/main.cjs': `module.exports = { name: 'pack', api: 1, setup: () => ({
      routes: async app => void app.get('/pack', async () => ({ version: require('./parts/part.cjs') }))
    }) }`,
    'pack/parts/part.cjs': part('one')
  })
  const both = 'plugins: [./hooked.mjs, ./pack]\n'
  t.match(await reload(both), { body: { plugins: [{ name: 'pack', change: 'added' }] } })
  t.match((await get('/pack')).body, { version: 'one' })
  t.equal((await send('/pack')).headers.get('x-hooked'), 'one', 'hooks for all routes run for its routes')
  write(file('pack/parts/part.cjs'), part('two'))
  write(file('hooked.mjs'), hooked('two'))
  t.strictSame((await reload(both)).body.plugins, [
    { name: 'pack', change: 'replaced' },
    { name: 'hooked', change: 'restart' }
  ])
  t.match((await get('/pack')).body, { version: 'two' })
  t.strictSame((await reload('')).body.plugins, [
    { name: 'pack', change: 'removed' },
    { name: 'hooked', change: 'restart' }
  ])
  t.equal((await send('/api/version')).headers.get('x-hooked'), 'one')
  t.equal((await get('/pack')).status, 404)
})
