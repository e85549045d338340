import type { FastifyReply, FastifyRequest } from 'fastify'
import t from 'tap'
import type { Delta } from '../../core/contracts/engines.ts'
import type { HookedRequest } from '../../core/contracts/hooks.ts'
import { clientSignal } from '../../core/http/client-disconnect.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import surface from '../../examples/describe-api/index.ts'
import events from '../../examples/event-api/index.ts'
import { filterContract, surfaceContract } from '../../testing/index.ts'

const timeout = 5000
const never = () => new Promise<never>(() => {})

/** An API that leases an engine by itself. @param hooked whether it calls the hooks of filters */
const bypass = (hooked: boolean) =>
  definePlugin({
    name: 'bypass',
    api: 1,
    needs: ['scheduler'],
    setup(context) {
      const scheduler = context.service('scheduler')
      const answer = async (request: FastifyRequest, reply: FastifyReply) => {
        const { model } = request.body as { model: string }
        const signal = clientSignal(reply)
        const body = { messages: [{ role: 'user', content: 'Hello' }] }
        const hookedRequest: HookedRequest = {
          ...{ surface: 'bypass', operation: 'chat', model, body, caller: request.caller, signal }
        }
        if (hooked) await context.hooks.request(hookedRequest)
        let text = ''
        await scheduler.withLease({ model: parseModelName(model), options: {}, signal }, async ({ engine }) => {
          const take = (deltas: readonly Delta[]) => {
            for (const { content = '' } of deltas) text += content
            return undefined
          }
          await engine.chat!(body, { signal, take })
        })
        return { text }
      }
      return { routes: async app => void app.post('/bypass', answer) }
    }
  })

t.test('the API contract finds an API that bypasses filters, limits and usage', async t => {
  const model = 'corral/tiny-chat'
  for (const path of ['/describe-api/describe', '/describe-api/ask']) {
    await surfaceContract(surface, { path, body: { model, question: 'Who are you?' } })
  }
  await surfaceContract(events, { path: '/event-api/ask', body: { model, question: 'Who are you?' } })
  const request = { path: '/bypass', body: { model } }
  await t.rejects(surfaceContract(bypass(false), request), { message: /pass through the hook "request"/ })
  await t.rejects(surfaceContract(bypass(true), request), { message: /pass through the hook "event"/ })
})

t.test('the API contract finds an API that answers without a key, whatever its fields', async t => {
  const model = 'corral/tiny-chat'
  /** An API that calls the model "who". @param role that its route needs */
  const named = (role: 'user' | 'anyone') =>
    definePlugin({
      name: 'named',
      api: 1,
      setup: context => ({
        routes: async app => {
          app.post<{ Body: { who: string } }>('/named', { config: { role } }, async (asked, reply) => {
            const body = { model: asked.body.who, messages: [{ role: 'user', content: 'Hello' }] }
            await context.answer(reply, { operation: 'chat', body }, () => undefined)
            return {}
          })
        }
      })
    })
  await surfaceContract(named('user'), { path: '/named', body: { who: model } })
  const open = surfaceContract(named('anyone'), { path: '/named', body: { who: model } })
  await t.rejects(open, { message: /without a key is refused with 401, not 200/ })
})

t.test('the filter contract names the hook that never ends', async t => {
  const filter = (on: object) => definePlugin({ name: 'shield', api: 1, setup: () => ({ on }) })
  for (const hook of ['request', 'event']) {
    const message = new RegExp(`shield\\\\" took longer than .* in its hook \\\\"${hook}`)
    await t.rejects(filterContract(filter({ [hook]: never }), { timeout }), { message }, hook)
  }
})
