import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import type { Test } from 'tap'
import t from 'tap'
import type { BuildCandidate, BuildKind, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { type BuildTool, buildFraction, compilerCount, installCommand } from '../../../core/system/compile.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { cuda12, cuda13 } from '../../../runtimes/llama-cpp/kinds/cuda.ts'
import { cpu, sycl, vulkan } from '../../../runtimes/llama-cpp/kinds/index.ts'
import { rocm } from '../../../runtimes/llama-cpp/kinds/rocm.ts'
import { isProgramOrLibrary, prebuiltLibraries } from '../../../runtimes/llama-cpp/programs.ts'
import { compiledSource, prebuiltPackage, type SourceOptions } from '../../../runtimes/llama-cpp/sources/compiled.ts'
import { fetchConverter } from '../../../runtimes/llama-cpp/sources/llama-source.ts'
import { readFixture } from '../../support/fixture.ts'
import { thorough } from '../../support/thorough.ts'
import { fakeServer, gpuMachine, H100, memoryLog, plainMachine, writePrograms } from './fake-build.ts'

const cases = readFixture<{
  progress: [line: string, fraction?: number][]
  commands: { missing: BuildTool[]; platform: NodeJS.Platform; release?: string; command?: string }[]
  packages: [kind: BuildKind, platform: string, arch: string, glibc: string | null, name?: string][]
  tools: Record<string, string>
}>('compile-cases.yaml')

t.test('a build from source reports its progress', async t => {
  for (const [line, fraction] of cases.progress) t.equal(buildFraction(line), fraction, line)
})

t.test('a build from source names the command that installs missing tools', async t => {
  for (const { missing, platform, release = '', command } of cases.commands) {
    t.equal(installCommand(missing, platform, release), command, `${platform} ${release}`)
  }
})

t.test('a build from source chooses packages and parallelism', async t => {
  for (const [kind, platform, arch, glibc, name] of cases.packages) {
    t.equal(prebuiltPackage(kind, platform, arch, glibc ?? undefined), name, `${kind} ${platform} ${arch} ${glibc}`)
  }
  for (const [cores, gib, count] of [
    [8, 64, 8],
    [8, 3.5, 3],
    [8, 0.2, 1],
    [1, 64, 1]
  ] as const) {
    t.equal(compilerCount(cores, gib * 2 ** 30), count)
  }

  const real = [
    'libggml-base.so',
    'libggml-cpu-zen4.so',
    'libggml.v0.5.0.so',
    'libllama-common.so',
    'libllama.v0.5.0.so'
  ]
  t.same(prebuiltLibraries(real), {
    LIB_LLAMA: 'libllama.v0.5.0.so',
    LIB_LLAMA_COMMON: 'libllama-common.so',
    LIB_GGML: 'libggml.v0.5.0.so',
    LIB_GGML_BASE: 'libggml-base.so'
  })
  t.equal(prebuiltLibraries(['libllama.dylib', 'libggml.dylib', 'libggml-base.dylib']), undefined)
  t.match(prebuiltLibraries(['libllama.dylib', 'libggml.dylib', 'libggml-base.dylib', 'libllama-common.dylib']), {
    LIB_LLAMA: 'libllama.dylib'
  })
  for (const name of ['llama-server', 'libllama.so', 'libllama.so.0.5.0', 'libggml.v0.5.0.so', 'ggml.dll', 'x.dylib']) {
    t.ok(isProgramOrLibrary(name), name)
  }
  for (const name of ['test-backend-ops', 'llama-addon.node', 'ui.cpp', 'CMakeFiles'])
    t.notOk(isProgramOrLibrary(name), name)
})

/** Creates instant stand-ins for the build tools that log their calls and make the same files. */
function fakeTools(t: Test, without: string[] = []) {
  const home = t.testdir()
  const bin = join(home, 'bin')
  const calls = join(home, 'calls')
  const server = join(home, 'server')
  writeFileSync(server, fakeServer())
  // The stand-ins need programs that are not on the PATH under test.
  const start = `#!/bin/sh\nPATH=/usr/bin:/bin\necho "$(basename "$0") $*" >> "${calls}"\n`
  const scripts = Object.entries(cases.tools).map(([name, text]) => [name, start + text.replaceAll('SERVER', server)])
  const tools: Record<string, string> = { ...Object.fromEntries(scripts), 'c++': start, make: start }
  for (const name of without) delete tools[name]
  writePrograms(bin, tools)
  const read = () => (existsSync(calls) ? readFileSync(calls, 'utf8').trim().split('\n') : [])
  return { home, bin, calls: read, forget: () => rmSync(calls, { force: true }) }
}

function sourceWith(
  tools: ReturnType<typeof fakeTools>,
  more: Partial<SourceOptions> & { runtime?: RuntimeDescriptor; hardware?: Hardware } = {}
) {
  const directory = join(tools.home, 'runtimes')
  const steps: Progress[] = []
  const reasons: string[] = []
  const trials: BuildCandidate[] = []
  const source = compiledSource({
    name: 'node-llama-cpp',
    version: '3.22.1',
    directory,
    prebuilt: true,
    env: { PATH: tools.bin, ...more.env },
    log: memoryLog(),
    trial: async candidate => {
      trials.push(candidate)
    },
    ...(more.prebuilt !== undefined && { prebuilt: more.prebuilt }),
    ...(more.trial && { trial: more.trial })
  })
  const { runtime = cpu, hardware = plainMachine } = more
  const provide = (signal?: AbortSignal) =>
    source.provide({
      signal,
      runtime,
      hardware,
      onProgress: step => steps.push(step),
      explain: reason => reasons.push(reason)
    })
  return { directory, steps, reasons, trials, provide }
}

t.test('a build from source links only the programs against prebuilt libraries', async t => {
  const tools = fakeTools(t)
  const { provide, directory, steps, trials } = sourceWith(tools)
  const candidate = (await provide())!
  t.match(candidate, {
    id: 'source-v0.5.0-cpu',
    kind: 'cpu',
    runtime: 'cpu',
    directory: join(directory, 'source-v0.5.0-cpu'),
    origin: 'npm package node-llama-cpp@3.22.1, with the libraries of @node-llama-cpp/linux-x64',
    converter: { directory: join(directory, 'source-v0.5.0-cpu', 'converter'), version: 'v0.5.0' }
  })
  t.same(trials, [candidate], 'tried before it is returned')
  t.same(readdirSync(candidate.directory).sort(), [
    'converter',
    'libggml-base.so',
    'libggml.v0.5.0.so',
    'libllama-common.so',
    'libllama.v0.5.0.so',
    'llama-server'
  ])
  t.ok(existsSync(join(candidate.converter!.directory, 'convert_hf_to_gguf.py')))
  t.same(readdirSync(directory), ['source-v0.5.0-cpu'], 'the work folder is removed')
  t.match(tools.calls(), [
    /^npm pack node-llama-cpp@3\.22\.1 --ignore-scripts/,
    /^git .*clone --quiet .*gitRelease\.bundle/,
    /^npm pack @node-llama-cpp\/linux-x64@3\.22\.1/,
    /^cmake -S .*prebuilt-server -B .*-G Unix Makefiles .*-DLIB_LLAMA=libllama\.v0\.5\.0\.so/,
    /^cmake --build .* -j \d+ --target all/
  ])
  t.same(
    steps.map(({ phase, fraction }) => [phase, fraction]),
    [
      ['downloading', undefined],
      ['unpacking', undefined],
      ['downloading', undefined],
      ['configuring', undefined],
      ['building', 0],
      ['building', 0.25],
      ['building', 0.5],
      ['building', 1],
      ['proving', undefined]
    ]
  )
})

t.test('a build from source compiles everything when prebuilt libraries cannot be used', async t => {
  const full = (options: Parameters<typeof sourceWith>[1], why: RegExp | undefined) => async (t: Test) => {
    const tools = fakeTools(t)
    const { provide, reasons, directory } = sourceWith(tools, options)
    const candidate = (await provide())!
    t.equal(candidate.origin, 'npm package node-llama-cpp@3.22.1')
    if (why) t.match(reasons[0], why)
    else t.same(reasons, [])
    const build = tools.calls().at(-1)!
    for (const target of [
      'llama-server',
      'llama-quantize',
      'llama-gguf-split',
      'llama-fit-params',
      'ggml-rpc-server'
    ]) {
      t.ok(build.includes(` ${target}`), target)
    }
    t.match(tools.calls().at(-2), /-DGGML_NATIVE=ON -DGGML_RPC=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF/)
    t.same(readdirSync(directory), ['source-v0.5.0-cpu'])
  }
  t.test('everything is compiled if prebuilt libraries are switched off', full({ prebuilt: false }, undefined))
  t.test('if there is no package', full({ hardware: { ...plainMachine, glibc: undefined } }, undefined))
  t.test(
    'if the package has another release',
    full({ env: { NPM_CONFIG_RELEASE: 'v0.4.0' } }, /libraries are from llama\.cpp v0\.4\.0/)
  )
  t.test(
    'if it does not compile',
    full({ env: { CMAKE_FAULT: 'fail prebuilt' } }, /exit code 2. x\.cpp:1: error: expected/)
  )
  let trials = 0
  const once = async () => {
    if (++trials === 1) throw new Error('it answered nonsense')
  }
  t.test('if the build fails verification', full({ trial: once }, /against the libraries.*answered nonsense/))
})

t.test('a build from source compiles for GPUs', thorough, async t => {
  const nvcc = (version: string) => `#!/bin/sh\necho "Cuda compilation tools, release ${version}, V${version}.1"\n`
  const amd = { ...plainMachine, gpus: [{ ...H100, vendor: 'amd' as const, architecture: 'gfx1100' }] }

  t.test('a build from source uses nvcc of the same version', async t => {
    const tools = fakeTools(t)
    writePrograms(tools.bin, { nvcc: nvcc('12.4') })
    const { provide } = sourceWith(tools, { runtime: cuda12, hardware: gpuMachine })
    t.match(await provide(), { kind: 'cuda', runtime: 'cuda-12', id: 'source-v0.5.0-cuda-12' })
    t.match(tools.calls().at(-2), /-DGGML_CUDA=ON -DCMAKE_CUDA_COMPILER=.*nvcc/)

    const other = sourceWith(tools, { runtime: cuda13, hardware: gpuMachine })
    t.equal(await other.provide(), undefined)
    t.match(other.reasons, [/CUDA 13 libraries libcudart\.so\.13, .*not installed/, /nvcc compiles for CUDA 12, not/])
  })

  t.test("a build from source links to the toolkit's own libraries beside prebuilt ones", async t => {
    const tools = fakeTools(t)
    const toolkit = join(tools.home, 'cuda')
    for (const version of [12, 13]) {
      for (const name of ['libcudart', 'libcublas', 'libcublasLt']) {
        mkdirSync(join(toolkit, 'lib64'), { recursive: true })
        writeFileSync(join(toolkit, 'lib64', `${name}.so.${version}`), 'cuda')
      }
    }
    const env = { CUDA_PATH: toolkit }
    const newer = (await sourceWith(tools, { runtime: cuda13, hardware: gpuMachine, env }).provide())!
    t.equal(newer.origin, 'npm package node-llama-cpp@3.22.1, with the libraries of @node-llama-cpp/linux-x64-cuda')
    t.equal(readlinkSync(join(newer.directory, 'libcudart.so.13')), join(toolkit, 'lib64', 'libcudart.so.13'))
    t.notOk(existsSync(join(newer.directory, 'libcudart.so.12')))

    const older = (await sourceWith(tools, { runtime: cuda12, hardware: gpuMachine, env }).provide())!
    t.match(older.origin, /linux-x64-cuda and @node-llama-cpp\/linux-x64-cuda-ext$/)
    t.equal(readFileSync(join(older.directory, 'libggml-cuda.so'), 'utf8'), 'for CUDA 12\n')
    t.ok(existsSync(join(older.directory, 'libcublasLt.so.12')))
  })

  t.test('Vulkan', async t => {
    const tools = fakeTools(t)
    const { provide } = sourceWith(tools, { runtime: vulkan, hardware: gpuMachine })
    t.match(await provide(), {
      kind: 'vulkan',
      id: 'source-v0.5.0-vulkan',
      origin: /@node-llama-cpp\/linux-x64-vulkan$/
    })
    const loaderless = sourceWith(tools, { runtime: vulkan, hardware: { ...gpuMachine, libraries: ['libgomp'] } })
    t.equal(await loaderless.provide(), undefined)
    t.match(loaderless.reasons, [/libvulkan\.so\.1 is not installed/])
    const without = sourceWith(tools, { runtime: vulkan, hardware: gpuMachine, prebuilt: false })
    t.equal(await without.provide(), undefined)
    t.match(without.reasons, [/glslc of the Vulkan SDK is not installed/])
    writePrograms(tools.bin, { glslc: '#!/bin/sh\n' })
    t.match(await without.provide(), { origin: 'npm package node-llama-cpp@3.22.1' })
    t.match(tools.calls().at(-2), /-DGGML_VULKAN=ON/)
  })

  t.test('ROCm', async t => {
    const tools = fakeTools(t)
    const { provide, reasons } = sourceWith(tools, { runtime: rocm, hardware: amd })
    t.equal(await provide(), undefined)
    t.match(reasons, [/hipcc of ROCm is not installed/])
    t.same(tools.calls(), [], 'nothing is fetched for an impossible build')
    writePrograms(tools.bin, { hipcc: '#!/bin/sh\n' })
    t.match(await provide(), { id: 'source-v0.5.0-rocm' })
    t.match(tools.calls().at(-2), /-DGGML_HIP=ON -DGPU_TARGETS=gfx1100/)
  })

  t.test('some kinds are never compiled', async t => {
    const { provide, reasons } = sourceWith(fakeTools(t), { runtime: sycl, hardware: gpuMachine })
    t.equal(await provide(), undefined)
    t.match(reasons, [/does not compile sycl builds for linux x64/])
  })
})

t.test('a build from source explains failures', async t => {
  t.test('a build from source names missing tools', async t => {
    const { provide } = sourceWith(fakeTools(t, ['cmake', 'c++']))
    await t.rejects(provide(), {
      name: 'SourceUnavailable',
      message: /needs tools that are not installed: cmake, C\+\+ compiler/
    })
  })
  t.test('a build from source names a missing registry', async t => {
    const { provide, directory } = sourceWith(fakeTools(t), { env: { NPM_CONFIG_FAULT: 'fail' } })
    await t.rejects(provide(), { name: 'SourceUnavailable', message: /npm failed with exit code 1.*npm error network/ })
    t.same(readdirSync(directory), ['work'])
  })
  t.test('a build from source names missing routes', async t => {
    const { provide, directory, reasons } = sourceWith(fakeTools(t), {
      env: { CMAKE_FAULT: 'fail full' },
      prebuilt: false
    })
    const message = /no build of llama\.cpp v0\.5\.0 works here: cmake failed.*error: expected/
    await t.rejects(provide(), { name: 'BuildImpossible', message })
    t.equal(reasons.length, 1)
    t.same(readdirSync(directory), ['work'], 'the fetched source stays for the next attempt')
  })
})

t.test('a build from source reuses finished builds but not partial ones', async t => {
  const tools = fakeTools(t)
  await t.rejects(sourceWith(tools, { env: { CMAKE_FAULT: 'fail full' }, prebuilt: false }).provide())
  t.equal(tools.calls().filter(call => /^(npm|git)/.test(call)).length, 2)
  tools.forget()
  const { provide, directory } = sourceWith(tools, { prebuilt: false })
  mkdirSync(join(directory, 'work', 'build', 'bin'), { recursive: true })
  writeFileSync(join(directory, 'work', 'build', 'bin', 'libstale.so'), 'half')
  const candidate = (await provide())!
  const called = tools.calls().map(call => call.split(' ')[0])
  t.same(called, ['cmake', 'cmake'], 'neither fetched nor cloned again')
  t.notOk(existsSync(join(candidate.directory, 'libstale.so')), 'object files of an earlier attempt are discarded')
})

t.test('an abort ends the compilers', async t => {
  const tools = fakeTools(t)
  const abort = new AbortController()
  const { provide, steps, directory } = sourceWith(tools, { env: { CMAKE_FAULT: 'hang' } })
  const provided = provide(abort.signal).catch(error => error)
  while (steps.at(-1)?.fraction !== 0.5) await sleep(10)
  const reason = new Error('enough')
  abort.abort(reason)
  t.equal(await provided, reason)
  t.same(readdirSync(directory), ['work'])
})

t.test('a build from source recovers from kill -9 during a build', async t => {
  const tools = fakeTools(t)
  const directory = join(tools.home, 'runtimes')
  const module = (path: string) => JSON.stringify(pathToFileURL(join(packageRoot, 'dist', path)).href)
  const script = join(tools.home, 'corral.mjs')
  writeFileSync(
    script,
    `import { compiledSource } from ${module('runtimes/llama-cpp/sources/compiled.js')}
const log = { debug() {} }
await compiledSource({
  name: 'node-llama-cpp', version: '3.22.1', directory: ${JSON.stringify(directory)}, prebuilt: true, log,
  env: { PATH: ${JSON.stringify(tools.bin)}, CMAKE_FAULT: 'hang' }, trial: async () => {}
}).provide({
  explain() {}, onProgress: step => process.send(step), runtime: ${JSON.stringify(cpu)}, hardware: ${JSON.stringify(plainMachine)}
})`
  )
  const corral = spawn(process.execPath, [script], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
  await new Promise<void>(resolve => {
    corral.on('message', (step: Progress) => {
      if (step.fraction === 0.5) resolve()
    })
  })
  corral.kill('SIGKILL')
  t.notOk(existsSync(join(directory, 'source-v0.5.0-cpu')), 'a partial build is not used')
  tools.forget()
  t.match(await sourceWith(tools).provide(), { id: 'source-v0.5.0-cpu' })
  const called = tools.calls().map(call => call.split(' ')[0])
  t.same(called, ['cmake', 'cmake'])
})

t.test('a build from source fetches the converter without compiling', async t => {
  const tools = fakeTools(t)
  const directory = join(tools.home, 'runtimes')
  const options = {
    name: 'node-llama-cpp',
    version: '3.22.1',
    env: { PATH: tools.bin },
    log: memoryLog()
  }
  const converter = await fetchConverter(directory, options)
  t.equal(converter.version, 'v0.5.0')
  t.equal(readFileSync(join(converter.directory, 'convert_hf_to_gguf.py'), 'utf8'), 'converter\n')
  const calls = tools.calls().length
  t.same(await fetchConverter(directory, options), converter)
  t.equal(tools.calls().length, calls, 'fetched once')
  t.notOk(
    tools.calls().some(call => call.startsWith('cmake')),
    'nothing is compiled'
  )
})
