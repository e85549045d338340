import { createHash } from 'node:crypto'
import { createServer, type ServerResponse } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import t, { type Test } from 'tap'
import type { Delta, Engine, EngineProvider } from '../../core/contracts/engines.ts'
import type { HookedRequest } from '../../core/contracts/hooks.ts'
import type { Hub } from '../../core/contracts/hubs.ts'
import { clientSignal } from '../../core/http/client-disconnect.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { definePlugin, type PluginContext, type PluginDefinition } from '../../core/plugins/plugin.ts'
import surface from '../../examples/describe-api/index.ts'
import echo from '../../examples/echo-engine/index.ts'
import events from '../../examples/event-api/index.ts'
import webHub from '../../examples/web-hub/index.ts'
import { engineContract, hubContract, surfaceContract } from '../../testing/index.ts'
import { listen } from '../support/listen.ts'

const timeout = 5000
const never = () => new Promise<never>(() => {})

// ---- engines

type EngineMutant = (engine: Engine) => Partial<Engine>

/** The example's engine with a fault. */
function faultyEngine(mutant: EngineMutant, faulty: Partial<EngineProvider> = {}) {
  const setup: PluginDefinition['setup'] = (context, options) => {
    const add = (good: EngineProvider) => {
      const start: EngineProvider['start'] = async (...values) => {
        const engine = await good.start(...values)
        return { ...engine, ...mutant(engine) }
      }
      return context.service('engines').add({ ...good, start, ...faulty })
    }
    const service = (name: string) => (name === 'engines' ? { add } : context.service(name as 'catalog'))
    return echo.setup({ ...context, service: service as unknown as PluginContext['service'] }, options)
  }
  return { ...echo, setup }
}

const faultyProvider = (faulty: Partial<EngineProvider>) => faultyEngine(() => ({}), faulty)
const throwing: EngineProvider['serves'] = ({ format }) => {
  if (format !== 'echo') throw new Error('no idea')
  return 1
}
const deaf = (chat: NonNullable<Engine['chat']>): Engine['chat'] => {
  return (request, sink) => chat(request, { ...sink, signal: new AbortController().signal })
}
const unexpected = (exited: Engine['exited']) => exited.then(exit => ({ ...exit, expected: false }))
const tooFew = (embed: NonNullable<Engine['embed']>): Engine['embed'] => {
  return (inputs, options) => embed(inputs.slice(0, 1), options)
}
const vectorsOfNaN: Engine['embed'] = async inputs => ({ vectors: inputs.map(() => [Number.NaN]), promptTokens: 1 })

const lastDelta = (change: (delta: Delta) => Delta[]): EngineMutant => {
  return engine => ({
    chat: (request, sink) =>
      engine.chat!(request, { ...sink, take: deltas => sink.take(deltas.flatMap(d => (d.finish ? change(d) : [d]))) })
  })
}

t.test('the engine contract names the fault of each faulty engine and does not hang', async t => {
  const usage = (more: object): EngineMutant =>
    lastDelta(delta => [{ ...delta, usage: { promptTokens: 1, cachedTokens: 0, completionTokens: 1, ...more } }])
  const table: [title: string, plugin: PluginDefinition, message: RegExp][] = [
    ['finishes twice', faultyEngine(lastDelta(delta => [delta, { ...delta }])), /"finish" twice/],
    ['continues', faultyEngine(lastDelta(delta => [delta, { content: 'more' }])), /continues after its "finish"/],
    ['never finishes', faultyEngine(lastDelta(() => [])), /ends with one "finish"/],
    ['counts NaN', faultyEngine(usage({ completionTokens: Number.NaN })), /usage\.completionTokens .* not NaN/],
    ['counts half a token', faultyEngine(usage({ promptTokens: 0.5 })), /usage\.promptTokens .* not 0\.5/],
    ['ignores an abort', faultyEngine(({ chat }) => ({ chat: deaf(chat!) })), /came after the abort/],
    ['never exits', faultyEngine(() => ({ exited: never() })), /"exited" after stop: this did not end/],
    ['exits unexpectedly', faultyEngine(({ exited }) => ({ exited: unexpected(exited) })), /exited as expected/],
    ['gives too few vectors', faultyEngine(({ embed }) => ({ embed: tooFew(embed!) })), /for each input, not 1 for 3/],
    ['gives vectors of NaN', faultyEngine(() => ({ embed: vectorsOfNaN })), /finite numbers/],
    ['has an id twice', faultyEngine(() => ({ id: 'one' })), /whose id \\"one\\" another engine has/],
    ['names another provider', faultyEngine(() => ({ provider: 'llama-server' })), /is not a provider of this plugin/],
    ['takes the name of a provider', faultyProvider({ name: 'llama-server' }), /named "llama-server" already/],
    ['throws in "serves"', faultyProvider({ serves: throwing }), /"serves" does not throw for corral\/tiny-chat/],
    ['serves NaN', faultyProvider({ serves: () => Number.NaN }), /"serves" returns a number/],
    ['never stops', faultyEngine(() => ({ stop: never })), /stop: this did not end/],
    ['has no slots', faultyEngine(() => ({ slots: 0 })), /with 0 slots/],
    ['never answers', faultyEngine(() => ({ chat: never })), /chat: this did not end/],
    ['never starts', faultyProvider({ start: never }), /\/api\/load: this did not end/]
  ]
  for (const [title, plugin, message] of table) {
    await t.rejects(engineContract(plugin, { model: 'echo/parrot', timeout }), { message }, title)
  }
})

// ---- hubs

/** A server with two models, one of them gated, and the example hub that lists them correctly. */
async function hubServer(t: Test): Promise<string> {
  const files: Record<string, string> = { 'model.gguf': 'GGUF and more', 'notes.txt': 'some words' }
  const server = createServer(({ url = '', headers }, reply: ServerResponse) => {
    const [, id, name] = /^\/(owner\/\w+)\/(.+)$/.exec(url) ?? []
    if (id === 'owner/gated') return reply.writeHead(403).end()
    const text = id === 'owner/model' ? files[name!] : undefined
    if (text === undefined) return reply.writeHead(404).end()
    const [, begin, end] = /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? '') ?? []
    if (begin === undefined) return reply.writeHead(200, { 'content-length': text.length }).end(text)
    const part = text.slice(Number(begin), Number(end) + 1)
    reply
      .writeHead(206, { 'content-range': `bytes ${begin}-${end}/${text.length}`, 'content-length': part.length })
      .end(part)
  })
  return `http://127.0.0.1:${await listen(t, server)}`
}

/** The example hub with a second file, digests and a fault. */
function faultyHub(mutant: (hub: Hub, context: PluginContext) => Partial<Hub>): PluginDefinition {
  const setup: PluginDefinition['setup'] = (context, options) => {
    const addHub = (good: Hub) => {
      const hub: Hub = {
        ...good,
        async repository(request, waiting) {
          const found = await good.repository(request, waiting)
          const sha256 = createHash('sha256').update('GGUF and more').digest('hex')
          return {
            ...found,
            files: [
              { ...found.files[0]!, sha256 },
              { path: 'notes.txt', size: 10 }
            ]
          }
        }
      }
      return context.service('downloads').addHub({ ...hub, ...mutant(hub, context) })
    }
    return webHub.setup({ ...context, service: (() => ({ addHub })) as unknown as PluginContext['service'] }, options)
  }
  return { ...webHub, setup }
}

t.test('the hub contract names the fault of each faulty hub and does not hang', async t => {
  const address = await hubServer(t)
  const options = { id: 'owner/model', absent: 'owner/none', config: `web-hub: { address: '${address}' }`, timeout }
  await hubContract(webHub, { ...options, gated: 'owner/gated' })
  await hubContract(
    faultyHub(() => ({})),
    { ...options, gated: 'owner/gated' }
  )
  const listing =
    (change: (file: { path: string; size: number | undefined }, at: number) => object) =>
    (hub: Hub): Partial<Hub> => ({
      async repository(request, waiting) {
        const found = await hub.repository(request, waiting)
        return { ...found, files: found.files.map((file, at) => ({ ...file, ...change(file, at) })) }
      }
    })
  const codes = (wrong: Record<string, string>) => (hub: Hub, context: PluginContext) => ({
    repository: (request: Parameters<Hub['repository']>[0], waiting: object) =>
      hub.repository(request, waiting).catch(error => {
        throw wrong[error.code] ? context.error(wrong[error.code] as 'internal', 'Wrong.') : error
      })
  })
  const withoutGated =
    (hub: Hub): Hub['repository'] =>
    async (request, waiting) => {
      const { gated: _, ...found } = await hub.repository(request, waiting)
      return found as never
    }
  const table: [title: string, mutant: Parameters<typeof faultyHub>[0], message: RegExp][] = [
    ['lists a wrong size', listing((_, at) => (at === 0 ? { size: 5 } : {})), /"model\.gguf" is listed as 5 bytes/],
    [
      'locates another file',
      hub => ({ locate: (repository, _, signal) => hub.locate(repository, { path: 'notes.txt', size: 10 }, signal) }),
      /another digest|located at|listed as/
    ],
    ['lists a wrong digest', listing((_, at) => (at === 0 ? { sha256: '0'.repeat(64) } : {})), /another digest/],
    ['lists a path twice', listing(() => ({ path: 'model.gguf' })), /"model\.gguf" is listed twice/],
    ['lists a path outside', listing(() => ({ path: '../model.gguf' })), /is relative/],
    ['takes a prefix', () => ({ prefixes: ['hf:'] }), /the prefix "hf:": it belongs to the hub "huggingface"/],
    ['reports a broken line as absence', codes({ hub_unreachable: 'repo_not_found' }), /as "hub_unreachable", not/],
    ['reports a refusal as absence', codes({ hub_forbidden: 'repo_not_found' }), /reported as "hub_forbidden", not/],
    ['never says "gated"', hub => ({ repository: withoutGated(hub) }), /whether it is "gated"/],
    ['lets nobody know', codes({ repo_not_found: 'hub_unreachable' }), /"repo_not_found", not "hub_unr/],
    ['ignores the signal', hub => ({ repository: request => hub.repository(request, {}) }), /is aborted|did not end/],
    ['never lists', () => ({ repository: never }), /repository of owner\/model: this did not end/],
    ['never locates', () => ({ locate: never }), /locate model\.gguf: this did not end/]
  ]
  for (const [title, mutant, message] of table) {
    await t.rejects(hubContract(faultyHub(mutant), options), { message }, title)
  }
})

// ---- APIs

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
