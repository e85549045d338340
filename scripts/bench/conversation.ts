import type { Corral } from '../../test/support/corral.ts'

/** Result of continuing a conversation after its model was unloaded. Durations are milliseconds reported by corral. */
export interface Continued {
  /** Duration of `POST /api/stop`, including saving the prompt cache. */
  stop: number
  /** Duration of the load, including restoring the saved cache. */
  load: number
  /** Tokens of the whole prompt, and the time to process the uncached part. */
  promptTokens: number
  promptEvaluation: number
  /** Time from a request for an unloaded model to the first word of its answer. */
  firstWord: number
  answer: string
}

interface Message {
  role: 'user' | 'assistant'
  content: string
}

const QUESTIONS = ['What is the capital of France?', 'And what is the color of the sky?', 'Can you count to five?']
const WORDS = 'the sky is blue and the grass is green while a dog runs to the river near some big old trees'.split(' ')
/** Words per turn used to make the conversation long. */
const TURN_WORDS = 200
const ANSWER_TOKENS = 24
const MS = 1e6

export interface Conversation {
  /** Adds turns until the conversation has at least this many tokens, and returns the actual number. */
  grow(tokens: number): Promise<number>
  unloadAndGoOn(): Promise<Continued>
}

export function createConversation(corral: Corral, model: string, context: number): Conversation {
  const messages: Message[] = []
  let turns = 0

  async function say(content: string) {
    messages.push({ role: 'user', content })
    const began = performance.now()
    const reply = await corral.send('/api/chat', {
      model,
      messages,
      stream: true,
      keep_alive: -1,
      options: { num_ctx: context, num_parallel: 1, temperature: 0, max_tokens: ANSWER_TOKENS }
    })
    if (reply.status !== 200) throw new Error(`${model}: ${reply.status} ${await reply.text()}`)
    let firstWord: number | undefined
    let text = ''
    for await (const chunk of reply.body!) {
      text += Buffer.from(chunk).toString()
      if (firstWord === undefined && /"content":"[^"]/.test(text)) firstWord = performance.now() - began
    }
    const events = text
      .split('\n')
      .filter(line => line.startsWith('data: '))
      .map(line => JSON.parse(line.slice(6)))
    const answer = events.map(event => event.message?.content ?? '').join('')
    const last = events.at(-1)
    if (!last?.done) throw new Error(`${model}: the answer is incomplete: ${text.slice(-300)}`)
    messages.push({ role: 'assistant', content: answer })
    return { last, answer, firstWord: firstWord ?? performance.now() - began }
  }

  return {
    async grow(tokens) {
      for (;;) {
        const text = Array.from({ length: TURN_WORDS }, (_, i) => WORDS[(i * 7 + turns) % WORDS.length]).join(' ')
        turns++
        const { last } = await say(text)
        if (last.prompt_eval_count >= tokens) return last.prompt_eval_count
      }
    },
    async unloadAndGoOn() {
      const began = performance.now()
      const { status, body } = await corral.json('/api/stop', { model })
      if (status !== 200) throw new Error(`${model} could not be stopped: ${JSON.stringify(body)}`)
      const stop = performance.now() - began
      const { last, answer, firstWord } = await say(QUESTIONS[turns++ % QUESTIONS.length]!)
      return {
        stop,
        load: last.load_duration / MS,
        promptTokens: last.prompt_eval_count,
        promptEvaluation: last.prompt_eval_duration / MS,
        firstWord,
        answer
      }
    }
  }
}
