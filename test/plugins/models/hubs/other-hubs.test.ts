import t from 'tap'
import type { Hub, HubRepository } from '../../../../core/contracts/hubs.ts'
import corralHub from '../../../../plugins/models/hubs/corral.ts'
import modelscope from '../../../../plugins/models/hubs/modelscope.ts'
import url from '../../../../plugins/models/hubs/url.ts'
import { failing, failure } from '../../../support/failure.ts'
import { createTestHub, type Reply, serve } from './support.ts'

const SHA256 = 'ab'.repeat(32)
const never = new AbortController().signal

t.test('ModelScope lists, locates and refuses files', async t => {
  const entry = { Type: 'blob', Size: 5, Sha256: SHA256.toUpperCase() }
  let files = [
    { ...entry, Path: 'a.gguf' },
    { ...entry, Path: 'dir/b.gguf', InCheck: true }
  ]
  const server = await serve(t, ({ url }): Reply | undefined => {
    const { pathname, searchParams: query } = new URL(url, 'http://x')
    if (pathname === '/api/v1/models/acme/None/repo/files') {
      return { body: { Code: 10010205001, Success: false, Message: 'Model not found.' } }
    }
    if (pathname === '/api/v1/models/acme/Tiny/repo/files') {
      if (query.get('Revision') !== 'master')
        return { status: 404, body: { Code: 404, Success: false, Message: 'Revision not found' } }
      const listed = query.get('Recursive') === 'True' ? files : []
      return {
        body: { Code: 200, Success: true, Data: { Files: [{ Path: 'dir', Type: 'tree', Size: 0 }, ...listed] } }
      }
    }
    if (pathname !== '/api/v1/models/acme/Tiny/repo') return undefined
    if (query.get('FilePath') === 'a.gguf')
      return { status: 302, headers: { location: 'http://127.0.0.1:1/oss?Expires=1' } }
    if (query.get('FilePath') === 'direct.gguf') return { headers: { 'content-range': 'bytes 0-0/77' }, body: 'x' }
    return { body: { Code: 403, Success: false, Message: 'in check' } }
  })
  const hub = await createTestHub(
    t,
    modelscope,
    {},
    { MODELSCOPE_ENDPOINT: server.url, MODELSCOPE_API_TOKEN: 'ms_secret' }
  )
  const found = await hub.repository({ id: 'acme/Tiny' }, {})
  t.match(found, {
    hub: 'modelscope',
    id: 'acme/Tiny',
    address: `${server.url}/models/acme/Tiny`,
    more: { ref: 'master' }
  })
  t.strictSame(found.files, [
    { path: 'a.gguf', size: 5, sha256: SHA256 },
    { path: 'dir/b.gguf', size: 5, sha256: SHA256 }
  ])
  t.match(server.seen[0]!.headers, { authorization: 'Bearer ms_secret', cookie: 'm_session_id=ms_secret' })

  files.reverse()
  t.equal((await hub.repository({ id: 'acme/Tiny' }, {})).revision, found.revision, 'the order does not matter')
  files = files.map(file => ({ ...file, Sha256: 'cd'.repeat(32) }))
  t.not((await hub.repository({ id: 'acme/Tiny' }, {})).revision, found.revision)

  const location = await hub.locate(found, found.files[0]!, never)
  t.equal(location.url, 'http://127.0.0.1:1/oss?Expires=1')
  t.strictSame([location.headers.authorization, location.headers.cookie], [undefined, undefined])
  const direct = await hub.locate(found, { path: 'direct.gguf', size: undefined }, never)
  t.equal(direct.size, 77)
  t.equal(direct.headers.cookie, 'm_session_id=ms_secret')

  await t.rejects(hub.locate(found, found.files[1]!, never), failing('hub_forbidden', /still checking/))
  t.equal((await failure(hub.repository({ id: 'acme/None' }, {}))).code, 'repo_not_found')
  await t.rejects(
    hub.repository({ id: 'acme/Tiny', revision: 'main' }, {}),
    failing('repo_not_found', /usual branch is "master"/)
  )
})

/** The hub for a caller who may pull from addresses of this machine. */
function allowing(hub: Hub): Hub {
  const privateAddresses = ['127.0.0.1']
  return {
    ...hub,
    repository: (request, waiting) => hub.repository({ privateAddresses, ...request }, waiting),
    locate: (repository, file, signal) => hub.locate(repository, file, signal, privateAddresses)
  }
}

t.test('a plain address is a repository with one file', async t => {
  const base64 = Buffer.from(SHA256, 'hex').toString('base64')
  const secret = `Basic ${Buffer.from('me:p@ss').toString('base64')}`
  const cdn = await serve(t, ({ headers }) =>
    headers.authorization
      ? { status: 500 }
      : { headers: { 'x-amz-checksum-sha256': base64, etag: '"e1"' }, body: 'bytes' }
  )
  const server = await serve(t, ({ url, headers }): Reply | undefined => {
    const { pathname, searchParams } = new URL(url, 'http://x')
    if (pathname === '/m.gguf')
      return { headers: { etag: '"e2"', 'repr-digest': `sha-256=:${base64}:` }, body: 'bytes' }
    if (pathname === '/plain.gguf')
      return { headers: { 'last-modified': 'Wed, 21 Oct 2015 07:28:00 GMT' }, body: 'bytes' }
    if (pathname === '/download')
      return { headers: { 'content-disposition': 'attachment; filename="named.gguf"' }, body: 'x' }
    if (pathname === '/private.gguf') {
      return headers.authorization === secret
        ? { status: 302, headers: { location: `${cdn.url}/x?sig=1` } }
        : { status: 401 }
    }
    if (pathname === '/signed.gguf') return searchParams.get('Signature') === 's' ? { body: 'bytes' } : { status: 403 }
    if (/^\/s-0000[1-3]-of-00003\.gguf$/.test(pathname)) return { body: pathname }
    if (pathname === '/page.gguf') return { headers: { 'content-type': 'text/html' }, body: '<html>' }
    return undefined
  })
  const hub = allowing(await createTestHub(t, url))

  const found = await hub.repository({ id: `${server.url}/m.gguf` }, {})
  t.match(found, {
    hub: 'url',
    id: `${server.url}/m.gguf`,
    address: `${server.url}/m.gguf`,
    files: [{ path: 'm.gguf', size: 5, sha256: SHA256 }]
  })
  t.match(await hub.locate(found, found.files[0]!, never), { size: 5, sha256: SHA256, identity: '"e2"' })
  const plain = await hub.repository({ id: `${server.url}/plain.gguf` }, {})
  t.strictSame(plain.files, [{ path: 'plain.gguf', size: 5 }])
  t.equal((await hub.locate(plain, plain.files[0]!, never)).identity, 'Wed, 21 Oct 2015 07:28:00 GMT')
  t.equal((await hub.repository({ id: `${server.url}/download` }, {})).files[0]!.path, 'named.gguf')

  t.test('a hub finds all shards of a set', async t => {
    const { files, ...sharded } = await hub.repository({ id: `${server.url}/s-00002-of-00003.gguf` }, {})
    const expected = ['1', '2', '3'].map(n => ({ path: `s-0000${n}-of-00003.gguf`, size: 22 }))
    t.strictSame(files, expected)
    const { url } = await hub.locate({ ...sharded, files }, files[2]!, never)
    t.equal(url, `${server.url}/s-00003-of-00003.gguf`)
    const error = await failure(hub.repository({ id: `${server.url}/s-00001-of-00004.gguf` }, {}))
    t.equal(error.code, 'repo_not_found')
  })
  t.test('secrets in the address are used and not stored', async t => {
    const closed = await hub.repository({ id: `${server.url.replace('//', '//me:p%40ss@')}/private.gguf` }, {})
    t.notMatch(JSON.stringify(closed), /p%40ss|p@ss|me:/)
    const location = await hub.locate(closed, closed.files[0]!, never)
    t.equal(location.url, `${cdn.url}/x?sig=1`)
    t.equal(location.headers.authorization, undefined)
    t.equal(location.sha256, SHA256)

    const signed = await hub.repository({ id: `${server.url}/signed.gguf?Signature=s&Expires=9999999999` }, {})
    t.notMatch(JSON.stringify(signed), /Signature/)
    t.match((await hub.locate(signed, signed.files[0]!, never)).url, /Signature=s/)
  })
  t.test('addresses without a file are refused', async t => {
    const gone = await failure(hub.repository({ id: `${server.url}/none.gguf?a=b` }, {}))
    t.equal(gone.code, 'repo_not_found')
    t.notMatch(gone.message, /a=b/)
    await t.rejects(hub.repository({ id: `${server.url}/page.gguf` }, {}), failing('repo_not_found', /web page/))
    t.equal((await failure(hub.repository({ id: `${server.url}/` }, {}))).code, 'repo_not_found')
    const closed = await failure(hub.repository({ id: `${server.url.replace('//', '//me:wrong@')}/private.gguf` }, {}))
    t.equal(closed.code, 'hub_forbidden')
    t.notMatch(closed.message, /wrong/)
  })
})

t.test('another corral lists and locates its files', async t => {
  const file = (path: string) => ({ path, size: 5, sha256: SHA256, role: 'model' })
  const server = await serve(t, ({ url }): Reply | undefined => {
    if (url === '/api/files/acme/tiny') {
      return {
        body: {
          name: 'acme/Tiny',
          variants: [
            { label: 'Q8_0', isDefault: true, revision: 'r 1', format: 'gguf', files: [file('a b.gguf')] },
            {
              label: 'F16',
              isDefault: false,
              revision: 'r2',
              format: 'safetensors',
              files: [file('model.safetensors')]
            }
          ]
        }
      }
    }
    if (url === '/api/files/acme/none') return { status: 404, body: { error: 'x', code: 'model_not_found' } }
    if (url === '/api/files/acme/closed') return { status: 401, body: { error: 'x', code: 'unauthorized' } }
    if (url === '/api/files/acme/old') return { status: 404, body: { error: 'x', code: 'route_not_found' } }
    return undefined
  })
  const hub = await createTestHub(t, corralHub, { endpoint: server.url, token: 'key' })
  const found = await hub.repository({ id: 'acme/tiny' }, {})
  t.match(found, { hub: 'corral-hub', id: 'acme/Tiny', address: `${server.url}/api/files/acme/tiny`, gated: false })
  const paths = ({ files }: HubRepository) => files.map(({ path }) => path)
  t.strictSame(paths(found), ['Q8_0/a b.gguf', 'F16/model.safetensors'])
  const location = await hub.locate(found, found.files[0]!, never)
  t.match(location, { url: `${server.url}/api/files/acme/Tiny/Q8_0/r%201/a%20b.gguf`, size: 5, sha256: SHA256 })
  t.equal(location.headers.authorization, 'Bearer key')

  const only = await hub.repository({ id: 'acme/tiny', revision: 'r2' }, {})
  t.strictSame(paths(only), ['F16/model.safetensors'])
  t.equal((await failure(hub.repository({ id: 'acme/tiny', revision: 'r9' }, {}))).code, 'repo_not_found')
  t.equal((await failure(hub.repository({ id: 'acme/none' }, {}))).code, 'repo_not_found')
  t.equal((await failure(hub.repository({ id: 'acme/closed' }, {}))).code, 'hub_forbidden')
  await t.rejects(hub.repository({ id: 'acme/old' }, {}), failing('hub_unreachable', /api-files/))

  t.test('only the configured server gets the key, not one named in the reference', async t => {
    const host = new URL(server.url).host
    const other = allowing(await createTestHub(t, corralHub, { endpoint: 'http://127.0.0.1:1', token: 'key' }))
    const named = await other.repository({ id: `//${host}/acme/tiny` }, {})
    t.equal(named.more!.endpoint, server.url)
    t.equal(server.seen.at(-1)!.headers.authorization, undefined)
    t.equal((await other.locate(named, named.files[0]!, never)).headers.authorization, undefined)
    const none = await createTestHub(t, corralHub)
    await t.rejects(none.repository({ id: 'acme/tiny' }, {}), failing('repo_not_found', /corral:\/\/<host>/))
  })
})
