import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, readlinkSync, truncateSync } from 'node:fs'
import { type IncomingHttpHeaders, type IncomingMessage, type OutgoingHttpHeaders, request } from 'node:http'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { byteRange, isKnown } from '../../../../core/http/stored-file-reply.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { readCases } from '../../../support/cases.ts'
import { type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { writeGguf } from '../../../support/gguf-writer.ts'
import { thorough } from '../../../support/thorough.ts'

const CASES = readCases('file-ranges')

const BYTES = readFileSync(join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf'))
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes)

t.test('range headers select the requested bytes', async t => {
  const etag = '"abc"'
  const cases: [string | null, number, object][] = CASES.ranges
  for (const [range, size, expected] of cases)
    t.same(byteRange({ range: range ?? undefined }, size, etag), expected, `${range} of ${size}`)
  for (const [ifRange, status] of [
    ['"abc"', 206],
    ['"abd"', 200],
    ['W/"abc"', 200],
    ['Sat, 21 Nov 2026 11:00:00 GMT', 200]
  ] as const) {
    t.equal(byteRange({ range: 'bytes=0-1', 'if-range': ifRange }, 10, etag).status, status, ifRange)
  }
  for (const [header, known] of [
    [undefined, false],
    ['*', true],
    ['"abc"', true],
    ['"x", W/"abc"', true],
    ['"abcd"', false]
  ] as const) {
    t.equal(isKnown(header, etag), known, String(header))
  }
})

interface Answer {
  status: number
  headers: IncomingHttpHeaders
  body: Buffer
}

/** Sends the path unchanged. Other clients resolve `..` themselves. */
async function open(corral: Corral, path: string, headers: OutgoingHttpHeaders = {}, method = 'GET') {
  const { hostname, port } = new URL(corral.url)
  const asked = request({ hostname, port, path, method, headers, agent: false })
  asked.end()
  const [response] = (await once(asked, 'response')) as [IncomingMessage]
  return response
}

async function get(corral: Corral, path: string, headers?: OutgoingHttpHeaders, method?: string): Promise<Answer> {
  const response = await open(corral, path, headers, method)
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk)
  return { status: response.statusCode!, headers: response.headers, body: Buffer.concat(chunks) }
}

/** Lists the open files of a process below a folder. */
function openFiles(pid: number, folder: string): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap(fd => {
    try {
      const path = readlinkSync(`/proc/${pid}/fd/${fd}`)
      return path.startsWith(folder) ? path : []
    } catch {
      // The file was closed in the meantime.
      return []
    }
  })
}

/** Imports a model of the given size and returns the URL of its file. */
async function importLarge(t: Test, corral: Corral, name: string, mebibytes: number) {
  const dir = t.testdir()
  const path = join(dir, 'large-Q8_0.gguf')
  writeGguf(path, { tensors: [{ name: 'w', shape: [1024, 256 * mebibytes] }], seed: 7 })
  const { status } = await corral.json('/api/import', { path, model: name })
  t.equal(status, 200)
  const { body } = await corral.json(`/api/files/${name}`)
  const [variant] = body.variants
  return { ...variant, address: `/api/files/${name}/Q8_0/${variant.revision}/${variant.files[0].path}` }
}

const shared = startCorral(t)

t.test('the files API serves the files of a model', async t => {
  const corral = await shared
  const digest = sha256(BYTES).digest()
  const { status, body } = await corral.json(`/api/files/${DEMO}`)
  t.equal(status, 200)
  t.match(body, {
    name: DEMO,
    variants: [
      {
        label: 'F16',
        isDefault: true,
        revision: /^f16-[0-9a-f]{8}$/,
        format: 'gguf',
        digest: /^[0-9a-f]{64}$/,
        files: [{ path: 'tiny-chat-f16.gguf', size: BYTES.length, sha256: digest.toString('hex'), role: 'model' }]
      }
    ]
  })
  const base = `/api/files/${DEMO}/F16/${body.variants[0].revision}`
  const address = `${base}/tiny-chat-f16.gguf`
  const common = {
    'accept-ranges': 'bytes',
    etag: `"${digest.toString('hex')}"`,
    'repr-digest': `sha-256=:${digest.toString('base64')}:`
  }

  const whole = await get(corral, address)
  t.equal(whole.status, 200)
  t.match(whole.headers, {
    ...common,
    'content-length': String(BYTES.length),
    'content-type': 'application/octet-stream'
  })
  t.ok(whole.body.equals(BYTES))
  t.notOk(whole.headers['content-range'])
  t.ok((await get(corral, address.replace('F16', 'f16'))).body.equals(BYTES), 'labels are case-insensitive')

  const part = await get(corral, address, { range: 'bytes=1000-4999' })
  t.equal(part.status, 206)
  t.match(part.headers, { ...common, 'content-length': '4000', 'content-range': `bytes 1000-4999/${BYTES.length}` })
  t.ok(part.body.equals(BYTES.subarray(1000, 5000)))
  const tail = await get(corral, address, { range: 'bytes=-10', 'if-range': common.etag })
  t.match(tail, {
    status: 206,
    headers: { 'content-range': `bytes ${BYTES.length - 10}-${BYTES.length - 1}/${BYTES.length}` }
  })
  t.ok(tail.body.equals(BYTES.subarray(-10)))
  t.equal((await get(corral, address, { range: 'bytes=0-9', 'if-range': '"other"' })).body.length, BYTES.length)

  const head = await get(corral, address, { range: 'bytes=0-9' }, 'HEAD')
  t.match(head, { status: 200, headers: { ...common, 'content-length': String(BYTES.length) } })
  t.equal(head.body.length, 0)
  const known = await get(corral, address, { 'if-none-match': common.etag, range: 'bytes=0-9' })
  t.match(known, { status: 304, headers: { etag: common.etag } })
  t.equal(known.body.length, 0)
  const behind = await get(corral, address, { range: `bytes=${BYTES.length}-` })
  t.match(behind, { status: 416, headers: { 'content-range': `bytes */${BYTES.length}` } })
  t.match(JSON.parse(behind.body.toString()), { errorCode: 416, code: 'invalid_request', error: /has \d+ bytes/ })

  for (const path of [
    `${base}/../tiny-chat-f16.gguf`,
    `${base}/..%2f..%2f..%2fowner.json`,
    `${base}/%2e%2e/%2e%2e/manifest.json`,
    `${base}/..%5c..%5cmanifest.json`,
    `${base}//etc/passwd`,
    `${base}/%2Fetc%2Fpasswd`,
    `${base}/.corral-revision`,
    `${base}/tiny-chat-f16.gguf%00`,
    `${base}/`,
    `${base}/nothing.gguf`,
    `/api/files/${DEMO}/F16/../tiny-chat-f16.gguf`,
    `/api/files/${DEMO}/F16/f16-00000000/tiny-chat-f16.gguf`,
    `/api/files/${DEMO}/Q8_0/${body.variants[0].revision}/tiny-chat-f16.gguf`,
    '/api/files/corral/none',
    '/api/files/corral/none/F16/x/y'
  ]) {
    const { status, body } = await get(corral, path)
    t.match({ status, ...JSON.parse(body.toString()) }, { status: 404, code: /^(model|route)_not_found$/ }, path)
  }
  for (const path of [
    `/api/files/..%2f..%2fetc/x/F16/x/passwd`,
    '/api/files/a/b%3Ac%3Ad',
    `/api/files/${DEMO}/..%2fx/r/f`
  ]) {
    t.match(JSON.parse((await get(corral, path)).body.toString()), { errorCode: 400, code: 'invalid_model_name' }, path)
  }
  t.match(JSON.parse((await get(corral, `${base}/%zz`)).body.toString()), { code: 'invalid_request' })
  t.match(await get(corral, address, {}, 'DELETE'), { status: 405, headers: { allow: 'GET, HEAD' } })

  const [variant] = (await corral.json(`/api/files/${DEMO}`)).body.variants
  truncateSync(join(corral.home, 'models', ...DEMO.split('/'), variant.revision, 'tiny-chat-f16.gguf'), 100)
  const cut = await get(corral, address)
  t.match(JSON.parse(cut.body.toString()), { errorCode: 500, error: /has 100 bytes instead of \d+/ })
})

t.test('a file is served to its end if its model is deleted, and released if the client disconnects', async t => {
  const corral = await shared
  const models = join(corral.home, 'models')
  const { address, files, revision } = await importLarge(t, corral, 'me/large', 48)
  const response = await open(corral, address)
  const hash = createHash('sha256')
  let length = 0
  for await (const chunk of response) {
    if (length === 0)
      t.match((await corral.json('/api/delete', { model: 'me/large' }, { method: 'DELETE' })).status, 200)
    length += chunk.length
    hash.update(chunk)
  }
  t.equal(length, files[0].size)
  t.equal(hash.digest('hex'), files[0].sha256, 'serves the whole file')
  t.equal((await get(corral, address)).status, 404)
  await until('the files are deleted afterwards', () => !existsSync(join(models, 'me', 'large', revision)))

  const again = await importLarge(t, corral, 'me/again', 48)
  const left = await open(corral, again.address)
  await once(left, 'readable')
  t.equal(openFiles(corral.process.pid!, models).length, 1)
  left.destroy()
  await until('the file is closed', () => openFiles(corral.process.pid!, models).length === 0)
  await corral.json('/api/delete', { model: 'me/again' }, { method: 'DELETE' })
  await until('the files are deleted', () => !existsSync(join(models, 'me', 'again')))
})

t.test('files require a key', async t => {
  const locked = await shared
  await locked.reload('security: { api_keys: [secret] }')
  t.equal((await get(locked, `/api/files/${DEMO}`)).status, 401)
  t.equal((await get(locked, `/api/files/${DEMO}`, { authorization: 'Bearer secret' })).status, 200)
})

t.test('the files API can be disabled', thorough, async t => {
  const without = await startCorral(t, { config: 'api-files:\n  enabled: false' })
  t.match(await without.json(`/api/files/${DEMO}`), { status: 404, body: { code: 'route_not_found' } })
})
