import type { FastifyReply } from 'fastify'
import pino from 'pino'
import t from 'tap'
import { keylessCaller } from '../../core/contracts/callers.ts'
import type { Delta } from '../../core/contracts/engines.ts'
import type { HookedRequest } from '../../core/contracts/hooks.ts'
import { CorralError } from '../../core/errors.ts'
import { HookRegistry } from '../../core/plugins/hook-registry.ts'

function registry(timeout = 0) {
  const lines: { msg: string; plugin?: string }[] = []
  const log = pino({ level: 'debug' }, { write: (line: string) => void lines.push(JSON.parse(line)) })
  return { hooks: new HookRegistry(log, () => timeout), lines }
}

const request = (signal = new AbortController().signal): HookedRequest => ({
  surface: 'api-openai',
  operation: 'chat',
  model: 'corral/tiny-chat',
  body: { messages: [] },
  caller: keylessCaller('127.0.0.1'),
  reply: {} as FastifyReply,
  signal
})

const text = (content: string, more: Delta = {}): Delta => ({ content, ...more })

t.test('request hooks run in order, may change the body and may refuse', async t => {
  const { hooks } = registry()
  t.equal(hooks.hasRequestFilters(), false)
  hooks.add('first', { request: async ({ body }) => void Object.assign(body, { seen: ['first'] }) })
  hooks.add('second', { request: ({ body }) => void (body.seen as string[]).push('second') })
  t.equal(hooks.hasRequestFilters(), true)
  const asked = request()
  await hooks.request(asked)
  t.same(asked.body.seen, ['first', 'second'])

  const remove = hooks.add('third', {
    request: () => {
      throw new CorralError('invalid_request', 'Not this one.')
    }
  })
  await t.rejects(hooks.request(request()), { code: 'invalid_request', message: 'Not this one.' })
  remove()
  await hooks.request(request())
})

t.test('a leased hook may refuse a request that has its engine', async t => {
  const { hooks } = registry()
  t.equal(hooks.leased(request()), undefined, 'nothing to wait for')
  const seen: string[] = []
  hooks.add('looks', { leased: ({ model }) => void seen.push(model) })
  await hooks.leased(request())
  t.same(seen, ['corral/tiny-chat'])
  hooks.add('refuses', {
    leased: async () => {
      throw new CorralError('rate_limited', 'Too late.')
    }
  })
  await t.rejects(async () => hooks.leased(request()), { code: 'rate_limited' })
})

t.test('event hooks may change an event or drop it, but not the end of the answer', async t => {
  const { hooks } = registry()
  t.equal(hooks.hasEventFilters(request()), false)
  hooks.add('choosy', { event: () => false, eventsOf: () => false })
  t.equal(hooks.hasEventFilters(request()), false)
  hooks.add('loud', {
    event: async event => {
      event.content = event.content?.toUpperCase() ?? ''
    }
  })
  hooks.add('censor', { event: event => !event.content?.includes('SECRET') })
  t.equal(hooks.hasEventFilters(request()), true)
  t.same(await hooks.event(text('hello'), request()), text('HELLO'))
  t.equal(await hooks.event(text('a secret'), request()), undefined)
  t.same(await hooks.event(text('secret', { finish: 'stop', toolCalls: [{ index: 0, arguments: '' }] }), request()), {
    finish: 'stop'
  })
})

t.test('a failing hook names its plugin, and is logged once', async t => {
  const { hooks, lines } = registry()
  hooks.add('broken', {
    request: () => {
      throw new TypeError('cannot read it')
    },
    event: async () => Promise.reject(new TypeError('nor this')),
    modelLoaded: () => {
      throw new Error('no room')
    },
    pullFinished: async () => Promise.reject(new Error('no line'))
  })
  const unloaded: string[] = []
  hooks.add('fine', {
    modelLoaded: ({ model, milliseconds }) => void unloaded.push(`${model} in ${milliseconds}`),
    modelUnloaded: ({ model }) => void unloaded.push(model)
  })
  for (let round = 0; round < 3; round++) {
    await t.rejects(hooks.request(request()), {
      code: 'internal',
      message: /plugin "broken" failed in its hook "request"/
    })
    await t.rejects(hooks.event(text('x'), request()), { code: 'internal', message: /"broken".*"event"/ })
    hooks.modelLoaded({ model: 'a/b', mode: 'chat', milliseconds: 5 })
    hooks.modelUnloaded({ model: 'a/b', mode: 'chat', reason: 'idle' })
    hooks.pullFinished({ model: 'a/b:Q8_0', origin: 'https://hub.example/a/b', size: 1 })
    await new Promise(setImmediate)
  }
  t.same(
    lines.map(({ msg }) => msg),
    [
      'Plugin "broken" failed in its hook "request": cannot read it',
      'Plugin "broken" failed in its hook "event": nor this',
      'Plugin "broken" failed in its hook "modelLoaded": no room',
      'Plugin "broken" failed in its hook "pullFinished": no line'
    ]
  )
  t.same(unloaded, ['a/b in 5', 'a/b', 'a/b in 5', 'a/b', 'a/b in 5', 'a/b'])
})

t.test('a request whose client has disconnected does not wait for a hook', async t => {
  const { hooks } = registry()
  hooks.add('slow', { request: () => new Promise(() => {}) })
  const controller = new AbortController()
  const waiting = hooks.request(request(controller.signal))
  const gone = new Error('gone')
  controller.abort(gone)
  await t.rejects(waiting, gone)
})

t.test('a hook has a deadline, and its later result is ignored', async t => {
  const { hooks, lines } = registry(30)
  let end: (() => void) | undefined
  const late = (fail: boolean) => () =>
    new Promise<void>((resolve, reject) => {
      end = () => (fail ? reject(new Error('too late')) : resolve())
    })
  for (const fail of [false, true]) {
    for (const hook of ['request', 'event', 'leased'] as const) {
      hooks.add('slow', { [hook]: late(fail) })
      const call = async () => (hook === 'event' ? hooks.event(text('x'), request()) : hooks[hook](request()))
      await t.rejects(call(), {
        code: 'hook_timeout',
        message: new RegExp(`"slow" took longer than 30 ms in its hook "${hook}"`)
      })
      end!()
    }
  }
  hooks.add('slow', { modelLoaded: late(false) })
  hooks.modelLoaded({ model: 'a/b', mode: 'chat', milliseconds: 1 })
  await new Promise(resolve => setTimeout(resolve, 60))
  t.match(lines.at(-1), { plugin: 'slow', msg: /failed in its hook "modelLoaded": it took longer than/ })
})

t.test('an "eventsOf" that throws names its plugin', async t => {
  const { hooks } = registry()
  hooks.add('broken', {
    event: () => {},
    eventsOf: () => {
      throw new TypeError('no idea')
    }
  })
  const failure = { code: 'internal', message: /"broken" failed in its hook "eventsOf"/ }
  t.throws(() => hooks.hasEventFilters(request()), failure)
  await t.rejects(hooks.event(text('x'), request()), failure)
})
