import t from 'tap'
import {
  companionFinder,
  type FileRole,
  labelFromFileName,
  parseGgufFileName,
  storedName
} from '../../../../../core/models/gguf-file-name.ts'
import {
  formatModelName,
  parseModelName,
  parseRequestedName,
  type RequestedName
} from '../../../../../core/models/model-name.ts'
import { KNOWN_NAMES, knownName } from '../../../../../plugins/models/download/choice/known-names.ts'
import { type PullReference, parsePullReference } from '../../../../../plugins/models/download/choice/pull-reference.ts'
import { isUnsupported, quality, standInRank } from '../../../../../plugins/models/download/choice/quantizations.ts'
import { readCases, readFixture } from '../../../../support/fixture.ts'

const CASES = readFixture<{
  fileNames: { path: string; role: FileRole; label?: string; shard?: string }[]
  /** Labels in file names. Empty if there is none. */
  labels: Record<string, string>
  projectors: { model: string; others: string[]; projector: string | null }[]
  /** Expected results for names and addresses of `REPOSITORY`. */
  references: Record<string, Omit<PullReference, 'name'>>
  refusedReferences: { text: string; code: string; message: string }[]
  /** The models that names of Ollama's library refer to. Empty if there are none. */
  knownNames: Record<string, string>
}>('model-names.yaml')

t.test('labels are read from real file names', t => {
  for (const { path, role, label, shard } of CASES.fileNames) {
    const name = parseGgufFileName(path)
    t.equal(name.role, role, `${path}: role`)
    t.equal(name.label, label, `${path}: label`)
    t.equal(name.shard && `${name.shard.index}/${name.shard.count}`, shard, `${path}: shard`)
  }
  for (const [name, label] of Object.entries(CASES.labels)) t.equal(labelFromFileName(name) ?? '', label, name)
  const group = (path: string) => parseGgufFileName(path).shard?.group
  t.equal(group('a/x-00001-of-00002.gguf'), group('a/x-00002-of-00002.gguf'))
  for (const other of ['b/x-00001-of-00002.gguf', 'a/y-00001-of-00002.gguf', 'a/x-00001-of-00003.gguf']) {
    t.not(group('a/x-00001-of-00002.gguf'), group(other))
  }
  const bases = ['Q8_0/M-7B-Q8_0.gguf', 'M-7B.i1-Q4_K_M.gguf', 'm-7b-UD-Q2_K_XL-00001-of-00002.gguf', 'M-7B-q4.gguf']
  for (const path of [...bases, 'M-7B-Q4_K_M-imat.gguf', 'M-7B-Q4_K_M-fp16.gguf', 'M-7B.F16.q5.gguf']) {
    t.equal(parseGgufFileName(path).base, 'm-7b', path)
  }
  t.end()
})

t.test('projectors belong to models in their folder', t => {
  for (const { model, others, projector } of CASES.projectors) {
    const title = [model, ...others].join(' ')
    t.equal(companionFinder('projector', [model, ...others])(model) ?? null, projector, title)
    const reversed = [...others].reverse().concat(model)
    t.equal(companionFinder('projector', reversed)(model) ?? null, projector, 'whatever the order')
  }
  t.end()
})

t.test('draft models that were made for a model are found by their names', t => {
  const model = 'gemma-4-12b-it-Q4_K_M.gguf'
  const cases = readCases<[others: string[], draft: string | undefined][]>('model-names.yaml', 'drafts')
  for (const [others, draft] of cases) {
    t.equal(companionFinder('draft', [model, ...others])(model), draft, others.join(' '))
  }
  t.end()
})

t.test('stored file names are safe on every file system', t => {
  const table = readCases<[name: string, stored: string][]>('model-names.yaml', 'storedNames')
  for (const [name, stored] of table) t.equal(storedName(name), stored, name)
  t.end()
})

t.test('quantizations are ranked by quality', t => {
  const order = readCases<string[]>('model-names.yaml', 'qualities')
  for (const [index, label] of order.entries()) {
    if (index > 0) t.ok(quality(label) > quality(order[index - 1]!), `${order[index - 1]} < ${label}`)
  }
  t.equal(quality('XYZ'), -1)
  const first = readCases<string[]>('model-names.yaml', 'standIns')
  for (const [index, label] of first.entries()) {
    if (index > 0) t.ok(standInRank(label)! > standInRank(first[index - 1]!)!, `${first[index - 1]} before ${label}`)
  }
  for (const label of ['Q5_K_M', 'Q3_K_M', 'Q8_0', 'F16', 'IQ3_M']) t.equal(standInRank(label), undefined, label)
  for (const label of ['Q4_0_4_4', 'Q4_0_8_8', 'IQ4_KSS', 'IQ5_K', 'Q4_K_R4', 'I2_S']) t.ok(isUnsupported(label), label)
  for (const label of ['Q4_0', 'IQ4_XS', 'IQ4_NL', 'Q4_K_M', 'UD-IQ2_M', 'MXFP4_MOE'])
    t.notOk(isUnsupported(label), label)
  t.end()
})

t.test("every entry is the publisher's own repository with the publisher's page as its source", t => {
  const seen = new Set<string>()
  for (const [name, family] of Object.entries(KNOWN_NAMES)) {
    t.equal(name, name.toLowerCase())
    t.notOk(seen.has(name), `${name} is unique`)
    seen.add(name)
    t.same(parseRequestedName(name), { name }, `${name} has no owner`)
    const tags = Object.entries(family.tags)
    t.ok(tags.length > 0)
    const publisher = tags[0]![1].split('/')[0]
    if (family.latest !== undefined) t.ok(Object.hasOwn(family.tags, family.latest), `${name}:${family.latest} exists`)
    const known = family.latest === undefined ? [] : [[name, family.tags[family.latest]!] as const]
    for (const [asked, repository] of [...tags.map(([tag, id]) => [`${name}:${tag}`, id] as const), ...known]) {
      const { owner, variant } = parseModelName(repository)
      t.equal(owner, publisher, `${repository} is ${publisher}'s`)
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
  for (const [asked, model] of Object.entries(CASES.knownNames)) {
    let name: RequestedName | undefined
    try {
      name = parseRequestedName(asked)
    } catch {
      // Impossible names refer to no model.
    }
    const found = name && knownName(name)
    t.equal(found ? formatModelName(found.model) : '', model, asked)
  }
  t.end()
})

const HUBS = [
  { name: 'huggingface', prefixes: ['hf:', 'hf.co/', 'huggingface.co/', 'https://huggingface.co/', 'https://hf.co/'] },
  { name: 'csghub', prefixes: ['csghub:', 'https://hub.opencsg.com/'] },
  { name: 'modelscope', prefixes: ['modelscope:', 'https://modelscope.cn/'] },
  { name: 'corral', prefixes: ['corral://', 'corral:'] },
  { name: 'url', prefixes: ['https://', 'http://'] }
]

const REPOSITORY = { id: 'Qwen/Qwen3-0.6B-GGUF', name: { owner: 'Qwen', name: 'Qwen3-0.6B-GGUF' } }

t.test('the reference parser parses names and addresses of pulls', t => {
  for (const [text, reference] of Object.entries(CASES.references)) {
    // The address of any file contains no name.
    const { name, ...addressed } = { ...REPOSITORY, ...reference }
    t.same(parsePullReference(text, HUBS), reference.hub === 'url' ? addressed : { name, ...addressed }, text)
  }
  t.same(parsePullReference(REPOSITORY.id, []), REPOSITORY, 'names need no hub')
  t.end()
})

t.test('the reference parser refuses invalid names and addresses', t => {
  const refuses = (text: unknown, code: string, message: RegExp) =>
    t.throws(() => parsePullReference(text, HUBS), { code, message, param: 'model' }, String(text))
  for (const { text, code, message } of CASES.refusedReferences) refuses(text, code, new RegExp(message))
  for (const text of [undefined, 7]) refuses(text, 'invalid_model_name', /missing/)
  t.throws(() => parsePullReference('https://example.org/a.gguf', HUBS.slice(0, 3)), { code: 'invalid_request' })
  t.end()
})
