import { once } from 'node:events'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { hostname } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { TransferThread } from '../../plugins/models/download/transfer/transfers.ts'
import { type Corral, startCorral, until } from '../support/corral.ts'
import { ggufBytes } from '../support/gguf-writer.ts'

/** A secret that only a server in a private network returns. */
const SECRET = 'the wifi password is swordfish'
/** Acts as a public server: an admin has allowed this address, and no private server listens at it. */
const ALLOWED = '127.0.0.2'
const ALLOWING = `storage:\n  demo_model: false\ndownloads:\n  private_addresses: [${ALLOWED}]`
const MODEL = ggufBytes({ metadata: { 'general.architecture': 'llama' }, tensors: [{ name: 'w', shape: [4096] }] })

interface Listening {
  url: string
  port: number
  /** Paths of requests. A connection without a request is `connection`. */
  seen: string[]
}

async function listen(
  t: Pick<Test, 'teardown'>,
  host: string,
  answer: (request: IncomingMessage, response: ServerResponse) => void
): Promise<Listening> {
  const seen: string[] = []
  const server = createServer((request, response) => {
    seen.push(request.url!)
    answer(request, response)
  })
  server.on('connection', () => seen.push('connection'))
  await once(server.listen(0, host), 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return { url: `http://${host}:${port}`, port, seen }
}

/** A server in the private network that answers everything, including parts of a model. */
const secret = await listen(t, '127.0.0.1', ({ url }, response) => {
  const isModel = url!.includes('.gguf')
  const body = isModel ? MODEL : Buffer.from(JSON.stringify({ error: SECRET }))
  response.writeHead(isModel ? 200 : 403, { 'x-error-message': SECRET, 'content-length': body.length }).end(body)
})

const NO_PROXY = { HTTP_PROXY: '', HTTPS_PROXY: '', http_proxy: '', https_proxy: '' }
const strict = await startCorral(t, { env: NO_PROXY, config: 'storage:\n  demo_model: false' })
const allowing = await startCorral(t, { env: NO_PROXY, config: ALLOWING })

async function refused(corral: Corral, model: string, more: object = {}) {
  const { status, body } = await corral.json('/api/pull', { model, as: 'me/x', stream: false, ...more })
  // The id differs in every reply.
  delete body.requestId
  return { status, body }
}

/** Returns a port of this machine without a listener. */
async function closedPort(): Promise<number> {
  const server = createTcpServer()
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise(done => server.close(done))
  return port
}

t.test('pulls from private addresses are refused without revealing what is there', async t => {
  const closed = await closedPort()
  const corral = strict
  const at = (host: string, path = '/model.gguf') => `http://${host}:${secret.port}${path}`
  for (const host of [
    '127.0.0.1',
    '127.1',
    '2130706433',
    '0x7f000001',
    '0177.0.0.1',
    '0',
    '[::1]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[64:ff9b::127.0.0.1]',
    'localhost',
    'LocalHost.',
    'a.localhost',
    'user:password@127.0.0.1',
    'huggingface.co@127.0.0.1',
    hostname()
  ]) {
    t.match(await refused(corral, at(host)), { status: 403, body: { code: 'address_not_allowed' } }, host)
  }
  const others = ['http://169.254.169.254/latest/meta-data', 'http://[fd00:ec2::254]/latest', 'http://10.0.0.1/a.gguf']
  for (const address of [...others, 'http://100.64.0.1/a.gguf', 'http://metadata.google.internal/a.gguf']) {
    t.match(await refused(corral, address), { status: 403, body: { code: 'address_not_allowed' } }, address)
  }
  for (const model of [
    `corral://127.0.0.1:${secret.port}/a/b`,
    `corral://localhost:${secret.port}/a/b`,
    `corral://[::1]:${secret.port}/a/b`,
    `CORRAL://127.1:${secret.port}/a/b`
  ]) {
    t.match(await corral.json('/api/pull', { model, stream: false }), {
      status: 403,
      body: { code: 'address_not_allowed' }
    })
  }
  const open = await refused(corral, at('127.0.0.1', '/text'))
  t.same(await refused(corral, `http://127.0.0.1:${closed}/text`), open, 'open and closed ports look alike')
  t.same(await refused(corral, `http://127.0.0.1:${secret.port}/other.gguf`, { dry_run: true }), open)
  t.match(open.body.error, /downloads\.private_addresses/, 'it says what an admin can do')
  for (const path of ['/ollama/api/pull', '/api/pull']) {
    t.match(await corral.json(path, { name: at('127.0.0.1'), as: 'me/x', detach: true }), { status: 403 }, path)
  }
  t.notMatch(JSON.stringify(open) + corral.log(), SECRET)
  t.same(secret.seen, [], 'nobody connected')
  t.same((await corral.json('/api/pulls')).body.pulls, [])
})

t.test('redirects reach only allowed addresses', async t => {
  const open = await listen(t, ALLOWED, ({ url }, response) => {
    const files = [{ path: 'm.gguf', size: MODEL.length, sha256: 'ab'.repeat(32), role: 'model' }]
    if (url!.startsWith('/api/files/me/lister')) {
      const variant = { label: 'F16', isDefault: true, revision: 'r', format: 'gguf', files }
      const isListing = url === '/api/files/me/lister'
      // The listing is honest, the file locations are not.
      response.writeHead(isListing ? 200 : 302, { location: `${secret.url}/m.gguf` })
      response.end(isListing ? JSON.stringify({ name: 'me/lister', variants: [variant] }) : '')
      return
    }
    const to = new URL(`http://x${url}`).searchParams.get('to') ?? secret.url
    response.writeHead(302, { location: `${to}/model.gguf` }).end(SECRET)
  })
  const corral = allowing
  for (const to of [secret.url, `http://localhost:${secret.port}`, `http://[::ffff:7f00:1]:${secret.port}`]) {
    const reply = await refused(corral, `${open.url}/a.gguf?to=${encodeURIComponent(to)}`)
    t.match(reply, { status: 403, body: { code: 'address_not_allowed' } }, to)
    t.notMatch(JSON.stringify(reply), SECRET)
  }
  // The transfer refuses this location.
  const model = `corral://${new URL(open.url).host}/me/lister`
  t.match(await corral.json('/api/pull', { model, stream: false }), {
    status: 403,
    body: { code: 'address_not_allowed' }
  })
  t.match((await corral.json('/api/pulls')).body.pulls, [{ state: 'failed', completed: 0 }])
  t.ok(open.seen.some(path => path.startsWith('/api/files/me/lister/')))
  t.same(secret.seen, [], 'nobody connected')
})

t.test('replies of servers that clients choose are not quoted', async t => {
  let status = 403
  const open = await listen(t, ALLOWED, (_, response) => {
    const headers = { 'x-error-message': SECRET, 'content-type': 'text/plain', 'retry-after': '3600' }
    response.writeHead(status, headers).end(SECRET)
  })
  const corral = allowing
  for (status of [400, 401, 403, 404, 418, 429, 501]) {
    for (const model of [`${open.url}/a.gguf`, `corral://${new URL(open.url).host}/a/b`]) {
      const reply = await refused(corral, model)
      t.ok(reply.status >= 400, `${model} ${status}`)
      t.notMatch(JSON.stringify(reply), /swordfish/, `${model} ${status}`)
    }
  }
  // A body that would block the process while it is parsed.
  const deep = await listen(t, ALLOWED, (_, response) => void response.end(Buffer.alloc(8 * 1024 * 1024, '[')))
  t.match(await refused(corral, `corral://${new URL(deep.url).host}/a/b`), { status: 502, body: { error: /1\.0 MB/ } })
})

t.test('endpoints named in the settings need no entry in private_addresses', async t => {
  const server = await listen(t, '127.0.0.1', ({ url }, response) => {
    if (url!.startsWith('/api/files/')) response.writeHead(404).end(JSON.stringify({ code: 'model_not_found' }))
    else response.writeHead(404, { 'x-error-code': 'RepoNotFound' }).end('{}')
  })
  const corral = await startCorral(t, {
    env: { ...NO_PROXY, HF_ENDPOINT: server.url, MODELSCOPE_ENDPOINT: server.url },
    config: `csghub:\n  endpoint: ${server.url}\ncorral-hub:\n  endpoint: ${server.url}`
  })
  for (const model of [
    'hf:a/b',
    'csghub:a/b',
    'modelscope:a/b',
    'corral:a/b',
    `corral://${new URL(server.url).host}/a/b`
  ]) {
    const found = await corral.json('/api/pull', { model, stream: false })
    t.match(found, { status: 404, body: { code: 'repo_not_found' } }, model)
  }
  // The hub is reached through its own API. The same address as a plain URL is the client's choice.
  t.match(await refused(corral, `${server.url}/a.gguf`), { status: 403, body: { code: 'address_not_allowed' } })
})

t.test('a proxy is reached, and is not asked for private addresses', async t => {
  const proxy = await listen(t, '127.0.0.1', (_, response) => void response.writeHead(404).end())
  const corral = await startCorral(t, {
    env: { HTTP_PROXY: proxy.url, http_proxy: proxy.url, NO_PROXY: '', no_proxy: '' }
  })
  for (const host of ['10.0.0.1', '169.254.169.254', '[fd00::1]', 'intranet', 'wiki.local', '192.168.1.1:8080']) {
    const actual = await refused(corral, `http://${host}/a.gguf`)
    t.match(actual, { status: 403, body: { code: 'address_not_allowed' } }, host)
  }
  t.same(proxy.seen, [])
  t.match(await refused(corral, 'http://models.example.org/a.gguf'), { status: 404, body: { code: 'repo_not_found' } })
  t.ok(proxy.seen.includes('http://models.example.org/a.gguf'))
})

t.test('the address policy applies inside the transfer thread', async t => {
  const open = await listen(t, ALLOWED, (_, response) => {
    response.writeHead(302, { location: `http://localhost:${secret.port}/m.gguf` }).end()
  })
  const transfers = new TransferThread({ connections: 4, connectionsPerFile: 1, bandwidthLimit: 0, stallTimeout: 5000 })
  t.teardown(() => transfers.close())
  const folder = t.testdir()
  const fetched = async (name: string, url: string, privateAddresses?: readonly string[]) => {
    const location = { url, headers: {}, proxy: '', ...(privateAddresses ? { privateAddresses } : {}) }
    const [file] = await transfers.run({
      identity: name,
      files: [{ path: name, target: join(folder, name), size: undefined }],
      locate: async () => location,
      signal: new AbortController().signal,
      onProgress: () => undefined
    })
    return file!.size
  }
  const notAllowed = { code: 'address_not_allowed' }
  for (const [name, url, allowed] of [
    ['literal', `${secret.url}/m.gguf`, []],
    ['name', `http://localhost:${secret.port}/m.gguf`, []],
    ['looked-up', `http://localhost:${secret.port}/m.gguf`, [ALLOWED]],
    ['redirected', `${open.url}/m.gguf`, [ALLOWED]]
  ] as const) {
    await t.rejects(fetched(name, url, allowed), notAllowed, name)
  }
  t.same(secret.seen, [])
  t.equal(await fetched('allowed', `${secret.url}/m.gguf`, ['*']), MODEL.length)
  // A client without the allowance may not use the connection that this pull left open.
  await t.rejects(fetched('reused', `${secret.url}/m.gguf`, []), notAllowed)
  t.equal(await fetched('settings', `${secret.url}/m.gguf`), MODEL.length)
})

t.test('a pull follows the current policy, also after a restart', async t => {
  const open = await listen(t, ALLOWED, ({ method }, response) => {
    response.writeHead(200, { 'content-length': MODEL.length })
    // The rest never arrives.
    if (method === 'HEAD') response.end()
    else response.write(MODEL.subarray(0, 1000))
  })
  const home = t.testdir()
  const before = await startCorral(t, { home, env: NO_PROXY, config: ALLOWING })
  const reply = await refused(before, `${open.url}/m.gguf`, { detach: true })
  t.equal(reply.status, 202)
  await until('it is running', async () => (await before.json('/api/pulls')).body.pulls[0]?.completed > 0)
  await before.end()
  const folder = join(home, 'models', '.downloads')
  const [id] = readdirSync(folder)
  const job = JSON.parse(readFileSync(join(folder, id!, 'job.json'), 'utf8'))
  t.match(job, { state: 'downloading', plan: { isLocal: false } })

  const asked = open.seen.length
  const after = await startCorral(t, { home, env: NO_PROXY, config: 'storage:\n  demo_model: false' })
  const failed = await until('it has failed', async () => {
    const [pull] = (await after.json('/api/pulls')).body.pulls
    return pull?.state === 'failed' && pull
  })
  t.match(failed.reason, /not at a public address/)
  t.match(await after.json('/api/pulls/resume', { id }), { status: 200 })
  await until('it has failed again', async () => (await after.json('/api/pulls')).body.pulls[0].state === 'failed')
  t.equal(open.seen.length, asked, 'nobody connected')
  await after.end()

  // A pull that was created through the private socket stays one.
  writeFileSync(join(folder, id!, 'job.json'), JSON.stringify({ ...job, plan: { ...job.plan, isLocal: true } }))
  const local = await startCorral(t, { home, env: NO_PROXY, config: 'storage:\n  demo_model: false' })
  await until('it asks again', () => open.seen.length > asked)
  t.match((await local.json('/api/pulls')).body.pulls, [{ state: 'downloading' }])
})

t.test('the private socket allows every address, for its own callers only', async t => {
  const before = secret.seen.length
  const ask = { model: `${secret.url}/m.gguf`, as: 'me/local', stream: false, dry_run: true }
  t.match(await strict.json('/api/pull', ask, { local: true }), { status: 200, body: { size: MODEL.length } })
  const asked = secret.seen.length
  t.ok(asked > before)
  // Other clients may not use the connection that is still open.
  t.match(await strict.json('/api/pull', ask), { status: 403, body: { code: 'address_not_allowed' } })
  t.equal(secret.seen.length, asked)
})
