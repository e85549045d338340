import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import t from 'tap'
import { getSha256, type ReleaseAsset } from '../../../core/system/release-server.ts'
import { findDanger, unpackArchive } from '../../../core/system/unpack.ts'
import { cuda12 } from '../../../runtimes/llama-cpp/kinds/cuda.ts'
import { builtInKinds } from '../../../runtimes/llama-cpp/kinds/index.ts'
import { byRelease, isNewerRelease, releaseTag } from '../../../runtimes/llama-cpp/kinds/scores.ts'
import { parseDigest, readArchiveName } from '../../../runtimes/llama-cpp/sources/archive.ts'
import { releaseId } from '../../../runtimes/llama-cpp/sources/release.ts'
import { readFixture } from '../../support/fixture.ts'

const asset = (name: string): ReleaseAsset => ({ name, browser_download_url: `https://example/${name}`, size: 1 })

type Entry = [path: string, type: string, link?: string]
const cases = readFixture<{
  newer: [offered: string, present: string | null, newer: boolean][]
  archives: Record<string, string>
  refused: Record<string, string>
  safe: Entry[]
  dangerous: Entry[]
}>('release-cases.yaml')

t.test('the archive reader reads release and kind from archive names', async t => {
  t.equal(releaseId('b11347', cuda12), 'release-b11347-cuda-12')
  t.equal(releaseTag('release-b11347-cuda-12'), 'b11347')
  t.equal(releaseTag('archive-b11347-cpu-1a2b3c4d'), 'b11347')
  for (const id of ['archive-renamed-cpu-1a2b3c4d', 'source-v0.5.0-cpu', 'system-1a2b3c4d'])
    t.equal(releaseTag(id), undefined)

  t.equal(releaseTag('release-v0.6.0-cuda-12'), 'v0.6.0')
  for (const [offered, present, newer] of cases.newer) {
    t.equal(isNewerRelease(offered, present ?? undefined), newer, `${offered} after ${present}`)
  }
  const tags = ['b9', undefined, 'v0.9.0', 'b100', 'v0.10.0']
  const order = ['v0.10.0', 'v0.9.0', 'b100', 'b9', undefined]
  for (const list of [tags, tags.toReversed()]) {
    // sort() itself moves undefined to the end.
    const sorted = list.map(tag => ({ tag })).sort((a, b) => byRelease(a.tag, b.tag))
    const tagsInOrder = sorted.map(({ tag }) => tag)
    t.same(tagsInOrder, order)
  }

  const linux = { platform: 'linux', arch: 'x64' }
  const read = (name: string, on = linux) => {
    const { tag, runtime } = readArchiveName(name, builtInKinds, on)
    return `${tag} ${runtime?.name}`
  }
  for (const [name, expected] of Object.entries(cases.archives)) t.equal(read(name), expected)
  t.equal(read('llama-b11347-bin-win-cuda-13.4-x64.zip', { platform: 'win32', arch: 'x64' }), 'b11347 cuda-13')
  for (const [name, text] of Object.entries(cases.refused)) {
    t.throws(() => read(name), { code: 'invalid_request', message: new RegExp(text) })
  }

  t.equal(parseDigest(`sha256:${'A'.repeat(64)}`), 'a'.repeat(64))
  t.equal(parseDigest(undefined), undefined)
  t.throws(() => parseDigest('abc'), { code: 'invalid_request', param: 'sha256' })
  t.equal(getSha256({ ...asset('x'), digest: `sha256:${'A'.repeat(64)}` }), 'a'.repeat(64))
  for (const digest of [undefined, null, 'md5:abc', 'sha256:abc']) {
    t.equal(getSha256({ ...asset('x'), digest }), undefined)
  }
})

t.test('the archive reader rejects dangerous archive entries', async t => {
  for (const list of ['safe', 'dangerous'] as const) {
    for (const [path, type, linkpath] of cases[list]) {
      const danger = findDanger({ path, type, linkpath })
      t.equal(danger === undefined ? 'safe' : 'dangerous', list, `${path} ${type} ${linkpath ?? ''}`)
    }
  }
})

t.test('the archive reader unpacks zip archives', async t => {
  const folder = t.testdir()
  const inner = join(folder, 'out')
  mkdirSync(inner)
  // Makes a zip with one stored entry and no folder around it, as Windows' archives are.
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
  await t.rejects(unpack(zip('a', 'x').subarray(0, 40)), /./, 'truncated')
})
