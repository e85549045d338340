import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import { type AddressInfo, type Server, Socket } from 'node:net'
import type { Hub, HubFile, HubRepository } from '../core/contracts/hubs.ts'
import { parsePullReference } from '../plugins/models/download/choice/pull-reference.ts'
import { type Steps, shown } from './steps.ts'

/** Files up to this size are compared with their digests, and at most this many are checked. */
const MAX_DIGEST_BYTES = 4 * 1024 * 1024
const MAX_FILES = 8
/** More files than a listing may have: corral refuses it, and its checks would take too long. */
const MAX_LISTED = 100_000
/** How many search results the contract asks for. */
const MAX_FOUND = 5

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

/** What a failure of a hub tells, whatever it threw. */
function reasonOf(thrown: unknown): { name?: string; code?: string; message: string } {
  if (!(thrown instanceof Error)) return { message: shown(thrown) }
  const { name, code, message } = thrown as Error & { code?: string }
  return { name, message, ...(code !== undefined && { code }) }
}

/** Calls a hub. @returns the result, and whether it used the network */
async function called<Result>(network: Network, work: () => Promise<Result>) {
  // Pooled connections would bypass the network of this call.
  if (network !== 'open') await closeAll()
  const seen = { network, connections: 0 }
  const outcome = await networks.run(seen, () =>
    (async () => work())().then(
      value => ({ value, error: undefined }),
      (thrown: unknown) => ({ value: undefined, error: { ...reasonOf(thrown), thrown } })
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
  assert.ok(typeof hub.title === 'string' && hub.title !== '', 'a hub has a human-readable title')
  assert.ok(Array.isArray(hub.prefixes) && hub.prefixes.length > 0, 'a hub has a prefix such as "folder:"')
  for (const prefix of hub.prefixes) assert.match(prefix, /[:/]$/, `the prefix "${prefix}" ends in its separator`)
  await withNetworks(async () => {
    const list = async (id: string) => {
      const { value, error } = await steps.run(`repository of ${id}`, () =>
        called('open', () => hub.repository({ id }, {}))
      )
      if (error) throw steps.failure(`repository of ${id}`, error.thrown)
      return value!
    }
    const repository = await list(known.id)
    checkListing(hub, repository)
    const named = checkNames(hub, known)
    const { revision } = named === known.id ? repository : await list(named)
    assert.equal(revision, repository.revision, `names like "${known.id}" are read as "${named}", another model`)
    assert.equal((await list(known.id)).revision, repository.revision, 'the same content has the same revision')
    await checkFiles(steps, hub, repository)
    if (hub.search) await checkSearch(steps, hub, known.id)
    await checkRefusals(steps, hub, known)
  })
}

/**
 * Checks that users can name the model that exists, and that no other name means it.
 * @returns the hub's id of the model
 */
function checkNames(hub: Hub, { id, absent }: { id: string; absent: string }): string {
  const named = (name: string) => {
    const isWhole = hub.prefixes.some(prefix => name.startsWith(prefix))
    return parsePullReference(isWhole ? name : hub.prefixes[0] + name, [hub]).id
  }
  const kind = hub.parse ? '"parse" reads' : 'the hub needs "parse", because its names are not owner/name:'
  let found = ''
  assert.doesNotThrow(() => {
    found = named(id)
  }, `${kind} the name "${id}"`)
  if (!hub.parse) return found
  for (const text of [absent, '', ' ', '/', 'a', `${id}//..`, '../../etc/passwd']) {
    let parsed: ReturnType<NonNullable<Hub['parse']>>
    assert.doesNotThrow(() => {
      parsed = hub.parse!(text)
    }, `"parse" does not throw for "${text}": it returns undefined for what is not a name`)
    if (parsed === undefined) continue
    assert.ok(parsed.id !== found, `"parse" reads "${text}" as the model "${id}"`)
    if (text === absent)
      assert.doesNotThrow(() => named(text), `"parse" returns a name such as owner/name for "${text}"`)
  }
  return found
}

/** Checks what a search returns, and that it ends. */
async function checkSearch(steps: Steps, hub: Hub, id: string): Promise<void> {
  const words = id.split(/[^A-Za-z0-9]+/).findLast(Boolean) ?? 'model'
  const { value, error } = await steps.run('search', () => called('open', () => hub.search!(words, MAX_FOUND, {})))
  if (error) throw steps.failure('search', error.thrown)
  assert.ok(Array.isArray(value), `search returns a list, not ${shown(value)}`)
  assert.ok(
    value.length <= MAX_FOUND,
    `search returns at most ${MAX_FOUND} models if asked for them, not ${value.length}`
  )
  for (const match of value) {
    const { id: found, tasks, formats, gated } = match ?? {}
    const isWhole = typeof found === 'string' && Array.isArray(tasks) && Array.isArray(formats)
    assert.ok(isWhole && typeof gated === 'boolean', `a match has id, tasks, formats and gated: ${shown(match)}`)
  }
}

function checkListing(hub: Hub, repository: HubRepository): void {
  assert.ok(repository instanceof Object, `repository returns an object, not ${shown(repository)}`)
  assert.equal(repository.hub, hub.name, 'a repository names its hub')
  const { revision, address, files } = repository
  assert.ok(typeof revision === 'string' && revision !== '', 'a repository has a revision that identifies its content')
  const hasAddress = typeof address === 'string' && address !== ''
  assert.ok(hasAddress, `a repository has the address of its page, not ${shown(address)}`)
  const { username = '', password = '' } = URL.canParse(address) ? new URL(address) : {}
  assert.ok(username + password === '', 'the address of a repository has no credentials, because it is stored')
  assert.equal(typeof repository.gated, 'boolean', 'a repository says whether it is "gated"')
  assert.ok(Array.isArray(files) && files.length > 0, 'a repository lists its files')
  assert.ok(files.length <= MAX_LISTED, `a repository lists at most ${MAX_LISTED} files, not ${files.length}`)
  const paths = new Set<string>()
  for (const file of files) {
    const { path, size, sha256, gitSha1 } = file ?? {}
    assert.ok(typeof path === 'string' && path !== '', `a file has a path: ${shown(file)}`)
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
  // Absent and undefined are the same.
  const isGiven = (value: unknown) => value !== undefined
  const plain = { ...withOnly(repository, isGiven), files: files.map(file => withOnly(file, isGiven)) }
  assert.deepEqual(JSON.parse(JSON.stringify(repository)), plain, 'a repository is plain data')
}

const withOnly = (object: object, test: (value: unknown) => boolean) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => test(value)))

async function checkFiles(steps: Steps, hub: Hub, repository: HubRepository): Promise<void> {
  const places = new Map<string, HubFile>()
  for (const file of repository.files.slice(0, MAX_FILES)) {
    const { path } = file
    const { signal } = new AbortController()
    const found = await steps.run(`locate ${path}`, () => called('open', () => hub.locate(repository, file, signal)))
    if (found.error) throw steps.failure(`locate ${path}`, found.error.thrown)
    const { url, headers, size: located, sha256: locatedDigest } = found.value ?? {}
    const isPlace = typeof url === 'string' && URL.canParse(url)
    assert.ok(isPlace, `locate returns { url, headers } with a whole address, not ${shown(found.value)}`)
    const isHeaders = headers instanceof Object && Object.values(headers).every(value => typeof value === 'string')
    assert.ok(isHeaders, `"headers" of the location of "${path}" are texts by name, {} for none: ${shown(headers)}`)
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
