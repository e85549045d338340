import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import {
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  endlessHosted,
  newKey,
  startCorral,
  until
} from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'
import { begin, openai, reaches, results } from '../../apis/batches/support.ts'
import { bearer } from '../../people/support.ts'
import { startReadyGateway } from './support.ts'

/* Two gateways of one node that share folders for what clients store. */

t.setTimeout(300_000)
const folder = newFolder(t)
const config = `web: { conversations: server, conversations_folder: "${folder}/conversations" }\napi-openai: { responses_folder: "${folder}/responses" }\napi-batches: { folder: "${folder}/batches" }\n`
const node = await startCorral(t)
const members = [{ name: 'node-1', url: node.url }]
const [first, second] = (await Promise.all([1, 2].map(() => startReadyGateway(t, members, { config })))) as [
  Corral,
  Corral
]

t.test('a stored response continues at the other gateway', async t => {
  const asked = { model: DEMO, temperature: 0, input: CAPITAL_QUESTION.content }
  const { id, output } = (await first.json('/v1/responses', asked)).body
  t.match(output, [{ content: [{ text: CAPITAL_ANSWER }] }])
  t.match(await second.json(`/v1/responses/${id}`), { status: 200, body: { id, output } })
  const next = await second.json('/v1/responses', { ...asked, input: 'Thanks.', previous_response_id: id })
  t.equal(next.status, 200)
  const items = (await first.json(`/v1/responses/${next.body.id}/input_items?order=asc`)).body.data
  t.same(
    items.map(({ role }: any) => role),
    ['user', 'assistant', 'user']
  )
  t.equal((await second.json(`/v1/responses/${id}`, undefined, { method: 'DELETE' })).status, 200)
  for (const gateway of [first, second]) t.equal((await gateway.json(`/v1/responses/${id}`)).status, 404)
  t.equal((await first.json('/v1/responses/resp_..%2Fx')).status, 404)
})

t.test('conversations of the page are the same at both', async t => {
  const put = (gateway: Corral, id: string, version?: number) =>
    gateway.json(`/api/conversations/${id}`, { title: id, document: { id }, version }, { method: 'PUT' })
  const ids = Array.from({ length: 8 }, (_, at) => `c${at}`)
  const stored = await Promise.all(ids.map((id, at) => put(at % 2 === 0 ? first : second, id)))
  t.same(
    stored.map(({ status }) => status),
    ids.map(() => 200)
  )
  for (const gateway of [first, second]) t.equal((await gateway.json('/api/conversations')).body.total, 8)
  t.match((await second.json('/api/conversations/c0')).body, { document: { id: 'c0' } })
  await second.json('/api/conversations/c0', undefined, { method: 'DELETE' })
  t.match(await put(first, 'c0'), { status: 409, body: { code: 'conversation_changed' } })
})

t.test('keys in a file that both servers link to are the same', async t => {
  const file = join(folder, 'keys.json')
  writeFileSync(file, '{"version":1,"keys":[]}')
  const homes = [newFolder(t), newFolder(t)]
  for (const home of homes) symlinkSync(file, join(home, 'keys.json'))
  const servers = await Promise.all(homes.map(home => startCorral(t, { home })))
  const keys = await Promise.all(Array.from({ length: 10 }, (_, at) => newKey(servers[at % 2]!, `key-${at}`)))
  for (const server of servers) {
    await until('all keys are valid', async () => {
      const replies = await Promise.all(keys.map(key => server.json('/api/whoami', undefined, bearer(key))))
      return replies.every(({ status }) => status === 200)
    })
  }
})

const line = (custom_id: string) => {
  const body = { model: DEMO, messages: [{ role: 'user', content: 'Count to 30.' }], max_tokens: 100, ignore_eos: true }
  return { custom_id, method: 'POST', url: '/v1/chat/completions', body: { ...body, temperature: 0 } }
}

t.test('each gateway sees the batches of both, ends them, and one of them answers', async t => {
  const [there, here] = [openai(first), openai(second)]
  const { id, input_file_id } = await begin(
    there,
    Array.from({ length: 200 }, (_, at) => line(`${at}`))
  )
  await reaches(there, id, 'in_progress')
  t.match((await here.batches.list()).data, [{ id, status: /^(validating|in_progress)$/ }])
  t.equal((await here.files.retrieve(input_file_id)).id, input_file_id)
  await here.batches.cancel(id)
  t.match(await reaches(there, id, 'cancelled'), { status: 'cancelled' })
  await there.files.delete(input_file_id)
  await t.rejects(here.files.retrieve(input_file_id), { status: 404, code: 'file_not_found' })
})

t.test('a batch of a killed gateway is completed by the other one', async t => {
  const client = openai(second)
  const ids = Array.from({ length: 24 }, (_, at) => `${at}`)
  const { id } = await begin(openai(first), ids.map(line))
  await until('some are answered', async () => (await openai(first).batches.retrieve(id)).request_counts!.completed > 2)
  const reply = await first.send('/v1/chat/completions', endlessHosted(DEMO), {
    headers: { 'x-corral-resumable': 'true' }
  })
  const stream = reply.headers.get('x-corral-stream-id')
  await first.end('SIGKILL')
  const batch = await reaches(client, id, 'completed')
  t.same(batch.request_counts, { total: 24, completed: 24, failed: 0 })
  const answers = await results(client, batch.output_file_id)
  t.same(answers.map(({ custom_id }) => custom_id).sort(), ids.sort(), 'each request has one answer')
  t.match(await second.json(`/v1/streams/${stream}`), { status: 404, body: { error: { code: 'stream_not_found' } } })
})
