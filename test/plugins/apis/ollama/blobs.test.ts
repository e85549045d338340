import { createHash } from 'node:crypto'
import { existsSync, readdirSync, utimesSync, writeFileSync } from 'node:fs'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pino from 'pino'
import t, { type Test } from 'tap'
import { allowLongUploads, removeUploadTimeout } from '../../../../core/http/long-upload.ts'
import { BlobStore } from '../../../../plugins/apis/ollama/models/blobs.ts'
import { detectFiles, type UploadedFile } from '../../../../plugins/apis/ollama/models/create-request.ts'
import { each } from '../../../support/each.ts'
import { ggufBytes, safetensorsBytes, writeGguf } from '../../../support/gguf-writer.ts'
import { gate, name, openStore } from '../../models/storage/support.ts'

const sha256 = (content: Buffer) => createHash('sha256').update(content).digest('hex')
async function* bodyOf(...chunks: Buffer[]) {
  yield* chunks
}

async function open(t: Test) {
  const root = t.testdir({ models: {} })
  const { store } = await openStore(join(root, 'models'))
  const folder = join(root, 'models', '.blobs')
  const lines: string[] = []
  const log = pino({}, { write: (line: string) => void lines.push(line) })
  return { root, store, folder, blobs: new BlobStore(folder, store, log) }
}

t.test('an upload is stored only if its digest is correct and there is space', async t => {
  const { folder, blobs } = await open(t)
  const content = Buffer.from('hello')
  await blobs.write(sha256(content), bodyOf(content.subarray(0, 2), content.subarray(2)), undefined)
  t.ok(await blobs.has(sha256(content)))
  await blobs.write(sha256(content), bodyOf(content), 5)
  await t.rejects(blobs.write('0'.repeat(64), bodyOf(content), 5), { code: 'invalid_request', param: 'digest' })
  const broken = async function* () {
    yield content
    throw new Error('gone')
  }
  await t.rejects(blobs.write('1'.repeat(64), broken(), 5), { message: 'gone' })
  await t.rejects(blobs.write('2'.repeat(64), bodyOf(), 2 ** 60), {
    code: 'insufficient_storage',
    details: { required: 2 ** 60 }
  })
  const full = async function* () {
    yield content
    throw Object.assign(new Error('no space left'), { code: 'ENOSPC' })
  }
  await t.rejects(blobs.write('3'.repeat(64), full(), 5), { code: 'insufficient_storage', message: /is full/ })
  t.strictSame(readdirSync(folder), [`sha256-${sha256(content)}`])
})

t.test('blobs are deleted after use, and after a day', async t => {
  const { folder, blobs } = await open(t)
  const [one, two, old, used] = ['one', 'two', 'old', 'used'].map(text => Buffer.from(text)) as Buffer[]
  for (const content of [one, two, old, used]) await blobs.write(sha256(content!), bodyOf(content!), undefined)
  const digests = [sha256(one!), sha256(two!)]
  await t.rejects(
    blobs.use(digests, async () => {
      throw new Error('failed')
    }),
    { message: 'failed' }
  )
  t.ok(await blobs.has(digests[0]!), 'a failed use can be retried')
  await t.rejects(
    blobs.use([digests[0]!, 'f'.repeat(64)], async () => {}),
    { code: 'invalid_request', message: /ffff/ }
  )

  const hold = gate()
  const first = blobs.use(digests, async () => await hold.opened)
  const paths = await blobs.use(digests, async paths => paths)
  t.strictSame(
    paths,
    digests.map(digest => join(folder, `sha256-${digest}`))
  )
  t.ok(await blobs.has(digests[0]!), 'another user still needs the blob')
  hold.open()
  await first
  t.notOk(await blobs.has(digests[0]!))
  t.notOk(existsSync(paths[1]!))

  writeFileSync(join(folder, `${'a'.repeat(32)}.part`), 'left by a process that died')
  writeFileSync(join(folder, 'notes.txt'), "somebody's own")
  const longAgo = new Date(Date.now() - 25 * 3_600_000)
  for (const content of [old, used]) utimesSync(join(folder, `sha256-${sha256(content!)}`), longAgo, longAgo)
  await blobs
    .use([sha256(used!)], async () => await blobs.sweep())
    .then(
      () => t.pass('blobs in use are kept'),
      error => t.fail(String(error))
    )
  t.strictSame(readdirSync(folder), ['notes.txt'])
  await new BlobStore(join(folder, 'none'), (await open(t)).store, pino({ level: 'silent' })).sweep()
})

t.test('files of stored models can be used as blobs', async t => {
  const { root, store, blobs } = await open(t)
  writeGguf(join(root, 'x.gguf'))
  const variant = await store.import({ path: join(root, 'x.gguf'), name: name('me/x') })
  const { sha256: digest, path } = variant.files[0]!
  t.ok(await blobs.has(digest))
  const used = await blobs.use([digest], async ([path]) => {
    const removal = store.remove(name('me/x'))
    await removal
    t.ok(existsSync(path!), 'the files are kept while they are used')
    return path
  })
  t.equal(used, join(variant.directory, path))
  t.notOk(await blobs.has(digest))
})

t.test('create detects the format and role of uploaded files', async t => {
  const root = t.testdir({})
  const sent = (name: string, content: Buffer): UploadedFile => {
    const path = join(root, sha256(content))
    writeFileSync(path, content)
    return { name, path, sha256: sha256(content) }
  }
  const model = ggufBytes({ metadata: { 'general.architecture': 'llama' } })
  const eye = ggufBytes({ metadata: { 'general.architecture': 'clip' } })
  t.match(await detectFiles([sent('mmproj.gguf', eye), sent('C:\\models\\my model', model)]), {
    format: 'gguf',
    files: [
      { path: 'my_model.gguf', role: 'model', sha256: sha256(model) },
      { path: 'mmproj.gguf', role: 'projector' }
    ]
  })
  const two = ggufBytes({ metadata: { 'general.architecture': 'llama', 'split.no': 1 } })
  const shards = [sent('x/m-00002-of-00002.gguf', two), sent('x/m-00001-of-00002.gguf', model)]
  t.strictSame(each((await detectFiles(shards)).files, 'path'), ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf'])
  await t.rejects(detectFiles([sent('x.gguf', Buffer.from('nothing'))]), { code: 'invalid_request', param: 'files' })
  await t.rejects(detectFiles([sent('x.gguf', Buffer.from('GGUF'))]), { code: 'invalid_request' })

  const weights = sent('model.safetensors', safetensorsBytes())
  const config = sent('config.json', Buffer.from('{}'))
  const tokenizer = sent('tokenizer.json', Buffer.from('[]'))
  const folder = await detectFiles([tokenizer, config, weights, sent('notes.txt', Buffer.from('x'))])
  t.match(folder, {
    format: 'safetensors',
    files: [
      { path: 'model.safetensors', role: 'model' },
      { path: 'tokenizer.json', role: 'other' },
      { path: 'config.json', role: 'other' }
    ]
  })
  t.equal(folder.files.length, 3)
  await t.rejects(detectFiles([weights, tokenizer]), { message: /config.json missing/ })
  await t.rejects(detectFiles([weights, config]), { message: /no tokenizer/ })
  await t.rejects(detectFiles([{ ...weights, name: 'model-00001-of-00002.safetensors' }, config, tokenizer]), {
    message: /model-00002-of-00002.safetensors missing/
  })
})

t.test('uploads are exempt from the request timeout', async t => {
  const server = createServer({ requestTimeout: 200, headersTimeout: 200, connectionsCheckingInterval: 50 })
  let refused = 0
  server.on('clientError', (_error, socket) => {
    refused++
    socket.destroy()
  })
  allowLongUploads(server)
  server.on('request', async (incoming, response) => {
    if (incoming.url === '/upload') removeUploadTimeout(incoming)
    let size = 0
    try {
      for await (const chunk of incoming) size += chunk.length
    } catch {
      return
    }
    response.end(String(size))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const send = async (path: string) => {
    const { port } = server.address() as AddressInfo
    const outgoing = request({ port, path, method: 'POST' })
    const answer = new Promise<string>((resolve, reject) => {
      outgoing.on('error', reject)
      outgoing.on('response', response => {
        response.setEncoding('utf8').on('data', resolve)
      })
    })
    answer.catch(() => {})
    for (let n = 0; n < 6; n++) {
      outgoing.write('x')
      await sleep(100)
    }
    outgoing.end()
    return await answer
  }
  t.equal(await send('/upload'), '6')
  t.equal(refused, 0)
  await t.rejects(send('/other'))
  t.equal(refused, 1, 'other requests still time out')
})
