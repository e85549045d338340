import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { lock } from 'proper-lockfile'
import t from 'tap'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { byPreference } from '../../../runtimes/llama-cpp/build-search.ts'
import type { BuildRecord } from '../../../runtimes/llama-cpp/builds-directory.ts'
import { programFile } from '../../../runtimes/llama-cpp/programs.ts'
import { missingText } from '../../../runtimes/llama-cpp/search-report.ts'
import { systemSource } from '../../../runtimes/llama-cpp/sources/system.ts'
import {
  createBuildVerifier,
  type StartEngine,
  verifyBuild,
  verifyByAnswer
} from '../../../runtimes/llama-cpp/verify-build.ts'
import { createLlamaServerEngine } from '../../../runtimes/llama-server/engine.ts'
import { parseVersion } from '../../../runtimes/llama-server/server-facts.ts'
import { engineBuildFolder } from '../../support/engine-build.ts'
import {
  candidateIn,
  fakeServer,
  memoryLog,
  plainMachine,
  runtimesWith,
  source,
  testKinds,
  writePrograms
} from './fake-build.ts'

const options = { hardware: plainMachine }

t.test('the search orders recorded builds by preference', t => {
  const record = (id: string, installed?: boolean) =>
    ({ build: { id }, ...(installed && { installed }) }) as BuildRecord
  const order = (...records: BuildRecord[]) => byPreference(records).map(({ build }) => build.id)
  const ids = order(record('source-v1-cpu'), record('source-v2-cpu'))
  t.same(ids, ['source-v1-cpu', 'source-v2-cpu'], 'in order of verification')
  t.same(order(record('release-b9-cpu'), record('release-b10-cpu')), ['release-b10-cpu', 'release-b9-cpu'])
  t.same(order(record('release-b10-cpu', true), record('release-b9-cpu')), ['release-b9-cpu', 'release-b10-cpu'])
  t.end()
})

t.test('the search parses the version output of llama-server', async t => {
  const versions: [string, ReturnType<typeof parseVersion>][] = [
    [
      'version: 0.5.0-dev (build 1, commit de3ff81)',
      { version: '0.5.0-dev (build 1, commit de3ff81)', commit: 'de3ff81' }
    ],
    ['version: 4567 (abc1234)', { version: '4567 (abc1234)', commit: 'abc1234' }],
    ['version: b99', { version: 'b99' }],
    ['llama_server: initializing', undefined],
    [
      '0.00.000.350 version: 0.5.0-dev (build 1, commit de3ff81)0.00.002.873 I srv  llama_server: initializing ...',
      { version: '0.5.0-dev (build 1, commit de3ff81)', commit: 'de3ff81' }
    ],
    ['version:', undefined]
  ]
  for (const [line, expected] of versions) t.same(parseVersion(['x', line]), expected, line)
})

t.test('the search verifies a build', async t => {
  const folder = (server: string) => writePrograms(t.testdir(), { 'llama-server': server })
  const build = await verifyBuild(
    candidateIn(folder(fakeServer({ devices: ['  CUDA0: X (2 MiB, 1 MiB free)'] })), { kind: 'unknown' }),
    options
  )
  t.match(build, { commit: 'de3ff81', digest: /^[0-9a-f]{64}$/, devices: [{ id: 'CUDA0' }] })

  const failures: [string, RegExp][] = [
    ['#!/bin/sh\necho "GLIBC_2.39 not found" >&2; exit 1', /--version: .*exit code 1. GLIBC_2.39 not found/],
    ['#!/bin/sh\necho hello', /no version in its output: hello/],
    ['#!/bin/sh\nkill -SEGV $$', /ended by SIGSEGV/],
    ['#!/bin/sh\necho "version: 1" >&2; [ "$1" = --version ]', /--list-devices: .*exit code 1/],
    ['#!/bin/sh\necho "version: 1" >&2', /no list of devices/],
    ['not a program', /does not work here/]
  ]
  for (const [server, expected] of failures)
    await t.rejects(verifyBuild(candidateIn(folder(server)), options), expected)

  process.env.LLAMA_ARG_CTX_SIZE = '1'
  t.teardown(() => delete process.env.LLAMA_ARG_CTX_SIZE)
  const strict = fakeServer().replace('case', '[ -z "$LLAMA_ARG_CTX_SIZE" ] || exit 9\ncase')
  await t.resolves(verifyBuild(candidateIn(folder(strict)), options), 'the environment is clean')
})

t.test('the search verifies a real build', async t => {
  const folder = engineBuildFolder()
  const log = memoryLog()
  const home = t.testdir()
  const system = systemSource({ path: folder, namedBy: 'CORRAL_LLAMA_CPP', env: process.env })
  const engineDeps = { log, runDirectory: join(home, 'run'), loadTimeout: 60_000, hangTimeout: 0, extraArguments: [] }
  const startEngine: StartEngine = (build, spec, waiting) => createLlamaServerEngine(build, spec, engineDeps, waiting)
  const verifyBuild = createBuildVerifier(startEngine, log)
  const runtimes = runtimesWith(join(home, 'runtimes'), [system], { verifyBuild })
  const build = await runtimes.build()
  t.match(build, {
    source: 'system',
    version: /^\S/,
    digest: /^[0-9a-f]{64}$/,
    executables: { quantize: /llama-quantize/ }
  })
  t.same(await verifyByAnswer(build, startEngine, options), [])
  const outcomes = runtimes.report().attempts.map(({ outcome }) => outcome)
  t.same(outcomes, ['chosen'])

  const failing: StartEngine = async () => {
    throw new Error('out of memory')
  }
  await t.rejects(verifyByAnswer(build, failing, options), /did not answer: out of memory/)
})

t.test('the search finds a build on this system', async t => {
  const provide = (options: Parameters<typeof systemSource>[0]) => {
    const reasons: string[] = []
    const explain = (reason: string) => reasons.push(reason)
    return {
      reasons,
      candidate: systemSource(options).provide({ explain, runtime: testKinds.at(-1)!, hardware: plainMachine })
    }
  }
  const directory = t.testdir({ nothing: {} })
  const tree = join(directory, 'tree')
  writePrograms(join(tree, 'build', 'bin'), { 'llama-server': fakeServer(), 'llama-quantize': '#!/bin/sh' })

  const named = await provide({ path: tree, namedBy: 'X', env: {} }).candidate
  t.match(named, { directory: join(tree, 'build/bin'), required: true, kind: 'unknown' }, 'found inside a build tree')
  t.ok(named?.executables.quantize)
  t.equal(named?.executables.rpcServer, undefined)

  const wrong = provide({ path: join(directory, 'nothing'), namedBy: 'CORRAL_LLAMA_CPP', env: {} }).candidate
  await t.rejects(wrong, { code: 'runtime_missing', message: /^CORRAL_LLAMA_CPP names .*nothing, which has no/ })

  const onPath = await provide({ path: '', namedBy: '', env: { PATH: join(tree, 'build/bin') } }).candidate
  t.match(onPath, { required: false, directory: join(tree, 'build/bin') })
  t.equal(onPath?.id, named?.id, 'the same folder is the same build')

  const none = provide({ path: '', namedBy: '', env: { PATH: directory } })
  t.equal(await none.candidate, undefined)
  t.match(none.reasons[0], /no .* on PATH/)
})

t.test('the search tries sources in order and explains each', async t => {
  const directory = t.testdir()
  const asked: string[] = []
  const sources = [
    source('a', async ({ explain }) => {
      asked.push('a')
      explain('nothing here')
      return undefined
    }),
    source('b', async () => {
      asked.push('b')
      throw new Error('broken')
    }),
    source('c', async () => {
      asked.push('c')
      const folder = writePrograms(join(directory, 'made-c'), { 'llama-server': '#!/bin/sh\necho too old >&2; exit 1' })
      return candidateIn(folder, { id: 'made-c' })
    }),
    source('d', async () => {
      asked.push('d')
      return candidateIn(writePrograms(join(directory, 'made-d'), { 'llama-server': fakeServer() }), { id: 'made-d' })
    }),
    source('e', async () => undefined)
  ]
  const runtimes = runtimesWith(directory, sources)
  t.equal(runtimes.report().state, 'idle')
  t.equal((await runtimes.build()).id, 'made-d')
  t.same(asked, ['a', 'b', 'c', 'd'])
  const report = runtimes.report()
  t.equal(report.state, 'ready')
  const outcomes = report.attempts.map(({ outcome }) => outcome)
  t.same(outcomes, ['unavailable', 'failed', 'failed', 'chosen', 'not tried'])
  t.match(report.attempts, [
    { reasons: ['nothing here'] },
    { reasons: ['broken'] },
    { reasons: [/does not work here: .*too old/, 'too old'] }
  ])
  t.notOk(existsSync(join(directory, 'made-c')), 'a build that fails verification is removed')
})

t.test('a required build is not replaced by another', async t => {
  const directory = t.testdir()
  const broken = writePrograms(join(directory, 'theirs'), { 'llama-server': '#!/bin/sh\nexit 1' })
  let asked = 0
  const other = source('other', async () => {
    asked++
    return undefined
  })
  const named = systemSource({ path: broken, namedBy: 'CORRAL_LLAMA_CPP', env: {} })
  const runtimes = runtimesWith(join(directory, 'runtimes'), [named, other])
  await t.rejects(runtimes.build(), { code: 'runtime_missing', message: /does not work here/ })
  t.equal(asked, 0)
  const outcomes = runtimes.report().attempts.map(({ outcome }) => outcome)
  t.same(outcomes, ['failed', 'not tried'])
  t.ok(existsSync(join(broken, 'llama-server')), 'folders that corral did not make stay')
})

t.test('a verified build is reused after a check, and made again when damaged', async t => {
  const directory = join(t.testdir(), 'runtimes')
  let made = 0
  const maker = source('made', async () => {
    made++
    const folder = join(directory, 'made-1')
    writePrograms(folder, { 'llama-server': fakeServer(), 'libggml.so': 'library' })
    return candidateIn(folder)
  })
  const again = () => runtimesWith(directory, [maker]).build()
  const first = await again()
  t.same(await again(), first)
  t.equal(made, 1, 'reused')
  const server = join(directory, 'made-1', programFile('llama-server'))

  writeFileSync(server, fakeServer())
  await again()
  t.equal(made, 1, 'the same content with a new date is the same build')

  const damages: [string, () => void][] = [
    ['a truncated library', () => truncateSync(join(directory, 'made-1', 'libggml.so'), 3)],
    ['a missing library', () => rmSync(join(directory, 'made-1', 'libggml.so'))],
    ['a changed llama-server', () => writeFileSync(server, fakeServer().replace('de3ff81', 'de3ff82'))],
    ['a missing folder', () => rmSync(join(directory, 'made-1'), { recursive: true })],
    ['an unreadable record', () => writeFileSync(join(directory, 'made-1.build.json'), '{"format":1,')],
    ['a missing record', () => rmSync(join(directory, 'made-1.build.json'))]
  ]
  for (const [what, damage] of damages) {
    const before = made
    damage()
    await again()
    t.equal(made, before + 1, what)
    await again()
    t.equal(made, before + 1, `${what}: once`)
  }

  mkdirSync(join(directory, 'unfinished-12345678'))
  mkdirSync(join(directory, 'half-a-build'))
  mkdirSync(join(directory, 'work', 'kept'), { recursive: true })
  rmSync(join(directory, 'made-1.build.json'))
  await again()
  t.same(
    readdirSync(directory).sort(),
    ['made-1', 'made-1.build.json', 'work'],
    'leftovers of interrupted searches are removed, reusable work stays'
  )
  const record = JSON.parse(readFileSync(join(directory, 'made-1.build.json'), 'utf8'))
  t.match(record.build, { id: 'made-1', version: /0\.5\.0/, origin: 'a test', kind: 'cpu', digest: /^[0-9a-f]{64}$/ })
})

t.test('a build of another version serves only when nothing better is available', async t => {
  const directory = join(t.testdir(), 'runtimes')
  let works = true
  const maker = (version: string) =>
    source(
      'made',
      async () => {
        if (!works) throw new Error('no network')
        const folder = writePrograms(join(directory, version), { 'llama-server': fakeServer({ version }) })
        return candidateIn(folder, { id: version, origin: version })
      },
      { wants: build => build.origin === version }
    )
  t.equal((await runtimesWith(directory, [maker('v1')]).build()).id, 'v1')
  works = false
  const offline = runtimesWith(directory, [maker('v2')])
  t.equal((await offline.build()).id, 'v1')
  t.match(offline.report().attempts, [{ outcome: 'chosen', reasons: [/still works/, 'no network'] }])
  works = true
  t.equal((await runtimesWith(directory, [maker('v2')]).build()).id, 'v2')
  t.same(readdirSync(directory).sort(), ['v2', 'v2.build.json'], 'the earlier build is removed')
})

t.test('concurrent requests share one search', async t => {
  const directory = t.testdir()
  let asked = 0
  let proceed = () => {}
  const gate = new Promise<void>(resolve => {
    proceed = resolve
  })
  const maker = source('made', async ({ onProgress }) => {
    asked++
    onProgress?.({ phase: 'building', subject: 'llama.cpp', fraction: 0.12 })
    await gate
    onProgress?.({ phase: 'building', subject: 'llama.cpp', fraction: 0.9 })
    return candidateIn(writePrograms(join(directory, 'made-1'), { 'llama-server': fakeServer() }))
  })
  const runtimes = runtimesWith(directory, [maker])
  const early: Progress[] = []
  const first = runtimes.build({ onProgress: step => early.push(step) })
  while (early.length === 0) await sleep(5)
  const late: Progress[] = []
  const second = runtimes.build({ onProgress: step => late.push(step) })
  t.match(late, [{ fraction: 0.12 }], 'a late caller gets the current progress at once')
  t.match(runtimes.report(), { state: 'searching', progress: { fraction: 0.12 } })

  const abort = new AbortController()
  const gone: Progress[] = []
  const third = runtimes.build({ signal: abort.signal, onProgress: step => gone.push(step) })
  const reason = new Error('the client went away')
  abort.abort(reason)
  await t.rejects(third, reason)
  const before = gone.length
  proceed()
  t.equal((await first).id, 'made-1', 'the others are not disturbed')
  t.equal(await second, await first)
  t.equal(gone.length, before, 'a caller that left gets no progress')
  t.match(late.at(-1), { phase: 'proving' })
  t.equal(asked, 1)
  t.ok(runtimes.log.lines.includes('building llama.cpp 90%'))
  await t.rejects(runtimes.build({ signal: abort.signal }), reason)
})

t.test('a failed search is remembered and repeated after a while', async t => {
  let clock = 0
  let asked = 0
  const directory = t.testdir()
  let works = false
  const maker = source('made', async () => {
    asked++
    if (!works) throw new Error(`attempt ${asked}`)
    return candidateIn(writePrograms(join(directory, 'made-1'), { 'llama-server': fakeServer() }))
  })
  const runtimes = runtimesWith(directory, [maker], { now: () => clock })
  const failure = await runtimes.build().catch(error => error)
  t.match(failure, { code: 'runtime_missing', message: /made: attempt 1.*CORRAL_LLAMA_CPP/ })
  t.type(failure, CorralError)
  t.equal(await runtimes.build().catch(error => error), failure, 'answered from memory')
  t.equal(runtimes.report().state, 'failed')
  clock += 10_000
  t.match(await runtimes.build().catch(error => error), { message: /attempt 2/ })
  clock += 10_000
  t.match(await runtimes.build().catch(error => error), { message: /attempt 2/ }, 'longer after each failure')
  clock += 10_000
  works = true
  t.equal((await runtimes.build()).id, 'made-1')
  t.equal(runtimes.report().state, 'ready')
})

t.test('stopping aborts the search', async t => {
  const directory = t.testdir()
  let begun = false
  let ended = false
  const maker = source('made', async ({ signal }) => {
    begun = true
    try {
      await sleep(60_000, undefined, { signal })
    } finally {
      ended = true
    }
    return undefined
  })
  const runtimes = runtimesWith(directory, [maker])
  const waiting = runtimes.build().catch(error => error)
  while (!begun) await sleep(5)
  await runtimes.stop()
  t.equal(ended, true)
  t.match(await waiting, { code: 'shutting_down' })
  t.match(await runtimes.build().catch(error => error), { code: 'shutting_down' })
})

t.test('two processes do not build in one directory at the same time', async t => {
  const directory = join(t.testdir({ runtimes: {} }), 'runtimes')
  const release = await lock(directory, { stale: 20_000 })
  let asked = 0
  const maker = source('made', async () => {
    asked++
    return candidateIn(writePrograms(join(directory, 'made-1'), { 'llama-server': fakeServer() }))
  })
  const waiting = runtimesWith(directory, [maker])
  const build = waiting.build()
  while (!waiting.log.lines.some(line => line.startsWith('Waiting for another process'))) await sleep(10)
  t.equal(asked, 0)
  await release()
  t.equal((await build).id, 'made-1')
})

t.test('sources can be added', async t => {
  const directory = t.testdir()
  const runtimes = runtimesWith(directory, [source('made', async () => undefined)])
  t.throws(() => runtimes.addSource(source('made', async () => undefined)), /named "made" already/)
  runtimes.addSource(
    source('outside', async () =>
      candidateIn(writePrograms(join(directory, 'out'), { 'llama-server': fakeServer() }), {
        id: 'out',
        source: 'outside'
      })
    )
  )
  t.equal((await runtimes.build()).source, 'outside')
  t.match(missingText([{ source: 'x', description: '', outcome: 'unavailable', reasons: [] }]), /x: unavailable/)
})
