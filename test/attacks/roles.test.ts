import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Type } from 'typebox'
import { hasRole, ROLES, type Role } from '../../core/http/roles.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { createKey, keyFilePath } from '../../plugins/people/security/key-file.ts'
import { renderApiDocument } from '../../scripts/api-document.ts'
import { routeName } from '../../scripts/role-docs.ts'
import { CAPITAL_QUESTION, DEMO, type SendOptions, startCorral, until } from '../support/corral.ts'
import { readCases, readFixture } from '../support/fixture.ts'
import { sendExactly } from '../support/raw-requests.ts'
import { sample } from '../support/thorough.ts'

const { byRole: ROUTES_BY_ROLE, largeBodies } = readFixture<{
  byRole: Record<Role | 'anyone', string[]>
  largeBodies: string[]
}>('routes.yaml')

/** All tests with callers share this server. */
const corral = await startCorral(t, { runtimes: '  sources: [system]\n', env: { HF_HUB_OFFLINE: '1' } })

t.test('each role may do everything that lower roles may', async t => {
  for (const [at, role] of ROLES.entries()) {
    for (const [needed, other] of ROLES.entries()) t.equal(hasRole(role, other), at >= needed, `${role} for ${other}`)
  }
})

t.test('every route has the role and body size of the tables, and the tables list no others', async t => {
  const found: { name: string; role: string; bodyLimit: number }[] = []
  const collector = definePlugin({
    name: 'role-collector',
    api: 1,
    description: 'Collects the roles of routes',
    options: Type.Object({}),
    setup: () => ({
      hooks: async app => {
        app.addHook('onRoute', ({ method, url, config, bodyLimit }) => {
          const name = routeName({ methods: [method].flat(), url })
          found.push({ name, role: config?.role ?? 'user', bodyLimit: bodyLimit! })
        })
      }
    })
  })
  const { 'roles.md': text } = await renderApiDocument([...builtInPlugins, collector])
  const expected = new Map(
    Object.entries(ROUTES_BY_ROLE).flatMap(([role, routes]) => routes.map(route => [route, role]))
  )
  for (const { name, role } of found) {
    const known = expected.get(name) ?? expected.get(name.replace('HEAD ', 'GET '))
    t.equal(role, known, `${name} needs ${known}`)
  }
  const takesBody = found.filter(({ name }) => /^(POST|PUT|PATCH|DELETE|ANY) /.test(name))
  const large = takesBody.filter(({ bodyLimit }) => bodyLimit > 256 * 1024).map(({ name }) => name)
  t.same(large.sort(), largeBodies.sort())
  for (const { name, role, bodyLimit } of takesBody) if (role === 'anyone') t.equal(bodyLimit, 4096, name)
  const names = found.map(({ name }) => name)
  const actual = [...expected.keys()].filter(name => !names.includes(name))
  t.same(actual, [], 'all routes of the table exist')
  t.equal(readFileSync(join(packageRoot, 'docs', 'roles.md'), 'utf8'), text, 'run "npm run docs:write"')
})

/** One of the page's own files, whose names contain hashes. */
const [PAGE_FILE] = JSON.parse(readFileSync(join(packageRoot, 'dist/plugins/page/browser/files.json'), 'utf8'))

/** Requests for a route of the table that do nothing for any caller: no model has this name, and no body is valid. */
function harmless(route: string): { methods: string[]; path: string; body?: string } {
  const [method, url] = route.split(' ') as [string, string]
  const path = url.replace('/:label/:revision', '/x/x').replace(':digest', `sha256:${'0'.repeat(64)}`)
  const named = path
    .replace(':owner/:name', 'nobody/nothing')
    .replace(':id', 'none')
    .replace(':file', PAGE_FILE)
    .replace('*', 'nobody%2Fnothing')
  // A feed has no HEAD route, and without a body nothing would end it.
  if (named === '/api/cluster/events') return { methods: ['GET'], path: named }
  if (method === 'GET' || method === 'ANY') return { methods: ['GET', 'HEAD'], path: named }
  return { methods: [method], path: named, ...(method !== 'HEAD' && { body: '[]' }) }
}

t.test("requests of another site's page without an Origin reach only public routes", async t => {
  const status = async (method: string, path: string, headers: Record<string, string>, local = false) => {
    const reply = await corral.send(path, method === 'POST' ? '[]' : undefined, { method, headers, local })
    await reply.body?.cancel()
    return reply.status
  }
  // Each route is tried with one of these.
  const sites = ['cross-site', 'same-site', 'same-origin, cross-site', '']
  let tried = 0
  for (const [role, routes] of Object.entries(ROUTES_BY_ROLE)) {
    for (const { methods, path } of routes.map(harmless)) {
      const isRefused = role !== 'anyone' || path.startsWith('/ollama/v1/') || methods[0] === 'POST'
      for (const method of methods) {
        const site = sites[tried++ % sites.length]!
        const got = await status(method, path, { 'sec-fetch-site': site, 'sec-fetch-mode': 'navigate' })
        t.equal(got === 403, isRefused, `${method} ${path} from ${site || 'nowhere'}: ${got}`)
      }
    }
  }
  for (const [path, headers, expected] of [
    ['/api/tags', {}, 200],
    ['/api/tags', { 'sec-fetch-site': 'none' }, 200],
    ['/api/tags', { 'sec-fetch-site': 'same-origin' }, 200],
    ['/api/tags', { 'sec-fetch-site': 'same-site', origin: 'http://localhost:3000' }, 200],
    ['/api/tags', { 'sec-fetch-site': 'cross-site', origin: 'https://example.org' }, 403],
    [`/props?model=${DEMO}`, { 'sec-fetch-site': 'cross-site' }, 403]
  ] as const) {
    t.equal(await status('GET', path, headers), expected, `${path} ${JSON.stringify(headers)}`)
  }
  t.equal(await status('GET', '/api/tags', { 'sec-fetch-site': 'cross-site' }, true), 403, 'also on the private socket')
  t.same((await corral.json('/api/ps')).body.models, [], 'no model was loaded')
})

let callers = 0

/** The answers that a caller of this role gets on all routes, once per method. Everyday, each caller tries a third. */
async function tryAll(t: Test, role: Role | undefined, init: SendOptions): Promise<void> {
  const tryOne = async (listed: string, route: string) => {
    const { methods, path, body } = harmless(route)
    // This path leads to a route that uses models.
    const needed = (path.startsWith('/ollama/v1/') ? 'user' : listed) as Role | 'anyone'
    for (const method of methods) {
      const response = await corral.send(path, body, { ...init, method })
      const { status } = response
      // A granted feed does not end.
      const isFeed = ['/models/sse', '/api/events', '/api/cluster/events'].includes(path) && status === 200
      const text = isFeed ? '' : await response.text()
      if (isFeed) await response.body!.cancel()
      const where = `${method} ${path} as ${role ?? 'nobody'}: ${status} ${text.slice(0, 200)}`
      // The route checks the body or the ticket for every caller.
      const granted = path.startsWith('/api/cluster/files/') ? 401 : method === 'POST' ? 400 : 200
      if (needed === 'anyone') t.equal(status, granted, where)
      else if (role === undefined) t.ok(status === 401 || status === 429, where)
      else if (!hasRole(role, needed)) {
        t.equal(status, 403, where)
        if (method !== 'HEAD') {
          const said = JSON.parse(text)
          const shown = typeof said.error === 'object' ? said.error : said
          t.match(
            { ...shown, code: shown.corral_code ?? shown.code },
            { code: 'forbidden_role', role, neededRole: needed },
            where
          )
        }
      } else t.notOk([401, 403, 429, 500].includes(status), where)
    }
  }
  const all = Object.entries(ROUTES_BY_ROLE).flatMap(([role, routes]) => routes.map(route => [role, route] as const))
  await Promise.all(sample(all, 3, callers++).map(([listed, route]) => tryOne(listed, route)))
}

t.test('every route grants exactly its role, also without a key and with a wrong one', async t => {
  await until('the build is found', async () => (await corral.send('/readyz')).status === 200)

  t.comment('without any key, programs on this machine are operators')
  await tryAll(t, 'operator', {})
  await tryAll(t, 'admin', { local: true })

  const keys = keyFilePath(corral)
  for (const role of ROLES) {
    const { key } = await createKey(keys, { name: `an-${role}`, role })
    await until('keys are required', async () => (await corral.send('/api/tags')).status === 401)
    await tryAll(t, role, { headers: { authorization: `Bearer ${key}` } })
  }
  await tryAll(t, undefined, {})
  const { key } = await createKey(keys, { name: 'usual' })

  t.comment('unknown routes need a key too, and a preflight reveals nothing')
  for (const method of ['GET', 'PUT', 'PATCH']) {
    t.equal((await corral.send('/api/nothing', undefined, { method })).status, 401, method)
    if (method !== 'GET') t.equal((await corral.send('/api/tags', undefined, { method })).status, 401, method)
  }
  const headers = { origin: 'http://localhost:3000', 'access-control-request-method': 'GET' }
  const preflight = await corral.send('/api/logs/nobody/nothing', undefined, { method: 'OPTIONS', headers })
  t.same([preflight.status, await preflight.text()], [204, ''])
  t.equal(
    (await corral.send('/api/tags', undefined, { local: true, headers: { origin: 'http://localhost:3000' } })).status,
    403
  )

  t.comment('other spellings of a path lead to no other route')
  const user = { authorization: `Bearer ${key}` }
  const spellings = [...readCases<string[]>('attack-cases.yaml', 'spellings'), `${corral.url}/api/runtimes/install`]
  const claims = { 'x-http-method-override': 'GET', 'x-corral-role': 'admin', 'x-forwarded-for': '127.0.0.1' }
  const post = { method: 'POST', body: '{}' }
  for (const path of spellings) {
    const { status } = await sendExactly(corral, path, { ...post, headers: { ...user, ...claims } })
    t.ok([400, 403, 404, 405].includes(status), `${path}: ${status}`)
    t.equal((await sendExactly(corral, path, post)).status, 401, `${path} without a key`)
  }

  t.comment('wrong keys')
  await tryAll(t, undefined, { headers: { 'x-api-key': `${key}x` } })
})

t.test('a user can neither unload a model nor set how long it stays loaded', async t => {
  const { key } = await createKey(keyFilePath(corral), { name: 'somebody' })
  await until('keys are required', async () => (await corral.send('/api/tags')).status === 401)
  const user = { headers: { authorization: `Bearer ${key}` } }
  const running = async () =>
    (await corral.json('/api/ps', undefined, user)).body.models.map((model: any) => model.expires_at)
  const chat = { model: DEMO, messages: [CAPITAL_QUESTION], options: { max_tokens: 2 }, stream: false }

  t.equal((await corral.json('/api/chat', { ...chat, keep_alive: '2h' }, { local: true })).status, 200)
  const [expires] = await running()
  t.ok(Date.parse(expires) > Date.now() + 3_600_000, 'an admin may set it')

  for (const mount of ['', '/ollama']) {
    for (const [path, body] of [
      ['/api/chat', { messages: [] }],
      ['/api/generate', {}],
      ['/api/embed', {}],
      ['/api/embeddings', {}]
    ] as const) {
      const refused = await corral.json(mount + path, { model: DEMO, keep_alive: 0, stream: false, ...body }, user)
      t.match(refused, { status: 403, body: { code: 'forbidden_role', neededRole: 'operator' } }, mount + path)
    }
  }
  for (const keep_alive of [0, '0s', 1, '1ms', -1]) {
    t.equal((await corral.json('/api/chat', { ...chat, keep_alive }, user)).status, 200, `${keep_alive}`)
    const seen = (await corral.json('/api/generate', { model: DEMO, keep_alive, stream: false }, user)).status
    t.equal(seen, keep_alive === 0 || keep_alive === '0s' ? 403 : 200)
    const hosted = { model: DEMO, messages: [CAPITAL_QUESTION], max_tokens: 2, keep_alive }
    t.equal((await corral.json('/v1/chat/completions', hosted, user)).status, 200)
    const remaining = Date.parse((await running())[0]) - Date.now()
    t.ok(remaining > 3_600_000 && remaining < 7_300_000, `${keep_alive}: it stays as long as before`)
  }
  t.match(await corral.json('/api/generate', { model: DEMO, keep_alive: 0, stream: false }, { local: true }), {
    status: 200
  })
})
