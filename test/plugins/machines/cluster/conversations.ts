import { type Corral, DEMO } from '../../../support/corral.ts'
import { randomBelow } from '../../../support/random.ts'

interface Hits {
  cached: number
  prompt: number
}

/** Asks a server for a whole chat answer. */
export const asker = (server: Corral) => async (body: object) => {
  const reply = await server.json('/v1/chat/completions', body)
  if (reply.status !== 200) throw new Error(JSON.stringify(reply.body))
  return reply.body
}

/** The share of prompt tokens that engines did not have to read again, by their own counts. */
export const shareOf = ({ cached, prompt }: Hits) => cached / prompt

/**
 * Runs conversations, as many at a time as there are lanes, with the same questions in every run.
 * @param name keeps runs from sharing caches
 */
export async function converse(
  name: string,
  ask: (body: object) => Promise<any>,
  { count = 10, turns = 5, lanes = 3 } = {}
): Promise<Hits> {
  const words = (below: (most: number) => number, count: number) =>
    Array.from({ length: count }, () => below(1000)).join(' ')
  const systems = [1, 2].map(seed => `${name}. ${words(randomBelow(seed), 80)}`)
  const talks = Array.from({ length: count }, (_, index) => ({
    left: turns,
    messages: [{ role: 'system', content: systems[index % 2]! }]
  }))
  const hits: Hits = { cached: 0, prompt: 0 }
  const take = async (lane: number) => {
    const below = randomBelow(10 + lane)
    const own = talks.filter((_, index) => index % lanes === lane)
    for (;;) {
      const open = own.filter(({ left }) => left > 0)
      if (!open.length) return
      const talk = open[below(open.length)]!
      talk.left--
      talk.messages.push({ role: 'user', content: words(below, 12) })
      const { choices, usage } = await ask({ model: DEMO, messages: talk.messages, temperature: 0, max_tokens: 12 })
      talk.messages.push({ role: 'assistant', content: choices[0].message.content })
      hits.cached += usage.prompt_tokens_details.cached_tokens
      hits.prompt += usage.prompt_tokens
    }
  }
  await Promise.all(Array.from({ length: lanes }, (_, lane) => take(lane)))
  return hits
}
