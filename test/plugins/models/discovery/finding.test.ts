import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { bareName, parseRequestedName } from '../../../../core/models/model-name.ts'
import {
  CacheDisk,
  type CacheFile,
  type Candidate,
  validName
} from '../../../../plugins/models/discovery/cache-disk.ts'
import { findHuggingFace, findLmStudio, planRepository } from '../../../../plugins/models/discovery/hub-caches.ts'
import { huggingFaceFolders, lmStudioFolders, ollamaFolders } from '../../../../plugins/models/discovery/index.ts'
import { findOllama, planOllama } from '../../../../plugins/models/discovery/ollama-cache.ts'
import { readCases } from '../../../support/fixture.ts'
import { ggufBytes, safetensorsBytes } from '../../../support/gguf-writer.ts'
import { layOutFiles, layOutOllama, layOutSnapshot, sha256 } from './cache-layouts.ts'

const modelName = ({ name }: Candidate) => (name.variant ? `${bareName(name)}:${name.variant}` : bareName(name))
/** Name, stored files and problem of each candidate, for the tables below. */
const summary = (candidates: Candidate[]) =>
  candidates.map(candidate => {
    const files = candidate.files.map(({ path, role }) => (role === 'model' ? path : `${role} ${path}`)).join(', ')
    return candidate.problem ? [modelName(candidate), files, candidate.problem] : [modelName(candidate), files]
  })

t.test('names from other tools become valid model names', async t => {
  const cases = readCases<[string[], string][]>('discovery-cases.yaml', 'names')
  for (const [[owner, name, variant], expected] of cases) {
    const valid = validName(owner!, name!, variant)
    t.equal(valid.variant ? `${bareName(valid)}:${valid.variant}` : bareName(valid), expected)
  }
})

t.test('cache folders follow settings, environment and platform', async t => {
  const at = (env: Record<string, string>) => ({ env, home: '/home/me', platform: 'linux' as const })
  const cases = readCases<[env: Record<string, string>, folders: string[]][]>(
    'discovery-cases.yaml',
    'huggingFaceFolders'
  )
  for (const [env, expected] of cases) {
    t.same(huggingFaceFolders(at(env)), expected, JSON.stringify(env))
  }
  const service = '/usr/share/ollama/.ollama/models'
  t.same(ollamaFolders(at({})), ['/home/me/.ollama/models', service])
  t.same(ollamaFolders(at({ OLLAMA_MODELS: '/disk' })), ['/disk', service])
  t.same(ollamaFolders({ ...at({}), platform: 'darwin' }), ['/home/me/.ollama/models'])
  const lmStudio = (files: Record<string, string>) => lmStudioFolders(at({}), async path => files[path])
  const standards = ['/home/me/.lmstudio/models', '/home/me/.cache/lm-studio/models']
  t.same(await lmStudio({}), standards)
  t.same(await lmStudio({ '/home/me/.lmstudio-home-pointer': '/moved\n' }), ['/moved/models', ...standards])
  for (const settings of ['{}', '{"downloadsFolder": 7}', '{"downloadsFolder": ""}', 'null', '{']) {
    t.same(await lmStudio({ '/home/me/.lmstudio/settings.json': settings }), standards, settings)
  }
  const moved = { '/home/me/.lmstudio/settings.json': '{"downloadsFolder": "~/llm"}' }
  t.same(await lmStudio(moved), ['/home/me/llm', standards[1]])
})

const DAMAGED = { fault: 'it is not JSON' }
const parsed = (value: object) => (value === DAMAGED ? DAMAGED : { value })

t.test('a repository yields a model per quantization and its weights', async t => {
  const plan = (
    files: Record<string, CacheFile['content']>,
    { config, index }: { config?: object; index?: object } = {}
  ) =>
    summary(
      planRepository({
        owner: 'o',
        name: 'n',
        folder: '/c',
        files: Object.entries(files).map(([path, content]) => {
          const why = content === 'foreign' ? 'It is a web page.' : undefined
          return { path, content, source: `/blobs/${path}`, size: content === 'missing' ? 0 : 10, ...(why && { why }) }
        }),
        texts: { config: config && parsed(config), index: index && parsed(index) }
      })
    )
  t.same(
    plan({
      'README.md': 'other',
      'm-Q4_K_M.gguf': 'gguf',
      'm-Q8_0.gguf': 'gguf',
      'mmproj-m-F32.gguf': 'gguf',
      'mmproj-m-F16.gguf': 'gguf',
      'm.imatrix.gguf': 'gguf',
      'mtp-m-Q4_0.gguf': 'gguf'
    }),
    [
      ['o/n:Q4_K_M', 'm-Q4_K_M.gguf, projector mmproj-m-F16.gguf, draft mtp-m-Q4_0.gguf'],
      ['o/n:Q8_0', 'm-Q8_0.gguf, projector mmproj-m-F16.gguf, draft mtp-m-Q4_0.gguf']
    ],
    'one model per quantization, with its projector and its draft model'
  )
  t.same(
    plan({
      'BF16/m-BF16-00001-of-00002.gguf': 'gguf',
      'BF16/m-BF16-00002-of-00002.gguf': 'gguf',
      'UD-Q2_K_XL/m-00001-of-00002.gguf': 'gguf',
      'UD-Q2_K_XL/m-00002-of-00002.gguf': 'missing'
    }),
    [
      ['o/n:BF16', 'm-BF16-00001-of-00002.gguf, m-BF16-00002-of-00002.gguf'],
      [
        'o/n:UD-Q2_K_XL',
        'm-00001-of-00002.gguf, m-00002-of-00002.gguf',
        '/blobs/UD-Q2_K_XL/m-00002-of-00002.gguf is missing: its download was not finished, or it was deleted. Download the model again.'
      ]
    ],
    'shards in folders'
  )
  t.match(plan({ 'm-Q8_0-00002-of-00003.gguf': 'gguf' }), [
    ['o/n:Q8_0', String, /m-Q8_0-00001-of-00003\.gguf, m-Q8_0-00003-of-00003\.gguf are missing/]
  ])
  t.match(plan({ 'm-Q8_0.gguf': 'foreign' }), [['o/n:Q8_0', String, /a web page/]])
  t.match(plan({ 'm-Q8_0.gguf': 'other' }), [['o/n:Q8_0', String, /is not a GGUF file/]])
  t.match(plan({ 'm-Q8_0.gguf': 'gguf', 'mmproj-F16.gguf': 'missing' }), [['o/n:Q8_0', String, /mmproj-F16.* missing/]])
  t.match(plan({ 'm-Q6_K.gguf-split-a': 'gguf', 'm-Q6_K.gguf-split-b': 'other' }), [
    ['o/n:Q6_K', 'm-Q6_K.gguf-split-a, m-Q6_K.gguf-split-b', /split into pieces/]
  ])
  t.same(plan({ 'x.gguf': 'gguf' }), [['o/n', 'x.gguf']], 'no label: the header has one')
  t.same(
    plan({ 'small-Q8_0.gguf': 'gguf', 'large-Q8_0.gguf': 'gguf' }),
    [
      ['o/n:small-Q8_0', 'small-Q8_0.gguf'],
      ['o/n:large-Q8_0', 'large-Q8_0.gguf']
    ],
    'two models of one quantization'
  )
  t.same(plan({ 'tokenizer.json': 'other', 'pytorch_model.bin': 'other' }), [])

  const whole = { 'config.json': 'other', 'model.safetensors': 'other', 'tokenizer.json': 'other' } as const
  t.same(plan({ ...whole, 'LICENSE.txt': 'other', 'README.md': 'other' }, { config: {} }), [
    ['o/n', 'model.safetensors, other config.json, other tokenizer.json']
  ])
  const index = { weight_map: { a: 'model-1.safetensors', b: 'model-2.safetensors' } }
  for (const [files, texts, problem] of [
    [whole, {}, /no config\.json/],
    [{ 'adapter_model.safetensors': 'other', 'adapter_config.json': 'other' }, {}, /LoRA adapter/],
    [whole, { config: DAMAGED }, /config\.json is damaged/],
    [whole, { config: { quantization: { group_size: 64, bits: 4 } } }, /quantized for MLX/],
    [whole, { config: {}, index: DAMAGED }, /index\.json is damaged/],
    [whole, { config: {}, index: { weight_map: { a: '../x.safetensors' } } }, /index\.json is damaged/],
    [{ ...whole, 'model-1.safetensors': 'other' }, { config: {}, index }, /model-2\.safetensors is missing/],
    [{ ...whole, 'model.safetensors': 'foreign' }, { config: {} }, /a web page/],
    [{ ...whole, 'config.json': 'unreadable' }, { config: {} }, /cannot read/],
    [{ 'config.json': 'other', 'model.safetensors': 'other' }, { config: {} }, /no tokenizer/],
    [{ ...whole, 'model.safetensors': 'missing' }, { config: {} }, /is missing/],
    [{ 'config.json': 'other', 'consolidated.safetensors': 'other' }, { config: {} }, /no weights named/]
  ] as [Record<string, CacheFile['content']>, object, RegExp][]) {
    t.match(plan(files, texts)[0]?.[2], problem)
  }
})

t.test("Ollama's manifests become models with their settings", async t => {
  const gguf = ggufBytes()
  const blob = (bytes: Buffer | string, more: Partial<CacheFile> = {}): [string, CacheFile] => [
    sha256(bytes),
    { path: '', source: `/blobs/${sha256(bytes)}`, size: bytes.length, content: 'gguf', ...more }
  ]
  const plan = (
    reference: string,
    layers: { kind: string; bytes: Buffer | string }[] | string,
    blobs: [string, CacheFile][] = [blob(gguf), blob('GGUF eyes')]
  ) => {
    const texts = Array.isArray(layers) ? layers.map(({ bytes }) => [sha256(bytes), String(bytes)] as const) : []
    const [host, namespace, model, tag] = reference.split('/')
    const list = Array.isArray(layers)
      ? layers.map(({ kind, bytes }) => {
          const mediaType = `application/vnd.ollama.image.${kind}`
          return { mediaType, digest: `sha256:${sha256(bytes)}`, size: bytes.length }
        })
      : []
    const content = typeof layers === 'string' ? layers : { layers: list }
    return planOllama(
      { host: host!, namespace: namespace!, model: model!, tag: tag!, path: `/m/${reference}`, content },
      { weights: new Map(blobs), texts: new Map(texts) }
    )
  }
  const model = { kind: 'model', bytes: gguf }
  const named = readCases<[reference: string, found: string, name: string][]>('discovery-cases.yaml', 'ollamaNames')
  for (const [reference, found, name] of named) {
    const candidate = plan(reference, [model, { kind: 'template', bytes: '{{ .Prompt }}' }])
    t.match({ ...candidate, name: modelName(candidate) }, { found, name, format: 'gguf', problem: undefined }, found)
    const requested = parseRequestedName(found)
    const stored = { owner: requested.owner ?? 'library', ...requested }
    t.strictSame(stored, candidate.name, `${found} becomes the stored name`)
  }
  const settings = (...layers: [kind: string, bytes: string][]) => {
    const { defaults, notes, hasGoTemplate } = plan('registry.ollama.ai/library/x/latest', [
      model,
      ...layers.map(([kind, bytes]) => ({ kind, bytes }))
    ])
    return { defaults, notes, hasGoTemplate }
  }
  t.strictSame(
    settings(
      ['system', 'You are Leo.'],
      ['params', '{"stop":["a","b"],"num_ctx":2048,"temperature":0.1,"num_predict":5,"num_gpu":-1,"mirostat":1}'],
      ['messages', '[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]'],
      ['template', '{% for message in messages %}{{ message.content }}{% endfor %}'],
      ['license', 'MIT'],
      ['license', 'and more']
    ),
    {
      defaults: {
        system: 'You are Leo.',
        options: { stop: ['a', 'b'], num_ctx: 2048, temperature: 0.1, num_predict: 5, num_gpu: -1, mirostat: 1 },
        messages: [
          { role: 'user', content: 'hi' },
          { role: 'assistant', content: 'yo' }
        ],
        template: '{% for message in messages %}{{ message.content }}{% endfor %}',
        license: 'MIT\nand more'
      },
      notes: undefined,
      hasGoTemplate: undefined
    }
  )
  const go = '{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}'
  t.match(settings(['template', go]), { defaults: undefined, hasGoTemplate: true })
  t.match(settings(['template', ' {{ .Prompt }}\n']), { hasGoTemplate: undefined }, 'it only repeats the prompt')
  t.match(settings(['params', '{"num_ctx":0,"top_k":7}'], ['messages', 'x'], ['template', 'hello']), {
    defaults: { options: { top_k: 7 } },
    notes: [/parameter num_ctx .* must be/, /messages .* not JSON/, /template .* not a chat template/]
  })
  t.same(plan('hf.co/a/b/Q8_0', [model, { kind: 'projector', bytes: 'GGUF eyes' }]).files, [
    {
      source: `/blobs/${sha256(gguf)}`,
      path: 'b-Q8_0.gguf',
      role: 'model',
      size: gguf.length,
      claimedSha256: sha256(gguf)
    },
    {
      source: `/blobs/${sha256('GGUF eyes')}`,
      path: 'mmproj-b-Q8_0.gguf',
      role: 'projector',
      size: 9,
      claimedSha256: sha256('GGUF eyes')
    }
  ])
  const reference = 'registry.ollama.ai/library/x/latest'
  for (const [layers, blobs, problem] of [
    [
      [model, { kind: 'adapter', bytes: 'a' }],
      undefined,
      /LoRA adapter \(blobs\/sha256-[0-9a-f]{64}\).*models\.<name>\.lora/
    ],
    [
      [
        { kind: 'tensor', bytes: 'a' },
        { kind: 'json', bytes: 'b' }
      ],
      undefined,
      /Ollama's own format/
    ],
    [[{ kind: 'license', bytes: 'a' }], undefined, /no weights on this machine/],
    [[model, { kind: 'model', bytes: 'GGUF 2' }], undefined, /2 files that only Ollama can combine/],
    ['no JSON', undefined, /\/m\/registry\.ollama\.ai\/library\/x\/latest is damaged/],
    ['null', undefined, /is damaged/],
    ['{"layers":[{"mediaType":"m","digest":"sha256:../../x","size":1}]}', undefined, /is damaged/],
    [[model], [], /is missing/],
    [[model], [blob(gguf, { content: 'unreadable', why: 'EACCES' })], /cannot read \/blobs.* \(EACCES\)/],
    [[model], [blob(gguf, { size: 5 })], /has 5 bytes instead of/],
    [[model], [blob(gguf, { content: 'other' })], /is not a GGUF file/],
    [[model, { kind: 'projector', bytes: 'GGUF eyes' }], [blob(gguf)], /is missing/]
  ] as [string, [string, CacheFile][] | undefined, RegExp][]) {
    t.match(plan(reference, layers, blobs).problem, problem)
  }
})

t.test("models are found in a Hugging Face client's cache", async t => {
  const dir = t.testdir({ outside: {} })
  const [older, newer] = ['a'.repeat(40), 'b'.repeat(40)]
  const gguf = (seed: number) => ggufBytes({ seed })
  layOutSnapshot(dir, 'Qwen/Qwen3-GGUF', older, { 'q-Q4_K_M.gguf': gguf(1), 'q-Q8_0.gguf': gguf(2) })
  layOutSnapshot(dir, 'Qwen/Qwen3-GGUF', newer, { 'q-Q8_0.gguf': gguf(3), 'sub/q-F16.gguf': gguf(4) }, 'main')
  layOutSnapshot(dir, 'a/st', older, {
    'config.json': '{}',
    'model.safetensors': safetensorsBytes(),
    'tokenizer.json': '{}',
    '1_Pooling/config.json': '{}'
  })
  layOutSnapshot(dir, 'gpt-first', older, { 'm-Q8_0.gguf': gguf(5) }, 'refs/pr/1')
  layOutSnapshot(dir, 'a/only-text', older, { 'tokenizer.json': '{}' }, 'main')
  layOutFiles(dir, {
    'models--a--begun-GGUF/blobs/abc.incomplete': 'GG',
    'models--a--begun-GGUF/refs/main': older,
    [`models--a--no-links/snapshots/${older}/m-Q5_0.gguf`]: gguf(6),
    'datasets--a--d/snapshots/x/y.gguf': 'GGUF',
    '.locks/models--x--y/m.lock': '',
    'version.txt': '1'
  })
  // The client may keep blobs in a store with other digests. Only its own link names the content's digest.
  const folder = layOutSnapshot(dir, 'a/xet', older, {})
  const inStore = join(dir, 'outside', 'c'.repeat(64))
  writeFileSync(inStore, gguf(7))
  layOutFiles(folder, { [`snapshots/${older}/.keep`]: '', 'blobs/.keep': '' })
  symlinkSync(inStore, join(folder, 'blobs', sha256(gguf(7))))
  symlinkSync(`../../blobs/${sha256(gguf(7))}`, join(folder, 'snapshots', older, 'x-Q8_0.gguf'))
  symlinkSync('../../blobs/gone', join(folder, 'snapshots', older, 'x-Q4_0.gguf'))
  symlinkSync('.', join(folder, 'snapshots', older, 'loop'))

  const disk = new CacheDisk()
  const candidates = await findHuggingFace(dir, disk)
  t.same(disk.unreadable, [])
  const byName = new Map(candidates.map(candidate => [modelName(candidate), candidate]))
  t.same([...byName.keys()].sort(), [
    'Qwen/Qwen3-GGUF:F16',
    'Qwen/Qwen3-GGUF:Q4_K_M',
    'Qwen/Qwen3-GGUF:Q8_0',
    'a/begun-GGUF',
    'a/no-links:Q5_0',
    'a/st',
    'a/xet:Q4_0',
    'a/xet:Q8_0',
    'huggingface/gpt-first:Q8_0'
  ])
  t.equal(byName.get('Qwen/Qwen3-GGUF:Q8_0')?.files[0]?.claimedSha256, sha256(gguf(3)), "main's commit comes first")
  t.equal(byName.get('Qwen/Qwen3-GGUF:Q4_K_M')?.files[0]?.claimedSha256, sha256(gguf(1)))
  t.match(byName.get('Qwen/Qwen3-GGUF:F16'), {
    found: 'Qwen/Qwen3-GGUF/sub/q-F16.gguf',
    files: [{ path: 'q-F16.gguf' }]
  })
  t.match(byName.get('a/begun-GGUF'), { format: 'gguf', problem: /not finished/ })
  t.same(summary([byName.get('a/st')!]), [
    ['a/st', 'model.safetensors, other 1_Pooling/config.json, other config.json, other tokenizer.json']
  ])
  t.match(byName.get('a/xet:Q8_0')?.files, [{ source: inStore, claimedSha256: sha256(gguf(7)) }])
  t.match(byName.get('a/xet:Q4_0')?.problem, /x-Q4_0\.gguf is missing/)
  t.notOk(byName.get('a/no-links:Q5_0')?.files[0]?.claimedSha256)
  t.same(await findHuggingFace(join(dir, 'nowhere'), disk), [])
  t.same(disk.unreadable, [], 'a missing cache is empty')
})

t.test('models are found in folders of Ollama and LM Studio', async t => {
  const dir = t.testdir()
  const gguf = ggufBytes()
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/whole/1b', [{ kind: 'model', bytes: gguf }])
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/partial/1b', [
    { kind: 'model', bytes: 'GGUF p', stored: null }
  ])
  layOutFiles(join(dir, 'ollama'), {
    [`blobs/sha256-${sha256('GGUF p')}-partial`]: 'GG',
    'manifests/registry.ollama.ai/library/whole/.DS_Store': 'x'
  })
  t.match(summary(await findOllama(join(dir, 'ollama'), new CacheDisk())), [
    ['library/partial:1b', String, /is missing: its download was not finished/],
    ['library/whole:1b', 'whole-1b.gguf']
  ])
  layOutFiles(join(dir, 'studio'), {
    'lmstudio-community/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf': gguf,
    'lmstudio-community/Qwen3-8B-GGUF/downloading_Qwen3-8B-Q8_0.gguf.part': 'GG',
    'lmstudio-community/Qwen3-8B-GGUF/.cache/x.gguf': gguf,
    'me/with space/m.gguf': gguf,
    'mlx-community/Qwen3-4bit/config.json': '{"quantization":{"group_size":64,"bits":4}}',
    'mlx-community/Qwen3-4bit/model.safetensors': safetensorsBytes(),
    'loose.gguf': gguf
  })
  symlinkSync(join(dir, 'studio', 'me', 'with space'), join(dir, 'studio', 'me', 'linked'))
  t.match(summary(await findLmStudio(join(dir, 'studio'), new CacheDisk())), [
    ['lmstudio-community/Qwen3-8B-GGUF:Q4_K_M', 'Qwen3-8B-Q4_K_M.gguf'],
    ['me/linked', 'm.gguf'],
    ['me/with-space', 'm.gguf'],
    ['mlx-community/Qwen3-4bit', String, /MLX/]
  ])
})
