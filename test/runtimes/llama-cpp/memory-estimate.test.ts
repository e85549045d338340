import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import t from 'tap'
import type { Build } from '../../../core/contracts/builds.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../core/models/load-options.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { programsIn } from '../../../runtimes/llama-cpp/programs.ts'
import type { LaunchSpec } from '../../../runtimes/llama-server/launch-spec.ts'
import { estimateMemory, parseFitPrint, sharedArguments } from '../../../runtimes/llama-server/memory/fit-params.ts'
import { engineBuildFolder } from '../../support/engine-build.ts'
import { memoryLog, writePrograms } from './fake-build.ts'

const MIB = 2 ** 20
const log = memoryLog()

function specFor(modelPath: string, more: Partial<LaunchSpec['options']> = {}, args: string[] = []): LaunchSpec {
  return {
    alias: 'owner/model',
    mode: 'chat',
    modelPath,
    variant: { metadata: { info: {} } },
    options: { ...DEFAULT_LOAD_OPTIONS, ...more },
    settings: { arguments: args, environment: {}, speculation: { ngram: false }, loras: [] }
  } as unknown as LaunchSpec
}

t.test('the memory estimate parses the output of llama-fit-params', async t => {
  const tables: [string[], ReturnType<typeof parseFitPrint>][] = [
    [['Host 3 6 5 '], { host: 14 * MIB }],
    [
      ['CUDA0 28609 397 358 ', 'CUDA1 0 0 0 ', 'Host 1000 0 16 '],
      { CUDA0: (28609 + 397 + 358) * MIB, host: 1016 * MIB }
    ],
    [
      ['0.00.010.987 I llama_fit_params: printing estimated memory in MiB', 'MTL0 1 2 3', 'Host 0 0 1'],
      { MTL0: 6 * MIB, host: MIB }
    ],
    [['RPC0[127.0.0.1:50052] 1 1 1', 'Host 0 0 1'], { 'RPC0[127.0.0.1:50052]': 3 * MIB, host: MIB }],
    [['CUDA0 1 2 3'], undefined],
    [['-c 4096 -ngl 99'], undefined],
    [[], undefined]
  ]
  for (const [lines, expected] of tables) t.same(parseFitPrint(lines), expected, lines.join('|'))
})

t.test('the memory estimate passes on the flags that it shares with llama-server', async t => {
  const known = new Set(['--model', '--ctx-size', '--n-gpu-layers', '-ts', '--verbosity', '--override-kv'])
  const tables: [string, string][] = [
    ['--model /m.gguf --host /tmp/x.sock --alias a --ctx-size 4096', '--model /m.gguf --ctx-size 4096'],
    ['--jinja --ctx-size 1 --no-ui', '--ctx-size 1'],
    ['--n-gpu-layers -1 --spec-draft-n-max -3', '--n-gpu-layers -1'],
    ['--log-jsonl --verbosity 4 -ts 3,1', '-ts 3,1'],
    ['--override-kv a=int:-5', '--override-kv a=int:-5']
  ]
  for (const [list, expected] of tables) t.equal(sharedArguments(list.split(' '), known).join(' '), expected)
})

t.test('the memory estimate uses the real program', async t => {
  const executables = programsIn(engineBuildFolder())!
  const build = { id: 'x', digest: 'x', executables } as Build
  const demo = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
  const small = await estimateMemory(build, specFor(demo, { num_ctx: 1024, num_parallel: 1 }), { log })
  t.ok(small!.host! > MIB, JSON.stringify(small))
  const large = await estimateMemory(build, specFor(demo, { num_ctx: 32768, num_parallel: 4 }), { log })
  t.ok(large!.host! > small!.host! + 100 * MIB, 'the context matters')
  const quantized = { num_ctx: 32768, num_parallel: 4, cache_type_k: 'q8_0', cache_type_v: 'q8_0' } as const
  const q8 = await estimateMemory(build, specFor(demo, quantized), { log })
  t.ok(q8!.host! < large!.host!, 'so do the cache types')
  const embedding = { ...specFor(demo), mode: 'embedding' as const }
  t.ok(await estimateMemory(build, embedding, { log }), 'unknown flags are left out')
  t.equal(await estimateMemory(build, specFor(demo, {}, ['--ctx-size', 'nonsense']), { log }), undefined)
  t.equal(await estimateMemory(build, specFor(join(dirname(demo), 'none.gguf')), { log }), undefined)
})

t.test('a failing estimate never blocks a load', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const with_ = (program: string): Build => {
    writePrograms(folder, { 'llama-server': '#!/bin/sh', 'llama-fit-params': `#!/bin/sh\n${program}` })
    return { id: 'x', digest: program, executables: programsIn(folder)! } as Build
  }
  const estimate = (build: Build, signal?: AbortSignal) => estimateMemory(build, specFor('/m.gguf'), { log, signal })
  t.equal(await estimate({ id: 'x', digest: 'y', executables: { server: 's' } } as Build), undefined, 'no such program')
  t.equal(await estimate(with_('kill -SEGV $$')), undefined)
  t.equal(await estimate(with_('echo "--model --ctx-size"')), undefined, 'too old to print it')
  t.equal(await estimate(with_('case "$1" in --help) echo "--model --fit-print";; *) exit 1;; esac')), undefined)
  const works = with_(
    'case "$*" in --help) echo "--model --fit-print";; "--model /m.gguf --fit-print on") echo "Host 1 1 1";; *) exit 1;; esac'
  )
  t.same(await estimate(works), { host: 3 * MIB })
  const abort = new AbortController()
  const reason = new Error('left')
  const slow = estimate(with_('sleep 20'), abort.signal)
  abort.abort(reason)
  await t.rejects(slow, reason)
})
