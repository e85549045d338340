import t from 'tap'
import { corral } from '../../../command-line/command.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, endless, joined, until } from '../../../support/corral.ts'
import { Scrape } from '../../watching/metrics/scrape.ts'
import { getNodes, startGateway, startNodes, untilStates } from './support.ts'

const { nodes, members } = await startNodes(t, 2)
const gateway = await startGateway(t, members)
const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }

t.test('models of members are listed with their details', async t => {
  await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up' })
  const [there] = (await nodes[0]!.json('/api/tags')).body.models
  const { models } = (await gateway.json('/api/tags')).body
  t.equal(models.length, 1)
  const { size, digest, modified_at, capabilities, details } = there
  t.match(models[0], { name: DEMO, format: 'cluster', size, digest, modified_at, capabilities })
  t.match(models[0].details, { ...details, format: 'cluster' })
  const shown = (await gateway.json('/api/show', { model: DEMO })).body
  const own = (await nodes[0]!.json('/api/show', { model: DEMO })).body
  t.equal(shown.template, own.template)
  t.strictSame(shown.model_info, own.model_info)
  t.match((await gateway.json('/v1/models')).body.data, [{ id: DEMO }])
})

t.test('the command line shows the members of a server without Ray', async t => {
  const shown = await corral(['cluster', 'status'], { home: gateway.home })
  t.equal(shown.code, 0, shown.stderr)
  for (const { name, url } of members) t.match(shown.stdout, new RegExp(`^${name} +${url} +up `, 'm'))
  await gateway.json('/api/load', { model: DEMO })
  await until('the model is in the plan', async () => {
    const { stdout } = await corral(['cluster', 'plan'], { home: gateway.home })
    return /Members .* up/.test(stdout) && stdout.includes(DEMO) && stdout
  })
  for (const command of ['status', 'plan']) {
    const none = await corral(['cluster', command], { home: nodes[0]!.home })
    t.match(none, { code: 0, stderr: /no members.*cluster\.members/ }, command)
  }
})

t.test('every API answers as a member does', async t => {
  const native = await gateway.json('/api/chat', {
    model: DEMO,
    messages: [CAPITAL_QUESTION],
    stream: false,
    options: { temperature: 0 }
  })
  t.equal(native.body.message?.content, CAPITAL_ANSWER, JSON.stringify(native.body))
  t.ok(native.body.prompt_eval_count > 0 && native.body.eval_count > 0, 'tokens are counted')
  const asked = { model: DEMO, messages: [CAPITAL_QUESTION], options: { temperature: 0 } }
  t.equal(joined(await gateway.events('/api/chat', asked)), CAPITAL_ANSWER)
  const whole = (await gateway.json('/v1/chat/completions', chat)).body
  t.equal(whole.choices[0].message.content, CAPITAL_ANSWER)
  const events = await gateway.events('/v1/chat/completions', {
    ...chat,
    stream: true,
    stream_options: { include_usage: true }
  })
  t.equal(joined(events.slice(0, -1)), CAPITAL_ANSWER)
  t.equal(events.at(-1), '[DONE]')
  t.equal(events.at(-2).usage.completion_tokens, whole.usage.completion_tokens)
  const anthropic = await gateway.json('/v1/messages', {
    model: DEMO,
    max_tokens: 50,
    messages: [CAPITAL_QUESTION],
    stop_sequences: ['Paris'],
    temperature: 0
  })
  t.match(anthropic.body, { stop_reason: 'stop_sequence', stop_sequence: 'Paris' })
  const completion = await gateway.json('/v1/completions', {
    model: DEMO,
    prompt: 'What is',
    max_tokens: 3,
    logprobs: 2
  })
  t.equal(completion.body.choices[0].logprobs.tokens.length, 3)
  const { tokens } = (await gateway.json('/tokenize', { model: DEMO, content: 'Paris' })).body
  t.same((await gateway.json('/detokenize', { model: DEMO, tokens })).body, { content: 'Paris' })
  t.match((await gateway.json('/apply-template', { model: DEMO, messages: [CAPITAL_QUESTION] })).body, {
    prompt: /capital/
  })
  t.match((await gateway.json('/v1/chat/completions', { ...chat, response_format: { type: 'no' } })).body, {
    error: { code: String }
  })
})

t.test('running models are shown with their member', async t => {
  t.equal((await gateway.json('/api/load', { model: DEMO, options: { num_ctx: 8192 }, keep_alive: '7m' })).status, 200)
  const running = await until('it is shown with its options', async () => {
    const { models } = (await gateway.json('/api/ps')).body
    return models.find(({ context_length }: any) => context_length === 8192)
  })
  t.match(running, { name: DEMO, member: /^node-[12]$/, mode: 'chat' })
  const node = nodes[members.findIndex(({ name }) => name === running.member)]!
  t.match((await node.json('/api/ps')).body.models, [{ name: DEMO, context_length: 8192 }])
  const holder = (await getNodes(gateway)).find(({ name }) => name === running.member)
  t.match(holder, { models: [DEMO], loaded: [DEMO], version: String, build: String })
  t.ok(holder.memory.some(({ pool, reserved }: any) => pool === 'host' && reserved > 0))
  t.equal((await gateway.json('/api/stop', { model: DEMO })).status, 200)
  await until('nothing is loaded', async () => {
    const { models } = (await gateway.json('/api/ps')).body
    return models.length === 0
  })
  t.same((await node.json('/api/ps')).body.models, [])
  t.match((await gateway.json('/api/stop', { model: DEMO })).body, { code: 'model_not_loaded' })
})

t.test("a client that leaves frees the member's slot, and metrics belong to members", async t => {
  const leaving = new AbortController()
  const reply = await gateway.send('/api/chat', endless(DEMO), { signal: leaving.signal })
  await reply.body!.getReader().read()
  const running = async () =>
    (await gateway.json('/api/ps')).body.models.reduce((sum: number, model: any) => sum + model.running, 0)
  await until('it is being answered', async () => (await running()) === 1)
  const [there] = (await gateway.json('/api/ps')).body.models
  const scrape = await until('its metrics show it', async () => {
    const found = new Scrape(await (await gateway.send('/metrics')).text())
    return found.sum('vllm:num_requests_running', { model_name: DEMO }) === 1 ? found : undefined
  })
  t.equal(scrape.sum('corral_slots', { model: DEMO, mode: 'chat' }), there.slots)
  t.equal(scrape.sum('corral_slots_free', { model: DEMO }), there.slots - 1)
  t.equal(scrape.sum('vllm:kv_cache_usage_perc', { model_name: DEMO }), 1 / there.slots)
  t.equal(scrape.sum('corral_requests_waiting', { model: DEMO }), 0)
  t.notOk(scrape.has('corral_queue_oldest_seconds', { model: DEMO }), 'members do not report them')
  const replicas = await until('it is shown as loaded', async () => {
    const { body } = await gateway.json('/api/cluster')
    return body.replicas[0]?.loaded === 1 ? body.replicas : undefined
  })
  t.match(replicas, [
    { model: DEMO, mode: 'chat', wanted: 1, loading: 0, min: 0, reason: 'The number is right.', failures: [] }
  ])
  t.equal(replicas[0].members.length, 1, 'where it is planned')
  leaving.abort()
  await until('it is no longer answered', async () => {
    const counts = await Promise.all(nodes.map(async node => (await node.json('/api/ps')).body.models))
    return counts.flat().every(({ running }: any) => running === 0)
  })
})

t.test('a drained member gets no requests, and the other gets all', async t => {
  const drained = await gateway.json('/api/cluster/drain', { member: 'node-1' }, { local: true })
  t.match(drained, { status: 200, body: { by: 'front', member: { notes: [/corral key create front --role admin/] } } })
  await untilStates(gateway, { 'node-1': 'draining' })
  await nodes[0]!.json('/api/stop', { model: DEMO })
  for (let index = 0; index < 4; index++) t.equal((await gateway.json('/v1/chat/completions', chat)).status, 200)
  t.same((await nodes[0]!.json('/api/ps')).body.models, [])
  t.match(await gateway.json('/api/cluster/drain', { member: 'node-1' }, { method: 'DELETE', local: true }), {
    status: 200
  })
  await untilStates(gateway, { 'node-1': 'up' })
  t.match(await gateway.json('/api/cluster/drain', { member: 'node-9' }, { local: true }), {
    body: { code: 'member_not_found' }
  })
})

t.test('requests are counted by why their node was chosen', async t => {
  const shown = async () => (await gateway.json('/api/cluster')).body.prefixes
  const before = await shown()
  const messages = [{ role: 'user', content: `A conversation that no node knows: ${'one two three '.repeat(40)}` }]
  const ask = async () =>
    t.match(await gateway.json('/v1/chat/completions', { ...chat, messages, max_tokens: 4 }), { status: 200 })
  await ask()
  messages.push({ role: 'assistant', content: 'four' }, { role: 'user', content: 'And then?' })
  await ask()
  const { conversations, requests } = await shown()
  t.ok(conversations > 0)
  t.strictSame(requests, { ...before.requests, other: before.requests.other + 1, prefix: before.requests.prefix + 1 })
  const scrape = await (await gateway.send('/metrics')).text()
  t.match(scrape, `corral_cluster_requests_total{reason="prefix"} ${requests.prefix}`)
  t.match(scrape, `corral_cluster_conversations ${conversations}`)
  t.notMatch(
    await (await nodes[0]!.send('/metrics')).text(),
    'corral_cluster_requests_total{',
    'a server without nodes'
  )
})
