import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../../../support/corral.ts'
import {
  importModels,
  MODELS,
  pngBytes,
  readThoughts,
  wavBytes,
  writeModels,
  writeThinkingModel
} from '../../apis/openai/media/support.ts'
import { ask } from './compared.ts'
import { getNodes, startReadyGateway } from './support.ts'

/* Requests of all APIs at a gateway and at its node: the answers are equal except for ids, times and cache counts. */

// A prompt that is too long is refused at once instead of being processed in a larger context.
const config = 'defaults: { context: fixed }\n'
const node = await startCorral(t, { config })
await importModels(node, await writeModels(t.testdir()))
const THINKER = 'team/thinker'
const file = join(t.testdir({ thinker: {} }), 'thinker', 'thinker.gguf')
await writeThinkingModel(file)
await node.json('/api/import', { model: THINKER, path: file, stream: false })
const gateway = await startReadyGateway(t, [{ name: 'node-1', url: node.url }], { config })
await until('its models are known', async () => (await getNodes(gateway))[0].models.length === 7)

const VALUES: Record<string, string> = {
  ...MODELS,
  demo: DEMO,
  question: CAPITAL_QUESTION.content,
  image: `data:image/png;base64,${pngBytes().toString('base64')}`,
  pixels: pngBytes().toString('base64'),
  long: 'a '.repeat(20_000)
}
const withValues = (text: string) => text.replace(/\$(\w+)/g, (whole, name) => VALUES[name] ?? whole)
const { requests } = parse(
  readFileSync(join(packageRoot, 'test', 'fixtures', 'cluster', 'requests.yaml'), 'utf8'),
  (_, value) => (typeof value === 'string' && value.startsWith('$') ? VALUES[value.slice(1)] : value),
  { merge: true, maxAliasCount: -1 }
) as { requests: [path: string, body?: object | string][] }

for (const [given, body] of requests) {
  const path = withValues(given)
  const what = `${path} ${JSON.stringify(body)?.slice(0, 100) ?? ''}`
  t.test(what, async t => {
    const there = await ask(node, path, body)
    t.strictSame(await ask(gateway, path, body), there, JSON.stringify(there.body).slice(0, 300))
  })
}

t.test("an answer's reasoning is ended at the member", async t => {
  const body = {
    model: THINKER,
    messages: [{ role: 'user', content: 'Hi' }],
    stream: true,
    max_tokens: -1,
    ignore_eos: true,
    reasoning_control: true
  }
  for (const more of [{}, { logprobs: true }]) {
    const leaving = new AbortController()
    const reply = await gateway.send('/v1/chat/completions', { ...body, ...more }, { signal: leaving.signal })
    const { said, read } = await readThoughts(reply)
    const control = { model: THINKER, action: 'reasoning_end', id: said.id }
    t.equal(said.content, '')
    t.match(await gateway.json('/v1/chat/completions/control', control), { status: 200, body: { success: true } })
    await until('it answers', () => said.content.length > 0)
    leaving.abort()
    await read
  }
})

t.test('transcriptions', async t => {
  for (const more of [{}, { response_format: 'text' }, { response_format: 'verbose_json' }, { stream: 'true' }]) {
    const form = () => {
      const data = new FormData()
      data.append('file', new Blob([wavBytes()]), 'a.wav')
      data.append('model', MODELS.hearing)
      data.append('temperature', '0')
      for (const [name, value] of Object.entries(more)) data.append(name, value)
      return data
    }
    const there = await ask(node, '/v1/audio/transcriptions', form())
    t.strictSame(await ask(gateway, '/v1/audio/transcriptions', form()), there, JSON.stringify(there).slice(0, 300))
  }
})
