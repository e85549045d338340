import { once } from 'node:events'
import type { FastifyInstance } from 'fastify'
import t from 'tap'
import { type AnswerSink, definePlugin, type Engine, type EngineFields } from '../../core/plugins/public-api.ts'
import { startTestCorral } from '../../testing/index.ts'
import { startCorral, until } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'

const usage = { promptTokens: 3, cachedTokens: 0, completionTokens: 0 }
const end = { finish: 'stop', usage } as const
let starts = 0
let crashes = 0
let aborted: Promise<unknown> = Promise.resolve()

/** What each operation of the engine does. The names are not known to corral. */
const operations: Record<string, (request: EngineFields, sink: AnswerSink) => Promise<void>> = {
  async hum({ input }, sink) {
    for (const word of String(input).split(' ')) await sink.take([{ bytes: Buffer.from(word), type: 'audio/x-hum' }])
    await sink.take([end])
  },
  async sketch({ prompt, n }, sink) {
    await sink.take([{ json: { images: Array(Number(n ?? 1)).fill(prompt) } }, end])
  },
  async read({ file }, sink) {
    await sink.take([{ content: Buffer.from(String(file), 'base64').toString() }, end])
  },
  async breakOff(_, sink) {
    await sink.take([{ bytes: Buffer.from('half'), type: 'audio/x-hum' }])
    throw new Error('the engine broke')
  },
  async wait(_, { signal, take }) {
    await take([{ bytes: Buffer.from('begun'), type: 'audio/x-hum' }])
    aborted = once(signal, 'abort')
    await aborted
  }
}

const studio = definePlugin({
  name: 'studio',
  api: 1,
  needs: ['engines', 'catalog'],
  setup(context) {
    context.service('catalog').add({
      name: 'studio',
      models: () => [{ name: 'studio/one', capabilities: [...Object.keys(operations), 'crash', 'unknown'] }]
    })
    context.service('engines').add({
      name: 'studio',
      // One mode for all operations: the first one.
      serves: ({ format }, mode) => (format === 'studio' && mode === 'hum' ? 1 : 0),
      loadOptions: () => ({}),
      async start(spec) {
        starts++
        let exit: Parameters<ConstructorParameters<typeof Promise<Awaited<Engine['exited']>>>[0]>[0] = () => {}
        const exited = new Promise<Awaited<Engine['exited']>>(resolve => (exit = resolve))
        const crash = async (_: EngineFields, sink: AnswerSink) => {
          if (crashes++ > 0) return await sink.take([{ content: 'survived' }, end])
          const failure = context.error('engine_crashed', 'The studio burnt down.')
          exit({ code: 1, signal: null, expected: false, failure })
          throw failure
        }
        return {
          ...{
            id: `studio-${starts}`,
            provider: 'studio',
            spec,
            contextSize: 4096,
            slots: 2,
            memory: undefined,
            exited
          },
          operations: { ...operations, crash },
          stop: async () => exit({ code: 0, signal: null, expected: true }),
          logTail: () => []
        }
      }
    })
    return {
      on: {
        request(request) {
          if (request.body.input === 'refused') throw context.error('invalid_request', `No ${request.operation} here.`)
          if (request.operation === 'hum') request.body.input += ' filtered'
        }
      }
    }
  }
})

const api = definePlugin({
  name: 'studio-api',
  api: 1,
  setup: context => ({
    routes: async (app: FastifyInstance) => {
      app.post('/studio/:operation', async (request, reply) => {
        const { operation } = request.params as { operation: string }
        return await context.answer(reply, { operation, body: request.body as EngineFields })
      })
    }
  })
})

t.test('requests for operations of plugins follow the rules of all requests', async t => {
  const config = `models: { studio/one: { aliases: [studio] } }
limits: { n: 2 }
security: { api_keys: [an-admin-of-the-studio] }`
  const corral = await startTestCorral({ plugins: [studio, api], echo: false, config })
  t.teardown(() => corral.close())
  const headers = { authorization: 'Bearer an-admin-of-the-studio', 'content-type': 'application/json' }
  const ask = (operation: string, body: object = {}, more: RequestInit = {}) =>
    fetch(`${corral.url}/studio/${operation}`, {
      ...{ method: 'POST', headers, body: JSON.stringify({ model: 'studio', ...body }) },
      ...more
    })
  const json = (operation: string, body?: object) =>
    corral.json(`/studio/${operation}`, { model: 'studio/one', ...body }, headers)

  t.match((await json('paint')).body, { code: 'unsupported_capability', error: /"studio\/one" cannot do "paint"/ })
  t.match((await json('hum', { model: 'corral/tiny-chat' })).body, { code: 'unsupported_capability' })
  t.equal(starts, 0, 'nothing is loaded for a model that does not list the operation')

  const hummed = await ask('hum', { input: 'a b' })
  t.match([hummed.status, hummed.headers.get('content-type')], [200, 'audio/x-hum'])
  t.equal(await hummed.text(), 'abfiltered', 'bytes arrive, and filters change requests')
  t.same(await json('sketch', { prompt: 'x', n: 2 }), { status: 200, body: { images: ['x', 'x'] } })
  const read = await ask('read', { file: Buffer.from('text of a file').toString('base64') })
  t.match([await read.text(), read.headers.get('content-type')], ['text of a file', /^text\/plain/])
  t.match(await corral.json('/api/load', { model: 'studio' }, headers), { status: 200, body: { status: 'ready' } })
  t.equal(starts, 1, 'one engine answers all operations, and is what loading the model starts')

  t.match((await json('sketch', { prompt: 'x', n: 3 })).body, { code: 'over_limit' })
  t.match((await json('hum', { input: 'refused' })).body, { error: /No hum here/ })
  t.match((await json('unknown')).body, { code: 'unsupported_capability', error: /engine of model .*\(studio\)/ })
  const { body: key } = await corral.json('/api/keys', { name: 'other', models: ['a/b'] }, headers)
  const other = await ask(
    'hum',
    { model: 'studio/one', input: 'a' },
    { headers: { ...headers, authorization: `Bearer ${key.key}` } }
  )
  t.equal(other.status, 403, 'a key that allows only other models is refused')

  t.equal(await (await ask('crash')).text(), 'survived', 'a request whose engine dies is retried on a fresh engine')
  t.equal(starts, 2)

  const broken = async () => await (await ask('breakOff')).arrayBuffer()
  await t.rejects(broken, 'the connection is closed instead of a complete file')
  t.match(corral.log(), /the engine broke/)

  const client = new AbortController()
  const waiting = await ask('wait', {}, { signal: client.signal })
  const reader = waiting.body!.getReader()
  await reader.read()
  client.abort()
  await t.rejects(reader.read())
  await aborted
  t.pass('a client that disconnects ends the work')

  const { body: spent } = await corral.json('/api/usage', undefined, headers)
  t.match(JSON.stringify(spent), /"tokens_in":[1-9]/, 'tokens are in the usage of the key')
})

t.test('a gateway passes operations on to a node', thorough, async t => {
  const plugin = `export default {
    name: 'hummer', api: 1, needs: ['engines', 'catalog'],
    setup(context) {
      context.service('catalog').add({ name: 'hummer', models: () => [{ name: 'a/hummer', capabilities: ['hum'] }] })
      const call = async ({ input }, { take }) => {
        await take([{ bytes: Buffer.from(input), type: 'audio/x-hum' }])
        if (input === 'half') throw new Error('the engine broke')
        await take([{ finish: 'stop', usage: { promptTokens: 3, cachedTokens: 0, completionTokens: 0 } }])
      }
      let exit
      const exited = new Promise(resolve => (exit = resolve))
      const start = async spec => ({
        id: 'hum', provider: 'hummer', spec, contextSize: 4096, slots: 2, memory: undefined, exited,
        operations: { hum: call }, stop: async () => exit({ code: 0, signal: null, expected: true }), logTail: () => []
      })
      const serves = ({ format }, mode) => (format === 'hummer' && mode === 'hum' ? 1 : 0)
      context.service('engines').add({ name: 'hummer', serves, start, loadOptions: () => ({}) })
      return {}
    }
  }`
  const folder = t.testdir({ 'hummer.mjs': plugin })
  const node = await startCorral(t, { config: `plugins: ['${folder}/hummer.mjs']` })
  const config = `cluster: { members: [{ name: node, url: '${node.url}' }] }\nstorage: { demo_model: false }`
  const gateway = await startTestCorral({ plugins: [api], echo: false, config })
  t.teardown(() => gateway.close())
  await until('the model is listed', async () =>
    JSON.stringify((await gateway.json('/api/tags')).body).includes('a/hummer')
  )
  const ask = (operation: string, input: string) => {
    const body = JSON.stringify({ model: 'a/hummer', input })
    const headers = { 'content-type': 'application/json' }
    return fetch(`${gateway.url}/studio/${operation}`, { method: 'POST', headers, body })
  }
  const hummed = await ask('hum', 'a \u00ff')
  t.match([hummed.status, hummed.headers.get('content-type')], [200, 'audio/x-hum'])
  t.equal(await hummed.text(), 'a \u00ff', 'bytes arrive unchanged')
  t.equal((await ask('paint', 'x')).status, 400)
  await t.rejects(async () => await (await ask('hum', 'half')).arrayBuffer())
})
