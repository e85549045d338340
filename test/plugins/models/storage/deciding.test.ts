import t from 'tap'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { tensorSize } from '../../../../core/models/gguf-file.ts'
import { baseOfFileName } from '../../../../core/models/gguf-file-name.ts'
import { ggufPurpose } from '../../../../core/models/gguf-purpose.ts'
import { ggufModel } from '../../../../core/models/model-folder.ts'
import { dtypeLabel } from '../../../../core/models/safetensors-layout.ts'
import { conflictingVariant, haveSameContent } from '../../../../core/models/stored-variant.ts'
import { chooseModel, toStoredFiles } from '../../../../plugins/models/storage/import-source.ts'
import {
  parseManifest,
  shortManifest,
  withoutRevisions,
  withVariant
} from '../../../../plugins/models/storage/manifest.ts'
import { storedVariants } from '../../../../plugins/models/storage/model-index.ts'
import {
  type CapabilityFacts,
  getCapabilities,
  ggufLabel,
  ggufMetadata,
  labelFromFileType,
  safetensorsMetadata
} from '../../../../plugins/models/storage/model-metadata.ts'
import { contentDigest } from '../../../../plugins/models/storage/staging.ts'
import { failing } from '../../../support/failure.ts'
import { readCases } from '../../../support/fixture.ts'

t.test('labels are read from headers and file names', t => {
  t.equal(labelFromFileType(15), 'Q4_K_M')
  t.equal(labelFromFileType(1024 + 7), 'Q8_0', 'a guessed type')
  t.equal(labelFromFileType(999), undefined)
  t.equal(labelFromFileType('x'), undefined)
  t.equal(ggufLabel('a-UD-Q4_K_XL.gguf', 15), 'UD-Q4_K_XL', 'the name knows mixtures that the header does not')
  t.equal(ggufLabel('a.gguf', 15), 'Q4_K_M')
  t.equal(ggufLabel('a.gguf', undefined), 'GGUF')
  t.same(['bfloat16', 'torch.float16', 'F32', 'float8_e4m3fn', undefined].map(dtypeLabel), [
    'BF16',
    'F16',
    'F32',
    'FP8',
    'SAFETENSORS'
  ])
  t.equal(baseOfFileName('Qwen3-0.6B-Q4_K_M-00001-of-00002.gguf'), 'qwen3-0.6b')
  t.equal(baseOfFileName('Qwen3-0.6B.UD-Q2_K_XL.gguf'), 'qwen3-0.6b')
  t.end()
})

t.test('capabilities follow from metadata', t => {
  const none = { hasFillInToken: false }
  const tools = '{% if tools %}{{ tools | tojson }}{% endif %}'
  t.same(getCapabilities({ ...none, architecture: 'llama' }), ['completion'])
  t.same(getCapabilities({ ...none, architecture: 'llama', chatTemplate: tools }), ['completion', 'tools'])
  for (const chatTemplate of ['no tools here', `{{ 'no tools' + "it's tools" }}`, '{{ message.tools }}']) {
    t.same(getCapabilities({ ...none, architecture: 'llama', chatTemplate }), ['completion'], chatTemplate)
  }
  for (const sign of ['<think>', '{% if enable_thinking %}', '{{ message.reasoning_content }}', '[THINK]']) {
    t.same(getCapabilities({ ...none, chatTemplate: sign }), ['completion', 'thinking'], sign)
  }
  t.same(getCapabilities({ ...none, architecture: 'bert' }), ['embedding'])
  t.same(getCapabilities({ ...none, architecture: 'qwen3', poolingType: 3, chatTemplate: tools }), ['embedding'])
  t.same(getCapabilities({ ...none, architecture: 'llama', poolingType: 0 }), ['completion'])
  const kinds = readCases<[string, Partial<CapabilityFacts>, string[]][]>('storage-cases.yaml', 'capabilities')
  for (const [what, facts, expected] of kinds) t.same(getCapabilities({ ...none, ...facts }), expected, what)
  t.same(getCapabilities({ ...none, projector: { vision: true, audio: true } }), ['completion', 'vision', 'audio'])
  t.same(getCapabilities({ ...none, hasFillInToken: true }), ['completion', 'insert'])
  t.end()
})

t.test('metadata is read from GGUF files', t => {
  const file = (metadata: Record<string, unknown>, parameters = 10) => ({
    metadata,
    parameters,
    tensorCount: 1,
    classifies: false,
    hasToken: false
  })
  const metadata = ggufMetadata(
    [
      file({
        'general.architecture': 'qwen3',
        'qwen3.context_length': 40960,
        'qwen3.embedding_length': 1024,
        'qwen3.rope.freq_base': 1e6,
        'some.nan': Number.NaN,
        'some.flag': true,
        'some.text': 'x'.repeat(2000),
        'tokenizer.chat_template': '{{ tools }}',
        'tokenizer.chat_template.tool_use': 'x',
        'tokenizer.ggml.tokens': { length: 2 }
      }),
      file({}, 5)
    ],
    'Q8_0',
    file({ 'general.architecture': 'clip', 'clip.has_vision_encoder': true })
  )
  t.same(metadata, {
    architecture: 'qwen3',
    contextLength: 40960,
    embeddingLength: 1024,
    parameters: 15,
    quantization: 'Q8_0',
    chatTemplate: '{{ tools }}',
    capabilities: ['completion', 'tools', 'vision'],
    info: {
      'general.architecture': 'qwen3',
      'qwen3.context_length': 40960,
      'qwen3.embedding_length': 1024,
      'qwen3.rope.freq_base': 1e6,
      'some.nan': null,
      'some.flag': true,
      'general.parameter_count': 15
    }
  })
  t.same(ggufMetadata([file({})], 'F16').capabilities, ['completion'], 'a file without information')
  const forTools = { 'tokenizer.chat_template': 'x', 'tokenizer.chat_template.tool_use': '{{ tools }}' }
  t.match(ggufMetadata([file(forTools)], 'F16'), { chatTemplate: 'x', capabilities: ['completion', 'tools'] })
  t.same(ggufMetadata([{ ...file({}), hasToken: true }], 'F16').capabilities, ['completion', 'insert'])
  // Each of these would take minutes if every opening were followed to the end of the text.
  for (const hostile of ['{%'.repeat(400_000), `{% '${"\\'".repeat(400_000)}\\%}`, `{% "${'\\"'.repeat(400_000)}%}`]) {
    t.same(ggufMetadata([file({ 'tokenizer.chat_template': hostile })], 'F16').capabilities, ['completion'])
  }
  t.equal(ggufPurpose({ 'general.type': 'adapter' }), 'adapter')
  t.equal(ggufPurpose({ 'general.type': 'imatrix' }), 'imatrix')
  t.equal(ggufPurpose({ 'general.architecture': 'clip' }), 'projector')
  t.equal(ggufPurpose({ 'general.architecture': 'llama' }), 'model')
  t.end()
})

t.test('metadata is read from SafeTensors folders', t => {
  const weights = [
    { parameters: 7, dtype: 'BF16' },
    { parameters: 5, dtype: 'BF16' }
  ]
  const of = (config: object, more: object = {}) =>
    safetensorsMetadata({ config: { ...config }, isSentenceTransformer: false, ...more }, weights)
  t.match(
    of({
      architectures: ['Gemma3ForConditionalGeneration'],
      model_type: 'gemma3',
      text_config: { max_position_embeddings: 131072, hidden_size: 2560 }
    }),
    {
      architecture: 'gemma3',
      contextLength: 131072,
      embeddingLength: 2560,
      parameters: 12,
      quantization: 'BF16',
      capabilities: ['completion'],
      info: { 'gemma3.context_length': 131072, 'general.architecture': 'gemma3', 'general.parameter_count': 12 }
    }
  )
  t.equal(of({ torch_dtype: 'float16' }).quantization, 'F16')
  const templates = {
    tokenizerConfig: {
      chat_template: [
        { name: 'rag', template: 'r' },
        { name: 'default', template: '{{ tools }}' }
      ]
    }
  }
  t.match(of({ architectures: ['CohereForCausalLM'] }, templates), {
    chatTemplate: '{{ tools }}',
    capabilities: ['completion', 'tools']
  })
  t.equal(of({}, { ...templates, chatTemplate: 'file' }).chatTemplate, 'file')
  templates.tokenizerConfig.chat_template.reverse()[0] = { name: 'tool_use', template: '{{ tools }}' }
  t.same(of({}, templates).capabilities, ['completion', 'tools'])
  t.same(of({ architectures: ['BertModel'] }).capabilities, ['embedding'])
  t.same(of({ architectures: ['Qwen3ForCausalLM'] }, { isSentenceTransformer: true }).capabilities, ['embedding'])
  t.same(of({ architectures: ['XLMRobertaForSequenceClassification'] }).capabilities, ['rerank'])
  const classes = readCases<[string, string[]][]>('storage-cases.yaml', 'classes')
  for (const [name, expected] of classes) t.same(of({ architectures: [name] }).capabilities, expected, name)
  const feelings = { id2label: { 0: 'joy', 1: 'anger', 2: 'none' } }
  t.same(of({ architectures: ['BertForSequenceClassification'], ...feelings }).capabilities, [])
  const reranker = { readme: '---\n---\n# Qwen3-Reranker-0.6B\n' }
  t.same(of({ architectures: ['Qwen3ForCausalLM'] }, reranker).capabilities, ['rerank'])
  const pooling = {
    isSentenceTransformer: true,
    pooling: { pooling_mode_mean_tokens: false, pooling_mode_lasttoken: true }
  }
  t.equal(of({ model_type: 'qwen3' }, pooling).info['qwen3.pooling_type'], 3)
  t.end()
})

t.test('GGUF files get their shards and projector', t => {
  const sources = (fileName: string, names: string[]) =>
    toStoredFiles('/d', ggufModel(fileName, names)).map(file => file.source.slice('/d/'.length))
  t.same(sources('a-Q4_0.gguf', ['a-Q4_0.gguf', 'b.gguf']), ['a-Q4_0.gguf'])
  const shards = ['m-00001-of-00003.gguf', 'm-00002-of-00003.gguf', 'm-00003-of-00003.gguf']
  t.same(sources(shards[1]!, [...shards].reverse()), shards, 'any shard names the model')
  const missing = failing('invalid_request', /m-00002-of-00003\.gguf is missing/)
  t.throws(() => sources(shards[0]!, [shards[0]!, shards[2]!]), missing)
  t.same(sources('x-00001-of-00000.gguf', ['x-00001-of-00000.gguf']), ['x-00001-of-00000.gguf'], 'not a shard set')

  const projectors = readCases<[string, string[], string | undefined][]>('storage-cases.yaml', 'projectors')
  for (const [fileName, names, projector] of projectors) {
    t.same(sources(fileName, names), projector ? [fileName, projector] : [fileName], names.join(' '))
  }
  t.same(
    toStoredFiles('/d', ggufModel('-a,b: c.gguf', ['-a,b: c.gguf']))[0],
    { source: '/d/-a,b: c.gguf', path: '_a_b__c.gguf', role: 'model' },
    'names that a file system or a command line would misread'
  )
  t.end()
})

t.test('an import of a folder chooses a model', t => {
  const sources = (names: string[], variant?: string, weights?: string[]) => {
    const texts = {
      config: names.includes('config.json') ? { value: {} } : undefined,
      index: weights && { value: { weight_map: Object.fromEntries(weights.entries()) } }
    }
    return toStoredFiles('/d', chooseModel('/d', names, texts, variant)).map(file => file.source.slice('/d/'.length))
  }
  t.same(sources(['README.md', 'a.gguf', 'imatrix.gguf']), ['a.gguf'])
  t.same(sources(['a-Q4_0.gguf', 'a-Q8_0.gguf'], 'q8_0'), ['a-Q8_0.gguf'])
  t.throws(() => sources(['a-Q4_0.gguf', 'a-Q8_0.gguf']), failing('invalid_request', /a-Q4_0\.gguf, a-Q8_0\.gguf/))
  t.throws(() => sources(['a-Q4_0.gguf', 'a-Q8_0.gguf'], 'Q5_0'), { message: /2 models/ })
  t.throws(() => sources(['m-00002-of-00002.gguf']), { message: /m-00001-of-00002\.gguf is missing/ })
  t.throws(() => sources(['README.md', 'pytorch_model.bin']), { message: /no model/ })

  const whole = ['config.json', 'model.safetensors', 'tokenizer.json']
  t.same(sources([...whole, 'chat_template.jinja', 'README.md', 'pytorch_model.bin', 'training_args.bin', 'a.gguf']), [
    'model.safetensors',
    'chat_template.jinja',
    'config.json',
    'tokenizer.json'
  ])
  t.same(sources([...whole, 'a-Q4_0.gguf'], 'Q4_0'), ['a-Q4_0.gguf'], 'the label selects the GGUF file')
  t.same(sources([...whole, '1_Pooling/config.json', '1_Pooling/notes.txt']).at(0), 'model.safetensors')
  t.ok(sources([...whole, '1_Pooling/config.json']).includes('1_Pooling/config.json'))
  const parts = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
  const rest = ['config.json', 'tokenizer.model']
  t.same(sources([...parts, ...rest]).slice(0, 2), parts)
  t.throws(() => sources([parts[0]!, ...rest]), { message: /model-00002-of-00002\.safetensors is missing/ })
  t.same(sources([...parts, 'consolidated.safetensors', ...rest], undefined, parts).slice(0, 3), [
    ...parts,
    'config.json'
  ])
  t.throws(() => sources(['model.safetensors', ...rest], undefined, ['w.safetensors']), {
    message: /w\.safetensors is missing/
  })
  t.throws(() => sources(['model.safetensors', 'tokenizer.json']), { message: /no config\.json/ })
  t.throws(() => sources(['model.safetensors', 'config.json']), { message: /no tokenizer/ })
  t.throws(() => sources(['adapter_model.safetensors', 'adapter_config.json']), { message: /LoRA/ })
  t.throws(() => sources(['consolidated.safetensors', ...rest]), { message: /consolidated\.safetensors/ })
  t.end()
})

t.test('manifests are read and changed', t => {
  const record = (label: string, revision: string) => ({
    label,
    revision,
    format: 'gguf' as const,
    files: [{ path: 'a.gguf', size: 1, sha256: '0'.repeat(64), role: 'model' as const }],
    size: 1,
    digest: '1'.repeat(64),
    modifiedAt: '2026-01-02T03:04:05.678Z',
    origin: { kind: 'import' as const, from: '/x' },
    metadata: { capabilities: [], info: { a: null, b: 1 } }
  })
  const name = { owner: 'A', name: 'b' }
  const one = withVariant(undefined, name, record('F16', 'f16-1'))
  const two = withVariant(one, name, record('Q8_0', 'q8_0-1'))
  t.equal(two.default, 'F16')
  t.same(parseManifest(JSON.stringify(two)), { value: two })
  const replaced = withVariant(two, name, record('f16', 'f16-2'))
  t.same(
    replaced.variants.map(({ label, revision }) => [label, revision]),
    [
      ['F16', 'f16-2'],
      ['Q8_0', 'q8_0-1']
    ],
    'the label keeps its case and its place'
  )
  t.equal(withoutRevisions(two, new Set(['f16-1']))?.default, 'Q8_0', 'the oldest remaining one is the default')
  t.equal(withoutRevisions(two, new Set(['q8_0-1']))?.default, 'F16')
  t.equal(withoutRevisions(two, new Set(['f16-1', 'q8_0-1'])), undefined)
  const tagged = {
    ...one.variants[0]!,
    label: 'v1',
    revision: 'v1-1',
    origin: { kind: 'made' as const, from: 'x', tag: 'v1' }
  }
  const three = { ...two, variants: [tagged, ...two.variants] }
  t.equal(withoutRevisions(three, new Set(['f16-1']))?.default, 'Q8_0', 'a tagged variant only if it is the last')
  t.equal(withoutRevisions(three, new Set(['f16-1', 'q8_0-1']))?.default, 'v1')
  const { metadata } = one.variants[0]!
  t.match(
    storedVariants('/m/A/b', shortManifest({ ...two, default: 'q8_0' }), () => metadata),
    [
      { label: 'Q8_0', isDefault: true, publicName: 'A/b', key: 'a/b:q8_0', directory: /q8_0-1$/ },
      { label: 'F16', isDefault: false, publicName: 'A/b:F16', key: 'a/b:f16' }
    ]
  )

  const broken: [change: (manifest: any) => unknown, why: RegExp][] = [
    [() => null, /object/],
    [() => [], /object/],
    [m => ({ ...m, version: 2 }), /newer corral/],
    [m => ({ ...m, version: undefined }), /version/],
    [m => ({ ...m, owner: '../x' }), /owner/],
    [m => ({ ...m, default: 'Q2_K' }), /default/],
    [m => ({ ...m, variants: [] }), /variants/],
    [m => ({ ...m, variants: [{ ...m.variants[0], revision: '../../x' }] }), /revision/],
    [m => ({ ...m, variants: [{ ...m.variants[0], files: [{ ...m.variants[0].files[0], path: '../x' }] }] }), /path/],
    [m => ({ ...m, variants: [{ ...m.variants[0], files: [{ ...m.variants[0].files[0], path: '/x' }] }] }), /path/],
    [
      m => ({ ...m, variants: [{ ...m.variants[0], files: [{ ...m.variants[0].files[0], path: 'a/../../x' }] }] }),
      /path/
    ],
    [m => ({ ...m, variants: [{ ...m.variants[0], files: [{ ...m.variants[0].files[0], path: 'a\\b' }] }] }), /path/],
    [m => ({ ...m, variants: [{ ...m.variants[0], digest: 'x' }] }), /digest/]
  ]
  for (const [change, why] of broken) t.match(parseManifest(JSON.stringify(change(one))), { fault: why })
  t.match(parseManifest('{"version":1,'), { fault: /not JSON/ })
  t.end()
})

t.test('placement, digests and disk use', t => {
  type Kind = 'bundled' | 'import' | 'hub' | 'made'
  const from = (kind: Kind, from = 'x') => ({ kind, from })
  const conflict = (present: [Kind, string?], incoming: [Kind, string?]) =>
    conflictingVariant(
      [{ origin: from(...present), isDefault: true, label: 'F16' } as StoredVariant],
      from(...incoming),
      'F16'
    )
  t.notOk(conflict(['import', 'a'], ['import', 'b']))
  t.notOk(conflict(['bundled'], ['bundled']))
  t.notOk(conflict(['hub', 'hf:a/b'], ['hub', 'hf:a/b']))
  t.ok(conflict(['hub', 'hf:a/b'], ['hub', 'ms:a/b']))
  t.ok(conflict(['hub'], ['import']))
  t.ok(conflict(['bundled'], ['import']))
  t.ok(conflict(['made'], ['hub']))
  const beside = [
    { origin: from('hub'), isDefault: true, label: 'F16' },
    { origin: from('made'), isDefault: false, label: 'mine' }
  ] as StoredVariant[]
  t.notOk(conflictingVariant(beside, from('hub'), 'Q8_0'), 'a model made beside it does not block it')
  t.match(conflictingVariant(beside, from('hub'), 'Mine'), { label: 'mine' }, 'except one with the same label')

  const file = (path: string, sha256: string) => ({ path, sha256, size: 1, role: 'model' as const })
  t.ok(haveSameContent([file('a', '1'), file('b', '2')], [file('c', '2'), file('d', '1')]))
  t.notOk(haveSameContent([file('a', '1')], [{ ...file('a', '1'), role: 'projector' }]))
  t.equal(contentDigest([file('a', '1'), file('b', '2')]), contentDigest([file('b', '2'), file('a', '1')]))
  t.equal(contentDigest([file('a', '1')]), contentDigest([file('z', '1')]), 'names are not content')
  t.not(contentDigest([file('a', '1')]), contentDigest([file('a', '2')]))
  t.not(contentDigest([file('a', '1')]), contentDigest([file('a', '1')], { system: 'You are Leo.' }))
  t.equal(
    contentDigest([file('a', '1')], { system: 'x', options: { b: [1], a: { d: 1, c: 2 } } }),
    contentDigest([file('a', '1')], { options: { a: { c: 2, d: 1 }, b: [1] }, system: 'x' }),
    'the order of keys does not matter'
  )

  t.equal(tensorSize(0, 10), 40)
  t.equal(tensorSize(12, 256), 144)
  t.equal(tensorSize(8, 33), 68, 'a partial block counts as a whole one')
  t.equal(tensorSize(999, 10), 0)
  t.end()
})
