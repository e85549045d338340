import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { definePlugin, type Progress, parseModelName } from '../../core/plugins/public-api.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import hub from '../../examples/oci-hub/index.ts'
import { hubContract, startTestCorral } from '../../testing/index.ts'
import { listen } from '../support/listen.ts'

const demo = readFileSync(join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf'))
const digestOf = (bytes: Buffer) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`
const jsonBytes = (value: unknown) => Buffer.from(JSON.stringify(value))

/** Manifests by name and tag, in the formats of Docker's models and of ollama.com, and the blobs that they list. */
function contents() {
  const blobs = new Map<string, Buffer>()
  const layer = (mediaType: string, bytes: Buffer) => {
    blobs.set(digestOf(bytes), bytes)
    return { mediaType, digest: digestOf(bytes), size: bytes.length }
  }
  const docker = {
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: layer(
      'application/vnd.docker.ai.model.config.v0.1+json',
      jsonBytes({ config: { format: 'gguf', quantization: 'MOSTLY_F16', architecture: 'llama' } })
    ),
    layers: [
      layer('application/vnd.docker.ai.gguf.v3', demo),
      layer('application/vnd.docker.ai.license', Buffer.from('Apache License'))
    ]
  }
  const ollama = {
    schemaVersion: 2,
    mediaType: 'application/vnd.docker.distribution.manifest.v2+json',
    config: layer(
      'application/vnd.docker.container.image.v1+json',
      jsonBytes({ model_format: 'gguf', model_family: 'llama', file_type: 'F16' })
    ),
    layers: [
      layer('application/vnd.ollama.image.model', demo),
      layer('application/vnd.ollama.image.system', Buffer.from('You are brief.'))
    ]
  }
  const manifests = new Map<string, Buffer>()
  const add = (name: string, tag: string, manifest: object) => {
    const bytes = jsonBytes(manifest)
    for (const reference of [tag, digestOf(bytes)]) manifests.set(`${name}/manifests/${reference}`, bytes)
  }
  add('ai/deep/er', '3B-Q8_0', docker)
  add('ai/tiny', 'latest', docker)
  add('library/tiny', '1b', ollama)
  return { blobs, manifests }
}

/** A registry that issues tokens and redirects blobs to another server, which refuses requests with credentials. */
async function registry(t: Test) {
  const { blobs, manifests } = contents()
  const seen: string[] = []
  const send = (reply: ServerResponse, { headers }: IncomingMessage, bytes: Buffer) => {
    const [, begin = '0', end] = /^bytes=(\d+)-(\d*)$/.exec(headers.range ?? '') ?? []
    const part = bytes.subarray(Number(begin), end ? Number(end) + 1 : undefined)
    const range = { 'content-range': `bytes ${begin}-${Number(begin) + part.length - 1}/${bytes.length}` }
    reply.writeHead(headers.range ? 206 : 200, { 'content-length': part.length, ...(headers.range && range) }).end(part)
  }
  const cdn = createServer((request, reply) => {
    const bytes = blobs.get(`sha256:${request.url!.slice('/signed/'.length)}`)
    if (request.headers.authorization || !bytes) return reply.writeHead(400).end()
    send(reply, request, bytes)
  })
  const cdnPort = await listen(t, cdn)
  const server = createServer((request, reply) => {
    const { pathname, searchParams, origin } = new URL(request.url!, `http://${request.headers.host}`)
    const { authorization } = request.headers
    seen.push(`${request.method} ${pathname}`)
    if (pathname === '/token') {
      const scope = searchParams.get('scope')!
      if (scope.includes('secret')) return reply.writeHead(401).end()
      return reply.end(JSON.stringify({ token: `for ${scope} at ${searchParams.get('service')}`, expires_in: 300 }))
    }
    const [, name = '', path] = /^\/v2\/(.+?)\/((?:manifests|blobs)\/.+)$/.exec(pathname) ?? []
    const scope = `repository:${name}:pull`
    if (authorization !== `Bearer for ${scope} at the.registry`) {
      const challenge = `Bearer realm="${origin}/token",service="the.registry",scope="${scope}"`
      return reply.writeHead(401, { 'www-authenticate': challenge }).end('{"errors":[{"code":"UNAUTHORIZED"}]}')
    }
    const manifest = manifests.get(`${name}/${path}`)
    if (manifest) return reply.writeHead(200, { 'docker-content-digest': digestOf(manifest) }).end(manifest)
    const digest = path?.slice('blobs/'.length) ?? ''
    const bytes = blobs.get(digest)
    if (!bytes) return reply.writeHead(404).end('{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
    // Small blobs come from the registry itself.
    if (bytes !== demo) return send(reply, request, bytes)
    reply.writeHead(307, { location: `http://127.0.0.1:${cdnPort}/signed/${digest.slice('sha256:'.length)}` }).end()
  })
  return { address: `http://127.0.0.1:${await listen(t, server)}`, seen }
}

t.test('the example hub pulls models of container registries', async t => {
  const { address, seen } = await registry(t)
  const corral = await startTestCorral({ plugins: [hub], config: `oci-hub: { address: '${address}', owner: library }` })
  t.teardown(() => corral.close())
  const pull = (model: string) => corral.json('/api/pull', { model, stream: false })
  t.match(await pull('oci:ai/deep/er:3B-Q8_0'), { status: 200, body: { status: 'success' } })
  t.equal(seen.filter(line => line.endsWith('/token')).length, 1, 'one token serves the whole pull')
  const messages = [{ role: 'user', content: 'hello from the registry' }]
  const answer = await corral.json('/v1/chat/completions', { model: 'ai/deep-er', messages })
  t.equal(answer.body.choices[0].message.content, 'hello from the registry')

  t.match(await pull('oci:tiny:1b'), { status: 200, body: { status: 'success' } })
  const { models } = (await corral.json('/api/tags')).body
  t.match(models.map(({ model }: { model: string }) => model).sort(), [
    'ai/deep-er',
    'corral/tiny-chat',
    'library/tiny'
  ])

  t.match(await pull('oci:ai/missing'), { status: 404, body: { code: 'repo_not_found' } })
  t.match(await pull('oci:ai/tiny:none'), { status: 404, body: { error: /no ai\/tiny \(manifests\/none\)/ } })
  t.match(await pull('oci:ai/secret'), { body: { code: 'hub_forbidden' } })
  for (const wrong of ['oci:', 'oci:ai/../x', 'oci:ai//x', 'oci:ai/x:bad tag']) {
    t.match(await pull(wrong), { status: 400 }, wrong)
  }
})

t.test('a plugin pulls a model from a hub and imports its file under another name', async t => {
  const { address } = await registry(t)
  const phases = new Set<string>()
  const puller = definePlugin({
    name: 'puller',
    api: 1,
    needs: ['downloads', 'storage'],
    setup: context => ({
      routes: async app => {
        app.post('/pull', async () => {
          const onProgress = ({ phase }: Progress) => void phases.add(phase)
          const stored = await context.service('downloads').pullModel('oci:ai/tiny', { onProgress })
          const again = await context.service('downloads').pullModel('oci:ai/tiny')
          const path = join(stored.directory, stored.files.find(({ role }) => role === 'model')!.path)
          const copy = await context.service('storage').import({ path, name: parseModelName('my/copy') })
          return { names: [stored, again, copy].map(({ publicName }) => publicName), files: stored.files }
        })
      }
    })
  })
  const corral = await startTestCorral({ plugins: [hub, puller], config: `oci-hub: { address: '${address}' }` })
  t.teardown(() => corral.close())
  t.match((await corral.json('/pull', {})).body, {
    names: ['ai/tiny', 'ai/tiny', 'my/copy'],
    files: [{ path: 'tiny-F16.gguf', role: 'model' }, { path: 'LICENSE' }]
  })
  t.ok(phases.has('downloading'))
})

t.test('the example hub fulfils the hub contract', async t => {
  const { address } = await registry(t)
  const options = { config: `oci-hub: { address: '${address}' }`, absent: 'ai/missing', gated: 'ai/secret' }
  await hubContract(hub, { id: 'ai/tiny', ...options })
})
