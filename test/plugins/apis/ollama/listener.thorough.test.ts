import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer, request as httpRequest } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import security from '../../../../plugins/people/security/index.ts'
import { corral as command, newHome } from '../../../command-line/command.ts'
import { endless, startCorral, until } from '../../../support/corral.ts'
import { thorough } from '../../../support/thorough.ts'
import { ask, corralWithListener, get, post } from './support.ts'

/** Like `fetch`, but with a Host header, which `fetch` does not allow. */
function withHost(url: string, headers: Record<string, string>): Promise<number> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(url, { headers }, response => {
      response.resume()
      resolve(response.statusCode!)
    })
    request.once('error', reject)
    request.end()
  })
}

const { corral, address } = await corralWithListener(t, { config: 'shutdown_grace: 60s' })

t.test('the listener serves only the routes of the Ollama API', async t => {
  t.equal((await get(`${address}/`)).text, 'Ollama is running')
  t.equal((await get(`${address}`)).text, (await get(`${corral.url}/ollama`)).text)
  t.match(await ask('HEAD', `${address}/`, {}), { status: 200, text: '' })
  t.equal((await ask('HEAD', `${address}/api/tags`, {})).status, 200)
  t.equal((await ask('HEAD', `${address}/api/version`, {})).status, 200)
  const tags = await get(`${address}/api/tags`)
  t.equal(tags.text, (await get(`${corral.url}/ollama/api/tags`)).text)
  t.not(tags.text, (await get(`${corral.url}/api/tags`)).text, 'names have tags here')
  t.match(await get(`${address}/api/chat`), { status: 405, lines: [{ error: String, code: String }] })
  for (const path of ['/ollama', '/docs', '/openapi.json', '/nix', '/api/nix', '/anthropic/v1/messages', '/%zz']) {
    const { status, lines } = await get(address + path)
    t.ok(status === 404 || status === 400, `${path} is ${status}`)
    t.type(lines[0].error, 'string', path)
  }
  t.match(await post(`${address}/api/chat`, '{'), { status: 400, lines: [{ code: 'invalid_json' }] })
  t.match(await post(`${address}/api/chat`, ''), { status: 400, lines: [{ code: 'missing_body' }] })

  // A non-HTTP request gets an error and affects no other request.
  const socket = connect(Number(new URL(address).port), '127.0.0.1')
  socket.write('no http\r\n\r\n')
  const [bytes] = (await once(socket, 'data')) as [Buffer]
  t.match(String(bytes), /^HTTP\/1\.1 400/)
  socket.destroy()
  t.equal((await get(`${address}/api/version`)).status, 200)

  // Access rules are the same as at the server's own address.
  const port = new URL(address).port
  t.equal(await withHost(`${address}/api/tags`, { host: 'evil.example.org' }), 403)
  t.equal(await withHost(`${address}/v1/models`, { host: `evil.example.org:${port}` }), 403)
  t.equal(await withHost(`${address}/api/tags`, { host: `localhost:${port}` }), 200)
  const page = await fetch(`${address}/api/tags`, { headers: { origin: 'https://evil.example.org' } })
  t.equal(page.status, 403)
  t.match(await page.json(), { code: 'origin_not_allowed' })
  const own = await fetch(`${address}/api/tags`, { headers: { origin: 'http://localhost:3000' } })
  t.equal(own.headers.get('access-control-allow-origin'), 'http://localhost:3000')
  const preflight = await fetch(`${address}/api/chat`, {
    method: 'OPTIONS',
    headers: { origin: 'http://localhost:3000', 'access-control-request-method': 'POST' }
  })
  t.equal(preflight.status, 204)
})

t.test('at shutdown running answers finish and idle connections are closed', async t => {
  const { options, ...chat } = endless('tiny-chat', { max_tokens: 600 })
  const response = await fetch(`${address}/api/chat`, { method: 'POST', body: JSON.stringify({ ...chat, options }) })
  const reader = response.body!.getReader()
  let text = new TextDecoder().decode((await reader.read()).value)
  // An idle connection.
  const idle = connect(Number(new URL(address).port), '127.0.0.1')
  await once(idle, 'connect')
  const ended = corral.end()
  await until('new connections are refused', async () =>
    fetch(`${address}/api/version`).then(
      () => false,
      () => true
    )
  )
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    text += new TextDecoder().decode(value)
  }
  const last = JSON.parse(text.trimEnd().split('\n').at(-1)!)
  t.match(last, { done: true, done_reason: 'length' }, 'the answer is complete')
  t.equal(await ended, 0)
  idle.destroy()
})

t.test('a public listener requires keys, accepts any host name, and ends slow answers at shutdown', async t => {
  const open = await startCorral(t, {
    config: 'api-ollama: { listen: "0.0.0.0:0" }\nsecurity: { api_keys: [secret] }\nshutdown_grace: 1s'
  })
  const port = /served at http:\/\/0\.0\.0\.0:(\d+)/.exec(open.log())?.[1]
  const base = `http://127.0.0.1:${port}`
  const authorization = 'Bearer secret'
  for (const url of [`${base}/api/tags`, `${base}/v1/models`, `${open.url}/ollama/v1/models`]) {
    t.equal((await get(url)).status, 401, url)
    t.equal((await get(url, { authorization })).status, 200, url)
  }
  const headers = { host: 'models.example.org', authorization }
  t.equal(await withHost(`${base}/api/tags`, headers), 200, 'any host name is accepted')
  t.equal(
    await withHost(`${open.url}/api/tags`, headers),
    403,
    "the server's own address still accepts only local names"
  )

  const body = JSON.stringify(endless('tiny-chat'))
  const response = await fetch(`${base}/api/chat`, { method: 'POST', body, headers: { authorization } })
  const ended = open.end()
  const text = await response.text()
  t.match(JSON.parse(text.trimEnd().split('\n').at(-1)!), { done: true, done_reason: 'error', error: String })
  t.equal(await ended, 0)
})

t.test('a public address requires keys or "insecure"', async t => {
  const log = { warn: (text: string) => warnings.push(text), info: () => {} }
  const warnings: string[] = []
  const admit = async (options: { api_keys: string[]; insecure: boolean }) => {
    const config = { host: '127.0.0.1', port: 11435, tls: { certificate: '' } }
    const context = { config, log, paths: { home: newHome(t) } } as never
    const settings = { origins: [], hosts: [], trusted_proxies: [], ...options }
    const { services, stop } = await security.setup(context, settings as never)
    t.teardown(() => stop?.())
    return services!.access!.admit({ host: '0.0.0.0', port: 11434 }, 'api-ollama.listen')
  }
  await t.rejects(admit({ api_keys: [], insecure: false }), { name: 'ConfigError', message: /api-ollama\.listen/ })
  t.type(await admit({ api_keys: ['a-key-that-is-long-enough'], insecure: false }), 'function')
  t.same(warnings, [])
  t.type(await admit({ api_keys: [], insecure: true }), 'function')
  t.match(warnings, [/INSECURE.*0\.0\.0\.0:11434/])
})

t.test('a used or forbidden address prevents the start', thorough, async t => {
  const other = createServer().listen(0, '127.0.0.1')
  t.teardown(() => other.close())
  await once(other, 'listening')
  const { port } = other.address() as AddressInfo
  const refusals: [listen: string, RegExp][] = [
    [
      `127.0.0.1:${port}`,
      new RegExp(`Port ${port} on 127\\.0\\.0\\.1 is used by another program.*another port in api-ollama\\.listen`)
    ],
    ['192.0.2.1:11434', /Cannot listen on http:\/\/192\.0\.2\.1:11434 \(.*EADDRNOTAVAIL.*\).*in api-ollama\.listen/],
    ['0.0.0.0:0', /mistake:\n {2}api-ollama\.listen {2}Listening on 0\.0\.0\.0 lets every machine.*security\.api_keys/],
    ['127.0.0.1:99999', /mistake:\n {2}api-ollama\.listen {2}"127\.0\.0\.1:99999" is not an address/]
  ]
  for (const [listen, message] of refusals) {
    const home = newHome(t)
    const keys = listen.startsWith('192') ? ['key'] : []
    const config = { port: 0, 'api-ollama': { listen }, security: { api_keys: keys } }
    writeFileSync(join(home, 'config.yaml'), JSON.stringify(config))
    const { code, stderr } = await command(['serve'], { home })
    t.match(stderr, message, listen)
    t.equal(code, /mistake/.test(stderr) ? 2 : 1, listen)
    // The other two addresses fail at different stages of the start.
    if (listen.startsWith('127.')) continue
    t.match(await command(['list'], { home }), { code: 0 }, 'commands without a server still work')
  }
})
