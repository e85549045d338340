import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { DEMO, lastEvent, startCorral } from '../support/corral.ts'
import { sample } from '../support/thorough.ts'
import { AGENTS, type AgentName } from './packages.ts'
import { expand, type RecordedRequest, recordedRequests } from './recorded.ts'

interface Case extends RecordedRequest {
  name: string
  expected: { status: number; error?: Record<string, string> }
}

/** The vendors' texts have this share of their length, so that the demo model gets through them quickly. */
const SIZE = 0.005
/** The last event of a stream, and the field of the answer in a whole reply. */
const SHAPES: Record<string, { end: RegExp; whole: string }> = {
  '/v1/chat/completions': { end: /data: \[DONE\]\s*$/, whole: 'choices' },
  '/v1/responses': { end: /event: response\.(completed|incomplete)\n[^\n]+\s*$/, whole: 'output' },
  '/v1/messages': { end: /event: message_stop\n[^\n]+\s*$/, whole: 'content' }
}

const corral = await startCorral(t, { config: 'limits:\n  max_tokens: 8\n' })

async function send({ path, headers, body }: RecordedRequest) {
  const response = await corral.send(path, { ...body, model: DEMO }, { headers })
  return { status: response.status, headers: response.headers, text: await response.text() }
}

for (const agent of Object.keys(AGENTS) as AgentName[]) {
  t.test(`requests of ${agent} are answered`, async t => {
    for (const request of sample(recordedRequests(agent, SIZE), 5)) {
      const { status, headers, text } = await send(request)
      const shape = SHAPES[request.path.replace(/\?.*/, '')]!
      t.equal(status, 200, text)
      if (request.body.stream) t.match(text, shape.end)
      else t.ok(JSON.parse(text)[shape.whole].length > 0)
      const isHosted = request.body.tools?.some(({ type }: { type?: string }) => type === 'web_search')
      t.equal(headers.get('x-corral-ignored-tools'), isHosted ? 'web_search' : null)
    }
  })
}

const cases: Case[] = JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'agents', 'cases.json'), 'utf8'))
for (const { name, expected, ...request } of cases) {
  t.test(`an agent sends ${name}`, async t => {
    const { status, text } = await send(expand(request))
    if (!expected.error) {
      t.equal(status, 200, text)
      return void t.match(text, SHAPES[request.path.replace(/\?.*/, '')]!.end)
    }
    // The context may have to grow first. Then the stream has already begun.
    t.equal(status, text.startsWith('{') ? expected.status : 200)
    const { error } = text.startsWith('{') ? JSON.parse(text) : lastEvent(text)
    for (const [field, pattern] of Object.entries(expected.error)) t.match(error[field], new RegExp(pattern), field)
  })
}
