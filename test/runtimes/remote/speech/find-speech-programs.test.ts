import { chmodSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pino from 'pino'
import t, { type Test } from 'tap'
import * as tar from 'tar'
import type { Waiting } from '../../../../core/contracts/progress.ts'
import { type FindOptions, findServer } from '../../../../runtimes/remote/find-server.ts'
import { findPiper } from '../../../../runtimes/remote/speech/find-piper.ts'
import { sentences } from '../../../../runtimes/remote/speech/piper.ts'
import { soundLength } from '../../../../runtimes/remote/speech/sound-length.ts'
import { WHISPER } from '../../../../runtimes/remote/speech/whisper-program.ts'
import { wavBytes } from '../../../plugins/apis/openai/media/support.ts'
import { newFolder } from '../../../support/folder.ts'
import { type ReleaseEmulator, startReleaseServer } from '../../../support/release-server.ts'

const ARCHIVE = `whisper-bin-ubuntu-${process.arch}.tar.gz`
const onLinux = { skip: process.platform !== 'linux' && 'the archives are for Linux' }

const findWhisper = (options: FindOptions, waiting: Waiting) => findServer(WHISPER, options, waiting)

function finder(t: Test, { url }: ReleaseEmulator, named = '') {
  const directory = newFolder(t)
  // Without a compiler, so that only a release can be installed.
  const env = { PATH: newFolder(t) }
  const release = { release_api: url, release_mirror: url }
  return { named, release, packageIndex: '', directory, env, log: pino({ level: 'silent' }) }
}

/** A release's archive with a script instead of the server, which its library's link must lie beside. */
async function archiveOf(t: Test, script: string): Promise<Buffer> {
  const folder = newFolder(t)
  const inner = join(folder, 'whisper-bin-ubuntu-x64')
  mkdirSync(inner)
  writeFileSync(join(inner, 'whisper-server'), script)
  chmodSync(join(inner, 'whisper-server'), 0o755)
  writeFileSync(join(inner, 'libwhisper.so.1'), '')
  symlinkSync('libwhisper.so.1', join(inner, 'libwhisper.so'))
  await tar.c({ gzip: true, cwd: folder, file: join(folder, 'a.tgz') }, ['whisper-bin-ubuntu-x64'])
  return readFileSync(join(folder, 'a.tgz'))
}

t.test('the server of whisper.cpp is installed from a release', onLinux, async t => {
  const release = await startReleaseServer(t, 'ggml-org/whisper.cpp')
  const found = finder(t, release)
  release.publish('v1.0.0', [{ name: 'whisper-bin-x64.zip', data: Buffer.from('x') }])
  await t.rejects(findWhisper(found, {}), {
    code: 'runtime_missing',
    message: /no archive for linux.*compiling.*cmake/
  })
  const data = await archiveOf(t, '#!/bin/sh\nexit 0\n')
  release.publish('v1.1.0', [{ name: ARCHIVE, data, digest: `sha256:${'0'.repeat(64)}` }])
  await t.rejects(findWhisper(found, {}), { code: 'runtime_missing', message: /has the digest/ }, 'another digest')
  release.publish('v1.2.0', [{ name: ARCHIVE, data: await archiveOf(t, '#!/bin/sh\nexit 3\n') }])
  await t.rejects(findWhisper(found, {}), { message: /exit code 3/ }, 'a program that does not work here')
  t.same(readdirSync(found.directory), [], 'nothing is left behind')
  release.publish('v1.3.0', [{ name: ARCHIVE, data }])
  const phases: string[] = []
  const path = await findWhisper(found, { onProgress: ({ phase }) => phases.push(phase) })
  t.equal(path, join(found.directory, 'whisper.cpp', 'whisper-server'))
  t.same(readdirSync(join(found.directory, 'whisper.cpp')).sort(), [
    'SHA256SUMS',
    'libwhisper.so',
    'libwhisper.so.1',
    'whisper-server'
  ])
  t.ok(phases.includes('downloading'))
  const asked = release.requests.length
  t.equal(await findWhisper(found, {}), path)
  t.equal(release.requests.length, asked, 'an installed one is used without a request')
  const onPath = { ...found, directory: newFolder(t), env: { PATH: join(found.directory, 'whisper.cpp') } }
  t.equal(await findWhisper(onPath, {}), path, 'one on PATH')
  for (const find of [findWhisper, findPiper]) {
    const code = { code: 'runtime_missing', message: /names \/no\/such, which is not an executable program/ }
    await t.rejects(find(finder(t, release, '/no/such'), {}), code)
  }
})

t.test('the length of recordings is computed from their contents', async t => {
  t.equal(soundLength(wavBytes(0.5)), 0.5)
  const flac = Buffer.alloc(42)
  flac.write('fLaC\0\0\0\x22', 'latin1')
  flac.writeUIntBE((44_100 << 4) | 0, 18, 3)
  flac.writeUInt32BE(44_100 * 60, 22)
  t.equal(soundLength(flac), 60)
  // Version 1, layer III, 128 kbit/s, 44.1 kHz: 417 bytes, and one more with padding.
  const frame = (padding: number) =>
    Buffer.concat([Buffer.from([0xff, 0xfb, 0x90 | (padding << 1), 0]), Buffer.alloc(413 + padding)])
  const mp3 = Buffer.concat([Buffer.from('ID3\x03\0\0\0\0\0\x02xx', 'latin1'), frame(0), frame(1), frame(0)])
  t.ok(Math.abs(soundLength(mp3)! - (3 * 1152) / 44_100) < 1e-9)
  for (const bad of [Buffer.alloc(0), Buffer.from('RIFF'), Buffer.from('fLaC'), Buffer.alloc(5000)]) {
    t.equal(soundLength(bad), undefined, `${bad.length} bytes`)
  }
})

t.test('texts are spoken in sentences', async t => {
  t.same(
    sentences('Good morning.  How are you?\n\n…\n- Fine, thanks!').map(part => part.trim()),
    ['Good morning.', 'How are you?', '- Fine, thanks!']
  )
  const long = sentences(`${'word '.repeat(300)}.`)
  t.ok(long.length > 3 && long.every(part => part.length <= 400))
  t.equal(long.join(' ').match(/word/g)!.length, 300, 'no word is cut')
  t.equal(sentences('x'.repeat(900)).join('').length, 900)
  t.same(sentences(' !? '), [])
})
