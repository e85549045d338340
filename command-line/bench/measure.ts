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

export type Meter = ReturnType<typeof createMeter>

const WORDS =
  'the river runs slowly past an old stone bridge where children watch small boats carry apples wool and salt to market while a clock in the tower strikes nine and somebody opens the window of a bakery that smells of warm bread honey and rain on dry earth under clouds moving north with birds above green hills beyond seven farms along this quiet road'.split(
    ' '
  )
const TOPICS = ['a lighthouse', 'a lost key', 'two brothers', 'the first snow', 'a train at night', 'an honest thief']

/** Words of the word list, the same for the same seed. */
export function randomWords(count: number, seed: number): string {
  let state = Math.imul(seed, 0x9e37_79b1)
  const next = () => {
    // A linear congruential generator.
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return WORDS[Math.floor((state / 2 ** 32) * WORDS.length)]
  }
  return Array.from({ length: count }, next).join(' ')
}

type Final = { done?: boolean } & Partial<Counters>

interface Answer {
  promptTokens: number
  answerTokens: number
  /** Tokens per second, as measured by the engine. */
  prompt: number
  answer: number
  /** Milliseconds on this process' clock. */
  began: number
  first: number
  ended: number
}

/** Measures one model. Prompts never repeat, so no cache can answer them. */
export function createMeter(client: ServerClient, model: string, mode: 'chat' | 'embedding') {
  /** Tokens per word of the word list, measured with the first prompt. */
  let tokensPerWord = 1.3
  let seeds = 1
  let sent = 0

  // Slightly less, because words differ in length and the chat template adds tokens.
  const wordsFor = (tokens: number) => Math.max(1, Math.floor((tokens * 0.97 - 4) / tokensPerWord))
  const text = (tokens: number, seed: number) => randomWords(wordsFor(tokens), seed)

  async function ask(path: string, body: object): Promise<Answer> {
    sent++
    const began = performance.now()
    let first: number | undefined
    let last: Final = {}
    if (mode === 'chat') {
      for await (const event of client.stream<Final>(path, { model, stream: true, ...body })) {
        if (!event.done) first ??= performance.now()
        last = event
      }
    } else last = await client.json<Final>('POST', path, { model, ...body })
    const ended = performance.now()
    const { prompt_eval_count: promptTokens = 0, eval_count: answerTokens = 0 } = last
    const promptTime = mode === 'chat' ? (last.prompt_eval_duration ?? 0) / 1e9 : (ended - began) / 1000
    return {
      promptTokens,
      answerTokens,
      prompt: promptTokens / promptTime,
      answer: (answerTokens / (last.eval_duration ?? 0)) * 1e9,
      began,
      first: first ?? ended,
      ended
    }
  }

  // Sampling is faster when the next words are predictable. A temperature keeps small models from repeating themselves.
  const forced = (answer: number, seed: number) => ({
    options: { temperature: 0.8, max_tokens: answer, ignore_eos: true, cache_prompt: false, seed }
  })

  /** Sends a prompt, and a shorter one if its words have more tokens than estimated. */
  async function generate(prompt: number, answer: number, seed = seeds++): Promise<Answer> {
    for (;;) {
      try {
        const input = text(prompt, seed)
        const reply =
          mode === 'chat'
            ? await ask('/api/generate', { prompt: input, raw: true, ...forced(answer, seed) })
            : await ask('/api/embed', { input, truncate: false })
        const words = wordsFor(prompt)
        if (words > 32) tokensPerWord = reply.promptTokens / words
        return reply
      } catch (error) {
        if (!(error instanceof ServerRefusal) || error.code !== 'context_exceeded' || tokensPerWord > 20) throw error
        tokensPerWord *= 1.2
      }
    }
  }

  /** Measures concurrent requests. @param prompt approximate tokens of each prompt, never exceeded */
  async function sample(prompt: number, answer: number, slots: number): Promise<Sample> {
    const answers = await Promise.all(Array.from({ length: slots }, () => generate(prompt, answer)))
    return together(answers, mode)
  }

  return {
    sent: () => sent,
    /** Generates a little so that everything is warm, and returns a rough estimate of the speeds. */
    async warmUp(): Promise<Sample> {
      await sample(96, 4, 1)
      return await sample(96, 8, 1)
    },
    sample,
    /** Speeds for `judge`: prefill, generation, and generation of text that repeats the conversation. */
    async speeds(size: { prompt: number; answer: number }, seed: number): Promise<Speeds> {
      const { prompt } = await generate(size.prompt, 1, seed)
      if (mode === 'embedding') return { prompt }
      const chat = (content: string) =>
        ask('/api/chat', { messages: [{ role: 'user', content }], ...forced(size.answer, seed) })
      const written = await chat(`Tell a story about ${TOPICS[seed % TOPICS.length]}, number ${seed}.`)
      const repeated = await chat(`Repeat this text word for word:\n\n${text(size.answer, seed)}`)
      return { prompt, answer: written.answer, repeat: repeated.answer }
    }
  }
}

/** A single request uses the engine's own times. Several use the time from the first start to the last end. */
function together(answers: readonly Answer[], mode: 'chat' | 'embedding'): Sample {
  const [one] = answers as [Answer, ...Answer[]]
  const all = (name: keyof Answer) => answers.map(answer => answer[name])
  const sum = (name: keyof Answer) => all(name).reduce((total, value) => total + value, 0)
  const promptTokens = sum('promptTokens')
  const isOne = answers.length === 1
  const prompt = (promptTokens * 1000) / (Math.max(...all('first')) - Math.min(...all('began')))
  if (mode === 'embedding') return { promptTokens, prompt }
  return {
    promptTokens,
    prompt: isOne ? one.prompt : prompt,
    answer: isOne ? one.answer : (sum('answerTokens') * 1000) / (Math.max(...all('ended')) - Math.min(...all('first'))),
    first: Math.max(...answers.map(({ first, began }) => first - began)) / 1000
  }
}
