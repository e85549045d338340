import type { AddressInfo } from 'node:net'
import { connect } from 'node:net'
import { hostname } from 'node:os'
import { execa } from 'execa'
import fp from 'fastify-plugin'
import pino from 'pino'
import t, { type Test } from 'tap'
import { createAnswers } from '../../../../core/answers/pipeline.ts'
import { ConfigError } from '../../../../core/config/config-error.ts'
import type { CoreConfig } from '../../../../core/config/core-schema.ts'
import { createApplication } from '../../../../core/http/application.ts'
import { openReplyStream } from '../../../../core/http/reply-stream.ts'
import type { PluginContext } from '../../../../core/plugins/plugin.ts'
import { StoredResponses } from '../../../../plugins/apis/openai/responses/stored-responses.ts'
import { openaiRoutes } from '../../../../plugins/apis/openai/routes.ts'
import security from '../../../../plugins/people/security/index.ts'
import { MAIN } from '../../../command-line/command.ts'
import { readCases } from '../../../support/fixture.ts'

interface Setting {
  host?: string
  options?: { origins?: string[]; hosts?: string[]; api_keys?: string[]; insecure?: boolean }
}

/** The plugin in an application with a few routes, and its log. */
async function application(t: Test, { host = '127.0.0.1', options = {} }: Setting) {
  const lines: string[] = []
  const log = pino({ level: 'trace' }, { write: line => void lines.push(line) })
  const config = {
    host,
    port: 11435,
    tls: { certificate: '', key: '' },
    body_limit: '1MiB',
    limits: { body_depth: 200, stored_responses: 1000 },
    shutdown_grace: '1s',
    defaults: {},
    models: {}
  } as unknown as CoreConfig
  const app = await createApplication(config, log)
  const context = { config, log, paths: { home: t.testdir({}) } } as unknown as PluginContext
  const offer = await security.setup(context, {
    origins: [],
    hosts: [],
    api_keys: [],
    trusted_proxies: [],
    insecure: false,
    ...options
  })
  await app.register(fp(async instance => offer.hooks!(instance, {})))
  t.teardown(() => offer.stop?.())
  app.get('/api/health', { config: { role: 'anyone' } }, async () => ({ status: 'ok' }))
  app.post('/api/echo', async request => request.body)
  app.get('/api/stream', (_request, reply) => {
    const stream = openReplyStream(reply, {
      contentType: 'text/event-stream',
      heartbeatInterval: 10_000,
      heartbeat: () => ':\n\n'
    })
    void stream.write('data: 1\n\n')
    stream.end()
  })
  const catalog = { list: () => [], aliases: () => [] } as never
  const deps = {
    catalog,
    scheduler: { running: () => [], loading: () => [], loadFailure: () => undefined } as never,
    hooks: {} as never,
    engines: {} as never,
    surface: 'api-openai',
    config
  }
  const whole = { ...deps, answers: createAnswers(deps), heartbeat: () => 10_000, stored: new StoredResponses(0, 0) }
  await app.register(api => openaiRoutes(api, whole), { prefix: '/v1' })
  t.teardown(() => app.close())
  await app.ready()
  return { app, lines }
}

t.test('unknown Host is refused on a loopback address, on every route', async t => {
  const { app } = await application(t, { options: { hosts: ['proxy.example.org'] } })
  for (const url of ['/api/health', '/api/echo', '/nothing', '/v1/models', '/v1/nothing']) {
    const reply = await app.inject({
      method: url === '/api/echo' ? 'POST' : 'GET',
      url,
      headers: { host: 'evil.com:11435' }
    })
    t.equal(reply.statusCode, 403, url)
    const code = url.startsWith('/v1') ? reply.json().error.code : reply.json().code
    t.equal(code, 'host_not_allowed', url)
    t.ok(reply.headers['x-request-id'])
  }
  for (const host of ['localhost', `${hostname()}:1`, 'proxy.example.org', '[::1]:11435']) {
    t.equal((await app.inject({ url: '/api/health', headers: { host } })).statusCode, 200, host)
  }
})

t.test('HTTP/1.0 needs no Host, HTTP/1.1 needs exactly one', async t => {
  const { app } = await application(t, {})
  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  const ask = (text: string) =>
    new Promise<string>((resolve, reject) => {
      const socket = connect(port, '127.0.0.1', () => socket.write(text))
      let answer = ''
      socket.on('data', data => {
        answer += data
      })
      socket.on('end', () => resolve(answer)).on('error', reject)
    })
  t.match(await ask('GET /api/health HTTP/1.0\r\n\r\n'), /^HTTP\/1\.1 200 /)
  t.match(await ask('GET /api/health HTTP/1.1\r\nConnection: close\r\n\r\n'), /^HTTP\/1\.1 400 /)
  const found = await ask('GET /api/health HTTP/1.1\r\nHost: evil.com\r\nHost: localhost\r\nConnection: close\r\n\r\n')
  t.match(found, /^HTTP\/1\.1 4/)
  t.match(found, /\nconnection: close\r/i, 'a client that waits for the end of the connection is not kept waiting')
  const long = `GET /api/health HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\nContent-Length: 2\r\n\r\n`
  const began = performance.now()
  t.match(await ask(`${long}{}`), /^HTTP\/1\.1 4/)
  t.comment(`closed after ${performance.now() - began} ms`)
})

t.test('beyond loopback any Host is accepted with keys, and only this machine\'s names with "insecure"', async t => {
  const hosts = ['box.lan:11435', '192.168.1.7:11435', `${hostname()}:1`, 'localhost']
  for (const options of [{ insecure: true }, { api_keys: ['secret-key-1'] }]) {
    const { app, lines } = await application(t, { host: '0.0.0.0', options })
    for (const host of hosts) {
      const reply = await app.inject({ url: '/api/health', headers: { host } })
      t.equal(reply.statusCode, 'insecure' in options && host === hosts[0] ? 403 : 200, host)
    }
    const actual = lines.some(line => line.includes('INSECURE') && line.includes('"level":40'))
    t.equal(actual, 'insecure' in options)
  }
  await t.rejects(application(t, { host: '0.0.0.0' }), ConfigError)
  await t.rejects(application(t, { host: '::' }), ConfigError)
})

t.test('CORS headers are set on replies, errors and streams', async t => {
  const { app } = await application(t, { options: { origins: ['https://*.example.org'] } })
  for (const [origin, status] of [
    ['https://chat.example.org', 200],
    ['http://localhost:5173', 200],
    ['https://evil.com', 403],
    ['null', 403]
  ] as const) {
    const reply = await app.inject({ url: '/api/health', headers: { origin } })
    t.equal(reply.statusCode, status, origin)
    t.equal(reply.headers['access-control-allow-origin'], status === 200 ? origin : undefined)
    t.match(reply.headers.vary, /Origin/)
    if (status === 200) t.match(reply.headers['access-control-expose-headers'], /x-request-id/)
    else t.match(reply.json(), { errorCode: 403, code: 'origin_not_allowed' })
  }
  t.match((await app.inject({ url: '/v1/models', headers: { origin: 'https://evil.com' } })).json(), {
    error: { type: 'permission_error', code: 'origin_not_allowed', param: null }
  })
  // A form on a foreign page needs no preflight and can send any content type.
  const form = await app.inject({
    method: 'POST',
    url: '/api/echo',
    headers: { origin: 'https://evil.com', 'content-type': 'text/plain' },
    payload: '{"a":1}'
  })
  t.equal(form.statusCode, 403)

  const origin = 'http://localhost:5173'
  const missing = await app.inject({ url: '/nothing', headers: { origin } })
  t.equal(missing.statusCode, 404)
  t.equal(missing.headers['access-control-allow-origin'], origin, 'a page can read the error')

  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  const streamed = await fetch(`http://127.0.0.1:${port}/api/stream`, { headers: { origin } })
  t.equal(await streamed.text(), 'data: 1\n\n')
  t.equal(streamed.headers.get('access-control-allow-origin'), origin)
  t.ok(streamed.headers.get('x-request-id'))
})

t.test('preflight requests are answered', async t => {
  const { app } = await application(t, { options: { api_keys: ['secret-key-1'] } })
  const ask = (url: string, headers: Record<string, string>) => app.inject({ method: 'OPTIONS', url, headers })
  for (const url of ['/v1/chat/completions', '/api/echo', '/nothing']) {
    const reply = await ask(url, {
      origin: 'http://localhost:5173',
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization,content-type,x-stainless-os',
      'access-control-request-private-network': 'true'
    })
    t.equal(reply.statusCode, 204, url)
    t.equal(reply.body, '')
    t.match(reply.headers, {
      'access-control-allow-origin': 'http://localhost:5173',
      'access-control-allow-methods': /POST.*DELETE/,
      'access-control-allow-headers': 'authorization,content-type,x-stainless-os',
      'access-control-allow-private-network': 'true',
      'access-control-max-age': '600'
    })
  }
  const foreign = await ask('/api/echo', { origin: 'https://evil.com', 'access-control-request-method': 'POST' })
  t.equal(foreign.statusCode, 403)
  t.notOk(foreign.headers['access-control-allow-origin'])
  const plain = await ask('/api/echo', { origin: 'http://localhost:5173' })
  t.equal(plain.statusCode, 204, 'OPTIONS without a preflight lists the methods')
  t.match(plain.headers, { allow: /OPTIONS/ })
  t.equal((await ask('/nothing', { origin: 'http://localhost:5173' })).statusCode, 404)
})

t.test('with configured keys every route needs one, except routes for anyone', async t => {
  const { app, lines } = await application(t, { options: { api_keys: ['secret-key-1', 'secret-key-2'] } })
  t.equal((await app.inject('/api/health')).statusCode, 200)
  t.equal((await app.inject('/api/health?x=1')).statusCode, 200)
  t.equal((await app.inject({ method: 'HEAD', url: '/api/health' })).statusCode, 200)
  const cases: ['GET' | 'POST', string][] = readCases('people-cases.yaml', 'keyedRoutes')
  for (const [method, url] of cases) {
    for (const headers of [{}, { authorization: 'Bearer not-a-key-here' }, { 'x-api-key': 'not-a-key-here' }]) {
      const reply = await app.inject({ method, url, headers: { ...headers, origin: 'http://localhost:1' } })
      t.equal(reply.statusCode, 401, `${method} ${url}`)
      t.equal(reply.headers['www-authenticate'], 'Bearer')
      t.equal(reply.headers['access-control-allow-origin'], 'http://localhost:1', 'a page can read the reason')
      if (url.startsWith('/v1')) {
        t.match(reply.json(), { error: { type: 'authentication_error', code: 'unauthorized', param: null } })
      } else {
        t.match(reply.json(), { errorCode: 401, code: 'unauthorized', requestId: String })
      }
      t.notMatch(reply.body, /secret-key|not-a-key-here/)
    }
  }
  for (const headers of [{ authorization: 'Bearer secret-key-1' }, { 'x-api-key': 'secret-key-2' }]) {
    const reply = await app.inject({ method: 'POST', url: '/api/echo', headers, payload: '{"a":1}' })
    t.equal(reply.statusCode, 200)
    t.equal((await app.inject({ url: '/v1/models', headers })).statusCode, 200)
    t.equal((await app.inject({ url: '/v1/nothing', headers })).statusCode, 404)
  }
  t.notMatch(lines.join(''), /secret-key|not-a-key-here/, 'no key is logged')
})

t.test('keys are marked as secret in the schema', async t => {
  t.match(security.options.properties.api_keys, { items: { writeOnly: true } })
  t.notOk(security.optional, 'the server does not start without it')
})

t.test('server refuses to start when it would be open, and never prints keys', async t => {
  const home = t.testdir({})
  const run = (args: string[], env: Record<string, string>) =>
    execa(process.execPath, [MAIN, ...args], {
      env: { ...env, CORRAL_HOME: home },
      cwd: home,
      reject: false,
      all: true
    })
  const shows = [
    ['config', 'show'],
    ['config', 'show', '--json'],
    ['config', 'check']
  ]
  const [open, wrong, ...shown] = await Promise.all([
    run(['serve', '--port', '0'], { CORRAL_HOST: '0.0.0.0' }),
    run(['config', 'check'], { CORRAL_API_KEYS: 'secret key', CORRAL_ORIGINS: 'example.org' }),
    ...shows.map(args => run(args, { CORRAL_API_KEYS: 'secret-key-1' }))
  ])
  t.equal(open.exitCode, 2)
  t.match(open.all, /0\.0\.0\.0.*security\.api_keys.*127\.0\.0\.1.*security\.insecure: true/)
  for (const { exitCode, all } of shown) {
    t.equal(exitCode, 0, all)
    t.notMatch(all, /secret-key/)
  }
  t.equal(wrong.exitCode, 2)
  for (const text of ['text without spaces', 'an origin such as https://chat.example.org']) t.match(wrong.all, text)
  t.notMatch(wrong.all, /secret key/)
})
