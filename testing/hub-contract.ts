import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import { type AddressInfo, type Server, Socket } from 'node:net'
import type { Hub, HubFile, HubRepository } from '../core/contracts/hubs.ts'
import type { Steps } from './steps.ts'

/** Files up to this size are compared with their digests, and at most this many are checked. */
const MAX_DIGEST_BYTES = 4 * 1024 * 1024
const MAX_FILES = 8

/** How connections that a hub opens behave. */
type Network = 'open' | 'refused' | { port: number }

/** The network that one call of a hub sees. */
const networks = new AsyncLocalStorage<{ network: Network; connections: number }>()
const opened = new Set<Socket>()
const { connect } = Socket.prototype

/**
 * Runs calls of hubs with a network that can be made to fail: by refused connections, or by connections to a server of
 * the test.
 */
async function withNetworks<Result>(work: () => Promise<Result>): Promise<Result> {
  Socket.prototype.connect = function (this: Socket, ...values: unknown[]) {
    const seen = networks.getStore()
    if (!seen) return Reflect.apply(connect, this, values)
    seen.connections++
    opened.add(this)
    this.once('close', () => opened.delete(this))
    if (seen.network === 'open') return Reflect.apply(connect, this, values)
    if (seen.network === 'refused') {
      const refused = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED', syscall: 'connect' })
      process.nextTick(() => this.destroy(refused))
      return this
    }
    const whenConnected = values.flat().find(value => typeof value === 'function')
    return Reflect.apply(connect, this, [{ host: '127.0.0.1', port: seen.network.port }, whenConnected])
  } as typeof connect
  try {
    return await work()
  } finally {
    Socket.prototype.connect = connect
    for (const socket of opened) socket.destroy()
  }
}

/** Ends all connections, and waits until their users notice. */
async function closeAll(): Promise<void> {
  await Promise.all([...opened].map(socket => new Promise(resolve => socket.once('close', resolve).destroy())))
  await new Promise(setImmediate)
}

/** Calls a hub. @returns the result, and whether it used the network */
async function called<Result>(network: Network, work: () => Promise<Result>) {
  // Pooled connections would bypass the network of this call.
  if (network !== 'open') await closeAll()
  const seen = { network, connections: 0 }
  const outcome = await networks.run(seen, () =>
    work().then(
      value => ({ value, error: undefined }),
      (error: unknown) => ({ value: undefined, error: error as { name?: string; code?: string; message?: string } })
    )
  )
  return { ...outcome, usedNetwork: seen.connections > 0 }
}

async function withServer<Result>(server: Server, work: (port: number) => Promise<Result>): Promise<Result> {
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  try {
    return await work((server.address() as AddressInfo).port)
  } finally {
    server.close()
  }
}

/** Checks a hub: its listing, the locations of its files, and its errors. */
export async function checkHub(
  steps: Steps,
  hub: Hub,
  known: { id: string; absent: string; gated?: string | undefined }
): Promise<void> {
  assert.match(
    hub.name,
    /^[a-z][a-z0-9_-]*$/,
    'the name of a hub is recorded with each model: letters, digits, "-", "_"'
  )
  assert.ok(hub.title.length > 0, 'a hub has a human-readable title')
  assert.ok(hub.prefixes.length > 0, 'a hub has a prefix such as "folder:"')
  for (const prefix of hub.prefixes) assert.match(prefix, /[:/]$/, `the prefix "${prefix}" ends in its separator`)
  await withNetworks(async () => {
    const list = async (id: string) => {
      const { value, error } = await steps.run(`repository of ${id}`, () =>
        called('open', () => hub.repository({ id }, {}))
      )
      if (error) throw error
      return value!
    }
    const repository = await list(known.id)
    checkListing(hub, repository)
    assert.equal((await list(known.id)).revision, repository.revision, 'the same content has the same revision')
    await checkFiles(steps, hub, repository)
    await checkRefusals(steps, hub, known)
  })
}

function checkListing(hub: Hub, repository: HubRepository): void {
  assert.equal(repository.hub, hub.name, 'a repository names its hub')
  assert.ok(repository.revision.length > 0, 'a repository has a revision that identifies its content')
  assert.equal(typeof repository.gated, 'boolean', 'a repository says whether it is "gated"')
  assert.ok(repository.files.length > 0, 'a repository lists its files')
  assert.deepEqual(JSON.parse(JSON.stringify(repository)), repository, 'a repository is plain data')
  const paths = new Set<string>()
  for (const { path, size, sha256, gitSha1 } of repository.files) {
    assert.ok(!path.startsWith('/') && !path.split('/').includes('..'), `the path "${path}" is relative`)
    assert.ok(!paths.has(path), `the path "${path}" is listed twice`)
    paths.add(path)
    assert.ok(
      size === undefined || (Number.isSafeInteger(size) && size >= 0),
      `the size of "${path}" is a count of bytes`
    )
    if (sha256 !== undefined) assert.match(sha256, /^[0-9a-f]{64}$/, `the digest of "${path}" has 64 hex digits`)
    if (gitSha1 !== undefined) assert.match(gitSha1, /^[0-9a-f]{40}$/, `the git digest of "${path}" has 40 hex digits`)
  }
}

async function checkFiles(steps: Steps, hub: Hub, repository: HubRepository): Promise<void> {
  const places = new Map<string, HubFile>()
  for (const file of repository.files.slice(0, MAX_FILES)) {
    const { path } = file
    const { signal } = new AbortController()
    const found = await steps.run(`locate ${path}`, () => called('open', () => hub.locate(repository, file, signal)))
    if (found.error) throw found.error
    const { url, headers, size: located, sha256: locatedDigest } = found.value!
    assert.match(new URL(url).protocol, /^https?:$/, 'files are located at http or https addresses')
    const other = places.get(url)
    assert.ok(!other || other.sha256 !== undefined, `"${path}" and "${other?.path}" are located at the same address`)
    places.set(url, file)
    const get = (more: Record<string, string>) =>
      // Its connection is pooled, and must be recognized later.
      networks.run({ network: 'open', connections: 0 }, () =>
        steps.run(`GET ${path}`, () => fetch(url, { headers: { ...headers, ...more } }))
      )
    const reply = await get({ range: 'bytes=0-3' })
    assert.ok(reply.ok, `the address of "${path}" answers (${reply.status})`)
    const begin = Buffer.from(await steps.run(`the beginning of ${path}`, () => reply.arrayBuffer())).subarray(0, 4)
    const total = /\/(\d+)$/.exec(reply.headers.get('content-range') ?? '')?.[1] ?? reply.headers.get('content-length')
    const size = total === null || total === undefined ? undefined : Number(total)
    for (const [said, bytes] of Object.entries({ listed: file.size, located })) {
      if (bytes === undefined || size === undefined) continue
      assert.equal(bytes, size, `the size of "${path}" is ${said} as ${bytes} bytes, and its address has ${size}`)
    }
    if (/\.gguf$/i.test(path) && (size ?? 4) >= 4) {
      assert.equal(begin.toString('latin1'), 'GGUF', `"${path}" is located at something other than a GGUF file`)
    }
    const { sha256 = locatedDigest, gitSha1 } = file
    if ((sha256 ?? gitSha1) === undefined || (size ?? Number.POSITIVE_INFINITY) > MAX_DIGEST_BYTES) continue
    const whole = await get({})
    const bytes = Buffer.from(await steps.run(`the bytes of ${path}`, () => whole.arrayBuffer()))
    const digest = (kind: string, head: string) => createHash(kind).update(head).update(bytes).digest('hex')
    const wrong = `"${path}" is located at bytes with another digest than in the listing`
    if (sha256 !== undefined) assert.equal(digest('sha256', ''), sha256, wrong)
    if (gitSha1 !== undefined) assert.equal(digest('sha1', `blob ${bytes.length}\0`), gitSha1, wrong)
  }
}

async function checkRefusals(
  steps: Steps,
  hub: Hub,
  { id, absent, gated }: { id: string; absent: string; gated?: string | undefined }
): Promise<void> {
  const refused = async (what: string, code: string, network: Network, name: string, signal?: AbortSignal) => {
    const waiting = signal ? { signal } : {}
    const call = () => called(network, () => hub.repository({ id: name }, waiting))
    const { value, error, usedNetwork } = await steps.run(`repository of ${what}`, call)
    // A hub that does not use the network cannot fail because of it.
    if (network !== 'open' && !usedNetwork) return
    if (code === 'hub_forbidden' && value?.gated === true) return
    assert.ok(error, `repository of ${what} is refused`)
    const shown = error.code ?? error.message
    assert.ok(error.name === 'CorralError' && error.code === code, `${what} is reported as "${code}", not "${shown}"`)
  }
  await refused('a model that is absent', 'repo_not_found', 'open', absent)
  if (gated !== undefined) await refused('a gated model', 'hub_forbidden', 'open', gated)
  await refused('a model at an unreachable hub', 'hub_unreachable', 'refused', id)
  let isAsked = false
  const forbids = createServer((_, reply) => {
    isAsked = true
    reply.writeHead(403, { connection: 'close' }).end('{}')
  })
  // With TLS, a hub does not get as far as a request.
  const forbidden = (port: number) => refused('a model that the hub forbids', 'hub_forbidden', { port }, id)
  await withServer(forbids, port => forbidden(port).catch(error => isAsked && Promise.reject(error)))

  const gone = new Error('the client has disconnected')
  const before = await steps.run('repository with an aborted signal', () =>
    called('open', () => hub.repository({ id }, { signal: AbortSignal.abort(gone) }))
  )
  assert.ok(before.error, 'repository rejects if its signal is aborted')
  const silent = createServer(() => {})
  await withServer(silent, async port => {
    const controller = new AbortController()
    const call = () => called({ port }, () => hub.repository({ id }, { signal: controller.signal }))
    silent.once('request', () => controller.abort(gone))
    await steps.run('repository whose signal is aborted while it waits', call)
    silent.closeAllConnections()
  })
}
