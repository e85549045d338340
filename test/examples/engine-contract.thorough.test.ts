import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { AnswerSink, Delta, Engine, EngineExit, EngineProvider } from '../../core/contracts/engines.ts'
import { definePlugin, type PluginContext, type PluginDefinition } from '../../core/plugins/plugin.ts'
import echo from '../../examples/echo-engine/index.ts'
import { engineContract } from '../../testing/index.ts'

const timeout = 5000
const never = () => new Promise<never>(() => {})

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

const thrower = (thrown: unknown) => async () => {
  throw thrown
}

const takes = (change: (delta: Delta, take: AnswerSink['take']) => Promise<void> | undefined): EngineMutant => {
  return ({ chat }) => ({
    chat: (request, sink) => chat!(request, { ...sink, take: ([delta]) => change(delta!, sink.take) })
  })
}
const eachDelta = (change: (delta: Delta) => Delta) => faultyEngine(takes((delta, take) => take([change(delta)])))
const u = (usage: Delta['usage']) => (usage ? { usage } : {})
const single = (chat: NonNullable<Engine['chat']>): Engine['chat'] => {
  return (request, sink) => chat({ ...request, n: 1 }, sink)
}
const babbling = (chat: NonNullable<Engine['chat']>): Engine['chat'] => {
  return async (request, sink) => {
    await chat(request, sink)
    setTimeout(() => void sink.take([{ content: 'more' }]), 5)
  }
}

/** An engine that only speaks. @param type of its bytes */
const speaker = (type: string) =>
  definePlugin({
    name: 'speaker',
    api: 1,
    needs: ['engines', 'catalog'],
    setup(context) {
      const models = [{ name: 'speaker/voice', capabilities: ['speak'] }]
      context.service('catalog').add({ name: 'speaker', models: () => models })
      context.service('engines').add({
        name: 'speaker',
        serves: ({ format }, mode) => (format === 'speaker' && mode === 'speak' ? 1 : 0),
        async start(spec) {
          let end: (exit: EngineExit) => void = () => {}
          const exited = new Promise<EngineExit>(resolve => {
            end = resolve
          })
          return {
            ...{ id: randomUUID(), provider: 'speaker', spec, contextSize: 100, slots: 1, memory: undefined, exited },
            operations: {
              async speak(_, { take }) {
                await take([{ bytes: Buffer.alloc(8000), type }])
                await take([{ finish: 'stop' }])
              }
            },
            stop: async () => end({ code: 0, signal: null, expected: true }),
            logTail: () => []
          }
        }
      })
      return {}
    }
  })

t.test('the engine contract checks that clients can hear an engine that only speaks', async t => {
  const model = 'speaker/voice'
  await engineContract(speaker('audio/pcm;rate=8000'), { model })
  const message = /\/v1\/audio\/speech answers 200: .*speaks audio\/wav, not audio\/pcm;rate=/
  await t.rejects(engineContract(speaker('audio/wav'), { model }), { message })
})

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
    ['throws a text', faultyEngine(() => ({ chat: thrower('gone') })), /^chat: it throws "gone", not an error/],
    ['throws nothing', faultyEngine(() => ({ chat: thrower(undefined) })), /^chat: it throws undefined/],
    ['returns no promise', faultyEngine(() => ({ chat: (() => {}) as never })), /"chat" returns a promise, not undef/],
    ['sends numbers', eachDelta(() => ({ content: 42 as never })), /"content" of a delta is a text, not 42/],
    ['sends null', eachDelta(() => null as never), /a delta is an object, not null/],
    ['sends unknown fields', eachDelta(delta => ({ ...delta, txt: 'a' }) as Delta), /no field "txt"/],
    ['sends no list', faultyEngine(takes((delta, take) => take(delta as never))), /gets a list of deltas, not {/],
    [
      'finishes oddly',
      faultyEngine(lastDelta(delta => [{ ...delta, finish: 'end' as never }])),
      /"tool_calls", not "end"/
    ],
    [
      'counts only at the end',
      eachDelta(({ usage, ...d }) => (d.finish ? { ...d, ...u(usage) } : d)),
      /some deltas have/
    ],
    ['does not wait', faultyEngine(takes((delta, take) => void take([delta]))), /called again before the promise/],
    [
      'sends more later',
      faultyEngine(({ chat }) => ({ chat: babbling(chat!) })),
      /has ended its answer, and then sends/
    ],
    ['answers once', faultyEngine(({ chat }) => ({ chat: single(chat!) })), /n: 2 generates two choices, not 1/],
    ['has no log', faultyEngine(() => ({ logTail: undefined as never })), /it has "logTail"/],
    ['has a broken log', faultyEngine(() => ({ logTail: () => [1 as never] })), /a list of lines, not \[1\]/],
    ['has no spec', faultyEngine(() => ({ spec: undefined as never })), /has the "spec"/],
    ['has no end', faultyEngine(() => ({ exited: undefined as never })), /an engine without the promise \\"exited/],
    [
      'is nothing',
      faultyProvider({ start: async () => undefined as never }),
      /an engine without the promise \\"exited/
    ],
    [
      'has odd tokens',
      faultyEngine(() => ({ tokenize: async () => [1] as never })),
      /tokens: \[1, 2, 3\] }, not \[1\]/
    ],
    ['has no pieces', faultyEngine(() => ({ tokenize: async () => ({ tokens: [1] }) })), /if with_pieces is true, not/],
    ['never tokenizes', faultyEngine(() => ({ tokenize: never })), /tokenize: this did not end/],
    ['counts in texts', faultyEngine(() => ({ countTokens: async () => '3' as never })), /a count of tokens, not "3"/],
    [
      'gives no vectors',
      faultyEngine(() => ({ embed: async () => ({}) as never })),
      /returns { vectors, promptTokens }, not/
    ],
    ['fails to embed', faultyEngine(() => ({ embed: thrower('no model') as never })), /^embed: it throws "no model"/],
    [
      'ranks nothing',
      faultyProvider({ serves: ({ format }) => (format === 'echo' ? 2 : 0) }),
      /the engine has no "rerank"/
    ],
    ['knows a list', faultyProvider({ knownOptions: ['top_p'] as never }), /"knownOptions" is a Set of names, not/],
    ['is never set up', { ...echo, setup: never }, /setup: this did not end/],
    ['never stops', faultyEngine(() => ({ stop: never })), /stop: this did not end/],
    ['has no slots', faultyEngine(() => ({ slots: 0 })), /with 0 slots/],
    ['never answers', faultyEngine(() => ({ chat: never })), /chat: this did not end/],
    ['never starts', faultyProvider({ start: never }), /\/api\/load: this did not end/]
  ]
  for (const [title, plugin, message] of table) {
    await t.rejects(engineContract(plugin, { model: 'echo/parrot', timeout }), { message }, title)
  }
})
