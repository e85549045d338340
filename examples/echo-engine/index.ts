import { randomUUID } from 'node:crypto'
import {
  type AnswerSink,
  type BroughtModel,
  definePlugin,
  type Engine,
  type EngineExit,
  type EngineFields,
  type EngineSpec
} from 'corral/plugin'

const MODELS: BroughtModel[] = [{ name: 'echo/parrot', capabilities: ['completion', 'embedding'], contextLength: 4096 }]

interface Message {
  content?: string | { text?: string }[]
}

/** The text of the last message; images and other parts are ignored. */
function lastWords(messages: unknown): string {
  const content = (messages as Message[]).at(-1)?.content ?? ''
  return typeof content === 'string' ? content : content.map(part => part.text ?? '').join('')
}

/**
 * Streams a text word by word, until a text of `stop` appears or `max_tokens` is reached: corral leaves both to the
 * engine, and the number of choices (`n`). If `take` returns a promise, the reader is slow, and waiting for it keeps
 * memory small.
 */
async function say(text: string, { max_tokens, stop, n }: EngineFields, sink: AnswerSink): Promise<void> {
  const { signal, take, countEach } = sink
  const stops = [stop ?? []].flat().map(String).filter(Boolean)
  const found = stops
    .map(stopSequence => ({ stopSequence, at: text.indexOf(stopSequence) }))
    .filter(({ at }) => at !== -1)
    .sort((a, b) => a.at - b.at)[0]
  const words = text.slice(0, found?.at).split(/(?<=\s)/)
  const most = Number(max_tokens ?? -1)
  const said = most < 0 ? words : words.slice(0, most)
  const promptTokens = text.split(/(?<=\s)/).length
  const usage = (completionTokens: number) => ({ promptTokens, cachedTokens: 0, completionTokens })
  for (let choice = 0; choice < Number(n ?? 1); choice++) {
    for (const [at, content] of said.entries()) {
      signal.throwIfAborted()
      await take([{ choice, content, ...(countEach && { usage: usage(at + 1) }) }])
    }
    const end = { choice, usage: usage(said.length) }
    if (said.length < words.length) await take([{ ...end, finish: 'length' }])
    else await take([{ ...end, finish: 'stop', ...(found && { stopSequence: found.stopSequence }) }])
  }
}

/** The methods that an engine implements determine its capabilities. A request that needs another one is refused. */
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
    chat: (request, sink) => say(lastWords(request.messages), request, sink),
    completion: (request, sink) => say(String(request.prompt), request, sink),
    // Counts letters: texts with the same letters have the same vector.
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

/** A model without files, and an engine that repeats the last message: all that an engine plugin needs. */
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
      // The format of a plugin's models is the name of their source.
      serves: (model, mode) => (model.format === 'echo' && mode !== 'rerank' ? 1 : 0),
      // Load options do not matter to this engine, so a request with other options does not reload it.
      loadOptions: () => ({}),
      start: async spec => startEcho(spec)
    })
    return {}
  }
})
