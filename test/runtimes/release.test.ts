import { createHash, randomBytes } from 'node:crypto'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync
} from 'node:fs'
import { createServer, type RequestListener } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import * as tar from 'tar'
import type { Progress } from '../../core/progress.ts'
import { prove } from '../../runtimes/prove.ts'
import { createProof, type StartEngine } from '../../runtimes/prove-by-answer.ts'
import { createRuntimes } from '../../runtimes/runtimes-service.ts'
import { releaseSource } from '../../runtimes/sources/release.ts'
import { chooseAsset, newestComplete, type ReleaseAsset, sha256Of } from '../../runtimes/sources/release-assets.ts'
import { dangerOf, unpackArchive } from '../../runtimes/sources/unpack-archive.ts'
import { fakeServer, memoryLog, noConverter, writePrograms } from './fake-build.ts'

const PLATFORM = { platform: 'linux', arch: 'x64' } as const
const sha256 = (data: Buffer) => createHash('sha256').update(data).digest('hex')

/** The names of a real listing (b11347). */
const NAMES = [
  'cudart-llama-b11347-bin-ubuntu-cuda-12.8-x64.tar.gz',
  'cudart-llama-bin-win-cuda-12.4-x64.zip',
  'llama-b11347-bin-android-arm64.tar.gz',
  'llama-b11347-bin-macos-arm64.tar.gz',
  'llama-b11347-bin-macos-x64.tar.gz',
  'llama-b11347-bin-ubuntu-arm64.tar.gz',
  'llama-b11347-bin-ubuntu-cuda-12.8-x64.tar.gz',
  'llama-b11347-bin-ubuntu-openvino-2026.4-x64.tar.gz',
  'llama-b11347-bin-ubuntu-rocm-10.0-x64.tar.gz',
  'llama-b11347-bin-ubuntu-s390x.tar.gz',
  'llama-b11347-bin-ubuntu-sycl-fp16-x64.tar.gz',
  'llama-b11347-bin-ubuntu-vulkan-arm64.tar.gz',
  'llama-b11347-bin-ubuntu-vulkan-x64.tar.gz',
  'llama-b11347-bin-ubuntu-x64.tar.gz',
  'llama-b11347-bin-win-cpu-arm64.zip',
  'llama-b11347-bin-win-cpu-x64.zip',
  'llama-b11347-bin-win-cuda-13.4-x64.zip',
  'llama-b11347-bin-win-vulkan-x64.zip',
  'llama-b11347-ui.tar.gz',
  'llama-b11347-xcframework.zip'
]
const asset = (name: string): ReleaseAsset => ({ name, browser_download_url: `https://example/${name}`, size: 1 })

t.test('which archive is for which machine', async t => {
  const cases: [NodeJS.Platform, string, string | undefined, string?][] = [
    ['linux', 'x64', 'llama-b11347-bin-ubuntu-x64.tar.gz', 'cpu'],
    ['linux', 'arm64', 'llama-b11347-bin-ubuntu-arm64.tar.gz', 'cpu'],
    ['linux', 's390x', 'llama-b11347-bin-ubuntu-s390x.tar.gz', 'cpu'],
    ['darwin', 'arm64', 'llama-b11347-bin-macos-arm64.tar.gz', 'metal'],
    ['darwin', 'x64', 'llama-b11347-bin-macos-x64.tar.gz', 'cpu'],
    ['win32', 'x64', 'llama-b11347-bin-win-cpu-x64.zip', 'cpu'],
    ['win32', 'arm64', 'llama-b11347-bin-win-cpu-arm64.zip', 'cpu'],
    ['linux', 'riscv64', undefined],
    ['freebsd', 'x64', undefined]
  ]
  for (const [platform, arch, name, kind] of cases) {
    const chosen = chooseAsset(NAMES.map(asset), { platform, arch })
    t.equal(chosen?.asset.name, name, `${platform} ${arch}`)
    t.equal(chosen?.kind, kind)
  }
  t.equal(chooseAsset([asset('nightly-tag.txt')], PLATFORM), undefined)

  const release = (tag_name: string, ...names: string[]) => ({ tag_name, assets: names.map(asset) })
  const releases = [
    release('v0.5.0', 'nightly-tag.txt'),
    release('b999', 'llama-b999-bin-ubuntu-x64.tar.gz'),
    release('b1002', 'llama-b1002-bin-macos-x64.tar.gz'),
    release('b1001', 'llama-b1001-bin-ubuntu-x64.tar.gz')
  ]
  t.equal(newestComplete(releases, PLATFORM)?.tag_name, 'b1001', 'the newest one is still uploading')
  t.equal(newestComplete([], PLATFORM), undefined)
  t.equal(sha256Of({ ...asset('x'), digest: `sha256:${'A'.repeat(64)}` }), 'a'.repeat(64))
  for (const digest of [undefined, null, 'md5:abc', 'sha256:abc'])
    t.equal(sha256Of({ ...asset('x'), digest }), undefined)
})

t.test('which entries of an archive are refused', async t => {
  const cases: [string, string, string?, boolean?][] = [
    ['llama-b1/llama-server', 'File'],
    ['llama-b1/', 'Directory'],
    ['llama-b1/libllama.so', 'SymbolicLink', 'libllama.so.0'],
    ['a/b/link', 'SymbolicLink', '../c'],
    ['a/hard', 'Link', 'a/file'],
    ['../evil', 'File', undefined, true],
    ['a/../../evil', 'File', undefined, true],
    ['/etc/passwd', 'File', undefined, true],
    ['C:\\evil', 'File', undefined, true],
    ['a\\..\\..\\evil', 'File', undefined, true],
    ['a/link', 'SymbolicLink', '/etc/passwd', true],
    ['a/link', 'SymbolicLink', '../../evil', true],
    ['link', 'SymbolicLink', '..', true],
    ['link', 'SymbolicLink', 'a/../../x', true],
    ['hard', 'Link', '../evil', true],
    ['device', 'CharacterDevice', undefined, true],
    ['pipe', 'FIFO', undefined, true]
  ]
  for (const [path, type, linkpath, refused = false] of cases) {
    t.equal(dangerOf({ path, type, linkpath }) !== undefined, refused, `${path} ${type} ${linkpath ?? ''}`)
  }
})

/** An archive as the real ones are: one folder, programs and libraries side by side, links between libraries. */
async function makeArchive(
  t: Test,
  server = fakeServer(),
  name = 'llama-b10485-bin-ubuntu-x64.tar.gz'
): Promise<Buffer> {
  const folder = t.testdir()
  const inner = writePrograms(join(folder, 'llama-b10485'), { 'llama-server': server, 'llama-quantize': '#!/bin/sh\n' })
  writeFileSync(join(inner, 'libllama.so.0.5.0'), 'library')
  symlinkSync('libllama.so.0.5.0', join(inner, 'libllama.so'))
  writeFileSync(join(inner, 'filler'), randomBytes(200_000))
  await tar.c({ gzip: true, cwd: folder, file: join(folder, name) }, ['llama-b10485'])
  return readFileSync(join(folder, name))
}

interface Emulated {
  archive: Buffer
  /** What is announced, where it differs. */
  digest?: string | null
  size?: number
  /** How many bytes are sent before the connection breaks. */
  cutAt?: number
  /** Answers in the place of the server. */
  instead?: RequestListener
  /** The stable release names no nightly. */
  withoutPointer?: boolean
}

/** A server with GitHub's API and files, behind the redirection that GitHub makes. */
async function emulate(t: Test, emulated: Emulated): Promise<{ url: string; paths: string[] }> {
  const paths: string[] = []
  const name = 'llama-b10485-bin-ubuntu-x64.tar.gz'
  const server = createServer((request, response) => {
    const path = request.url!
    paths.push(path)
    if (emulated.instead) return emulated.instead(request, response)
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const json = (value: unknown) => response.setHeader('content-type', 'application/json').end(JSON.stringify(value))
    const file = (name: string, tag: string, data: Buffer) => ({
      name,
      browser_download_url: `https://github.com/ggml-org/llama.cpp/releases/download/${tag}/${name}`,
      size: emulated.size ?? data.length,
      digest: emulated.digest === undefined ? `sha256:${sha256(data)}` : emulated.digest
    })
    const pointer = Buffer.from('b10485\n')
    const nightly = { tag_name: 'b10485', prerelease: true, assets: [file(name, 'b10485', emulated.archive)] }
    const api = '/repos/ggml-org/llama.cpp/releases'
    if (path === `${api}/latest`) {
      const assets = emulated.withoutPointer ? [] : [file('nightly-tag.txt', 'v0.5.0', pointer)]
      return json({ tag_name: 'v0.5.0', assets })
    }
    if (path === `${api}/tags/b10485`) return json(nightly)
    if (path.startsWith(`${api}?`)) return json([{ tag_name: 'v0.5.0', assets: [] }, nightly])
    const files = '/ggml-org/llama.cpp/releases/download'
    if (path === `${files}/v0.5.0/nightly-tag.txt`) return response.end(pointer)
    if (path === `${files}/b10485/${name}`) {
      return response.writeHead(302, { location: `${url}/storage/archive?signature=x` }).end()
    }
    if (path.startsWith('/storage/archive')) {
      response.writeHead(200, { 'content-length': emulated.archive.length })
      if (emulated.cutAt === undefined) return response.end(emulated.archive)
      return response.write(emulated.archive.subarray(0, emulated.cutAt), () => response.destroy())
    }
    return response.writeHead(404).end('{}')
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, paths }
}

function provideFrom(url: string, directory: string, more: Partial<Parameters<typeof releaseSource>[0]> = {}) {
  const steps: Progress[] = []
  const reasons: string[] = []
  const source = releaseSource({
    apiUrl: url,
    downloadUrl: url,
    repository: 'ggml-org/llama.cpp',
    tag: 'latest',
    connectTimeout: 3000,
    directory,
    platform: PLATFORM,
    ...more
  })
  const provide = () =>
    source.provide({ onProgress: step => steps.push(step), explain: reason => reasons.push(reason) })
  return { source, steps, reasons, provide }
}

t.test('a release is found, checked, unpacked', async t => {
  const archive = await makeArchive(t)
  const directory = join(t.testdir(), 'runtimes')
  const { url, paths } = await emulate(t, { archive })
  const { provide, steps } = provideFrom(url, directory)
  const candidate = (await provide())!
  t.match(candidate, {
    id: 'release-b10485-cpu',
    kind: 'cpu',
    directory: join(directory, 'release-b10485-cpu'),
    executables: { server: /llama-server$/, quantize: /llama-quantize$/ },
    origin: `${url}/ggml-org/llama.cpp/releases/download/b10485/llama-b10485-bin-ubuntu-x64.tar.gz`
  })
  t.ok(lstatSync(join(candidate.directory, 'libllama.so')).isSymbolicLink(), 'links between libraries are kept')
  t.equal(statSync(candidate.executables.server).mode & 0o111, 0o111)
  t.match(await prove(candidate), { version: /0\.5\.0/ })
  t.same(readdirSync(directory), ['release-b10485-cpu'], 'nothing else is left')
  t.match(paths.slice(0, 3), [/latest$/, /nightly-tag\.txt$/, /tags\/b10485$/])
  t.match(steps.at(-2), { phase: 'downloading', fraction: 1, completed: archive.length, total: archive.length })

  const pinned = provideFrom(url, directory, { tag: 'b10485' })
  t.equal((await pinned.provide())?.id, 'release-b10485-cpu', 'a tag of its own; the earlier folder is replaced')
  const missing = provideFrom(url, directory, { tag: 'b1' })
  await t.rejects(missing.provide(), /tags\/b1: status 404/)

  const other = provideFrom(url, directory, { platform: { platform: 'linux', arch: 'riscv64' } })
  t.equal(await other.provide(), undefined)
  t.match(other.reasons, [/no archive for linux riscv64/])

  const scanned = await emulate(t, { archive, withoutPointer: true })
  t.equal((await provideFrom(scanned.url, directory).provide())?.id, 'release-b10485-cpu', 'found in the list')
})

t.test('what is wrong with an archive', async t => {
  const archive = await makeArchive(t)
  const wrap = async (change: (folder: string) => void, options = {}) => {
    const folder = t.testdir()
    const inner = writePrograms(join(folder, 'llama-b10485'), { 'llama-server': fakeServer() })
    change(inner)
    await tar.c({ gzip: true, cwd: folder, file: join(folder, 'x.tgz'), ...options }, ['llama-b10485'])
    return readFileSync(join(folder, 'x.tgz'))
  }
  const climbing = await wrap(() => {}, {
    onWriteEntry(entry: { path: string }) {
      if (entry.path.endsWith('llama-server')) entry.path = 'llama-b10485/../../evil'
    }
  })
  const cases: [string, Emulated, RegExp][] = [
    [
      'wrong digest',
      { archive, digest: `sha256:${'0'.repeat(64)}` },
      /has the digest [0-9a-f]{64}, 0{64} was announced/
    ],
    ['no digest', { archive, digest: null }, /has no SHA-256 digest/],
    ['wrong size', { archive, size: 5 }, /bytes, 5 were announced/],
    ['connection cut', { archive, cutAt: 10_000 }, /broke off after \d+ bytes/],
    ['archive cut short', { archive: archive.subarray(0, archive.length - 500) }, /truncated|unexpected end|ABORT/i],
    ['no archive at all', { archive: Buffer.from('<html>') }, /./],
    ['climbing entry', { archive: climbing }, /refused: .*evil.* would lie outside/],
    ['leaving link', { archive: await wrap(dir => symlinkSync('../../../x', join(dir, 'l'))) }, /refused: the link/],
    ['absolute link', { archive: await wrap(dir => symlinkSync('/etc', join(dir, 'l'))) }, /refused: the link/],
    [
      'another API',
      { archive, instead: (_, response) => response.end('"hello"') },
      /does not answer as GitHub's API for releases does/
    ],
    ['a web page', { archive, instead: (_, response) => response.end('<html>') }, /no answer of GitHub's API/],
    ['rate limit', { archive, instead: (_, response) => response.writeHead(403).end() }, /status 403 \(too many/]
  ]
  for (const [what, emulated, expected] of cases) {
    const folder = t.testdir()
    const directory = join(folder, 'runtimes')
    const { url } = await emulate(t, emulated)
    await t.rejects(provideFrom(url, directory).provide(), { message: expected }, what)
    t.same(existsSync(directory) ? readdirSync(directory) : [], [], `${what}: nothing is left`)
    t.same(
      readdirSync(folder).filter(name => name !== 'runtimes'),
      [],
      `${what}: nothing is beside`
    )
  }
})

t.test('an unreachable server', async t => {
  const directory = t.testdir()
  const closed = createTcpServer()
  await new Promise<void>(resolve => closed.listen(0, '127.0.0.1', resolve))
  const { port } = closed.address() as AddressInfo
  await new Promise(resolve => closed.close(resolve))
  await t.rejects(provideFrom(`http://127.0.0.1:${port}`, directory).provide(), /ECONNREFUSED/)
  // An address that routers drop.
  const dropped = provideFrom('http://192.0.2.1', directory, { connectTimeout: 200 })
  await t.rejects(dropped.provide(), /Connect Timeout|ENETUNREACH|EHOSTUNREACH|ECONNREFUSED|timeout/i)
  await t.rejects(provideFrom('http://nowhere.invalid', directory).provide(), /nowhere\.invalid/)
})

t.test('a call off ends the download', async t => {
  const directory = join(t.testdir(), 'runtimes')
  const { url } = await emulate(t, { archive: await makeArchive(t), instead: () => {} })
  const abort = new AbortController()
  const source = provideFrom(url, directory, { tag: 'b1' }).source
  const provided = source.provide({ signal: abort.signal, explain() {} })
  const reason = new Error('enough')
  setTimeout(() => abort.abort(reason), 100)
  t.equal(await provided.catch(error => error), reason)
})

t.test('a binary for a newer system gives way to the next source', async t => {
  const directory = join(t.testdir(), 'runtimes')
  const tooNew = '#!/bin/sh\necho "version GLIBC_2.39 not found" >&2\nexit 1\n'
  const { url } = await emulate(t, { archive: await makeArchive(t, tooNew) })
  const { source } = provideFrom(url, directory)
  const log = memoryLog()
  const startEngine: StartEngine = async () => {
    throw new Error('no engine is started here')
  }
  const prove = createProof(startEngine, log)
  const runtimes = createRuntimes({ sources: [source], directory, log, startEngine, prove, findConverter: noConverter })
  await t.rejects(runtimes.build(), { code: 'runtime_missing', message: /GLIBC_2\.39 not found/ })
  t.same(readdirSync(directory), [], 'and is removed')
})

t.test('zip archives', async t => {
  const folder = t.testdir()
  const inner = join(folder, 'out')
  mkdirSync(inner)
  // A zip with one stored entry, as Windows' archives are: no folder around the files.
  const zip = (name: string, data: string, attributes = 0) => {
    const [file, body] = [Buffer.from(name), Buffer.from(data)]
    const crc = crc32(body)
    const local = Buffer.alloc(30)
    local.writeUInt32LE(0x04034b50, 0)
    local.writeUInt16LE(20, 4)
    local.writeUInt32LE(crc, 14)
    local.writeUInt32LE(body.length, 18)
    local.writeUInt32LE(body.length, 22)
    local.writeUInt16LE(file.length, 26)
    const central = Buffer.alloc(46)
    central.writeUInt32LE(0x02014b50, 0)
    central.writeUInt16LE((3 << 8) | 20, 4)
    central.writeUInt16LE(20, 6)
    central.writeUInt32LE(crc, 16)
    central.writeUInt32LE(body.length, 20)
    central.writeUInt32LE(body.length, 24)
    central.writeUInt16LE(file.length, 28)
    central.writeUInt32LE((attributes << 16) >>> 0, 38)
    const end = Buffer.alloc(22)
    end.writeUInt32LE(0x06054b50, 0)
    end.writeUInt16LE(1, 8)
    end.writeUInt16LE(1, 10)
    end.writeUInt32LE(46 + file.length, 12)
    end.writeUInt32LE(30 + file.length + body.length, 16)
    return Buffer.concat([local, file, body, central, file, end])
  }
  const unpack = (data: Buffer) => {
    writeFileSync(join(folder, 'x.zip'), data)
    return unpackArchive(join(folder, 'x.zip'), inner)
  }
  await unpack(zip('bin/llama-server', 'program', 0o100755))
  t.equal(readFileSync(join(inner, 'bin/llama-server'), 'utf8'), 'program')
  t.equal(statSync(join(inner, 'bin/llama-server')).mode & 0o111, 0o111)
  await t.rejects(unpack(zip('../evil', 'x')), /invalid relative path|refused/)
  await t.rejects(unpack(zip('/evil', 'x')), /absolute path|refused/)
  await t.rejects(unpack(zip('link', '/etc/passwd', 0o120777)), /"link" is a link/)
  t.notOk(existsSync(join(folder, 'evil')))
  await t.rejects(unpack(zip('a', 'x').subarray(0, 40)), /./, 'cut short')
})

function crc32(data: Buffer): number {
  let crc = ~0
  for (const byte of data) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0)
  }
  return ~crc >>> 0
}
