import { randomBytes } from 'node:crypto'
import { existsSync, lstatSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import t from 'tap'
import * as tar from 'tar'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import type { Release, ReleaseAsset } from '../../../core/system/release-server.ts'
import { cuda12 } from '../../../runtimes/llama-cpp/kinds/cuda.ts'
import { cpu } from '../../../runtimes/llama-cpp/kinds/index.ts'
import { findRelease, Releases, releaseSource } from '../../../runtimes/llama-cpp/sources/release.ts'
import { type ReleaseEmulator, type ReleaseFile, startReleaseServer } from '../../support/release-server.ts'
import { fakeServer, memoryLog, writePrograms } from './fake-build.ts'
import { machine, nvidia } from './ranking/machines.ts'

const CPU_NAME = 'llama-b10485-bin-ubuntu-x64.tar.gz'
const LINUX = machine([])
const asset = (name: string): ReleaseAsset => ({ name, browser_download_url: `https://example/${name}`, size: 1 })

t.test('the release source chooses a release', async t => {
  // A minus follows the name of a release without an archive for this machine.
  const release = (text: string, at: number): Release => {
    const tag_name = text.replace('-', '')
    const names = text === tag_name ? [`llama-${tag_name}-bin-ubuntu-x64.tar.gz`] : []
    return { tag_name, assets: [...(at === 0 && text.startsWith('v') ? ['nightly-tag.txt'] : []), ...names].map(asset) }
  }
  const serves = (assets: readonly ReleaseAsset[]) => assets.some(({ name }) => /-bin-ubuntu-x64\.tar\.gz$/.test(name))
  const server = (text: string, pointer = '', pageSize = 50) => {
    const releases = text.split(' ').map(release)
    const asked: string[] = []
    return {
      asked,
      latest: async () => releases[0],
      byTag: async (tag: string) => {
        asked.push(tag)
        const found = releases.find(({ tag_name }) => tag_name === tag)
        if (!found) throw new CorralError('runtime_not_found', `no ${tag}`)
        return found
      },
      recent: async (page: number) => {
        asked.push(`page ${page}`)
        return releases.slice((page - 1) * pageSize, page * pageSize)
      },
      text: async () => `${pointer}\n`
    }
  }
  const { signal } = new AbortController()
  const long = `v0.5.0- ${Array.from({ length: 180 }, (_, at) => `b${2000 - at}-`).join(' ')} b5`
  const table: [what: string, releases: string, pointer: string, chosen?: string, tag?: string, asked?: string[]][] = [
    ['the one that the stable release names', 'v0.5.0- b1001 b1000', 'b1000', 'b1000', 'latest', ['b1000']],
    ['by number, among those that have it', 'v0.5.0- b1001- b999 b1000', 'b1001', 'b1000'],
    ['v- and b-numbers are not compared', 'v0.5.0- v9.9.9 b7', '<html>', 'b7'],
    ['a kind that was absent for long', long, '', 'b5'],
    ['no archive at all', 'v0.5.0-', ''],
    ['the named release is gone', 'v0.5.0- b6', 'b1001', 'b6'],
    ['a stable one with archives, without redirects', 'v0.6.0 b9', 'b9', 'v0.6.0', 'latest', []],
    ['a stable one by name', 'v0.6.0 b9', 'b9', 'v0.6.0', 'v0.6.0'],
    ['no nightly release has it', 'v0.8.0- v0.6.0 v0.7.0', 'b1', 'v0.7.0'],
    ['the latest release has it', 'b3', '', 'b3'],
    ['the nightly release of a stable one by name', 'v0.5.0- b1000 b1001-', 'b1000', 'b1000', 'v0.5.0'],
    ['a release requested by name is never replaced', 'v0.5.0- b1000 b1001-', 'b1000', undefined, 'b1001']
  ]
  for (const [what, releases, pointer, chosen, tag = 'latest', asked] of table) {
    const from = server(releases, pointer)
    t.equal((await findRelease(from, tag, serves, signal))?.tag_name, chosen, what)
    if (asked) t.same(from.asked, asked, what)
  }
  const nightliesOnly = { ...server('b6'), latest: async () => undefined }
  t.equal((await findRelease(nightliesOnly, 'latest', serves, signal))?.tag_name, 'b6', 'there is no stable release')
})

/** Makes an archive like the real ones: one folder, programs and libraries side by side, links between libraries. */
async function makeArchive(t: Test, change: (inner: string) => void = () => {}, options = {}): Promise<Buffer> {
  const folder = t.testdir()
  const inner = writePrograms(join(folder, 'llama-b10485'), {
    'llama-server': fakeServer(),
    'llama-quantize': '#!/bin/sh\n'
  })
  writeFileSync(join(inner, 'libllama.so.0.5.0'), 'library')
  symlinkSync('libllama.so.0.5.0', join(inner, 'libllama.so'))
  writeFileSync(join(inner, 'filler'), randomBytes(400_000))
  change(inner)
  await tar.c({ gzip: true, cwd: folder, file: join(folder, 'x.tgz'), ...options }, ['llama-b10485'])
  return readFileSync(join(folder, 'x.tgz'))
}

/** Makes the archive of libraries for a CUDA build, in a folder with another name. */
async function makeLibraries(t: Test): Promise<Buffer> {
  const folder = t.testdir({ 'cudart-x': { 'libcudart.so.12': 'runtime', LICENSE: 'of the libraries' } })
  await tar.c({ gzip: true, cwd: folder, file: join(folder, 'y.tgz') }, ['cudart-x'])
  return readFileSync(join(folder, 'y.tgz'))
}

interface Given {
  hardware?: typeof LINUX
  runtime?: typeof cpu
  options?: Partial<ConstructorParameters<typeof Releases>[0]>
  signal?: AbortSignal
}

/** Makes the source `release` provide a build, and records its progress. */
function from(url: string, directory: string, { hardware = LINUX, runtime = cpu, options = {}, signal }: Given = {}) {
  const settings = {
    api_url: url,
    download_url: '',
    repository: 'ggml-org/llama.cpp',
    tag: 'latest',
    connect_timeout: '3s',
    directory,
    log: memoryLog(),
    ...options
  }
  const releases = new Releases(settings)
  const source = releaseSource(releases, settings)
  const steps: Progress[] = []
  const reasons: string[] = []
  const request = {
    runtime,
    hardware,
    onProgress: (step: Progress) => void steps.push(step),
    explain: (reason: string) => void reasons.push(reason),
    ...(signal && { signal })
  }
  return { source, releases, steps, reasons, provide: () => source.provide(request) }
}

async function emulate(t: Test, files: ReleaseFile[]): Promise<ReleaseEmulator> {
  const server = await startReleaseServer(t)
  server.publish('b10485', files)
  return server
}

t.test('the release source finds, checks and unpacks a release', async t => {
  const archive = await makeArchive(t)
  const directory = join(t.testdir(), 'runtimes')
  const server = await emulate(t, [{ name: CPU_NAME, data: archive }])
  const { provide, steps, source } = from(server.url, directory)
  const candidate = (await provide())!
  t.match(candidate, {
    id: 'release-b10485-cpu',
    kind: 'cpu',
    runtime: 'cpu',
    source: 'release',
    directory: join(directory, 'release-b10485-cpu'),
    executables: { server: /llama-server$/, quantize: /llama-quantize$/ },
    origin: `${server.url}/ggml-org/llama.cpp/releases/download/b10485/${CPU_NAME}`
  })
  t.ok(lstatSync(join(candidate.directory, 'libllama.so')).isSymbolicLink(), 'links between libraries are preserved')
  t.equal(statSync(candidate.executables.server).mode & 0o111, 0o111)
  t.same(readdirSync(directory), ['release-b10485-cpu'], 'nothing else is left')
  const paths = server.requests.slice(0, 3).map(({ path }) => path)
  t.match(paths, [/latest$/, /nightly-tag\.txt$/, /nightly-tag\.txt\?/])
  const found = steps.findLast(({ phase }) => phase === 'downloading')
  t.match(found, { fraction: 1, completed: archive.length, total: archive.length })
  t.equal(source.wants!({ ...candidate, version: '', digest: '', devices: [] }), true)

  const pinned = from(server.url, directory, { options: { tag: 'b10485' } })
  t.equal((await pinned.provide())?.id, 'release-b10485-cpu', 'an explicit tag replaces the earlier folder')
  t.equal(pinned.source.wants!({ ...candidate, id: 'release-b1-cpu', version: '', digest: '', devices: [] }), false)
  const missing = from(server.url, directory, { options: { tag: 'b1' } })
  await t.rejects(missing.provide(), { code: 'runtime_not_found', message: /no release "b1" .*tags\/b1: status 404/ })

  const other = from(server.url, directory, { hardware: machine([], { arch: 'riscv64' }) })
  t.equal(await other.provide(), undefined)
  t.match(other.reasons, [/no archive of cpu for linux riscv64/])

  server.state.browserUrl = 'https://github.com'
  const mirrored = from(server.url, directory, { options: { download_url: `${server.url}/` } })
  t.match(await mirrored.provide(), { origin: `${server.url}/ggml-org/llama.cpp/releases/download/b10485/${CPU_NAME}` })
})

t.test('puts the libraries of a CUDA build into its folder', async t => {
  const archive = await makeArchive(t, inner => writeFileSync(join(inner, 'LICENSE'), 'of the build'))
  const libraries = await makeLibraries(t)
  const names = {
    archive: 'llama-b10485-bin-ubuntu-cuda-12.8-x64.tar.gz',
    libraries: 'cudart-llama-b10485-bin-ubuntu-cuda-12.8-x64.tar.gz'
  }
  const directory = join(t.testdir(), 'runtimes')
  const server = await emulate(t, [
    { name: names.archive, data: archive },
    { name: names.libraries, data: libraries },
    { name: CPU_NAME, data: archive }
  ])
  const card = nvidia('NVIDIA GeForce RTX 4070 Ti', '8.9', '550.127.05', '12.4')
  const { provide, steps } = from(server.url, directory, { runtime: cuda12, hardware: machine([card]) })
  const candidate = (await provide())!
  t.equal(candidate.id, 'release-b10485-cuda-12')
  t.equal(readFileSync(join(candidate.directory, 'libcudart.so.12'), 'utf8'), 'runtime')
  t.equal(readFileSync(join(candidate.directory, 'LICENSE'), 'utf8'), 'of the build', "the build's own files stay")
  const total = archive.length + libraries.length
  const found = steps.findLast(({ phase }) => phase === 'downloading')
  t.match(found, { completed: total, total }, 'bytes of both')

  server.break(names.libraries, { content: randomBytes(libraries.length) })
  const fresh = join(t.testdir(), 'runtimes')
  const broken = from(server.url, fresh, { runtime: cuda12, hardware: machine([card]) })
  await t.rejects(broken.provide(), { code: 'checksum_mismatch', message: new RegExp(names.libraries) })
  t.same(readdirSync(fresh), [], 'without its libraries there is no build')
})

t.test('the release source rejects defective archives', async t => {
  const archive = await makeArchive(t)
  const climbing = await makeArchive(t, () => {}, {
    onWriteEntry(entry: { path: string }) {
      if (entry.path.endsWith('llama-server')) entry.path = 'llama-b10485/../../evil'
    }
  })
  const cut = archive.subarray(0, archive.length - 500)
  const link = (target: string) => makeArchive(t, inner => symlinkSync(target, join(inner, 'l')))
  const cases: [string, Partial<ReleaseFile> & { served?: Buffer }, RegExp, string][] = [
    [
      'wrong digest',
      { digest: `sha256:${'0'.repeat(64)}` },
      /has the digest [0-9a-f]{64}, but 0{64} was announced/,
      'checksum_mismatch'
    ],
    ['other bytes', { served: randomBytes(archive.length) }, /has the digest/, 'checksum_mismatch'],
    ['no digest', { digest: null }, /has no SHA-256 digest/, 'checksum_mismatch'],
    ['more than announced', { size: 5 }, /more bytes than the 5 announced/, 'checksum_mismatch'],
    ['less than announced', { served: cut }, /has \d+ bytes, but \d+ were announced/, 'checksum_mismatch'],
    ['truncated archive', { data: cut }, /damaged.*(truncated|unexpected end|abort)/i, 'invalid_request'],
    ['not an archive', { data: Buffer.from('<html>') }, /damaged/, 'invalid_request'],
    ['climbing entry', { data: climbing }, /refused.*evil.* would lie outside/, 'invalid_request'],
    ['leaving link', { data: await link('../../../x') }, /refused.*the link/, 'invalid_request'],
    ['absolute link', { data: await link('/etc') }, /refused.*the link/, 'invalid_request'],
    ['nothing in it', { data: await makeLibraries(t) }, /it has no llama-server/, 'invalid_request']
  ]
  for (const [what, { served, ...file }, message, code] of cases) {
    const folder = t.testdir()
    const directory = join(folder, 'runtimes')
    const server = await emulate(t, [{ name: CPU_NAME, data: archive, ...file }])
    if (served) server.break(CPU_NAME, { content: served })
    await t.rejects(from(server.url, directory).provide(), { message, code }, what)
    t.same(existsSync(directory) ? readdirSync(directory) : [], [], `${what}: nothing is left`)
    const files = readdirSync(folder).filter(name => name !== 'runtimes')
    t.same(files, [], `${what}: nothing is beside`)
  }
})

t.test('the release source resumes interrupted transfers', async t => {
  const archive = await makeArchive(t)
  const server = await emulate(t, [{ name: CPU_NAME, data: archive }])
  const toBytes = () => server.requests.filter(({ path }) => path.startsWith('/storage') && path.includes(CPU_NAME))
  const attempt = async (options = {}) => {
    const directory = join(t.testdir(), 'runtimes')
    server.requests.length = 0
    const { provide, steps } = from(server.url, directory, { options })
    const id = (await provide())?.id
    return { id, steps, requests: toBytes() }
  }

  server.break(CPU_NAME, { cutAfter: 150_000, times: 2 })
  const resumed = await attempt()
  t.equal(resumed.id, 'release-b10485-cpu')
  t.equal(resumed.requests.length, 3)
  t.match(resumed.requests[2], { range: /^bytes=[1-9]\d*-$/, ifRange: /^"[0-9a-f]{16}"$/, status: 206 })
  const sent = resumed.requests.reduce((sum, { bytes }) => sum + bytes, 0)
  t.ok(sent < archive.length * 1.5, 'received bytes are not fetched again')

  server.break(CPU_NAME, { cutAfter: 150_000, ignoreRange: true, times: 2 })
  t.equal((await attempt()).id, 'release-b10485-cpu', 'a server without ranges')

  server.break(CPU_NAME, { cutAfter: 150_000, content: randomBytes(archive.length), times: 1 })
  const changed = await attempt()
  t.equal(changed.id, 'release-b10485-cpu', 'a changed file starts over')
  t.match(changed.requests.at(-1), { status: 200 })

  server.break(CPU_NAME, { stallAfter: 150_000, times: 1 })
  t.equal((await attempt({ stallTimeout: 500 })).id, 'release-b10485-cpu', 'a stalled transfer is resumed')

  server.break(CPU_NAME, { status: 503, times: 1 })
  t.equal((await attempt()).id, 'release-b10485-cpu')

  server.break(CPU_NAME, { cutAfter: 1000 })
  const directory = join(t.testdir(), 'runtimes')
  await t.rejects(from(server.url, directory).provide(), {
    code: 'hub_unreachable',
    message: /stopped after \d+ of \d+ bytes|other side closed/
  })
  t.same(readdirSync(directory), [])
  server.break(CPU_NAME, { status: 404 })
  server.requests.length = 0
  await t.rejects(from(server.url, directory).provide(), { code: 'hub_unreachable', message: /status 404/ })
  t.equal(toBytes().length, 1, 'a missing file is not requested again')
})

t.test('the release source reports unreachable servers', async t => {
  const directory = join(t.testdir(), 'runtimes')
  const server = await emulate(t, [])
  const reset = String(Math.floor(Date.now() / 1000) + 1800)
  const limit = { 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': reset }
  const answers: [what: string, status: number, body: string, code: string, message: RegExp, headers?: object][] = [
    ['another API', 200, '"hello"', 'hub_unreachable', /does not answer as GitHub's API/],
    ['a web page', 200, '<html>', 'hub_unreachable', /did not answer as GitHub's API does/],
    ['a failure', 500, 'oops', 'hub_unreachable', /status 500/],
    ['too many requests', 403, '{}', 'hub_rate_limited', /status 403 \(too many requests.*30 min/, limit]
  ]
  for (const [what, status, body, code, message, headers] of answers) {
    server.state.instead = (_, response) => {
      response.writeHead(status, { ...headers }).end(body)
      return true
    }
    await t.rejects(from(server.url, directory).provide(), { code, message }, what)
    t.match(await from(server.url, directory).releases.listing(), { list: 'snapshot' }, 'the ranking still has a list')
  }

  server.state.instead = () => true
  const abort = new AbortController()
  const reason = new Error('enough')
  setTimeout(() => abort.abort(reason), 100)
  t.equal(
    await from(server.url, directory, { signal: abort.signal })
      .provide()
      .catch(error => error),
    reason
  )

  const closed = createTcpServer()
  await new Promise<void>(resolve => closed.listen(0, '127.0.0.1', resolve))
  const { port } = closed.address() as AddressInfo
  await new Promise(resolve => closed.close(resolve))
  const unreachable = { code: 'hub_unreachable' }
  await t.rejects(from(`http://127.0.0.1:${port}`, directory).provide(), { ...unreachable, message: /ECONNREFUSED/ })
  await t.rejects(from('http://nowhere.invalid', directory).provide(), { ...unreachable, message: /nowhere\.invalid/ })
  t.notOk(existsSync(directory), 'nothing was started')
})

t.test('the release source caches the file list for the ranking', async t => {
  const server = await emulate(t, [{ name: CPU_NAME, data: Buffer.from('x') }])
  const { releases } = from(server.url, t.testdir())
  const [first, second] = await Promise.all([releases.listing(), releases.listing()])
  t.match(first, { tag: 'b10485', list: 'live', names: [CPU_NAME] })
  t.equal(second, first)
  const count = server.requests.length
  server.publish('b10486', [{ name: CPU_NAME.replace('b10485', 'b10486'), data: Buffer.from('x') }])
  t.equal((await releases.listing()).tag, 'b10485', 'cached for a while')
  t.equal(server.requests.length, count)
  t.equal((await releases.find(cpu, LINUX))?.tag, 'b10486', 'a download uses a fresh list')
})
