import t from 'tap'
import type { BroughtModel } from '../../../../core/contracts/models.ts'
import { hasFiles, requireFiles } from '../../../../core/contracts/storage.ts'
import { parseModelName } from '../../../../core/models/model-name.ts'
import { aliasTable, createCatalog } from '../../../../plugins/models/storage/catalog.ts'
import { engineSpec } from '../../../runtimes/llama-server/support.ts'
import { failing } from '../../../support/failure.ts'

const stored = engineSpec().variant

t.test('requests inspect a frozen list of thousands only once', t => {
  let read = 0
  const brought = Array.from(
    { length: 1000 },
    (_, at): BroughtModel => ({ name: `far/model-${at}`, capabilities: ['completion'] })
  )
  const counted = () =>
    new Proxy(brought, {
      get(list, place, of) {
        read++
        return Reflect.get(list, place, of)
      }
    })
  let now: readonly BroughtModel[] = Object.freeze(counted())
  const none = { list: () => [], variants: () => [], namesakes: () => [] }
  const catalog = createCatalog(none, () => aliasTable({}), { error: t.comment })
  catalog.add({ name: 'far', models: () => now })
  const find = (name: string) => catalog.find(parseModelName(name))
  t.ok(find('far/model-7'))
  read = 0
  for (let times = 0; times < 10; times++) t.ok(find('far/model-7'))
  t.ok(read < 100, `${read} reads of the list for ten names`)
  now = Object.freeze([])
  t.notOk(find('far/model-7'), 'another list takes effect immediately')
  t.end()
})

t.test('stored models and plugin models are listed alike, and stored names win', t => {
  const brought: BroughtModel[] = [
    { name: 'far/tiny', capabilities: ['completion'], contextLength: 4096 },
    { name: 'far/tiny:large', capabilities: ['completion'] },
    { name: 'Corral/Tiny-Chat', capabilities: ['embedding'] }
  ]
  const logged: unknown[] = []
  const aliases = aliasTable({ 'far/tiny': { aliases: ['my/alias'] } })
  const catalog = createCatalog(
    {
      list: () => [stored],
      variants: ({ name }) => (name.toLowerCase() === 'tiny-chat' ? [stored] : []),
      namesakes: name => (name.toLowerCase() === 'tiny-chat' ? [[stored]] : [])
    },
    () => aliases,
    { error: (message: unknown) => logged.push(message) }
  )
  const remove = catalog.add({ name: 'far', models: () => brought })
  t.match(logged.splice(0), [/"far" lists the model "Corral\/Tiny-Chat", which is left out: there is one on this disk/])
  t.throws(() => catalog.add({ name: 'far', models: () => [] }), { message: /"far" already/ })
  t.same(
    catalog.list().map(({ publicName }) => publicName),
    ['corral/tiny-chat', 'far/tiny', 'far/tiny:large']
  )
  t.equal(catalog.get(parseModelName('corral/tiny-chat')), stored)
  const far = catalog.get(parseModelName('FAR/tiny'))
  t.match(far, {
    model: { owner: 'far', name: 'tiny' },
    label: 'latest',
    isDefault: true,
    publicName: 'far/tiny',
    key: 'far/tiny:latest',
    format: 'far',
    size: 0,
    digest: /^[0-9a-f]{64}$/,
    origin: { kind: 'plugin', from: 'far' },
    metadata: { capabilities: ['completion'], contextLength: 4096 }
  })
  t.equal(catalog.find(parseModelName('my/alias')), far)
  t.equal(catalog.find(parseModelName('far/tiny:latest')), far)
  t.equal(catalog.find(parseModelName('far/tiny:LARGE'))?.isDefault, false)
  const others = failing('model_not_found', /latest \(the default\), large/)
  t.throws(() => catalog.get(parseModelName('far/tiny:small')), others)
  t.throws(() => catalog.add({ name: 'bad', models: () => [{ name: 'gee', capabilities: [] }] }), {
    code: 'invalid_model_name'
  })
  brought.push({ name: 'gee', capabilities: ['completion'] })
  for (let times = 0; times < 2; times++) t.equal(catalog.list().length, 3, 'a model without a valid name is left out')
  t.equal(logged.length, 1, 'it is logged once')
  t.match(logged[0], /plugin "far".*"gee"/)
  const broken = () => {
    throw new Error('out of order')
  }
  catalog.add({ name: 'later', models: () => (logged.length === 1 ? [] : broken()) })
  logged.push('')
  t.equal(catalog.list().length, 3, 'a failing source does not hide other models')
  t.match(logged.at(-1), /plugin "later".*out of order/)
  brought.length = 0
  t.equal(catalog.find(parseModelName('far/tiny')), undefined, 'changes of a source are visible')
  brought.push({ name: 'far/tiny', capabilities: ['completion'] })
  t.equal(catalog.list().length, 2)
  remove()
  t.equal(catalog.list().length, 1, 'a removed source lists nothing')

  t.equal(requireFiles(stored), stored)
  t.notOk(hasFiles(far))
  t.throws(() => requireFiles(far), { code: 'unsupported_capability', message: /"far\/tiny" has no files here/ })
  t.end()
})
