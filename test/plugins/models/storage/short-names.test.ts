import t from 'tap'
import type { Catalog, Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { modelKey, parseModelName, parseRequestedName } from '../../../../core/models/model-name.ts'
import { aliasTable, createCatalog, similarNames } from '../../../../plugins/models/storage/catalog.ts'
import { ModelIndex, variantNames } from '../../../../plugins/models/storage/manifest.ts'
import { readCases } from '../../../support/fixture.ts'

/** A catalog of models in memory: `owner/name:label`. The first label of each model is its default. */
function testCatalog(texts: readonly string[], aliases: Record<string, string[]> = {}): Catalog {
  const models = new Map<string, Model[]>()
  for (const text of texts) {
    const { variant = 'Q4_K_M', ...model } = parseModelName(text)
    const variants = models.get(modelKey(model)) ?? []
    variants.push({
      ...variantNames(model, variant, variants.length === 0),
      origin: { kind: 'hub', from: 'x' }
    } as Model)
    models.set(modelKey(model), variants)
  }
  const sections = Object.fromEntries(Object.entries(aliases).map(([name, list]) => [name, { aliases: list }]))
  const storage = {
    list: () => [...models.values()].flat(),
    variants: (name: Parameters<typeof modelKey>[0]) => models.get(modelKey(name)) ?? [],
    namesakes: (name: string) =>
      [...models].filter(([key]) => key.endsWith(`/${name.toLowerCase()}`)).map(([, variants]) => variants)
  }
  const known = aliasTable(sections)
  return createCatalog(storage as Parameters<typeof createCatalog>[0], () => known, { error: t.comment })
}

/** The meaning of a name, or the code and message of the refusal. */
function meaning(catalog: Catalog, asked: string, models?: string[]): string {
  try {
    return catalogFor(catalog, models ? { models } : {}).get(parseRequestedName(asked)).publicName
  } catch (error) {
    if (error instanceof CorralError) return `${error.code}: ${error.message}`
    throw error
  }
}

const HERE = [
  'corral/tiny-chat:F16',
  'corral/tiny-chat:Q8_0',
  'Qwen/Qwen3-8B-GGUF:Q4_K_M',
  'other/big:Q8_0',
  'Some/Big:Q4_0',
  'library/made:latest',
  'else/made:Q8_0'
]
const ALIASES = {
  'Qwen/Qwen3-8B-GGUF': ['gpt-4o', 'claude-haiku-4-5', 'made', 'my/helper'],
  'corral/tiny-chat:Q8_0': ['text-embedding-3-small'],
  'corral/tiny-chat': ['big', 'corral/tiny'],
  'not/here': ['ghost']
}

t.test('names resolve to models, aliases and short names in order', t => {
  const catalogs = { plain: testCatalog(HERE), aliased: testCatalog(HERE, ALIASES) }
  const table = readCases<[catalog: 'plain' | 'aliased', asked: string, meaning: string | RegExp][]>(
    'storage-cases.yaml',
    'names'
  )
  for (const [which, asked, expected] of table) {
    const found = meaning(catalogs[which], asked)
    if (typeof expected === 'string') t.equal(found, expected, asked)
    else t.match(found, expected, asked)
  }
  t.same(
    catalogs.aliased.aliases().map(({ alias, model }) => `${alias} ${model.publicName}`),
    [
      'gpt-4o Qwen/Qwen3-8B-GGUF',
      'claude-haiku-4-5 Qwen/Qwen3-8B-GGUF',
      'my/helper Qwen/Qwen3-8B-GGUF',
      'text-embedding-3-small corral/tiny-chat:Q8_0',
      'big corral/tiny-chat',
      'corral/tiny corral/tiny-chat'
    ],
    'aliases of existing models that are not model names themselves'
  )
  t.end()
})

t.test('impossible names are refused', t => {
  const names = ['', 'a b', '../x', 'x:y:z', '/x', 'a/b/c', 'con', 'tiny-chat:', ':Q8_0', 'a/:Q8_0', '.', 'x.', 'a..b']
  // A Cyrillic "а", a Kelvin sign, a full-width letter, a zero-width space, a dotless i, a right-to-left mark.
  const lookAlikes = ['corral/tiny-ch\u0430t', '\u212Aimi', 'tiny-cha\uFF54', 'tiny\u200B-chat', 't\u0131ny', '\u200Fx']
  for (const text of [...names, ...lookAlikes, 'x'.repeat(97), undefined, null, 7, {}]) {
    t.throws(() => parseRequestedName(text), { code: 'invalid_model_name' }, JSON.stringify(text))
  }
  t.throws(() => parseModelName('tiny-chat'), { code: 'invalid_model_name', message: /the owner is missing/ })
  t.end()
})

t.test('a restricted key cannot discover other models', t => {
  const catalog = testCatalog(HERE, ALIASES)
  const table = readCases<[models: string[], asked: string, meaning: string | RegExp][]>(
    'storage-cases.yaml',
    'restrictedNames'
  )
  for (const [models, asked, expected] of table) {
    if (typeof expected === 'string') t.equal(meaning(catalog, asked, models), expected, `${models} ${asked}`)
    else t.match(meaning(catalog, asked, models), expected, `${models} ${asked}`)
  }
  const names = (models: string[]) => catalog.aliases(models).map(({ alias }) => alias)
  t.same(names(['gpt-4o']), ['gpt-4o'])
  t.same(names(['corral/*']), ['text-embedding-3-small', 'big', 'corral/tiny'])
  // A forbidden name gets the same answer as a name that does not exist, regardless of the other models.
  const without = testCatalog(HERE.filter(name => name.startsWith('corral/')))
  for (const asked of ['qwen3-8b-gguf', 'big', 'made', 'Qwen3-8B']) {
    t.equal(meaning(testCatalog(HERE), asked, ['corral/*']), meaning(without, asked, ['corral/*']), asked)
  }
  t.end()
})

t.test('similar names are suggested', t => {
  const names = ['corral/tiny-chat', 'Qwen/Qwen3-8B-GGUF', 'Qwen/Qwen3-14B-GGUF', 'bartowski/Qwen3-8B-GGUF', 'gpt-4o']
  const table = readCases<[asked: string, similar: string[]][]>('storage-cases.yaml', 'similarNames')
  for (const [asked, similar] of table) t.same(similarNames(parseRequestedName(asked), names), similar, asked)
  const tiny = meaning(testCatalog(HERE), 'corral/tiny-cht')
  t.match(tiny, /Did you mean "corral\/tiny-chat"\? "corral list".*"corral pull/)
  const unknown = meaning(testCatalog(HERE), 'zzz')
  t.match(unknown, /Here are "corral\/tiny-chat", .* and 3 more\. "corral list".*"corral search zzz"/)
  t.match(meaning(testCatalog([]), 'zzz'), /There is no model "zzz" here\. "corral list"/)
  t.end()
})

t.test('storing or removing a model changes short names immediately', t => {
  const index = new ModelIndex()
  const put = (owner: string, name: string) => {
    const manifest = {
      version: 1,
      owner,
      name,
      default: 'F16',
      variants: [{ label: 'F16', revision: 'r', origin: {}, metadata: { capabilities: [] } }]
    }
    index.put(`${owner}/${name}`, `/models/${owner}/${name}`, manifest as never)
  }
  const owners = () => index.namesakes('tiny').map(([first]) => first?.model.owner)
  t.same(owners(), [])
  put('a', 'tiny')
  put('b', 'tiny')
  put('b', 'other')
  put('a', 'tiny')
  t.same(owners(), ['a', 'b'])
  index.setHidden('a/tiny', index.variants({ owner: 'a', name: 'tiny' }), true)
  t.same(owners(), ['b'], 'a model being removed is not found')
  index.delete('a/tiny')
  index.delete('b/tiny')
  t.same(owners(), [])
  t.same(index.namesakes('other').length, 1)
  t.end()
})
