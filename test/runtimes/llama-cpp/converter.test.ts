import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import type { Test } from 'tap'
import t from 'tap'
import * as tar from 'tar'
import type { Build } from '../../../core/contracts/builds.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { ReleaseServer } from '../../../core/system/release-server.ts'
import { createFindConverter } from '../../../runtimes/llama-cpp/sources/llama-source.ts'
import { listen } from '../../support/listen.ts'
import { buildOf } from '../llama-server/support.ts'
import { fakeServer, memoryLog, runtimesWith, source, writePrograms } from './fake-build.ts'

function writeConverter(folder: string): void {
  for (const inner of ['conversion', 'gguf-py/gguf', 'requirements', 'src'])
    mkdirSync(join(folder, inner), { recursive: true })
  for (const file of [
    'convert_hf_to_gguf.py',
    'conversion/base.py',
    'gguf-py/gguf/constants.py',
    'requirements/requirements-convert_hf_to_gguf.txt',
    'src/llama.cpp'
  ]) {
    writeFileSync(join(folder, file), `${file}\n`)
  }
}

function build(directory: string, more: Partial<Build> = {}): Build {
  mkdirSync(directory, { recursive: true })
  return buildOf(join(directory, 'llama-server'), {
    id: 'release-b10485-cpu',
    source: 'release',
    version: '10485 (abc1234)',
    executables: { server: join(directory, 'llama-server'), quantize: join(directory, 'llama-quantize') },
    ...more
  })
}

/** Serves source archives as GitHub does. `archive` is the reply. */
async function serve(t: Test, archive: Buffer | undefined): Promise<{ url: string; paths: string[] }> {
  const paths: string[] = []
  const server = createServer((request, response) => {
    paths.push(request.url!)
    if (archive === undefined) response.writeHead(404).end()
    else if (request.url!.startsWith('/moved')) response.end(archive)
    // GitHub redirects to another host.
    else response.writeHead(302, { location: '/moved' }).end()
  })
  return { url: `http://127.0.0.1:${await listen(t, server)}`, paths }
}

async function sourceArchive(t: Test, change: (folder: string) => void = () => undefined): Promise<Buffer> {
  const folder = join(t.testdir(), 'archive')
  const inner = join(folder, 'llama.cpp-b10485')
  writeConverter(inner)
  change(inner)
  await tar.c({ gzip: true, cwd: folder, file: join(folder, 'source.tar.gz') }, ['llama.cpp-b10485'])
  return readFileSync(join(folder, 'source.tar.gz'))
}

/** Without access to the pinned source, because there is no npm on this PATH. */
function finder(directory: string, url: string) {
  const source = { name: 'no-such-package', version: '0.0.0', env: { PATH: '/nowhere' }, log: memoryLog() }
  const repository = 'ggml-org/llama.cpp'
  const server = new ReleaseServer({ api_url: url, download_url: url, repository, connect_timeout: '3s' })
  return createFindConverter({ directory, server, source })
}

t.test('the llama.cpp source fetches the converter of a downloaded release from the same release, once', async t => {
  const directory = join(t.testdir(), 'runtimes')
  const server = await serve(t, await sourceArchive(t))
  const find = finder(directory, server.url)
  const used = build(join(directory, 'release-b10485-cpu'))
  const steps: Progress[] = []
  const found = await find(used, { onProgress: step => steps.push(step) })
  t.same(found, { directory: join(used.directory, 'converter'), version: 'b10485' })
  t.same(readdirSync(found.directory).sort(), ['conversion', 'convert_hf_to_gguf.py', 'gguf-py', 'requirements'])
  t.same(server.paths, ['/ggml-org/llama.cpp/archive/refs/tags/b10485.tar.gz', '/moved'])
  const phases = steps.map(step => step.phase)
  t.same(phases, ['downloading', 'unpacking'])
  t.same(readdirSync(directory), ['release-b10485-cpu'], 'nothing else is left')

  t.same(await find(used, {}), found)
  t.equal(server.paths.length, 2)
})

t.test('the llama.cpp source rejects an archive that is dangerous, damaged or missing', async t => {
  const { symlinkSync } = await import('node:fs')
  const link = await sourceArchive(t, folder => symlinkSync('../conversion', join(folder, 'gguf-py', 'link')))
  const cases: [string, Buffer | undefined, RegExp][] = [
    ['a link', link, /archive is refused: "llama\.cpp-b10485\/gguf-py\/link" is a link/],
    ['no archive', Buffer.from('<html>'), /\w/],
    ['missing', undefined, /status 404/]
  ]
  for (const [what, archive, reason] of cases) {
    const directory = join(t.testdir(), what.replace(' ', '-'))
    const server = await serve(t, archive)
    const used = build(join(directory, 'release-b10485-cpu'))
    await t.rejects(finder(directory, server.url)(used, {}), { message: reason }, what)
    t.notOk(existsSync(join(used.directory, 'converter')))
    const files = readdirSync(directory).filter(name => name.startsWith('unfinished'))
    t.same(files, [])
  }
})

t.test('the llama.cpp source finds the converter beside a build', async t => {
  const home = t.testdir()
  const find = finder(join(home, 'runtimes'), 'http://127.0.0.1:1')
  const checkout = join(home, 'llama.cpp')
  writeConverter(checkout)
  const compiled = build(join(checkout, 'build', 'bin'), { source: 'system', id: 'system-1', version: '0.5.0-dev' })
  t.same(await find(compiled, {}), { directory: checkout, version: '0.5.0-dev' }, 'the source tree it was compiled in')

  writeConverter(join(home, 'made', 'converter'))
  const converter = { directory: join(home, 'made', 'converter'), version: 'v0.5.0' }
  t.same(await find(build(join(home, 'made'), { source: 'source', converter }), {}), converter)
})

t.test('the llama.cpp source uses the pinned converter for other builds and logs its version', async t => {
  const directory = join(t.testdir(), 'runtimes')
  // As an earlier fetch left it.
  const kept = join(directory, 'converter-no-such-package-0.0.0')
  writeConverter(kept)
  writeFileSync(join(kept, 'RELEASE'), 'v0.5.0\n')
  const find = finder(directory, (await serve(t, undefined)).url)
  const own = build(join(directory, 'release-b10485-cpu'))
  const found = await find(own, {})
  t.match(found, { directory: kept, version: 'v0.5.0', mismatch: /v0\.5\.0, while the engine is 10485.*status 404/ })
  const same = build(join(directory, 'system'), { source: 'system', id: 'system-1', version: '0.5.0-dev (build 1)' })
  t.same(await find(same, {}), { directory: kept, version: 'v0.5.0' })
})

t.test('concurrent requests share one search, whose error names what is missing', async t => {
  const home = t.testdir()
  const directory = join(home, 'runtimes')
  const used = build(join(home, 'one'))
  writePrograms(used.directory, { 'llama-server': fakeServer() })
  let searches = 0
  let fails = true
  const runtimes = runtimesWith(directory, [source('made', async () => used)], {
    verifyBuild: async () => used,
    async findConverter() {
      searches++
      await new Promise(resolve => setTimeout(resolve, 50))
      if (fails) throw new Error('no network here')
      return { directory: '/converter', version: 'b1' }
    }
  })
  await t.rejects(runtimes.conversionTools({}), {
    code: 'runtime_missing',
    message: /no network here.*convert_hf_to_gguf\.py.*one\/converter/
  })
  fails = false
  const left = new AbortController()
  const both = [runtimes.conversionTools({ signal: left.signal }), runtimes.conversionTools({})]
  left.abort(new Error('left'))
  await t.rejects(both[0]!, { message: 'left' })
  t.same(await both[1], { directory: '/converter', version: 'b1', quantize: used.executables.quantize })
  t.equal(searches, 2)
  await runtimes.stop()
})
