import t from 'tap'
import { definePlugin } from '../../core/plugins/public-api.ts'
import { startTestCorral } from '../../testing/index.ts'

/** An engine that fails in `chat`, and whose promise `exited` rejects when it is stopped. */
const broken = definePlugin({
  name: 'broken',
  api: 1,
  description: 'An engine with mistakes',
  needs: ['engines', 'catalog'],
  setup(context) {
    context.service('catalog').add({
      name: 'broken',
      models: () => ['test/broken', 'test/none'].map(name => ({ name, capabilities: ['completion'] }))
    })
    context.service('engines').add({
      name: 'broken',
      serves: model => (model.format === 'broken' ? 2000 : 0),
      async start(spec) {
        if (spec.variant.publicName === 'test/none') return undefined as never
        let fail = (_error: Error) => {}
        const exited = new Promise<never>((_, reject) => {
          fail = reject
        })
        return {
          id: 'broken-1',
          provider: 'broken',
          spec,
          contextSize: 4096,
          slots: 1,
          memory: undefined,
          exited,
          async chat(_request, sink) {
            await sink.take([{ content: 'So' }])
            ;(undefined as unknown as { oops(): void }).oops()
          },
          async stop() {
            fail(new Error('it ended badly'))
          },
          logTail: () => []
        }
      }
    })
    return {}
  }
})

t.test("errors of a plugin's engine name the plugin and affect no other requests", async t => {
  const corral = await startTestCorral({ plugins: [broken] })
  t.teardown(() => corral.close())
  const body = { model: 'test/broken', messages: [{ role: 'user', content: 'Hi' }] }
  const whole = await corral.json('/v1/chat/completions', body)
  t.equal(whole.status, 500)
  t.match(whole.body.error, { message: /engine "broken".*"test\/broken"/, code: 'internal' })
  const events = await corral.events('/api/chat', { ...body, stream: true })
  t.match(events.at(-1), { error: /engine "broken"/ }, 'also in a stream that has begun')

  const none = await corral.json('/api/load', { model: 'test/none' })
  t.match(none.body, { code: 'load_failed', error: /"broken" started an engine without the promise "exited"/ })
  t.equal((await corral.json('/api/stop', { model: 'test/broken' })).status, 200, 'a rejected promise ends it too')
  t.same((await corral.json('/api/ps')).body.models, [])
  const honest = await corral.json('/v1/chat/completions', { ...body, model: 'corral/tiny-chat' })
  t.equal(honest.status, 200)
})
