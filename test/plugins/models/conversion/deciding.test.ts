import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { type PythonFacts, pythonNames, shortcomingOf } from '../../../../core/system/python/find-python.ts'
import { installFailure } from '../../../../core/system/python/install-failure.ts'
import { downloadedPackage } from '../../../../core/system/python/python-packages.ts'
import { converterProgress, quantizeProgress } from '../../../../plugins/models/conversion/convert-model.ts'
import { DTYPES, planDtype, requiredDiskBytes } from '../../../../plugins/models/conversion/dtypes.ts'
import { classifyFailure, type FailureCause } from '../../../../plugins/models/conversion/failures.ts'
import { parseRequirements } from '../../../../plugins/models/conversion/python-environment.ts'

/** Recorded output of the real tools. */
const recorded = (name: string) =>
  readFileSync(join(packageRoot, 'test', 'fixtures', 'conversion', name), 'utf8')
    .trimEnd()
    .split('\n')

const classify = (tail: string[], exitSignal?: string) => classifyFailure({ tail, exitSignal })

t.test('a type determines the conversion steps', async t => {
  const cases: [string, string | undefined, string, string, string | undefined, string][] = [
    ['f32', 'BF16', 'f32', 'f32', undefined, 'f32'],
    ['f16', 'BF16', 'f16', 'f16', undefined, 'f16'],
    ['BF16', 'F32', 'bf16', 'bf16', undefined, 'bf16'],
    ['q8_0', undefined, 'q8_0', 'q8_0', undefined, 'f16'],
    ['tq1_0', undefined, 'tq1_0', 'tq1_0', undefined, 'f16'],
    ['q4_k_m', 'BF16', 'q4_k_m', 'bf16', 'Q4_K_M', 'f16'],
    ['Q4_K_M', 'F16', 'q4_k_m', 'f16', 'Q4_K_M', 'f16'],
    ['q4_k', 'F32', 'q4_k_m', 'f16', 'Q4_K_M', 'f16'],
    ['q5_k', undefined, 'q5_k_m', 'f16', 'Q5_K_M', 'f16'],
    ['q3_k', undefined, 'q3_k_m', 'f16', 'Q3_K_M', 'f16'],
    ['iq4_xs', undefined, 'iq4_xs', 'f16', 'IQ4_XS', 'f16'],
    ['mxfp4_moe', 'bf16', 'mxfp4_moe', 'bf16', 'MXFP4_MOE', 'f16']
  ]
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
  const lines: [string, number, number][] = [
    ['Writing:   0%|          | 0.00/4.07M [00:00<?, ?byte/s]', 0, 4.07e6],
    ['Writing:  71%|███████   | 2.89M/4.07M [00:00<00:00, 44.4Mbyte/s]', 2.89e6, 4.07e6],
    ['Writing: 100%|██████████| 4.07M/4.07M [00:00<00:00, 268Mbyte/s]', 4.07e6, 4.07e6],
    ['Writing:  42%|████▏     | 1.23G/2.93G [00:10<00:14, 110Mbyte/s]', 1.23e9, 2.93e9],
    ['Writing:   3%|▎         | 999k/29.3M [00:10<00:14, 110kbyte/s]', 999e3, 29.3e6],
    ['Writing: 100%|██████████| 512/512 [00:00<00:00, 1.0Mbyte/s]', 512, 512]
  ]
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
  const files: [string, FailureCause['cause'], RegExp][] = [
    ['unsupported-architecture.txt', 'unsupported-architecture', /architecture FooForCausalLM/],
    ['missing-tokenizer.txt', 'tokenizer', /tokenizer\.json or tokenizer\.model/],
    ['cut-off.txt', 'incomplete-model', /damaged/],
    ['missing-shard.txt', 'incomplete-model', /model-00001-of-00002\.safetensors/],
    ['awq.txt', 'unsupported-quantization', /awq/],
    ['disk-full-converter.txt', 'disk-full', /disk is full/],
    ['disk-full-quantize.txt', 'disk-full', /disk is full/],
    ['no-config.txt', 'incomplete-model', /config\.json/],
    ['imatrix.txt', 'imatrix', /importance matrix/],
    ['remote-code.txt', 'remote-code', /includes Python code/]
  ]
  for (const [file, cause, sentence] of files) {
    const found = classify(recorded(file))
    t.equal(found.cause, cause, file)
    t.match(found.sentence, sentence)
    t.equal(found.code, cause === 'disk-full' ? 'insufficient_storage' : 'conversion_failed')
  }
  const lines: [string, FailureCause['cause']][] = [
    ["ModuleNotFoundError: No module named 'torch'", 'python-packages'],
    ['ImportError: libtorch_cpu.so: cannot open shared object file', 'python-packages'],
    ['MemoryError', 'out-of-memory'],
    ['numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.25 GiB for an array', 'out-of-memory'],
    ['OSError: [Errno 28] No space left on device', 'disk-full'],
    [
      'NotImplementedError: BPE pre-tokenizer was not recognized - update get_vocab_base_pre()',
      'unsupported-architecture'
    ],
    ["ValueError: Missing or incomplete model files: ['model-00002-of-00002.safetensors']", 'incomplete-model'],
    ["ValueError: Can not map tensor 'model.layers.0.foo.weight'", 'incomplete-model'],
    ["NotImplementedError: Quant method is not yet supported: 'gptq_marlin'", 'unsupported-quantization']
  ]
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
  const cases: [string, string, RegExp][] = [
    ['    apt install python3.11-venv', 'conversion_failed', /"apt install python3\.11-venv"/],
    ['/usr/bin/python3: No module named venv', 'conversion_failed', /apt install python3-venv/],
    ["ModuleNotFoundError: No module named 'ensurepip'", 'conversion_failed', /python3-venv/],
    [
      'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device',
      'insufficient_storage',
      /full/
    ],
    [
      "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor…>: Failed to establish a new connection: [Errno 111] Connection refused')': /simple/torch/",
      'conversion_failed',
      /cannot be reached.*conversion\.package_index/
    ],
    [
      'error: Failed to fetch: `https://pypi.org/simple/torch/`',
      'conversion_failed',
      /cannot be reached \(https:\/\/pypi/
    ],
    [
      'ERROR: Could not find a version that satisfies the requirement torch==2.11.0 (from versions: none)',
      'conversion_failed',
      /did not return torch==2\.11\.0: it cannot be reached, or/
    ],
    [
      'ERROR: No matching distribution found for torch==2.11.0',
      'conversion_failed',
      /no torch==2\.11\.0 for this Python/
    ],
    ["SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", 'conversion_failed', /PIP_CERT/],
    [
      'ERROR: HTTP error 401 while getting https://index/torch: 401 Client Error: Unauthorized',
      'conversion_failed',
      /credentials/
    ],
    ['something else', 'conversion_failed', /something else/]
  ]
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
  for (const minor of [10, 11, 12, 13, 14]) t.equal(shortcomingOf(facts(3, minor)), undefined)
  t.match(shortcomingOf(facts(3, 9)), /3\.9, which is too old/)
  t.match(shortcomingOf(facts(2, 7)), /too old/)
  t.match(shortcomingOf(facts(3, 15)), /too new/)
  t.match(shortcomingOf(facts(3, 12, 32)), /32 bits/)
  t.same(pythonNames('win32'), ['python', 'python3', 'py'])
  t.same(pythonNames('linux').slice(-2), ['python3', 'python'], 'named versions come first')

  const lines: [string, string | undefined][] = [
    ['  Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (530.6 MB)', 'torch 2.11.0 (530.6 MB)'],
    ['  Downloading gguf-0.19.0-py3-none-any.whl (118 kB)', 'gguf 0.19.0 (118 kB)'],
    ['Downloading torch (506.1MiB)', 'torch (506.1MiB)'],
    ['  Downloading torch-2.11.0.metadata', undefined],
    ['Collecting torch==2.11.0', undefined]
  ]
  for (const [line, subject] of lines) t.equal(downloadedPackage(line), subject, line)
})
