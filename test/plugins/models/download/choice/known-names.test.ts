import t from 'tap'
import { formatModelName, parseModelName, parseRequestedName } from '../../../../../core/models/model-name.ts'
import { KNOWN_NAMES, knownName } from '../../../../../plugins/models/download/choice/known-names.ts'

t.test("every entry is the publisher's own repository with the publisher's page as its source", t => {
  const seen = new Set<string>()
  for (const [name, family] of Object.entries(KNOWN_NAMES)) {
    t.equal(name, name.toLowerCase())
    t.notOk(seen.has(name), `${name} is unique`)
    seen.add(name)
    t.same(parseRequestedName(name), { name }, `${name} has no owner`)
    const tags = Object.entries(family.tags)
    t.ok(tags.length > 0)
    if (family.latest !== undefined) t.ok(Object.hasOwn(family.tags, family.latest), `${name}:${family.latest} exists`)
    const known = family.latest === undefined ? [] : [[name, family.tags[family.latest]!] as const]
    for (const [asked, repository] of [...tags.map(([tag, id]) => [`${name}:${tag}`, id] as const), ...known]) {
      const { owner, variant } = parseModelName(repository)
      t.equal(owner, family.publisher, `${repository} is ${family.publisher}'s`)
      t.equal(variant, undefined)
      const found = knownName(parseRequestedName(asked))!
      t.equal(formatModelName(found.model), repository, asked)
      t.equal(found.publisher, owner)
      const source = new URL(found.source)
      t.equal(source.protocol, 'https:')
      // A page at a hub must be the publisher's: anyone may write about a repository on their own page.
      if (source.hostname === 'huggingface.co') t.equal(source.pathname.split('/')[1], owner)
      t.ok(['huggingface.co', 'github.com'].includes(source.hostname), source.href)
    }
  }
  t.end()
})

t.test('the size in a tag selects the repository, the quantization the variant', t => {
  const table: [asked: string, model: string | undefined][] = [
    ['qwen3', 'Qwen/Qwen3-8B-GGUF'],
    ['QWEN3:latest', 'Qwen/Qwen3-8B-GGUF'],
    ['qwen3:8B', 'Qwen/Qwen3-8B-GGUF'],
    ['qwen3:8b-q4_K_M', 'Qwen/Qwen3-8B-GGUF:Q4_K_M'],
    ['qwen3:q8_0', 'Qwen/Qwen3-8B-GGUF:Q8_0'],
    ['qwen2.5:7b-instruct', 'Qwen/Qwen2.5-7B-Instruct-GGUF'],
    ['qwen2.5:7b-instruct-q5_K_M', 'Qwen/Qwen2.5-7B-Instruct-GGUF:Q5_K_M'],
    ['qwen2.5:0.5b-instruct-fp16', 'Qwen/Qwen2.5-0.5B-Instruct-GGUF:F16'],
    ['gemma3:4b-it-qat', 'google/gemma-3-4b-it-qat-q4_0-gguf'],
    ['qwen2.5-coder:7b-base', undefined],
    ['qwen3:9000b', undefined],
    ['qwen3-embedding', undefined],
    ['qwen3-embedding:0.6b', 'Qwen/Qwen3-Embedding-0.6B-GGUF'],
    ['llama3.2', undefined],
    ['someone/qwen3:8b', undefined],
    ['constructor', undefined],
    ['qwen3:constructor', undefined],
    ['qwen3:toString-q4_0', undefined],
    ['qwen3:-q4_0', undefined]
  ]
  for (const [asked, model] of table) {
    let found: ReturnType<typeof knownName>
    try {
      found = knownName(parseRequestedName(asked))
    } catch {
      // Impossible names stand for nothing.
    }
    t.equal(found && formatModelName(found.model), model, asked)
  }
  t.end()
})
