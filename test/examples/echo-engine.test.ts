import t from 'tap'
import type { EngineProvider } from '../../core/contracts/engines.ts'
import type { ServiceName } from '../../core/contracts/services.ts'
import type { PluginContext, PluginDefinition } from '../../core/plugins/plugin.ts'
import echo from '../../examples/echo-engine/index.ts'
import { echoEngine, engineContract, startTestCorral } from '../../testing/index.ts'

const model = 'echo/parrot'
const messages = [{ role: 'user', content: 'the sky is blue' }]

const corral = await startTestCorral({
  plugins: [echo],
  echo: false,
  config: `scheduler: { max_loaded_models: 1 }\nmodels: { ${model}: { aliases: [my/parrot] } }`
})
t.teardown(() => corral.close())

t.test('the example engine answers on every API with a model that has no files', async t => {
  t.match(await corral.plugin('echo-engine'), { state: 'active' })

  const said = 'the sky is blue'
  const replies: [path: string, body: object, reply: object][] = [
    ['/api/chat', { messages, options: { num_ctx: 9999 } }, { message: { content: said }, done_reason: 'stop' }],
    ['/v1/chat/completions', { messages }, { model, choices: [{ message: { content: said } }] }],
    ['/v1/chat/completions', { messages }, { usage: { prompt_tokens: 4, completion_tokens: 4 } }],
    ['/v1/messages', { messages, max_tokens: 9 }, { content: [{ type: 'text', text: said }] }],
    ['/v1/responses', { input: 'hello' }, { output: [{ content: [{ text: 'hello' }] }] }],
    ['/ollama/api/chat', { messages }, { message: { content: said } }],
    ['/v1/completions', { prompt: 'one two' }, { choices: [{ text: 'one two' }] }],
    ['/api/embed', { input: 'a' }, { embeddings: [[1, 0, 0, 0]] }]
  ]
  for (const [path, body, reply] of replies) {
    t.match(await corral.json(path, { model, stream: false, ...body }), { status: 200, body: reply }, path)
  }

  const events = await corral.events('/v1/chat/completions', { model, messages, stream: true })
  const pieces = events.flatMap(event => event.choices?.[0]?.delta?.content ?? [])
  t.same(pieces, ['the ', 'sky ', 'is ', 'blue'], 'word by word')

  const vectors = await corral.json('/v1/embeddings', { model, input: ['banana', 'oreo'] })
  t.same(
    vectors.body.data.map((each: any) => each.embedding),
    [
      [3, 0, 0, 0],
      [0, 1, 0, 2]
    ]
  )
  const ranking = await corral.json('/v1/rerank', { model, query: 'a', documents: ['b'] })
  t.match(ranking, { status: 400, body: { error: { code: 'unsupported_capability' } } })
  const { body: running } = await corral.json('/api/ps')
  t.same(
    running.models.map((each: any) => each.mode).sort(),
    ['chat', 'embedding'],
    'it takes nothing of this machine, and so no place among the models in memory'
  )
})

t.test('the example model is listed like any other, and requests for its files are refused', async t => {
  const { body: tags } = await corral.json('/api/tags')
  t.match(
    tags.models.find((each: any) => each.model === model),
    { format: 'echo', size: 0, capabilities: ['completion', 'embedding'] }
  )
  const { body: list } = await corral.json('/v1/models')
  t.ok(list.data.some((each: any) => each.id === model && each.max_input_tokens === 4096))
  t.match(await corral.json('/api/show', { model }), {
    status: 200,
    body: { origin: { kind: 'plugin', from: 'echo' }, files: [] }
  })
  const { body: ollama } = await corral.json('/ollama/api/tags')
  t.ok(ollama.models.some((each: any) => each.model === 'echo/parrot:latest'))
  t.match(await corral.json('/v1/chat/completions', { model: 'my/parrot', messages }), { status: 200 })

  const refused = {
    status: 400,
    body: { code: 'unsupported_capability', error: /has no files here: the plugin "echo"/ }
  }
  t.match(await corral.json('/api/convert', { model, stream: false }), refused)
  t.match(await corral.json(`/api/files/${model}`), refused)
  t.match(await corral.json('/api/default', { model }), refused)
  const made = await corral.json('/ollama/api/create', { model: 'mine', from: model, stream: false })
  t.match(made, { status: 400, body: { error: /has no files here/ } })
  const reply = await fetch(`${corral.url}/api/delete`, {
    method: 'DELETE',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model })
  })
  t.match({ status: reply.status, body: await reply.json() }, refused)
})

t.test('the example engine fulfils the engine contract', async () => {
  await engineContract(echo, { model })
  await engineContract(echoEngine)
})

t.test("max_tokens and stop end the example engine's answers", async t => {
  for (const [limits, content, finish_reason] of [
    [{ max_tokens: 2 }, 'the sky ', 'length'],
    [{ max_tokens: 4 }, 'the sky is blue', 'stop'],
    [{ stop: ['blue', 'sky'] }, 'the ', 'stop'],
    [{ stop: 'y is' }, 'the sk', 'stop'],
    [{ stop: 'blue', max_tokens: 1 }, 'the ', 'length']
  ] as const) {
    const { body } = await corral.json('/v1/chat/completions', { model, messages, ...limits })
    t.match(body.choices[0], { message: { content }, finish_reason }, JSON.stringify(limits))
  }
  const { body } = await corral.json('/v1/messages', { model, messages, max_tokens: 9, stop_sequences: ['is'] })
  t.match(body, { content: [{ text: 'the sky ' }], stop_reason: 'stop_sequence', stop_sequence: 'is' })
})

t.test('the engine contract finds an engine that ignores max_tokens or stop', async t => {
  for (const field of ['max_tokens', 'stop'] as const) {
    const deaf: PluginDefinition = {
      ...echo,
      setup: (context, options) => {
        const engines = context.service('engines')
        const add = (provider: EngineProvider) =>
          engines.add({
            ...provider,
            async start(spec, waiting) {
              const engine = await provider.start(spec, waiting)
              return { ...engine, chat: (request, sink) => engine.chat!({ ...request, [field]: undefined }, sink) }
            }
          })
        const service = (name: ServiceName) => (name === 'engines' ? { ...engines, add } : context.service(name))
        return echo.setup({ ...context, service: service as PluginContext['service'] }, options)
      }
    }
    await t.rejects(engineContract(deaf, { model }), { message: new RegExp(field) }, field)
  }
})
