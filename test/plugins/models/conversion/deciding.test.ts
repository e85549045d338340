import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { explainUnsuitablePython, type PythonFacts, pythonNames } from '../../../../core/system/python/find-python.ts'
import { installFailure } from '../../../../core/system/python/install-failure.ts'
import { downloadedPackage } from '../../../../core/system/python/python-packages.ts'
import {
  converterProgress,
  DTYPES,
  modelArchitectures,
  planDtype,
  quantizeProgress,
  requiredDiskBytes,
  supportedArchitectures
} from '../../../../plugins/models/conversion/convert-model.ts'
import { classifyFailure, type FailureCause } from '../../../../plugins/models/conversion/python-environment.ts'
import { parseRequirements } from '../../../../scripts/converter-requirements.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { readCases } from '../../../support/fixture.ts'

/** Recorded output of the real tools. */
const recorded = (name: string) =>
  readFileSync(join(packageRoot, 'test', 'fixtures', 'conversion', name), 'utf8')
    .trimEnd()
    .split('\n')

const classify = (tail: string[], exitSignal?: string) => classifyFailure({ tail, exitSignal })

t.test('a type determines the conversion steps', async t => {
  const cases = readCases<[string, string | undefined, string, string, string | undefined, string][]>(
    'conversion-cases.yaml',
    'dtypes'
  )
  for (const [dtype, ownType, name, outtype, quantize, projectorOuttype] of cases) {
    const plan = planDtype(dtype, ownType)
    t.match(plan, { dtype: name, outtype, projectorOuttype }, `${dtype} of ${ownType}`)
    t.equal(plan.quantize, quantize)
  }
  for (const dtype of DTYPES) t.equal(planDtype(dtype, undefined).dtype, dtype)
  for (const dtype of ['banana', 'toString', '__proto__', 'copy', '15', '']) {
    t.throws(() => planDtype(dtype, undefined), { code: 'invalid_option', param: 'dtype', message: /q4_k_m/ }, dtype)
  }
  for (const dtype of ['iq1_s', 'IQ2_XXS', 'iq3_xs', 'q2_k_s']) {
    t.throws(() => planDtype(dtype, undefined), { code: 'invalid_option', message: /importance matrix/ }, dtype)
  }
})

t.test('the disk estimate includes intermediate files', async t => {
  const need = (dtype: string, parameters: number) => requiredDiskBytes(planDtype(dtype, undefined), parameters) / 1e9
  t.ok(need('f16', 7e9) > 14 && need('f16', 7e9) < 15)
  t.ok(need('q4_k_m', 7e9) > 18 && need('q4_k_m', 7e9) < 20, 'includes the intermediate F16')
  t.ok(need('f32', 0) > 0, 'an unknown count still leaves room for the vocabulary')
})

t.test('converter progress is parsed from its output', async t => {
  const lines = readCases<[string, number, number][]>('conversion-cases.yaml', 'progress')
  for (const [line, completed, total] of lines) t.same(converterProgress(line), { completed, total }, line)
  for (const line of [
    'INFO:gguf.gguf_writer:Writing the following files:',
    'Shard (1/3):  10%|█         | 1.0G/10.0G [00:10<00:14, 110Mbyte/s]',
    'Writing: 0.00byte [00:00, ?byte/s]',
    ''
  ]) {
    t.equal(converterProgress(line), undefined, line)
  }
})

t.test('llama-quantize progress is parsed from its output', async t => {
  const total = 4_096_544
  const read = quantizeProgress(total)
  const steps = recorded('quantize.txt').flatMap(line => read(line) ?? [])
  t.equal(steps.length, 29, 'one per tensor')
  t.same(steps[0], { completed: 0, total })
  t.same(steps[1], { completed: 256 * 4, total }, 'a tensor counts when it is done')
  t.same(steps[2], { completed: 256 * 4 + 256 * 1024 * 2, total }, 'by its bytes')
  for (let index = 1; index < steps.length; index++) t.ok(steps[index]!.completed >= steps[index - 1]!.completed)
  t.ok(steps.at(-1)!.completed <= total && steps.at(-1)!.completed > 0.9 * total)
})

t.test("tool failures are classified by the tool's output", async t => {
  const files = readCases<[string, FailureCause['cause'], RegExp][]>('conversion-cases.yaml', 'recordedFailures')
  for (const [file, cause, sentence] of files) {
    const found = classify(recorded(file))
    t.equal(found.cause, cause, file)
    t.match(found.sentence, sentence)
    t.equal(found.code, cause === 'disk-full' ? 'insufficient_storage' : 'conversion_failed')
  }
  const lines = readCases<[string, FailureCause['cause']][]>('conversion-cases.yaml', 'failures')
  for (const [line, cause] of lines) t.equal(classify(['INFO:x', line]).cause, cause, line)

  t.equal(classify([], 'SIGKILL').cause, 'out-of-memory')
  t.equal(classify(['Writing:  10%|'], 'SIGSEGV').cause, 'unknown')
  t.match(classify(['first', 'second', 'ValueError: something new', '']).sentence, /something new/)
  const warned = [
    'WARNING:hf-to-gguf:Failed to load model config: needs trust_remote_code=True',
    'Traceback (most recent call last):',
    'ValueError: x'
  ]
  t.equal(classify(warned).cause, 'unknown', 'a mere warning is not the cause')
})

t.test('installation failures are classified by their output', async t => {
  const cases = readCases<[string, string, RegExp][]>('conversion-cases.yaml', 'installFailures')
  for (const [line, code, sentence] of cases) {
    const failure = installFailure(['Collecting torch==2.11.0', line], {
      section: 'conversion',
      code: 'conversion_failed'
    })
    t.equal(failure.code, code, line)
    t.match(failure.sentence, sentence)
  }
})

t.test('requirements files, Python versions and pip output are parsed', async t => {
  t.same(
    parseRequirements(
      '-r ./other.txt\n--extra-index-url https://x/whl\n\n## why\ntorch==2.11.0; platform_machine != "s390x" # pinned\nnumpy~=2.2.6\nlong>=1,\\\n  <2\n'
    ),
    {
      packages: ['torch==2.11.0; platform_machine != "s390x"', 'numpy~=2.2.6', 'long>=1,   <2'],
      includes: ['./other.txt']
    }
  )

  const facts = (major: number, minor: number, bits = 64): PythonFacts => ({
    executable: '/usr/bin/python3',
    version: [major, minor],
    bits
  })
  for (const minor of [10, 11, 12, 13, 14]) t.equal(explainUnsuitablePython(facts(3, minor)), undefined)
  t.match(explainUnsuitablePython(facts(3, 9)), /3\.9, which is too old/)
  t.match(explainUnsuitablePython(facts(2, 7)), /too old/)
  t.match(explainUnsuitablePython(facts(3, 15)), /too new/)
  t.match(explainUnsuitablePython(facts(3, 12, 32)), /32 bits/)
  t.same(pythonNames('win32'), ['python', 'python3', 'py'])
  t.same(pythonNames('linux').slice(-2), ['python3', 'python'], 'named versions come first')

  const lines = readCases<[string, string | undefined][]>('conversion-cases.yaml', 'pipOutput')
  for (const [line, subject] of lines) t.equal(downloadedPackage(line), subject, line)
})

t.test('supported architectures are read from the converter source', async t => {
  const folder = join(engineBuildFolder(), 'converter')
  if (existsSync(folder)) {
    const real = await supportedArchitectures(folder)
    t.ok(real && real.size > 100)
    for (const name of ['LlamaForCausalLM', 'BertModel']) t.ok(real!.has(name), name)
    for (const name of ['WhisperForConditionalGeneration', 'llama']) t.notOk(real!.has(name), name)
  }
  const old =
    '@ModelBase.register(\n    "AForCausalLM",\n    "BModel")\nclass A:\n    pass\n@Model.register("C")\nclass C:\n'
  const dir = t.testdir({ old: { 'convert_hf_to_gguf.py': old }, unknown: { 'convert_hf_to_gguf.py': 'print(1)' } })
  t.same(await supportedArchitectures(join(dir, 'old')), new Set(['AForCausalLM', 'BModel', 'C']))
  for (const name of ['unknown', 'absent']) t.equal(await supportedArchitectures(join(dir, name)), undefined, name)
})

t.test("a model's architectures come from its config.json and its text model", async t => {
  for (const [config, expected] of [
    [{ architectures: ['A', 'B'] }, ['A']],
    [{ architectures: ['A'], text_config: { architectures: ['B'] } }, ['A', 'B']],
    [{ architectures: [5] }, []],
    [{ architectures: 'A' }, []],
    [[], []],
    [undefined, []]
  ] as const) {
    t.same(modelArchitectures(config), expected, JSON.stringify(config))
  }
})
