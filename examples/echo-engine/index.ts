import { randomUUID } from 'node:crypto'
import {
  type AnswerSink,
  type BroughtModel,
  definePlugin,
  type Engine,
  type EngineExit,
  type EngineSpec
} from 'corral/plugin'

const MODELS: BroughtModel[] = [{ name: 'echo/parrot', capabilities: ['completion', 'embedding'], contextLength: 4096 }]

interface Message {
  content?: string | { text?: string }[]
}

/** What the last message says; images and other parts say nothing. */
function lastWords(messages: unknown): string {
  const content = (messages as Message[]).at(-1)?.content ?? ''
  return typeof content === 'string' ? content : content.map(part => part.text ?? '').join('')
}

/** Streams a text word by word. Where `take` returns a promise, the reader is slow, and waiting for it keeps memory small. */
async function say(text: string, { signal, take }: AnswerSink): Promise<void> {
  const words = text.split(/(?<=\s)/)
  const usage = { promptTokens: words.length, cachedTokens: 0, completionTokens: words.length }
  for (const content of words) {
    signal.throwIfAborted()
    await take([{ content }])
  }
  await take([{ finish: 'stop', usage }])
}

/** An engine has the calls that it can answer; a surface that needs another one refuses the request. */
function startEcho(spec: EngineSpec): Engine {
  let end: (exit: EngineExit) => void = () => {}
  const exited = new Promise<EngineExit>(resolve => {
    end = resolve
  })
  return {
    id: randomUUID(),
    provider: 'echo',
    spec,
    contextSize: 4096,
    slots: 8,
    memory: undefined,
    exited,
    chat: ({ messages }, sink) => say(lastWords(messages), sink),
    completion: ({ prompt }, sink) => say(String(prompt), sink),
    // Counts letters: texts of the same ones have the same vector.
    async embed(inputs) {
      const count = (text: string, letter: string) => text.split(letter).length - 1
      const vectors = inputs.map(input =>
        ['a', 'e', 'i', 'o'].map(letter => count(String(input).toLowerCase(), letter))
      )
      return { vectors, promptTokens: inputs.length }
    },
    stop: async () => end({ code: 0, signal: null, expected: true }),
    logTail: () => []
  }
}

/** A model without files and an engine that repeats what it hears: all that an engine plugin needs. */
export default definePlugin({
  name: 'echo-engine',
  api: 1,
  description: 'The model echo/parrot, which repeats the last message',
  optional: true,
  needs: ['engines', 'catalog'],
  setup(context) {
    context.service('catalog').add({ name: 'echo', models: () => MODELS })
    context.service('engines').add({
      name: 'echo',
      serves: (model, mode) => (model.format === 'echo' && mode !== 'rerank' ? 1 : 0),
      // No request has it started anew for a larger context.
      loadOptions: () => ({}),
      start: async spec => startEcho(spec)
    })
    return {}
  }
})
