import t from 'tap'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { tensorSize } from '../../../../core/models/gguf-file.ts'
import { baseOfFileName, ggufPurpose } from '../../../../core/models/gguf-file-name.ts'
import { ggufModel, safetensorsLabel } from '../../../../core/models/model-folder.ts'
import { conflictingVariant, haveSameContent } from '../../../../core/models/stored-variant.ts'
import { chooseModel, toStoredFiles } from '../../../../plugins/models/storage/import-source.ts'
import {
  parseManifest,
  shortManifest,
  storedVariants,
  withoutRevisions,
  withVariant
} from '../../../../plugins/models/storage/manifest.ts'
import {
  type CapabilityFacts,
  getCapabilities,
  ggufLabel,
  ggufMetadata,
  labelFromFileType,
  safetensorsMetadata
} from '../../../../plugins/models/storage/model-files.ts'
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
  t.same(
    ['bfloat16', 'torch.float16', 'F32', 'float8_e4m3fn', undefined].map(dtype => safetensorsLabel({ dtype })),
    ['BF16', 'F16', 'F32', 'FP8', 'SAFETENSORS']
  )
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
  const { keys, metadata } = readCases<Record<'keys' | 'metadata', any>>('storage-cases.yaml', 'ggufMetadata')
  const projector = file({ 'general.architecture': 'clip', 'clip.has_vision_encoder': true })
  const shards = [file({ ...keys, 'some.text': 'x'.repeat(2000) }), file({}, 5)]
  const expected = { ...metadata, info: { ...metadata.info, 'some.nan': null } }
  t.same(ggufMetadata(shards, 'Q8_0', projector), expected)
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
  type Case = [config: object, more: object, metadata: { capabilities?: string[] }]
  for (const [config, more, expected] of readCases<Case[]>('storage-cases.yaml', 'safetensorsMetadata')) {
    const metadata = of(config, more)
    const title = JSON.stringify([config, more])
    t.match(metadata, expected, title)
    if (expected.capabilities) t.same(metadata.capabilities, expected.capabilities, title)
  }
  const classes = readCases<[string, string[]][]>('storage-cases.yaml', 'classes')
  for (const [name, expected] of classes) t.same(of({ architectures: [name] }).capabilities, expected, name)
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
  type Case = [names: string[], outcome: string[] | RegExp, variant?: string, weights?: string[]]
  for (const [names, outcome, variant, weights] of readCases<Case[]>('storage-cases.yaml', 'folderImports')) {
    const texts = {
      config: names.includes('config.json') ? { value: {} } : undefined,
      index: weights && { value: { weight_map: Object.fromEntries(weights.entries()) } }
    }
    const sources = () =>
      toStoredFiles('/d', chooseModel('/d', names, texts, variant)).map(file => file.source.slice('/d/'.length))
    if (outcome instanceof RegExp) t.throws(sources, failing('invalid_request', outcome), names.join())
    else t.same(sources(), outcome, names.join())
  }
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

  type Broken = [change: { variant?: object; file?: object }, why: RegExp]
  for (const [{ variant, file, ...change }, why] of readCases<Broken[]>('storage-cases.yaml', 'brokenManifests')) {
    const [first] = one.variants
    const changed = { ...first, files: [{ ...first!.files[0], ...file }], ...variant }
    const text = JSON.stringify({ ...one, variants: [changed], ...change })
    t.match(parseManifest(text), { fault: why }, JSON.stringify(change))
  }
  for (const text of ['null', '[]']) t.match(parseManifest(text), { fault: /object/ })
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
