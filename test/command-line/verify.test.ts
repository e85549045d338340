import { appendFileSync, cpSync, mkdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { recordDigests } from '../../core/system/file-digests.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { BuildsDirectory } from '../../runtimes/llama-cpp/builds-directory.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { corral, newHome } from './command.ts'

/** Changes one byte in the middle of a file, and optionally gives it its former date. */
function changeByte(path: string, keepDate = false): () => void {
  const before = readFileSync(path)
  const { atime, mtime } = statSync(path)
  const bytes = Buffer.from(before)
  bytes[bytes.length >> 1]! ^= 1
  writeFileSync(path, bytes)
  if (keepDate) utimesSync(path, atime, mtime)
  return () => {
    writeFileSync(path, before)
    utimesSync(path, atime, mtime)
  }
}

async function verify(home: string, flags: string[] = [], program?: string) {
  const { code, stdout, stderr } = await corral(['verify', ...flags, '--json'], { home, ...(program && { program }) })
  if (stdout === '') throw new Error(stderr)
  const { ok, checked } = JSON.parse(stdout)
  const found = checked.flatMap(({ name, differences }: any) =>
    differences.map(({ path, problem }: any) => `${name}: ${path} ${problem}`.replace(/[0-9a-f]{64}/g, '…'))
  )
  return { code, ok, names: checked.map(({ name }: any) => name) as string[], found }
}

t.test('verify finds a changed, a missing and an added file of the installed package', async t => {
  const own = newHome(t)
  for (const path of ['package.json', 'scripts/corral.mjs', 'dist/bundle'])
    cpSync(join(packageRoot, path), join(own, path), { recursive: true })
  await recordDigests(own)
  const program = join(own, 'dist', 'bundle', 'main.js')
  const home = newHome(t)
  t.match(await verify(home, [], program), { code: 0, ok: true, found: [] })
  const text = await corral(['verify'], { home, program })
  t.match(text.stdout, /^corral 0\.1\.0: \d+ files as packed \(SHA-256 of SHA256SUMS: [0-9a-f]{64}\)$/m)
  changeByte(join(own, 'dist', 'bundle', 'pdfium.wasm'), true)
  rmSync(join(own, 'dist', 'bundle', 'mp3.wasm'))
  appendFileSync(join(own, 'dist', 'bundle', 'more.js'), '')
  t.same(await verify(home, [], program), {
    code: 1,
    ok: false,
    names: ['corral 0.1.0'],
    found: [
      'corral 0.1.0: dist/bundle/mp3.wasm is missing',
      'corral 0.1.0: dist/bundle/pdfium.wasm has the SHA-256 … instead of …',
      'corral 0.1.0: dist/bundle/more.js is not listed'
    ]
  })
  rmSync(join(own, 'SHA256SUMS'))
  t.same((await verify(home, [], program)).found, ['corral 0.1.0: SHA256SUMS is missing'])
})

t.test('verify finds changed files of builds and engines, and added libraries', async t => {
  const home = newHome(t)
  const builds = new BuildsDirectory(join(home, 'runtimes'))
  const directory = join(builds.path, 'release-b1-cpu')
  const server = join(directory, 'llama-server')
  mkdirSync(directory, { recursive: true })
  for (const name of ['llama-server', 'libllama.so']) writeFileSync(join(directory, name), `${name} of a build`)
  const facts = {
    id: 'release-b1-cpu',
    kind: 'cpu' as const,
    source: 'release',
    version: '1',
    origin: 'x',
    devices: []
  }
  await builds.save({ ...facts, directory, executables: { server }, digest: '0'.repeat(64) })
  mkdirSync(join(home, 'speech', 'whisper.cpp'), { recursive: true })
  writeFileSync(join(home, 'speech', 'whisper.cpp', 'whisper-server'), 'a server')
  await recordDigests(join(home, 'speech', 'whisper.cpp'))
  t.match(await verify(home), { code: 0, found: [] })
  const undo = changeByte(join(directory, 'libllama.so'), true)
  changeByte(join(home, 'speech', 'whisper.cpp', 'whisper-server'))
  writeFileSync(join(directory, 'libggml-evil.so'), '')
  // As when the build is verified again.
  await builds.save({ ...facts, directory, executables: { server }, digest: '0'.repeat(64) })
  t.same((await verify(home)).found, [
    'llama.cpp release-b1-cpu: libllama.so has the SHA-256 … instead of …',
    'llama.cpp release-b1-cpu: libggml-evil.so is not listed',
    'whisper.cpp: whisper-server has the SHA-256 … instead of …'
  ])
  undo()
  // Builds of earlier versions of corral have no list, but the digest of their server.
  rmSync(join(directory, 'SHA256SUMS'))
  t.match((await verify(home)).found[0], /release-b1-cpu: llama-server has the SHA-256 … instead of …/)
})

t.test('verify finds changed models beside a server, and storage.trust refuses them', async t => {
  const server = await startCorral(t, { config: 'storage:\n  trust: digest' })
  const { home } = server
  const folder = join(home, 'models', 'corral', 'tiny-chat')
  const { variants } = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8'))
  const file = join(folder, variants[0].revision, variants[0].files[0].path)
  const ask = () =>
    server.json('/api/chat', { model: DEMO, messages: [CAPITAL_QUESTION], stream: false, keep_alive: 0 })
  t.match(await ask(), { status: 200, body: { message: { content: CAPITAL_ANSWER } } })
  t.match(await verify(home), { code: 0, found: [] })
  t.match(await verify(home, ['--deep']), { code: 0, found: [] })

  const undo = changeByte(file, true)
  t.match(await verify(home), { code: 0, found: [] }, 'sizes and dates are the same')
  const found = [`${DEMO}:F16: tiny-chat-f16.gguf has the SHA-256 … instead of …`]
  t.match(await verify(home, ['--deep']), { code: 1, found })
  utimesSync(file, new Date(), new Date())
  t.match(await verify(home), { code: 1, found }, 'a later date is a reason to read the file')
  const refused = await ask()
  t.equal(refused.status, 500)
  t.match(refused.body, {
    code: 'load_failed',
    error: /is not loaded, because its file tiny-chat-f16.gguf has the SHA-256/
  })
  undo()
  t.match(await ask(), { status: 200, body: { message: { content: CAPITAL_ANSWER } } })

  changeByte(file, true)
  await server.reload('storage:\n  trust: any')
  t.equal((await ask()).status, 200, 'without the setting')
  appendFileSync(file, ' ')
  t.match((await verify(home)).found, [`${DEMO}:F16: tiny-chat-f16.gguf has 4096609 bytes instead of 4096608`])
  rmSync(file)
  t.match((await verify(home)).found, [`${DEMO}:F16: tiny-chat-f16.gguf is missing`])
})
