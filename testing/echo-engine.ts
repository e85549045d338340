import { randomUUID } from 'node:crypto'
import type { AnswerSink, Engine, EngineFields, EngineSpec } from '../core/contracts/engines.ts'
import { definePlugin, type PluginDefinition } from '../core/plugins/plugin.ts'

type Content = string | { text?: string }[] | null | undefined

const textOf = (content: Content) =>
  typeof content === 'string' ? content : (content ?? []).map(part => part.text ?? '').join('')

/** Repeats the last message word by word. Every model has it, so that tests need no llama.cpp. */
class EchoEngine implements Engine {
  readonly id = `echo-${randomUUID()}`
  readonly provider = 'echo'
  readonly contextSize: number
  readonly slots = 4
  readonly memory: undefined
  readonly exited: Promise<{ code: number | null; signal: string | null; expected: boolean }>
  readonly spec: EngineSpec
  #exit!: (how: { code: number | null; signal: string | null; expected: boolean }) => void

  constructor(spec: EngineSpec) {
    this.spec = spec
    this.contextSize = spec.options.num_ctx
    this.exited = new Promise(resolve => {
      this.#exit = resolve
    })
  }

  async chat({ messages }: EngineFields, sink: AnswerSink): Promise<void> {
    const last = (messages as { content?: Content }[] | undefined)?.at(-1)
    await this.#say(textOf(last?.content), sink)
  }

  async completion({ prompt }: EngineFields, sink: AnswerSink): Promise<void> {
    await this.#say(String(prompt), sink)
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

  async #say(text: string, sink: AnswerSink): Promise<void> {
    const words = text.split(/(?<=\s)/)
    const usage = { promptTokens: words.length, cachedTokens: 0, completionTokens: words.length }
    for (const content of words) {
      sink.signal.throwIfAborted()
      await sink.take([{ content }])
    }
    await sink.take([{ finish: 'stop', usage, timing: { prompt: 1, generation: 1 } }])
  }
}

/** A plugin whose engine serves every model better than others do, and repeats the last message. */
export const echoEngine: PluginDefinition = definePlugin({
  name: 'echo-engine',
  api: 1,
  description: 'An engine that repeats the last message, for tests',
  needs: ['engines'],
  setup(context) {
    context.service('engines').add({
      name: 'echo',
      serves: (_, mode) => (mode === 'rerank' ? 0 : 1000),
      start: async spec => new EchoEngine(spec) as unknown as Engine
    })
    return {}
  }
})
