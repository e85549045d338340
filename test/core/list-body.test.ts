import Fastify from 'fastify'
import t from 'tap'
import type { Model, ModelAlias } from '../../core/contracts/models.ts'
import { ListBody } from '../../core/http/list-body.ts'

t.test('ListBody renders only changed rows, and sends 304 for a known list', async t => {
  const body = new ListBody()
  const model = (key: string) => ({ key, publicName: key }) as Model
  let models: Model[] = ['a', 'b', 'ü'].map(model)
  let aliases: ModelAlias[] = []
  const states = new Map<string, string>()
  let made: string[] = []
  const app = Fastify()
  t.teardown(() => app.close())
  app.get('/', (_, reply) =>
    body.send(reply, models, aliases, {
      heads: ['{"rows":[', '],"named":['],
      tail: `],"count":${models.length}}`,
      factOf: ({ key }) => states.get(key) ?? 'idle',
      textsOf(model, alias) {
        if (alias === 'hidden') return []
        made.push(alias ?? model.key)
        const text = JSON.stringify({ name: alias ?? model.key, state: states.get(model.key) ?? 'idle' })
        return [text, alias && JSON.stringify(alias)]
      }
    })
  )
  const list = async (etag?: string) => {
    made = []
    const reply = await app.inject({ url: '/', headers: etag === undefined ? {} : { 'if-none-match': etag } })
    const rows = reply.statusCode === 200 ? reply.json().rows.map(({ name, state }: any) => `${name} ${state}`) : []
    const named = reply.statusCode === 200 ? reply.json().named : []
    return { status: reply.statusCode, rows, named, made, etag: reply.headers.etag as string }
  }

  const first = await list()
  t.match(first, { status: 200, rows: ['a idle', 'b idle', 'ü idle'], made: ['a', 'b', 'ü'] })
  t.match(await list(), { rows: first.rows, made: [], etag: first.etag })
  t.match(await list(first.etag), { status: 304, made: [] })
  states.set('b', 'loaded')
  t.match(await list(first.etag), { status: 200, rows: ['a idle', 'b loaded', 'ü idle'], made: ['b'] })
  models = [model('0'), ...models.slice(1)]
  t.match(
    await list(),
    { rows: ['0 idle', 'b loaded', 'ü idle'], made: ['0'] },
    'the first model is removed and another one added'
  )
  aliases = [
    { alias: 'hidden', model: models[0]! },
    { alias: 'also', model: models[1]! }
  ]
  t.match(await list(), { rows: ['0 idle', 'b loaded', 'ü idle', 'also loaded'], named: ['also'], made: ['also'] })
  aliases = aliases.map(each => ({ ...each }))
  t.match(await list(), { made: [] }, 'equal aliases are the same')
  models = models.toReversed()
  t.match(await list(), { rows: ['ü idle', 'b loaded', '0 idle', 'also loaded'], made: [] }, 'another order')
  models = []
  aliases = []
  t.match(await list(), { rows: [], made: [] })
  models = [model('a')]
  t.match(await list(), { rows: ['a idle'], made: ['a'] })
})
