import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { SseParser } from '../../core/answers/openai-events.ts'
import { residentMemory } from '../../scripts/bench/measuring.ts'
import { DEMO, startCorral } from '../support/corral.ts'
import { answerRequest, record } from './support.ts'

const TOKENS = 30_000

/*
 * Probabilities of twenty candidates make each event some kilobytes long. A gateway that ignored its reader would
 * buffer far more than all socket buffers between engine and client hold.
 */
for (const [surface, more] of [
  ['hosted', { logprobs: true, top_logprobs: 20 }],
  ['sse', {}]
] as const) {
  t.test(`${TOKENS} tokens reach a slow reader that starts late (${surface})`, async t => {
    const corral = await startCorral(t)
    const pid = corral.process.pid!
    await corral.json('/api/load', { model: DEMO, options: { num_ctx: TOKENS + 1000, num_parallel: 1 } })
    const { path, body, headers } = answerRequest(surface, DEMO, TOKENS, more)
    const before = residentMemory(pid)
    let most = before
    const response = await corral.send(path, body, { headers })
    t.equal(response.status, 200)
    for (let second = 0; second < 15; second++) {
      await sleep(1000)
      most = Math.max(most, residentMemory(pid))
    }
    const lines = new SseParser()
    let bytes = 0
    let events = 0
    let last = ''
    for await (const chunk of response.body!) {
      bytes += chunk.length
      for (const payload of lines.push(chunk)) {
        events++
        last = payload === '[DONE]' ? last : payload
      }
      if (events % 20 === 0) await sleep(5)
      most = Math.max(most, residentMemory(pid))
    }
    const count = surface === 'hosted' ? JSON.parse(last).timings.predicted_n : JSON.parse(last).eval_count
    t.equal(count, TOKENS, 'no token is lost')
    const grown = most - before
    t.ok(grown < 60, `the gateway grew by ${grown.toFixed(0)} MiB while ${(bytes / 2 ** 20).toFixed(0)} MiB passed`)
    record(t, `Slow reader ${surface}`, {
      tokens: TOKENS,
      'bytes passed on': `${(bytes / 2 ** 20).toFixed(0)} MiB in ${events} events`,
      'memory of the gateway': `${before.toFixed(0)} MiB before, ${most.toFixed(0)} MiB at most`
    })
  })
}
