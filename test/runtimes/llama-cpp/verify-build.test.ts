import { join } from 'node:path'
import t from 'tap'
import { CorralError } from '../../../core/errors.ts'
import { findRuntime, getPosition, rankRuntimes } from '../../../runtimes/llama-cpp/ranking.ts'
import { warningsFor } from '../../../runtimes/llama-cpp/search-report.ts'
import { createBuildVerifier, type StartEngine } from '../../../runtimes/llama-cpp/verify-build.ts'
import { idleGpu } from '../../../runtimes/llama-server/server-facts.ts'
import {
  CUDA_DEVICE,
  candidateIn,
  fakeServer,
  gpuMachine,
  H100,
  plainMachine,
  testKinds,
  writePrograms
} from './fake-build.ts'

t.test('a GPU build must answer from the GPU', async t => {
  const tables: [Record<string, number> | undefined, string[], RegExp | undefined][] = [
    [{ host: 5, CUDA0: 20 }, [], undefined],
    [{ host: 5 }, ['load_tensors: offloaded 4/4 layers to GPU'], /all of the model is in the machine's memory/],
    [{ host: 5, CUDA0: 0 }, [], /none on a GPU/],
    [undefined, ['x', 'load_tensors: offloaded 0/49 layers to GPU'], /0 of 49 layers/],
    [undefined, ['offloaded 49/49 layers to GPU'], undefined],
    [undefined, ['offloaded 0/2 layers to GPU', 'offloaded 49/49 layers to GPU'], undefined],
    [undefined, ['nothing to see'], undefined]
  ]
  for (const [memory, log, expected] of tables) {
    const idle = idleGpu(memory, log)
    if (expected) t.match(idle, expected)
    else t.equal(idle, undefined)
  }

  const engineWith =
    (memory: Record<string, number>): StartEngine =>
    async (_build, spec, _, environment) => {
      t.match(spec, { options: { n_gpu_layers: 999 } })
      t.same(environment, { GGML_TEST_KIND: 'cuda-13' }, 'with the variables of its kind')
      return {
        memory,
        chat: async (_request, { take }) => {
          await take([{ content: 'The capital of ' }])
          await take([{ content: 'France is Paris.', finish: 'stop' }])
        },
        stop: async () => {},
        logTail: () => []
      }
    }
  const log = { debug() {} }
  const signal = new AbortController().signal
  const runtime = testKinds[0]!
  const candidate = () =>
    candidateIn(writePrograms(join(t.testdir(), 'x'), { 'llama-server': fakeServer({ devices: [CUDA_DEVICE] }) }), {
      kind: 'cuda'
    })
  const verify = (startEngine: StartEngine) =>
    createBuildVerifier(startEngine, log)(candidate(), { own: true, signal, hardware: gpuMachine, runtime })
  t.match(await verify(engineWith({ host: 1, CUDA0: 2 })), { kind: 'cuda', runtime: 'cuda-13' })
  await t.rejects(verify(engineWith({ host: 1 })), /none on a GPU, although it is a build for CUDA 13/)
  const full: StartEngine = async () => {
    throw new CorralError('insufficient_memory', 'CUDA0 is full.')
  }
  const listed = await verify(full)
  t.match(listed, { warnings: [/no free memory to verify.*CUDA0 is full/] }, 'a full GPU does not fail the build')
})

t.test('verification reports the state of a build', async t => {
  const ranking = rankRuntimes(testKinds, gpuMachine, []).filter(({ usable }) => usable)
  const plain = rankRuntimes(testKinds, plainMachine, []).filter(({ usable }) => usable)
  const device = (id: string) => [{ id, description: 'x' }]
  const rows: [Parameters<typeof findRuntime>[0], string, number, number][] = [
    [{ kind: 'unknown', devices: device('CUDA0') }, 'cuda-13', 0, 0],
    [{ kind: 'cuda', devices: device('CUDA0'), runtime: 'cuda-12' }, 'cuda-12', 1, 0],
    [{ kind: 'unknown', devices: device('Vulkan0') }, 'vulkan', 2, 0],
    [{ kind: 'unknown', devices: [] }, 'cpu', 3, 0],
    [{ kind: 'vulkan', devices: [] }, 'cpu', 3, 0]
  ]
  for (const [build, runtime, place, withoutGpu] of rows) {
    const found = findRuntime(build, testKinds, ranking, [H100])
    t.equal(found?.name, runtime)
    t.equal(getPosition(found, ranking), place)
    t.equal(getPosition(found, plain), withoutGpu)
  }
  t.equal(getPosition(undefined, []), -1)
  t.same(warningsFor({ kind: 'cuda', runtime: 'cuda-13' }, ranking, gpuMachine, []), [])
  t.match(warningsFor({ kind: 'cpu', runtime: 'cpu' }, ranking, gpuMachine, []), [/CUDA 13: it was not searched for/])
  t.same(warningsFor({ kind: 'cpu', runtime: 'cpu' }, plain, plainMachine, []), [])
})
