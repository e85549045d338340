import t, { type Test } from 'tap'
import type { HubFile } from '../../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../../core/errors.ts'
import { parseGgufFileName } from '../../../../../core/models/gguf-file-name.ts'
import { safetensorsLabel } from '../../../../../core/models/model-folder.ts'
import type { Choice, ChoiceRequest } from '../../../../../plugins/models/download/choice/choice.ts'
import {
  chooseFiles,
  filesToRead,
  requireFewModelFiles
} from '../../../../../plugins/models/download/choice/choose-files.ts'
import { weightsFromIndex } from '../../../../../plugins/models/download/choice/choose-safetensors.ts'
import { totalSize } from '../../../../../plugins/models/download/choice/gguf-models.ts'
import { recommendedModels } from '../../../../../plugins/models/download/choice/recommended-models.ts'
import { findCapabilities, splitReadme } from '../../../../../plugins/models/download/pulls/repository-card.ts'
import { failing } from '../../../../support/failure.ts'
import { readCases } from '../../../../support/fixture.ts'
import { sample } from '../../../../support/thorough.ts'
import { listing, REPOSITORIES } from './listing.ts'

const GIB = 2 ** 30
const CPU_32 = { ram: 32 * GIB, gpu: 0 }
const choose = (request: Partial<ChoiceRequest> & { files: readonly HubFile[] }) =>
  chooseFiles({ id: 'a/b', memory: CPU_32, ...request })

const pathsOf = ({ files }: Choice) => files.map(({ path }) => path)

/** Returns the items in another order, the same in each run. */
function shuffled<Item>(items: readonly Item[], seed: number): Item[] {
  const order = items.map((item, index) => ({ item, key: Math.sin(seed * 1000 + index * 7919) }))
  return order.sort((a, b) => a.key - b.key).map(({ item }) => item)
}

t.test('recommended models fit by the memory of the machine', t => {
  const fitting = (ram: number, gpu = 0) =>
    recommendedModels({ ram: ram * GIB, gpu: gpu * GIB })
      .filter(({ purpose, memory }) => purpose === 'chat' && memory.fits)
      .map(({ model }) => model)
  t.same(fitting(2), ['LiquidAI/LFM2.5-1.2B-Instruct-GGUF'])
  t.ok(fitting(8).includes('Qwen/Qwen3-4B-GGUF') && !fitting(8).includes('Qwen/Qwen3-8B-GGUF'))
  t.ok(fitting(8, 24).includes('Qwen/Qwen3-32B-GGUF'), 'a graphics card counts too')
  const classes = (name: string, ram: number, gpu = 0) =>
    recommendedModels({ ram: ram * GIB, gpu: gpu * GIB }).find(({ model }) => model === name)!.size_class
  t.same(
    [4, 8, 16, 64].map(ram => classes('Qwen/Qwen3-4B-GGUF', ram)),
    ['too_large', 'medium', 'medium', 'small']
  )
  t.equal(classes('Qwen/Qwen3-14B-GGUF', 16, 8), 'large', 'partly in main memory')
  const all = recommendedModels(CPU_32)
  const fit = all.filter(({ memory }) => memory.fits)
  t.same(
    all.slice(0, fit.length),
    fit.toSorted((a, b) => b.size - a.size),
    'the largest that fits first'
  )
  for (const { model, size, about } of all) {
    t.ok(size > 50e6 && size < 25e9 && about.en && about.zh, model)
  }
  t.end()
})

t.test('a long listing is reduced to files that may belong to a model', t => {
  const one = listing('m-Q8_0.gguf 5\nmmproj-F16.gguf 1\nREADME.md\nsub/config.json\n1_Pooling/config.json')
  const others = (count: number, name: (index: number) => string) =>
    Array.from({ length: count }, (_, index) => ({ path: name(index), size: 1 }))
  const long = [...others(50_000, index => `data/${index}.txt`), ...one, ...others(50_000, index => `x/${index}.bin`)]
  t.same(requireFewModelFiles('a/b', long), one)
  t.same(requireFewModelFiles('a/b', others(2000, String)), others(2000, String), 'a short listing is used unchanged')
  const tooMany = failing('unsupported_capability', /a\/b has 2001 files that could belong to a model/)
  t.throws(
    () =>
      requireFewModelFiles(
        'a/b',
        others(2001, index => `${index}.gguf`)
      ),
    tooMany
  )
  t.end()
})

t.test('listings of real repositories give the expected choices', t => {
  t.ok(REPOSITORIES.length >= 40)
  for (const { id, files, gives, weightsInIndex } of REPOSITORIES) {
    for (const { tag, refused, label, paths } of gives) {
      const request = { id, files, weightsInIndex, ...(tag === '' ? {} : { variant: tag }) }
      const title = `${id}:${tag}`
      if (refused) {
        t.throws(() => choose(request), { message: refused, param: 'model' }, title)
        continue
      }
      const choice = choose(request)
      t.equal(choice.label, label, `${title}: label`)
      t.same(pathsOf(choice), paths, title)
    }
  }
  t.end()
})

t.test('every choice is consistent', t => {
  const budgets = [CPU_32, { ram: 8 * GIB, gpu: 0 }, { ram: 64 * GIB, gpu: 24 * GIB }, { ram: 1 * GIB, gpu: 0 }]
  let chosen = 0
  for (const { id, files, gives, weightsInIndex } of sample(REPOSITORIES, 3)) {
    for (const { tag } of gives) {
      for (const memory of budgets) {
        const request = { id, weightsInIndex, memory, ...(tag === '' ? {} : { variant: tag }) }
        const title = `${id}:${tag} ${memory.ram / GIB}`
        const outcome = (listed: HubFile[]): Choice | string => {
          try {
            return choose({ ...request, files: listed })
          } catch (error) {
            if (error instanceof CorralError) return `${error.code} ${error.message}`
            throw error
          }
        }
        const choice = outcome(files)
        for (const seed of [1, 2, 3])
          t.same(outcome(shuffled(files, seed)), choice, `${title}: independent of the order`)
        if (typeof choice === 'string') continue
        chosen++
        checkChoice(t, title, choice)
      }
    }
  }
  t.ok(chosen > 60, `${chosen} choices`)
  t.end()
})

function checkChoice(t: Test, title: string, choice: Choice) {
  const models = choice.files.filter(file => file.role === 'model')
  const names = models.map(file => parseGgufFileName(file.path))
  t.ok(models.length > 0, `${title}: has weights`)
  t.equal(new Set(names.map(name => name.label)).size, 1, `${title}: one quantization`)
  const foreign = choice.files.filter(file => /\.(bin|pt|pth|py|onnx|h5)$/.test(file.path))
  t.same(foreign, [], `${title}: no executable or foreign files`)
  const extensions = new Set(models.map(file => file.path.slice(file.path.lastIndexOf('.'))))
  t.same([...extensions], [choice.format === 'gguf' ? '.gguf' : '.safetensors'], `${title}: one format`)
  if (choice.format === 'gguf') {
    t.equal(models.length, names[0]!.shard?.count ?? 1, `${title}: all shards`)
    for (const [index, name] of names.entries()) t.equal(name.shard?.index ?? 1, index + 1, `${title}: in order`)
  }
  t.ok(choice.files.filter(file => file.role === 'projector').length <= 1, `${title}: at most one projector`)
  const stored = choice.files.map(file => file.storedPath.toLowerCase())
  t.equal(new Set(stored).size, stored.length, `${title}: no duplicate names`)
  for (const name of stored) t.match(name, /^([a-z0-9_][a-z0-9._+-]*\/)?[a-z0-9_][a-z0-9._+-]*$/, `${title}: safe name`)
  t.equal(choice.size, totalSize(choice.files), `${title}: size`)
  t.match(choice.reason, /^[^\n]+\.$/, `${title}: a sentence`)
  const isReported = choice.warnings.some(text => /needs about/.test(text))
  t.equal(isReported, !choice.memory.fits, `${title}: tells a misfit`)
}

t.test('the default quantization depends on the memory', t => {
  const files = listing(
    'm-{IQ2_M:2.9,Q3_K_M:4,IQ4_XS:4.4,Q4_0:4.6,Q4_0_4_4:4.6,Q4_K_M:4.9,Q5_K_M:5.7,Q6_K:6.6,Q8_0:8.5,UD-Q8_K_XL:10,F16:16}.gguf'
  )
  const table = readCases<[ram: number, gpu: number, label: string, fits: boolean, reason: RegExp][]>(
    'choice-cases.yaml',
    'memory'
  )
  for (const [ram, gpu, label, fits, reason] of table) {
    const choice = choose({ files, memory: { ram: ram * GIB, gpu: gpu * GIB } })
    const title = `${ram} GiB, GPU ${gpu} GiB`
    t.equal(choice.label, label, title)
    t.equal(choice.memory.fits, fits, `${title}: fits`)
    t.equal(choice.memory.required <= choice.memory.available, fits, `${title}: numbers`)
    t.match(choice.reason, reason, title)
    for (const { label } of choice.choices) t.not(label, choice.label, 'the other choices')
  }
  const ordered = ['F16', 'UD-Q8_K_XL', 'Q6_K', 'Q5_K_M', 'Q4_K_M', 'Q4_0_4_4', 'Q4_0', 'IQ4_XS', 'Q3_K_M', 'IQ2_M']
  const labels = choose({ files }).choices.map(({ label }) => label)
  t.same(labels, ordered, 'the best first')
  const projector = listing('m-{Q4_K_M:4.9,Q6_K:6.6}.gguf\nmmproj-F16.gguf 3')
  t.equal(choose({ files: projector, memory: { ram: 12 * GIB, gpu: 0 } }).label, 'Q4_K_M', 'the projector counts')
  t.end()
})

t.test('the default quantization without Q4_K_M', t => {
  const small = { ram: 1 * GIB, gpu: 0 }
  const table = readCases<[labels: string, taken: string][]>('choice-cases.yaml', 'withoutQ4KM')
  for (const [labels, taken] of table) {
    const choice = choose({ files: listing(`m-{${labels}}.gguf`), memory: small })
    t.equal(choice.label, taken, labels)
    t.notOk(choice.memory.fits)
    t.match(choice.warnings.join(), /needs about .* of memory/, 'warns that it does not fit')
  }
  t.end()
})

t.test('files can be named in any case', t => {
  const files = listing('a-Q4_K_M.gguf 2\na-Q8_0.gguf 4\nsub/a-Q8_0[2].gguf 9\nmmproj-F16.gguf 1\nREADME.md')
  const paths = (request: Partial<ChoiceRequest>) => choose({ files, ...request }).files.map(file => file.path)
  t.same(paths({ file: 'sub/a-Q8_0-00002-of-00002.gguf' }).slice(0, 2), [
    'sub/a-Q8_0-00001-of-00002.gguf',
    'sub/a-Q8_0-00002-of-00002.gguf'
  ])
  t.same(paths({ file: 'a-Q4_K_M.gguf' }), ['a-Q4_K_M.gguf', 'mmproj-F16.gguf', 'README.md'])
  t.same(paths({ variant: 'A-q4_k_m.GGUF' }).slice(0, 1), ['a-Q4_K_M.gguf'], 'in any case')
  t.throws(() => paths({ variant: 'Q8_0' }), { code: 'invalid_request', message: /a-Q8_0 \(4\.0 GB\)|sub-a-Q8_0/ })
  t.throws(() => paths({ file: 'nowhere.gguf' }), { code: 'repo_not_found', message: /has no nowhere\.gguf/ })
  t.throws(() => paths({ file: 'README.md' }), { code: 'unsupported_capability', message: /is not a model file/ })
  const broken = listing('a-Q4_K_M.gguf 2\nb-Q8_0[3].gguf 9').filter(({ path }) => !path.includes('00003-of'))
  const lacking = failing('unsupported_capability', /lacks b-Q8_0-00003-of-00003\.gguf/)
  t.throws(() => choose({ files: broken, file: 'b-Q8_0-00002-of-00003.gguf' }), lacking)
  t.throws(() => choose({ files: broken, variant: 'q8_0' }), { message: /lacks b-Q8_0-00003/ })
  t.match(choose({ files: broken }).warnings, [/Not used: b-Q8_0-00001-of-00003\.gguf .* lacks b-Q8_0-00003/])
  t.match(choose({ files: listing('m-Q4_K_M.gguf 90'), variant: 'Q4_K_M' }).warnings, [/needs about 9\d\.\d GB/])
  t.match(choose({ files: listing('m-Q4_0_4_4.gguf 1'), variant: 'Q4_0_4_4' }).warnings, [/old versions/])
  const strange = choose({ files: listing('my model, v1: Q8_0.gguf 1\nAUX.jinja') })
  const stored = strange.files.map(file => file.storedPath)
  t.same(stored, ['my_model__v1__Q8_0.gguf', '_AUX.jinja'])
  t.match(choose({ files: listing('a-Q8_0.gguf 1\nmmproj-x-F16.gguf 1\nmmproj-y-F16.gguf 1') }), {
    files: { length: 1 },
    warnings: [/not clear which projector/]
  })
  t.same(
    choose({ files: listing('a-Q8_0.gguf 1\nLICENSE\nLicense\nREADME.md') }).files.map(file => file.path),
    ['a-Q8_0.gguf', 'LICENSE', 'README.md'],
    'names that differ only in case are one on some disks'
  )
  const unsized: HubFile[] = [{ path: 'x-Q8_0.gguf', size: undefined }]
  t.match(choose({ files: unsized }), { label: 'Q8_0', size: 0, memory: { fits: true } }, 'sizes may be unknown')
  t.end()
})

t.test('headers decide if names are ambiguous', t => {
  const table = readCases<[files: string, headers: object[], outcome: string | RegExp, variant?: string][]>(
    'choice-cases.yaml',
    'headers'
  )
  for (const [lines, headers, outcome, variant] of table) {
    const files = listing(lines)
    const wanted = variant === undefined ? {} : { variant }
    const read = filesToRead(files, wanted).headers ?? []
    t.equal(read.length, headers.length, `${lines}: files to read`)
    const request = { files, ...wanted, headers: new Map(read.map((path, index) => [path, { ...headers[index] }])) }
    if (outcome instanceof RegExp) t.throws(() => choose(request), { message: outcome }, lines)
    else t.equal(choose(request).files[0]!.path, outcome, lines)
  }
  for (const { id, files, gives } of REPOSITORIES) {
    if (gives.some(({ tag, refused }) => tag === '' && !refused)) {
      t.same(filesToRead(files).headers, undefined, `${id}: names are unambiguous`)
    }
  }
  const many = listing(`m-{${Array.from({ length: 9 }, (_, size) => `${size + 1}b`)}}-Q8_0.gguf 1`)
  t.same(filesToRead(many).headers, undefined, 'at most eight are read')
  t.end()
})

t.test('a listing of 20,000 models is chosen from quickly', t => {
  const files = Array.from({ length: 20_000 }, (_, index) => ({ path: `m${index}b/m-${index}b-Q8_0.gguf`, size: 1 }))
  t.throws(() => choose({ files }), { message: /20000 models/, details: { choices: { length: 200 } } })
  t.end()
})

t.test('SafeTensors weights are chosen with their files', t => {
  const rest = 'config.json 1k\ntokenizer.json 900k'
  const files = listing(`model[2].safetensors 8\nmodel.safetensors.index.json 1k\nextra.safetensors 1\n${rest}`)
  t.equal(filesToRead(files).index, 'model.safetensors.index.json')
  t.equal(filesToRead(files).config, 'config.json')
  const whole = [...files, ...listing('a-Q4_0.gguf 1')]
  t.equal(filesToRead(whole).index, undefined, 'GGUF takes precedence')
  t.equal(filesToRead(whole).config, undefined)
  t.equal(filesToRead(whole, { variant: 'safetensors' }).index, 'model.safetensors.index.json')
  t.equal(filesToRead(whole, { variant: 'Q4_0' }).index, undefined)
  t.equal(filesToRead(whole, { variant: 'Q3_K_M' }).index, undefined, 'a refused variant needs no index')
  t.equal(filesToRead(whole, { file: 'model-00002-of-00002.safetensors' }).index, 'model.safetensors.index.json')
  t.equal(choose({ files: whole, variant: 'safetensors' }).format, 'safetensors')
  const inFolder = listing(
    'BF16/model.safetensors 8\nBF16/model.safetensors.index.json 1k\nBF16/config.json\nBF16/tokenizer.json'
  )
  t.equal(filesToRead(inFolder, { variant: 'bf16' }).index, 'BF16/model.safetensors.index.json')
  t.same(
    choose({ files: inFolder, weightsInIndex: ['model.safetensors'] }).files.map(file => file.storedPath),
    ['model.safetensors', 'config.json', 'model.safetensors.index.json', 'tokenizer.json']
  )
  const two = [...inFolder, ...listing('F32/model.safetensors 16\nF32/config.json\nF32/tokenizer.json')]
  t.throws(() => choose({ files: two }), { code: 'invalid_request', message: /BF16, F32/ })
  t.equal(choose({ files: two, variant: 'f32' }).label, 'F32')

  t.same(weightsFromIndex({ weight_map: { b: 'm-2.safetensors', a: 'm-1.safetensors', c: 'm-2.safetensors' } }), [
    'm-1.safetensors',
    'm-2.safetensors'
  ])
  for (const weight_map of [undefined, {}, { a: '../x.safetensors' }, { a: 1 }, { a: 'pytorch_model.bin' }]) {
    const refused = { code: 'unsupported_capability', message: /index\.json cannot be used/ }
    t.throws(() => weightsFromIndex({ weight_map }), refused, JSON.stringify(weight_map))
  }
  for (const index of [[], null]) t.throws(() => weightsFromIndex(index), { code: 'unsupported_capability' })
  const gone = ['model-00001-of-00002.safetensors', 'gone.safetensors']
  const lacksIt = failing('unsupported_capability', /lacks gone\.safetensors/)
  t.throws(() => choose({ files, weightsInIndex: gone }), lacksIt)
  const renamed = choose({ files: listing(`llama-7b.safetensors 8\n${rest}`) })
  t.equal(renamed.files[0]?.storedPath, 'model.safetensors', 'the name that the converter looks for')
  t.throws(() => choose({ files: listing(`a.safetensors 8\nb.safetensors 8\n${rest}`) }), {
    message: /2 SafeTensors files/
  })

  const config = { torch_dtype: 'bfloat16' }
  const plain = listing(`model.safetensors 8\n${rest}`)
  t.equal(choose({ files: plain, config }).label, 'BF16')
  t.equal(choose({ files: plain, config, variant: 'bf16' }).label, 'BF16')
  const otherType = failing('repo_not_found', /only SafeTensors weights in BF16/)
  t.throws(() => choose({ files: plain, config, variant: 'F16' }), otherType)
  t.throws(() => choose({ files: plain, config, variant: 'Q8_0' }), { message: /--dtype q8_0/ })
  t.throws(() => choose({ files: plain, config, variant: 'nonsense' }), failing('repo_not_found', /has no nonsense/))
  t.throws(() => choose({ files: plain, config: { quantization: { bits: 4, group_size: 64 } } }), { message: /MLX/ })
  t.ok(choose({ files: plain, config: { quantization_config: { quant_method: 'gptq', bits: 4 } } }))
  const need = (dtype: string) => choose({ files: plain, config: { torch_dtype: dtype } }).memory.required
  t.ok(need('float32') < need('bfloat16'), 'memory is for 16 bits')
  t.match(choose({ files: plain, memory: { ram: 8 * GIB, gpu: 0 } }).warnings, [/converted to GGUF/, /smaller type/])
  t.same(
    [config, { dtype: 'float16' }, { text_config: { dtype: 'float32' } }, {}, null].map(config =>
      safetensorsLabel(config)
    ),
    ['BF16', 'F16', 'F32', 'SAFETENSORS', 'SAFETENSORS']
  )
  t.end()
})

t.test('models for speech are chosen by their label or file', t => {
  const recognizers = listing(
    'ggml-base.bin 0.15\nggml-base.en-q5_1.bin 0.06\nggml-base-encoder.mlmodelc.zip 0.04\nREADME.md'
  )
  const base = choose({ files: recognizers, variant: 'BASE' })
  t.match(base, {
    format: 'ggml',
    label: 'base',
    files: [{ path: 'ggml-base.bin', role: 'model' }],
    choices: [{ label: 'base.en-q5_1' }]
  })
  t.equal(choose({ files: recognizers, file: 'ggml-base.en-q5_1.bin' }).label, 'base.en-q5_1')
  t.throws(() => choose({ files: recognizers }), { code: 'invalid_request', message: /2 models: base \(.*a\/b:base/ })
  t.throws(() => choose({ files: recognizers, variant: 'tiny' }), { code: 'repo_not_found', message: /has no tiny/ })
  const voices = listing(
    'pt/tug\u00e3o/x-tug\u00e3o.onnx 0.06\npt/tug\u00e3o/x-tug\u00e3o.onnx.json\nbare.onnx 0.06\nMODEL_CARD'
  )
  const voice = choose({ files: voices })
  t.match(voice, { format: 'onnx', label: 'x-tug-o', reason: /only model/ })
  const stored = voice.files.map(({ storedPath, role }) => [storedPath, role])
  t.same(stored, [
    ['x-tug_o.onnx', 'model'],
    ['x-tug_o.onnx.json', 'other']
  ])
  t.throws(() => choose({ files: listing('pytorch_model.bin 1\nx.onnx 1') }), { code: 'unsupported_capability' })
  t.equal(choose({ files: [...recognizers, ...listing('a-Q8_0.gguf 1')] }).format, 'gguf', 'language models first')
  t.end()
})

t.test('a README is split, and capabilities follow from files and tags', t => {
  const front = (lines: string) => splitReadme(`---\n${lines}\n---\n# Bird`)
  const body = '# Bird'
  t.same(splitReadme(body), { license: undefined, tags: [], body })
  t.same(splitReadme('--- not closed'), { license: undefined, tags: [], body: '--- not closed' })
  t.same(front('license: "mit"\npipeline_tag: text-ranking'), { license: 'mit', tags: ['text-ranking'], body })
  t.same(front('tags: [a, "b"]\r\nlicense: other\r\nlicense_name: bird-1\r'), {
    license: 'bird-1',
    tags: ['a', 'b'],
    body
  })
  t.same(front('license:\n- Apache License 2.0\ntags:\n  - a\n- b\nx:\n- c').tags, ['a', 'b'])
  t.ok(splitReadme(`---\n${'tags:\n- x\n'.repeat(100_000)}---\n${body}`).tags.length > 0, 'a huge one')
  const template = '{% if tools %}{{ tools }}{% endif %}<think>'
  for (const [paths, tags, expected] of [
    [['a.gguf', 'mmproj-a.gguf'], [], ['tools', 'thinking', 'vision']],
    [['a.gguf'], ['sentence-similarity'], ['embedding']],
    [['model.safetensors'], ['reranker'], ['rerank']],
    [['ggml-base.bin'], [], ['transcribe']],
    [['en.onnx', 'en.onnx.json'], [], ['speak']],
    [['model_index.json', 'sd.safetensors'], [], ['draw']]
  ] as [string[], string[], string[]][]) {
    t.same(findCapabilities({ paths, tags, chatTemplate: template }), expected, paths.join())
  }
  t.end()
})
