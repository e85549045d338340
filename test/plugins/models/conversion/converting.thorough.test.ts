import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { readGguf } from '../../../../core/models/gguf-file.ts'
import { conversionPython, realConversion, TINY_SAFETENSORS } from '../../../support/conversion-python.ts'
import { CAPITAL_ANSWER, lastEvent } from '../../../support/corral.ts'
import {
  capital,
  convertedFolders,
  importModel,
  MODEL,
  modelFolder,
  stagedFolders,
  startConverting,
  storedFolder,
  temporaryFolder
} from './support.ts'

// Uses the real tools. faults.thorough.test.ts tests faults and races with a scripted Python.

t.test('a SafeTensors model answers in every type, and each type is converted once', realConversion(), async t => {
  const corral = await startConverting(t, conversionPython)
  await importModel(corral, TINY_SAFETENSORS)
  const types = { f32: 'F32', f16: 'F16', bf16: 'BF16', q8_0: 'Q8_0', q4_k_m: 'Q4_K_M' }
  let last = ''
  for (const [dtype, label] of Object.entries(types)) {
    const { status, body } = await capital(corral, { dtype })
    t.equal(status, 200, JSON.stringify(body))
    t.equal(body.message?.content, CAPITAL_ANSWER, dtype)
    const file = join(storedFolder(corral), 'converted', dtype, `tiny-st-${label}.gguf`)
    t.equal((await readGguf(file)).tensorCount, 29)
    t.match(JSON.parse(readFileSync(join(file, '..', 'conversion.json'), 'utf8')), {
      dtype,
      files: [{ name: `tiny-st-${label}.gguf`, size: statSync(file).size, role: 'model' }]
    })
    last = file
  }
  t.same(convertedFolders(corral), Object.keys(types).sort(), 'nothing else remains')

  const made = statSync(last).mtimeMs
  const spelled = await capital(corral, { dtype: 'Q4_K' })
  t.equal(spelled.body.message.content, CAPITAL_ANSWER, 'another spelling of the type')
  await corral.json('/api/stop', { model: MODEL })
  t.equal((await capital(corral, { dtype: 'q4_k_m' })).body.message.content, CAPITAL_ANSWER)
  t.equal(statSync(last).mtimeMs, made)
  t.equal(corral.log().match(/converting test\/tiny-st to q4_k_m/g)?.length, 1, 'the second request converts nothing')

  const { body: shown } = await corral.json('/api/show', { model: MODEL })
  t.equal(shown.details.format, 'safetensors', 'the model itself is unchanged')
  t.equal(shown.details.quantization_level, 'BF16')
  const dtypes = shown.conversions.map((made: { dtype: string }) => made.dtype)
  t.same(dtypes, Object.keys(types).sort())
  t.ok(shown.conversions.every((made: { size: number; converter: string }) => made.size > 1e6 && made.converter !== ''))
  t.ok(existsSync(join(corral.home, 'logs', 'conversion-test-tiny-st-BF16-q4_k_m.log')), 'the log is kept')

  // The converted files are a cache: missing or truncated files are converted again.
  await corral.json('/api/stop', { model: MODEL })
  truncateSync(last, 1000)
  t.equal((await capital(corral, { dtype: 'q4_k_m' })).body.message.content, CAPITAL_ANSWER)
  t.equal(corral.log().match(/converting test\/tiny-st to q4_k_m/g)?.length, 2)
})

t.test('fifty concurrent first requests convert once', realConversion(), async t => {
  const corral = await startConverting(t, conversionPython)
  await importModel(corral, TINY_SAFETENSORS)
  const answers = await Promise.all(Array.from({ length: 50 }, () => capital(corral, {})))
  for (const { body } of answers) t.equal(body.message?.content, CAPITAL_ANSWER)
  t.equal(corral.log().match(/converting test\/tiny-st to f16/g)?.length, 1)
})

t.test('conversion ahead of time streams progress', realConversion(), async t => {
  const corral = await startConverting(t, conversionPython)
  await importModel(corral, TINY_SAFETENSORS)
  const events = await corral.events('/api/convert', { model: MODEL, dtype: 'q4_k_m' })
  const at = (status: string) => events.filter(event => event.status === status)
  for (const [step, status] of [
    [1, 'converting'],
    [2, 'quantizing']
  ] as const) {
    t.ok(at(status).length >= 2, `several events of ${status}`)
    t.ok(at(status).every(event => event.step === step && event.steps === 2 && event.completed <= event.total))
    const end = at(status).at(-1)
    t.equal(end.completed, end.total, 'a final event')
  }
  t.match(events.at(-1), { status: 'success', model: MODEL, dtype: 'q4_k_m', size: Number, converter: String })

  t.match(await corral.events('/api/convert', { model: MODEL, dtype: 'q4_k_m' }), [{ status: 'success' }], 'converted')
  const whole = await corral.json('/api/convert', { model: MODEL, dtype: 'f16', stream: false })
  t.match(whole, { status: 200, body: { status: 'success', dtype: 'f16' } })

  const remove = (dtype?: string) => corral.json('/api/convert', { model: MODEL, dtype }, { method: 'DELETE' })
  t.match(await remove('q4_k'), { status: 200, body: { status: 'deleted' } })
  t.match(await remove('q4_k_m'), { status: 404, body: { code: 'model_not_found', error: /converted types: f16/ } })
  t.match(await remove(), { status: 400, body: { code: 'invalid_request' } })
  await capital(corral, { dtype: 'f16' })
  t.match(await remove('f16'), { status: 400, body: { code: 'invalid_request', error: /loaded.*corral stop/ } })
  await corral.json('/api/stop', { model: MODEL })
  t.match(await remove('f16'), { status: 200 })
  t.same(convertedFolders(corral), [])
})

t.test('a damaged model is refused with the cause', realConversion(), async t => {
  const corral = await startConverting(t, conversionPython)
  const cases: [string, (folder: string) => void, ((stored: string) => void) | undefined, string, RegExp][] = [
    [
      'architecture',
      folder => edit(join(folder, 'config.json'), text => text.replace('LlamaForCausalLM', 'FooForCausalLM')),
      undefined,
      'unsupported-architecture',
      /cannot convert the architecture FooForCausalLM/
    ],
    [
      'tokenizer',
      () => undefined,
      stored => rmSync(join(stored, 'tokenizer.model')),
      'tokenizer',
      /tokenizer is missing or cannot be read/
    ],
    [
      'weights',
      () => undefined,
      stored => truncateSync(join(stored, 'model.safetensors'), 3_000_000),
      'incomplete-model',
      /weights of the model are damaged/
    ],
    [
      'quantized',
      folder =>
        edit(join(folder, 'config.json'), text => text.replace('{', '{"quantization_config":{"quant_method":"awq"},')),
      undefined,
      'unsupported-quantization',
      /already quantized \(awq\)/
    ]
  ]
  for (const [what, before, after, cause, sentence] of cases) {
    const name = `test/broken-${what}`
    await t.test(what, async t => {
      await importModel(corral, modelFolder(t, before), name)
      after?.(storedFolder(corral, name))
      const { status, body } = await capital(corral, {}, name)
      t.equal(status, 500)
      t.match(body, { code: 'conversion_failed', error: sentence })
      const log = /\(log: ([^)]+)\)/.exec(body.error)![1]!
      const logged = readFileSync(log.replace('<data directory>', corral.home), 'utf8')
      t.match(logged, /convert_hf_to_gguf\.py/, 'the log named in the error exists')
      t.notMatch(body.error, /Traceback|File "/)
      t.same([...convertedFolders(corral, name), ...stagedFolders(corral)], [], 'nothing remains')

      const response = await corral.send('/api/convert', { model: name, dtype: 'q8_0' })
      t.match(lastEvent(await response.text()), { error: sentence, code: 'conversion_failed', errorCode: 500, cause })
    })
  }
})

t.test("a model's code is never run", realConversion(), async t => {
  const corral = await startConverting(t, conversionPython)
  const mark = join(temporaryFolder(t), 'it-ran')
  await importModel(
    corral,
    modelFolder(t, folder => {
      edit(join(folder, 'config.json'), text => text.replace('LlamaForCausalLM', 'Qwen2ForCausalLM'))
      edit(join(folder, 'tokenizer_config.json'), text =>
        text.replace('{', '{"auto_map":{"AutoTokenizer":["tokenization_own.OwnTokenizer",null]},')
      )
    })
  )
  const stored = storedFolder(corral)
  rmSync(join(stored, 'tokenizer.model'))
  const code = `open(${JSON.stringify(mark)}, 'w').close()\nfrom transformers import LlamaTokenizer\nclass OwnTokenizer(LlamaTokenizer): pass\n`
  writeFileSync(join(stored, 'tokenization_own.py'), code)
  const { body } = await capital(corral, {})
  t.equal(body.code, 'conversion_failed')
  t.notOk(existsSync(mark))
})

t.test(
  'a conversion fails cleanly on a full disk',
  { skip: realConversion().skip || (process.getuid?.() === 0 ? false : 'needs root for a tmpfs') },
  async t => {
    const models = mkdtempSync(join(tmpdir(), 'corral-test-'))
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=48m', 'none', models], { stdio: 'pipe' })
    } catch {
      t.pass('no tmpfs may be mounted here')
      return
    }
    t.teardown(() => execFileSync('umount', ['--lazy', models]))
    const corral = await startConverting(t, conversionPython, { env: { CORRAL_MODELS: models } })
    await importModel(corral, TINY_SAFETENSORS)

    const filler = join(models, 'filler')
    const freeOnly = (bytes: number) => {
      const { bavail, bsize } = JSON.parse(
        execFileSync(process.execPath, ['-p', `JSON.stringify(fs.statfsSync(${JSON.stringify(models)}))`], {
          encoding: 'utf8'
        })
      )
      execFileSync('fallocate', ['-l', String(bavail * bsize - bytes), filler])
    }
    freeOnly(3_000_000)
    const early = await corral.json('/api/convert', { model: MODEL, dtype: 'f16', stream: false })
    t.match(early, { status: 507, body: { code: 'insufficient_storage', error: /needs about .* has 3\.0 MB free/ } })
    rmSync(filler)

    // The disk fills up while the converter writes: the estimate is right, but others write too.
    const wrapper = join(temporaryFolder(t), 'python')
    writeFileSync(
      wrapper,
      `#!/bin/sh\ncase "$*" in *convert_hf_to_gguf.py*) fallocate -l $(($(df --output=avail -B1 '${models}' | tail -1) - 2000000)) '${filler}' ;; esac\nexec '${conversionPython}' "$@"\n`,
      { mode: 0o755 }
    )
    await corral.end()
    const again = await startConverting(t, wrapper, { env: { CORRAL_MODELS: models }, home: corral.home })
    const late = await again.json('/api/convert', { model: MODEL, dtype: 'f16', stream: false })
    t.match(late, { status: 507, body: { code: 'insufficient_storage', error: /disk is full/ } })
    const found = execFileSync('find', [models, '-name', '*.gguf'], { encoding: 'utf8' })
    t.notMatch(found, /tiny-st/, 'nothing remains')
  }
)

function edit(path: string, change: (text: string) => string): void {
  writeFileSync(path, change(readFileSync(path, 'utf8')))
}
