import { once } from 'node:events'
import { createServer, request as onwards } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import type { Hub, HubFile, HubRepository } from '../../../../core/contracts/hubs.ts'
import { csghub, huggingface } from '../../../../plugins/models/hubs/hf-like.ts'
import { failing, failure } from '../../../support/failure.ts'
import { createTestHub, type Reply, type Seen, SHA1, SHA256, serve } from './support.ts'

const COMMIT = '12'.repeat(20)
const FILE: HubFile = { path: 'Q4/a b.gguf', size: undefined }
const never = new AbortController().signal

type Routes = Record<string, Reply | ((seen: Seen) => Reply | undefined)>

/** Starts a server with these answers, by path without query. A method may precede the path. */
async function serveRoutes(t: Test, routes: Routes) {
  return await serve(t, seen => {
    const path = seen.url.split('?')[0]!
    const route = routes[`${seen.method} ${path}`] ?? routes[path]
    return typeof route === 'function' ? route(seen) : route
  })
}

const info = (more: object = {}) => ({
  body: {
    id: 'acme/Tiny',
    sha: COMMIT,
    gated: false,
    siblings: [
      { rfilename: 'README.md', size: 52, blobId: SHA1 },
      { rfilename: 'a.gguf', size: 9, blobId: SHA1, lfs: { sha256: SHA256, size: 9 } }
    ],
    ...more
  }
})
const repository = (more: Partial<HubRepository> = {}): HubRepository => ({
  hub: 'huggingface',
  id: 'acme/Tiny',
  revision: COMMIT,
  address: 'https://hub/acme/Tiny',
  gated: false,
  files: [],
  more: { ref: 'main' },
  ...more
})
const questions = (server: { seen: Seen[] }) => server.seen.map(({ method, url }) => `${method} ${url}`)

/** Starts a server with these answers, and a hub that uses it. */
async function hubWith(t: Test, routes: Routes | ((seen: Seen) => Reply | undefined), env = {}) {
  const server = typeof routes === 'function' ? await serve(t, routes) : await serveRoutes(t, routes)
  return { server, hub: await createTestHub(t, huggingface, { endpoint: server.url }, env) }
}
const list = (hub: Hub, id = 'acme/Tiny', revision?: string) =>
  hub.repository({ id, ...(revision && { revision }) }, {})
const LISTING = '/api/models/acme/Tiny/revision/main'

t.test('one request lists a repository with sizes and digests', async t => {
  const server = await serveRoutes(t, {
    [LISTING]: info({ id: 'Acme/tiny', gated: 'auto', gguf: { chat_template: '{{ tools }}' } })
  })
  const hub = await createTestHub(t, huggingface, {}, { HF_ENDPOINT: `${server.url}/`, HF_TOKEN: 'hf_env' })
  t.strictSame(await list(hub), {
    hub: 'huggingface',
    id: 'Acme/tiny',
    revision: COMMIT,
    address: `${server.url}/Acme/tiny`,
    gated: true,
    files: [
      { path: 'README.md', size: 52, gitSha1: SHA1 },
      { path: 'a.gguf', size: 9, sha256: SHA256 }
    ],
    page: { folder: `${server.url}/Acme/tiny/blob/main/`, chatTemplate: '{{ tools }}' },
    more: { ref: 'main' }
  })
  t.strictSame(questions(server), ['GET /api/models/acme/Tiny/revision/main?blobs=true'])
  t.equal(server.seen[0]!.headers['accept-encoding'], 'identity')
  t.equal(server.seen[0]!.headers.authorization, 'Bearer hf_env')
})

t.test('the Hugging Face hub resolves revisions', async t => {
  const { server, hub } = await hubWith(t, {
    '/api/models/acme/Tiny/revision/refs%2Fpr%2F1': info(),
    '/api/models/acme/Tiny': info()
  })
  const found = await list(hub, 'acme/Tiny', 'refs/pr/1')
  t.strictSame(found.more, { ref: 'refs/pr/1' })
  await t.rejects(list(hub, 'acme/Tiny', 'v9'), failing('repo_not_found', /no revision "v9"/))
  await t.rejects(list(hub, 'acme/Tiny', '..'), { code: 'repo_not_found' })
  t.notOk(server.seen.some(({ url }) => url.includes('..')))
  t.equal(server.seen[0]!.headers.authorization, undefined, 'no token is set')
})

t.test('the Hugging Face hub lists repositories on servers with only part of the API', async t => {
  t.test('the Hugging Face hub lists a server without an address for revisions', async t => {
    const { hub } = await hubWith(t, { '/api/models/acme/Tiny': info() })
    t.equal((await list(hub)).files.length, 2)
  })
  t.test('the Hugging Face hub lists files without sizes, then reads a paged tree on another host', async t => {
    const tree = `/api/models/acme/Tiny/tree/${COMMIT}`
    const { hub } = await hubWith(t, {
      [LISTING]: info({ siblings: [{ rfilename: 'a.gguf' }, { rfilename: 'b.json' }, { rfilename: 'c' }] }),
      [tree]: ({ url }) =>
        url.includes('cursor=2')
          ? { body: [{ type: 'file', path: 'b.json', size: 3, oid: SHA1 }] }
          : {
              headers: { link: `<https://huggingface.co${tree}?recursive=true&cursor=2>; rel="next"` },
              body: [
                { type: 'directory', path: 'd', size: 0, oid: SHA1 },
                { type: 'file', path: 'a.gguf', size: 9, oid: SHA1, lfs: { oid: SHA256, size: 9, pointerSize: 1 } }
              ]
            }
    })
    t.strictSame((await list(hub)).files, [
      { path: 'a.gguf', size: 9, sha256: SHA256 },
      { path: 'b.json', size: 3, gitSha1: SHA1 },
      { path: 'c', size: undefined }
    ])
  })
  t.test('the Hugging Face hub lists files without sizes if there is no tree', async t => {
    const { hub } = await hubWith(t, { [LISTING]: info({ sha: undefined, siblings: [{ rfilename: 'a.gguf' }] }) })
    const found = await list(hub)
    t.strictSame(found.files, [{ path: 'a.gguf', size: undefined }])
    t.match(found.revision, /^listing-[0-9a-f]{40}$/)
  })
  t.test('the Hugging Face hub lists the tree if there is no listing', async t => {
    const { hub } = await hubWith(t, {
      '/api/models/acme/Tiny/tree/main': {
        headers: { 'x-repo-commit': COMMIT },
        body: [{ type: 'file', path: 'a.gguf', size: 9, lfs: { oid: SHA256 } }]
      }
    })
    t.match(await list(hub), {
      id: 'acme/Tiny',
      revision: COMMIT,
      files: [{ path: 'a.gguf', size: 9, sha256: SHA256 }]
    })
  })
  t.test('the Hugging Face hub follows a renamed repository', async t => {
    const { hub } = await hubWith(t, {
      '/api/models/old/Tiny/revision/main': {
        status: 307,
        headers: { location: '/api/models/acme/Tiny/revision/main?blobs=true' }
      },
      [LISTING]: info()
    })
    t.equal((await list(hub, 'old/Tiny')).id, 'acme/Tiny')
  })
})

t.test('the Hugging Face hub locates files', async t => {
  const path = `/acme/Tiny/resolve/${COMMIT}/Q4/a%20b.gguf`
  const cdn = await serve(t, ({ headers }) => (headers.authorization ? { status: 500 } : { body: 'bytes' }))
  const place = async (t: Test, routes: Routes, given = repository()) => {
    const server = await serveRoutes(t, routes)
    const hub = await createTestHub(t, huggingface, { endpoint: server.url, token: 'hf_secret' })
    return { location: await hub.locate(given, FILE, never), server }
  }
  const linked = { 'x-linked-size': '1048576', 'x-linked-etag': `"${SHA256}"`, etag: '"other"' }
  const expires = Math.floor(Date.now() / 1000) + 600

  t.test('the Hugging Face hub follows a redirect to another host without the token', async t => {
    const signed = `${cdn.url}/x?Expires=${expires}&Signature=s`
    const { location, server } = await place(t, {
      [`HEAD ${path}`]: { status: 302, headers: { location: signed, ...linked } }
    })
    t.match(location, { url: signed, size: 1048576, sha256: SHA256 })
    t.equal(location.headers.authorization, undefined)
    t.strictSame(questions(server), [`HEAD ${path}`])
    t.equal(server.seen[0]!.headers.authorization, 'Bearer hf_secret')
    t.equal(cdn.seen.length, 0, 'no request goes there before the transfer')
  })
  t.test('the Hugging Face hub follows a relative redirect with the token', async t => {
    const { location, server } = await place(t, {
      [path]: { status: 307, headers: { location: '/api/resolve-cache/x?etag=1' } },
      '/api/resolve-cache/x': { headers: { etag: `"${SHA1}"` }, body: 'x'.repeat(659) }
    })
    t.match(location, { url: `${server.url}/api/resolve-cache/x?etag=1`, size: 659, identity: `"${SHA1}"` })
    t.equal(location.headers.authorization, 'Bearer hf_secret')
    t.equal(location.sha256, undefined)
  })
  t.test('the Hugging Face hub locates a file at the hub itself, with ranges', async t => {
    const { location, server } = await place(t, {
      [`HEAD ${path}`]: { headers: linked, body: 'bytes' },
      [`GET ${path}`]: { status: 206, headers: { 'content-range': 'bytes 0-0/1048576' }, body: 'b' }
    })
    t.match(location, { url: server.url + path, size: 1048576, sha256: SHA256 })
    t.equal(location.headers.authorization, 'Bearer hf_secret')
  })
  t.test('the Hugging Face hub locates a file on servers without ranges or HEAD, and an empty file', async t => {
    const elsewhere = { status: 302, headers: { location: `${cdn.url}/x`, ...linked } }
    const table: [head: Reply, get: Reply, expected: object][] = [
      ...[404, 405, 500, 501].map(
        status =>
          [{ status }, elsewhere, { url: `${cdn.url}/x`, size: 1048576, sha256: SHA256 }] as [Reply, Reply, object]
      ),
      [{ body: 'x'.repeat(5_000_000) }, { body: 'x'.repeat(5_000_000) }, { size: 5_000_000 }],
      [{ status: 405 }, { status: 416, headers: { 'content-range': 'bytes */0' } }, { size: 0 }]
    ]
    for (const [head, get, expected] of table) {
      t.match((await place(t, { [`HEAD ${path}`]: head, [`GET ${path}`]: get })).location, expected)
    }
  })
  t.test('the Hugging Face hub locates a file by branch if commits are unknown', async t => {
    const byBranch = '/acme/Tiny/resolve/main/Q4/a%20b.gguf'
    const { location, server } = await place(t, { [byBranch]: { body: 'bytes' } })
    t.equal(location.url, server.url + byBranch)
    const other = await place(t, { [byBranch]: { body: 'bytes' } }, repository({ revision: 'listing-1' }))
    t.notOk(other.server.seen.some(({ url }) => url.includes('listing')))
  })
  t.test('a token is not sent again after a redirect to another host', async t => {
    // A redirect to a foreign host and back. The second redirect must not get the token.
    const hubServer: { url?: string } = {}
    const away = await serve(t, () => ({ status: 302, headers: { location: `${hubServer.url}/leak` } }))
    const server = await serveRoutes(t, {
      [LISTING]: () => ({ status: 302, headers: { location: `${away.url}/x` } }),
      '/leak': info()
    })
    hubServer.url = server.url
    const hub = await createTestHub(t, huggingface, { endpoint: server.url, token: 'hf_secret' })
    await list(hub)
    t.equal(server.seen[0]!.headers.authorization, 'Bearer hf_secret')
    t.equal(away.seen[0]!.headers.authorization, undefined)
    t.equal(server.seen[1]!.headers.authorization, undefined)
  })
})

t.test('a mirror never gets the token', async t => {
  const mirror = await serve(t, () => info())
  const gone = await serve(t, () => undefined)
  await gone.close()
  const options = { endpoint: gone.url, mirrors: [`${mirror.url}/`], token: 'hf_secret' }
  const hub = await createTestHub(t, huggingface, options)
  t.equal((await list(hub)).id, 'acme/Tiny')
  await list(hub)
  t.equal(mirror.seen.length, 2)
  for (const { headers } of mirror.seen) t.equal(headers.authorization, undefined)
})

t.test('refusals are explained', async t => {
  t.test('the Hugging Face hub suggests a name in another case', async t => {
    const { server, hub } = await hubWith(t, {
      '/api/models/acme/tiny/revision/main': { status: 401, body: { error: 'Invalid username or password.' } },
      '/api/models': { body: [{ id: 'acme/Tiny-2' }, { id: 'acme/Tiny' }] }
    })
    const similar = /no repository "acme\/tiny", but it has "acme\/Tiny"/
    await t.rejects(list(hub, 'acme/tiny'), failing('repo_not_found', similar))
    t.match(questions(server), ['GET /api/models/acme/tiny/revision/main?blobs=true', /search=tiny&author=acme/])
  })
  t.test('an unknown name, when the search fails', async t => {
    for (const search of [{ status: 500 }, { body: '<html>' }, { cut: true }, { body: [] }]) {
      const { hub } = await hubWith(t, { '/api/models': search })
      const error = await failure(list(hub, 'acme/none'))
      t.equal(error.code, 'repo_not_found', JSON.stringify(search))
      t.match(error.message, /does not exist, is private, or is spelled in another case/)
    }
  })
  t.test('a gated repository that is listed', async t => {
    const { hub } = await hubWith(t, {
      [LISTING]: info({ gated: 'manual' }),
      [`GET /acme/Tiny/resolve/${COMMIT}/a.gguf`]: { status: 401, body: 'no' }
    })
    const found = await list(hub)
    t.equal(found.gated, true)
    const terms = failing('hub_forbidden', /Agree at .*acme\/Tiny, then set HF_TOKEN/)
    await t.rejects(hub.locate(found, found.files[1]!, never), terms)
  })
  t.test('the Hugging Face hub sends no requests when offline', async t => {
    const { server, hub } = await hubWith(t, () => info(), { HF_HUB_OFFLINE: '1' })
    for (const request of [list(hub), hub.locate(repository(), FILE, never)] as Promise<unknown>[]) {
      await t.rejects(request, failing('hub_unreachable', /HF_HUB_OFFLINE is set to 1/))
    }
    t.equal(server.seen.length, 0)
  })
  t.test('a web page instead of JSON', async t => {
    const { hub } = await hubWith(t, () => ({
      headers: { 'content-type': 'text/html' },
      body: '<!doctype html><p>Log in'
    }))
    const page = /answers with HTML, unlike Hugging Face.*\. Is the endpoint right/
    await t.rejects(list(hub), failing('hub_unreachable', page))
  })
  t.test('the Hugging Face hub reports too many requests', async t => {
    const { server, hub } = await hubWith(t, () => ({ status: 429, headers: { 'retry-after': '300' } }))
    const error = await failure(list(hub))
    t.match(error, { code: 'hub_rate_limited', retryAfter: 300 })
    t.equal(server.seen.length, 1, 'no request before the time is up')
  })
  t.test('no server at the endpoint', async t => {
    const { server, hub } = await hubWith(t, () => undefined)
    await server.close()
    await t.rejects(list(hub), failing('hub_unreachable', /nothing listens at 127.0.0.1/))
  })
  t.test('endless redirects fail', async t => {
    const { server, hub } = await hubWith(t, ({ url }) => ({ status: 302, headers: { location: `${url}x` } }))
    const error = await failure(list(hub))
    t.match(error.message, /redirects more than 5 times/)
    t.equal(server.seen.length, 6)
  })
})

t.test('temporary failures are retried', async t => {
  const troubles: Reply[] = [{ status: 503 }, { cut: true }, { status: 429, headers: { 'retry-after': '0' } }]
  const { server, hub } = await hubWith(t, () => troubles.shift() ?? info())
  t.equal((await list(hub)).id, 'acme/Tiny')
  t.equal(server.seen.length, 4)

  t.test('no retry after an abort', async t => {
    const controller = new AbortController()
    const down = await serve(t, () => {
      setTimeout(() => controller.abort(new Error('left')), 20)
      return { status: 503 }
    })
    const hub = await createTestHub(t, huggingface, { endpoint: down.url })
    const error = await failure(hub.repository({ id: 'acme/Tiny' }, { signal: controller.signal }))
    t.equal(error.message, 'left')
    t.equal(down.seen.length, 1)
  })
})

t.test('requests go through a proxy', async t => {
  const server = await serve(t, ({ url }) => (url.startsWith('/api/') ? info() : { body: 'bytes' }))
  const hosts: string[] = []
  const proxy = createServer((request, response) => {
    const to = new URL(request.url!)
    hosts.push(to.host)
    const { method, headers } = request
    request.pipe(
      onwards(to, { method, headers }, answer => {
        response.writeHead(answer.statusCode!, answer.headers)
        answer.pipe(response)
      })
    )
  })
  await once(proxy.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => proxy.close())
  const address = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
  const host = new URL(server.url).host

  const named = await createTestHub(t, huggingface, { endpoint: server.url, proxy: address })
  const found = await list(named)
  t.ok(hosts.length > 0 && hosts.every(to => to === host), hosts.join())
  t.equal((await named.locate(found, found.files[1]!, never)).proxy, address)

  hosts.length = 0
  const surrounding = await createTestHub(t, huggingface, { endpoint: server.url }, { HTTP_PROXY: address })
  await list(surrounding)
  t.equal((await surrounding.locate(found, found.files[1]!, never)).proxy, '')
  t.strictSame(hosts, [], "the environment's proxy is not used for this machine")

  const none = await createTestHub(t, huggingface, { endpoint: server.url, proxy: 'http://127.0.0.1:1' })
  await t.rejects(list(none), failing('hub_unreachable', /through the proxy of its settings/))
})

t.test('CSGHub lists, locates and refuses files', async t => {
  const path = '/csg/acme/Tiny/resolve'
  const cdn = 'http://127.0.0.1:1/x?X-Amz-Expires=1'
  const server = await serveRoutes(t, {
    '/csg/api/models/acme/Tiny': info({ gated: undefined }),
    '/csg/api/models/acme/None': { status: 500, body: { code: 'SYS-ERR-3', msg: 'SYS-ERR-3: no such row' } },
    '/csg/api/models/acme/Private': { status: 500, body: { code: 'AUTH-ERR-0', msg: 'AUTH-ERR-0: unauthorized' } },
    [`HEAD ${path}/${COMMIT}/a.gguf`]: { headers: { etag: `"${SHA1}"` }, body: 'bytes' },
    [`GET ${path}/${COMMIT}/a.gguf`]: { status: 302, headers: { location: cdn } },
    [`GET ${path}/${COMMIT}/b.gguf`]: { status: 403, body: { code: 'AUTH-ERR-2', msg: 'no' } }
  })
  const hub = await createTestHub(t, csghub, {}, { CSGHUB_DOMAIN: server.url, CSGHUB_TOKEN: 'csg_secret' })
  const found = await list(hub)
  t.match(found, { hub: 'csghub', revision: COMMIT, gated: false, files: [{ path: 'README.md' }, { sha256: SHA256 }] })
  const location = await hub.locate(found, found.files[1]!, never)
  t.equal(location.url, cdn)
  t.equal(location.headers.authorization, undefined)
  t.equal(location.identity, undefined)
  t.notOk(server.seen.some(({ method }) => method === 'HEAD'))
  t.ok(server.seen.every(({ headers }) => headers.authorization === 'Bearer csg_secret'))

  const before = server.seen.length
  await t.rejects(list(hub, 'acme/None'), { code: 'repo_not_found' })
  await t.rejects(list(hub, 'acme/Private'), { code: 'hub_forbidden' })
  t.equal(server.seen.length, before + 2, 'a refusal with status 500 is not retried')
  await t.rejects(hub.locate(found, { path: 'b.gguf', size: 1 }, never), { code: 'hub_forbidden' })
})
