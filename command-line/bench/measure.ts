import type { Counters } from '../../core/contracts/native-records.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import type { Speeds } from './statistics.ts'

/** One measurement of a single request, or of several concurrent ones. */
export interface Sample {
  /** Total over all prompts. */
  promptTokens: number
  /** Prompt tokens per second over all slots. */
  prompt: number
  /** Generated tokens per second over all slots. Absent for embeddings. */
  answer?: number
  /** Seconds to the first token of the slowest request. Absent for embeddings. */
  first?: number
}

export interface Workload {
  /** Approximate tokens of each prompt, never exceeded. */
  prompt: number
  answer: number
  /** Concurrent requests. */
  slots: number
}

/** Measures one model. Prompts never repeat, so no cache can answer them. */
export interface Meter {
  sent(): number
  /** Generates a little so that everything is warm, and returns a rough estimate of the speeds. */
  warmUp(): Promise<Sample>
  sample(workload: Workload): Promise<Sample>
  /** Speeds for `judge`: prefill, generation, and generation of text that repeats the conversation. */
  speeds(size: { prompt: number; answer: number }, seed: number): Promise<Speeds>
}

const WORDS =
  'the river runs slowly past an old stone bridge where children watch small boats carry apples wool and salt to market while a clock in the tower strikes nine and somebody opens the window of a bakery that smells of warm bread honey and rain on dry earth under clouds moving north with birds above green hills beyond seven farms along this quiet road'.split(
    ' '
  )
const TOPICS = ['a lighthouse', 'a lost key', 'two brothers', 'the first snow', 'a train at night', 'an honest thief']

/** mulberry32, a seeded random number generator. */
function random(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

type Final = { done?: boolean; response?: string; message?: { content?: string } } & Partial<Counters>

interface Answer {
  promptTokens: number
  /** Seconds, as measured by the engine. */
  promptTime: number
  answerTokens: number
  answerTime: number
  /** Milliseconds on this process' clock. */
  began: number
  first: number
  ended: number
}

export function createMeter(client: ServerClient, model: string, mode: 'chat' | 'embedding'): Meter {
  /** Tokens per word of the word list, measured with the first prompt. */
  let tokensPerWord = 1.3
  let seeds = 1
  let sent = 0

  // Slightly less, because words differ in length and the chat template adds tokens.
  const wordsFor = (tokens: number) => Math.max(1, Math.floor((tokens * 0.97 - 4) / tokensPerWord))

  function text(tokens: number, seed: number): string {
    const next = random(seed)
    const count = wordsFor(tokens)
    return Array.from({ length: count }, () => WORDS[Math.floor(next() * WORDS.length)]).join(' ')
  }

  const forced = (answer: number, seed: number) => ({
    max_tokens: answer,
    ignore_eos: true,
    cache_prompt: false,
    seed
  })

  async function ask(path: string, body: object): Promise<Answer> {
    sent++
    const began = performance.now()
    let first: number | undefined
    let last: Final = {}
    for await (const event of client.stream<Final>(path, { model, stream: true, ...body })) {
      if (!event.done) first ??= performance.now()
      last = event
    }
    const ended = performance.now()
    return {
      promptTokens: last.prompt_eval_count ?? 0,
      promptTime: (last.prompt_eval_duration ?? 0) / 1e9,
      answerTokens: last.eval_count ?? 0,
      answerTime: (last.eval_duration ?? 0) / 1e9,
      began,
      first: first ?? ended,
      ended
    }
  }

  async function generate(prompt: number, answer: number, seed = seeds++): Promise<Answer> {
    // Sampling is faster when the next words are predictable. A temperature keeps small models from repeating
    // themselves.
    const options = { temperature: 0.8, ...forced(answer, seed) }
    const reply = await fitting(() => ask('/api/generate', { prompt: text(prompt, seed), raw: true, options }))
    learn(prompt, reply.promptTokens)
    return reply
  }

  async function embed(prompt: number, seed = seeds++): Promise<Answer> {
    const began = performance.now()
    const reply = await fitting(() => {
      sent++
      return client.json<Partial<Counters>>('POST', '/api/embed', { model, input: text(prompt, seed), truncate: false })
    })
    const ended = performance.now()
    const promptTokens = reply.prompt_eval_count ?? 0
    learn(prompt, promptTokens)
    const promptTime = (ended - began) / 1000
    return { promptTokens, promptTime, answerTokens: 0, answerTime: 0, began, first: ended, ended }
  }

  /** Sends a shorter text when the words turn out to have more tokens than estimated. */
  async function fitting<Reply>(send: () => Promise<Reply>): Promise<Reply> {
    for (;;) {
      try {
        return await send()
      } catch (error) {
        if (!(error instanceof ServerRefusal) || error.code !== 'context_exceeded' || tokensPerWord > 20) throw error
        tokensPerWord *= 1.2
      }
    }
  }

  function learn(wanted: number, tokens: number): void {
    const words = wordsFor(wanted)
    if (words > 32) tokensPerWord = tokens / words
  }

  async function sample({ prompt, answer, slots }: Workload): Promise<Sample> {
    const each = () => (mode === 'chat' ? generate(prompt, answer) : embed(prompt))
    const answers = await Promise.all(Array.from({ length: slots }, each))
    return mode === 'chat'
      ? together(answers)
      : { promptTokens: sum(answers, 'promptTokens'), prompt: readTogether(answers) }
  }

  return {
    sent: () => sent,
    async warmUp() {
      await sample({ prompt: 96, answer: 4, slots: 1 })
      return await sample({ prompt: 96, answer: 8, slots: 1 })
    },
    sample,
    async speeds({ prompt, answer }, seed): Promise<Speeds> {
      if (mode === 'embedding') {
        const { promptTokens, promptTime } = await embed(prompt, seed)
        return { prompt: promptTokens / promptTime }
      }
      const read = await generate(prompt, 1, seed)
      const options = { temperature: 0.8, ...forced(answer, seed) }
      const chat = (content: string) => ask('/api/chat', { messages: [{ role: 'user', content }], options })
      const written = await chat(`Tell a story about ${TOPICS[seed % TOPICS.length]}, number ${seed}.`)
      const repeated = await chat(`Repeat this text word for word:\n\n${text(answer, seed)}`)
      return {
        prompt: read.promptTokens / read.promptTime,
        answer: written.answerTokens / written.answerTime,
        repeat: repeated.answerTokens / repeated.answerTime
      }
    }
  }
}

const sum = (answers: readonly Answer[], of: 'promptTokens' | 'answerTokens') =>
  answers.reduce((total, answer) => total + answer[of], 0)

const readTogether = (answers: readonly Answer[]) =>
  (sum(answers, 'promptTokens') * 1000) /
  (Math.max(...answers.map(({ first }) => first)) - Math.min(...answers.map(({ began }) => began)))

/** A single request uses the engine's own times. Several use the time from the first start to the last end. */
function together(answers: readonly Answer[]): Sample {
  const [one] = answers as [Answer, ...Answer[]]
  const promptTokens = sum(answers, 'promptTokens')
  const first = Math.max(...answers.map(({ first, began }) => first - began)) / 1000
  if (answers.length === 1) {
    return { promptTokens, first, prompt: promptTokens / one.promptTime, answer: one.answerTokens / one.answerTime }
  }
  const begun = Math.min(...answers.map(({ first }) => first))
  const ended = Math.max(...answers.map(({ ended }) => ended))
  return {
    promptTokens,
    first,
    prompt: readTogether(answers),
    answer: (sum(answers, 'answerTokens') * 1000) / (ended - begun)
  }
}
