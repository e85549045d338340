import { randomUUID } from 'node:crypto'
import type { AnswerSink, Engine, EngineFields, EngineSpec } from '../core/contracts/engines.ts'
import { definePlugin, type PluginDefinition } from '../core/plugins/plugin.ts'

type Content = string | { text?: string }[] | null | undefined

const textOf = (content: Content) =>
  typeof content === 'string' ? content : (content ?? []).map(part => part.text ?? '').join('')

/** Repeats the last message word by word. It serves every model, so that tests need no llama.cpp. */
export class EchoEngine implements Engine {
  readonly id = `echo-${randomUUID()}`
  readonly provider: string
  readonly contextSize: number
  readonly slots = 4
  readonly memory: undefined
  readonly exited: Promise<{ code: number | null; signal: string | null; expected: boolean }>
  readonly spec: EngineSpec
  #exit!: (how: { code: number | null; signal: string | null; expected: boolean }) => void

  constructor(spec: EngineSpec, provider = 'test-echo') {
    this.provider = provider
    this.spec = spec
    this.contextSize = spec.options.num_ctx
    this.exited = new Promise(resolve => {
      this.#exit = resolve
    })
  }

  async chat(request: EngineFields, sink: AnswerSink): Promise<void> {
    const last = (request.messages as { content?: Content }[] | undefined)?.at(-1)
    await this.#say(textOf(last?.content), request, sink)
  }

  async completion(request: EngineFields, sink: AnswerSink): Promise<void> {
    await this.#say(String(request.prompt), request, sink)
  }

  async embed(inputs: readonly (string | readonly number[])[]) {
    const vectors = inputs.map(input => [1, input.length / 1000, 0])
    return { vectors, promptTokens: inputs.length }
  }

  async stop(): Promise<void> {
    this.#exit({ code: 0, signal: null, expected: true })
  }

  logTail(): string[] {
    return []
  }

  async #say(text: string, { max_tokens, stop, n }: EngineFields, sink: AnswerSink): Promise<void> {
    const ends = [stop ?? []].flat().map(String).filter(Boolean)
    const stopSequence = ends.filter(one => text.includes(one)).sort((a, b) => text.indexOf(a) - text.indexOf(b))[0]
    const words = (stopSequence === undefined ? text : text.slice(0, text.indexOf(stopSequence))).split(/(?<=\s)/)
    const most = Number(max_tokens ?? -1)
    const said = most < 0 ? words : words.slice(0, most)
    const promptTokens = text.split(/(?<=\s)/).length
    const usage = (completionTokens: number) => ({ promptTokens, cachedTokens: 0, completionTokens })
    for (let choice = 0; choice < Number(n ?? 1); choice++) {
      for (const [at, content] of said.entries()) {
        sink.signal.throwIfAborted()
        await sink.take([{ choice, content, ...(sink.countEach && { usage: usage(at + 1) }) }])
      }
      const end = { choice, usage: usage(said.length), timing: { prompt: 1, generation: 1 } }
      if (said.length < words.length) await sink.take([{ finish: 'length', ...end }])
      else await sink.take([{ finish: 'stop', ...(stopSequence !== undefined && { stopSequence }), ...end }])
    }
  }
}

/** A plugin whose engine is preferred for every model, and repeats the last message. */
export const echoEngine: PluginDefinition = definePlugin({
  name: 'test-echo',
  api: 1,
  description: 'An engine that repeats the last message, for tests',
  needs: ['engines'],
  setup(context) {
    context.service('engines').add({
      name: 'test-echo',
      serves: (_, mode) => (mode === 'chat' || mode === 'embedding' ? 1000 : 0),
      start: async spec => new EchoEngine(spec) as unknown as Engine
    })
    return {}
  }
})
