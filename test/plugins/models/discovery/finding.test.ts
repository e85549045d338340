import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { bareName, parseRequestedName } from '../../../../core/models/model-name.ts'
import {
  CacheDisk,
  type CacheFile,
  type Candidate,
  findHuggingFace,
  findLmStudio,
  findOllama,
  planOllama,
  planRepository,
  validName
} from '../../../../plugins/models/discovery/hub-caches.ts'
import { huggingFaceFolders, lmStudioFolders, ollamaFolders } from '../../../../plugins/models/discovery/index.ts'
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

interface RepositoryCase {
  files: Record<string, CacheFile['content']>
  config?: object | 'damaged'
  index?: object | 'damaged'
  gives: (string | RegExp)[][]
}

t.test('a repository yields a model per quantization and its weights', async t => {
  const parsed = (value: unknown) =>
    value === 'damaged' ? { fault: 'it is not JSON' } : ((value && { value }) as { value: unknown } | undefined)
  for (const { files, config, index, gives } of readCases<RepositoryCase[]>('discovery-cases.yaml', 'repositories')) {
    const cached = Object.entries(files).map(([path, content]): CacheFile => {
      const why = content === 'foreign' ? { why: 'It is a web page.' } : {}
      return { path, content, source: `/blobs/${path}`, size: content === 'missing' ? 0 : 10, ...why }
    })
    const texts = { config: parsed(config), index: parsed(index) }
    const found = summary(planRepository({ owner: 'o', name: 'n', folder: '/c', files: cached, texts }))
    const title = JSON.stringify(files)
    t.equal(found.length, gives.length, title)
    for (const [row, cells] of gives.entries()) {
      for (const [at, cell] of cells.entries()) {
        if (typeof cell === 'string') t.equal(found[row]?.[at], cell, title)
        else t.match(found[row]?.[at], cell, title)
      }
      t.equal(found[row]?.length, cells.length, title)
    }
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
    const isList = Array.isArray(layers)
    const texts = isList ? layers.map(({ bytes }) => [sha256(bytes), String(bytes)] as const) : []
    const toLayer = ({ kind, bytes }: { kind: string; bytes: Buffer | string }) => ({
      mediaType: `application/vnd.ollama.image.${kind}`,
      digest: `sha256:${sha256(bytes)}`,
      size: bytes.length
    })
    const [host, namespace, model, tag] = reference.split('/') as [string, string, string, string]
    const content = isList ? { layers: layers.map(toLayer) } : layers
    const manifest = { host, namespace, model, tag, path: `/m/${reference}`, content }
    return planOllama(manifest, { weights: new Map(blobs), texts: new Map(texts) })
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
  type Problem = [layers: Record<string, string> | string, why: RegExp, facts?: Partial<CacheFile>]
  for (const [given, why, facts] of readCases<Problem[]>('discovery-cases.yaml', 'ollamaProblems')) {
    const layers =
      typeof given === 'string' ? given : Object.entries(given).map(([kind, bytes]) => ({ kind: kind.trim(), bytes }))
    const { problem } = plan('registry.ollama.ai/library/x/latest', layers, [blob('GGUF', facts)])
    t.match(problem, why, JSON.stringify(given))
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
