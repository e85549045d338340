import type { ServerClient } from '../server-client.ts'
import { randomWords } from './measure.ts'

interface Chunk {
  choices?: { delta?: { content?: string | null } }[]
  usage?: { prompt_tokens: number; prompt_tokens_details?: { cached_tokens?: number } } | null
}

/** Words of a message, and tokens of an answer. */
const MESSAGE_WORDS = 40
const ANSWER_TOKENS = 24

/**
 * Lets agents take turns through the OpenAI API of a server, which every server of the field has. Each agent has
 * instructions of some words and a conversation that grows with each of its turns.
 * @returns the seconds to the first token in all turns after the first ones, and the share of prompt tokens that were not
 * processed again
 */
export async function runSessions(
  client: Pick<ServerClient, 'stream' | 'address'>,
  model: string,
  { agents, turns, words }: Record<'agents' | 'turns' | 'words', number>,
  say: (text: string) => void
) {
  const conversations = Array.from({ length: agents }, (_, agent) => [
    { role: 'system', content: `You are agent ${agent}. ${randomWords(words, agent + 1)}` }
  ])
  const seconds: number[] = []
  let prompt = 0
  let cached = 0
  for (let turn = 0; turn < turns; turn++) {
    for (const [agent, messages] of conversations.entries()) {
      say(`${client.address}: turn ${turn + 1} of ${turns}, agent ${agent + 1} of ${agents}`)
      messages.push({
        role: 'user',
        content: `Turn ${turn}: ${randomWords(MESSAGE_WORDS, turn * agents + agent + 1000)}`
      })
      const { first, answer, usage } = await ask(client, model, messages)
      messages.push({ role: 'assistant', content: answer })
      if (turn === 0) continue
      seconds.push(first)
      prompt += usage?.prompt_tokens ?? 0
      cached += usage?.prompt_tokens_details?.cached_tokens ?? 0
    }
  }
  seconds.sort((a, b) => a - b)
  const at = (share: number) => seconds[Math.min(seconds.length - 1, Math.floor(share * seconds.length))] ?? Number.NaN
  return { server: client.address, first: { median: at(0.5), p95: at(0.95) }, cached: cached / Math.max(1, prompt) }
}

async function ask(client: Pick<ServerClient, 'stream'>, model: string, messages: object[]) {
  const options = { max_tokens: ANSWER_TOKENS, temperature: 0, stream: true, stream_options: { include_usage: true } }
  const began = performance.now()
  let first: number | undefined
  let answer = ''
  let counts: Chunk['usage']
  const stream = client.stream<Chunk>('/v1/chat/completions', { model, messages, ...options })
  for await (const { choices, usage } of stream) {
    const content = choices?.[0]?.delta?.content
    if (content) first ??= performance.now()
    answer += content ?? ''
    counts = usage ?? counts
  }
  return { first: ((first ?? performance.now()) - began) / 1000, answer, usage: counts }
}
