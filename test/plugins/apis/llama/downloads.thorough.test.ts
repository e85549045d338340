import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, until } from '../../../support/corral.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, MIB, quantizedModels } from '../../models/download/support.ts'
import { follow } from './feed.ts'

const { Q8_0, Q4_K_M } = quantizedModels()
const MODEL = 'test/tiny-GGUF'
const files = { 'tiny-Q8_0.gguf': Q8_0, 'tiny-Q4_K_M.gguf': Q4_K_M }
const hub = await startHubEmulator(t, { repositories: { [MODEL]: { files } } })
const corral = await corralWithHub(t, hub)
const feed = await follow(corral)
t.teardown(feed.leave)
const ids = async () => (await corral.json('/models')).body.data.map(({ id }: { id: string }) => id)
const remove = (model: string) => corral.json(`/models?model=${model}`, undefined, { method: 'DELETE' })
const SLOW = { total: MIB / 2 }

t.test('the feed reports a download under the requested name, and the model then answers', async t => {
  hub.bandwidth = SLOW
  const name = `${MODEL}:Q8_0`
  t.strictSame(await corral.json('/models', { model: name }), { status: 200, body: { success: true } })
  t.strictSame(
    (await corral.json('/models', { model: name })).body,
    { success: true },
    'a second request joins the download'
  )
  await until('the feed reports progress', () => feed.kinds(name).includes('download_progress'))
  const { data } = feed.events.find(({ event }) => event === 'download_progress')
  t.match(data.progress['tiny-Q8_0.gguf'], { done: Number, total: Q8_0.length })
  hub.bandwidth = {}
  await until('the feed reports the end', () => feed.kinds(name).includes('download_finished'))
  t.strictSame(feed.kinds(name), ['download_progress', 'download_finished'])
  t.ok(feed.events.some(({ model, event }) => model === '*' && event === 'models_reload'))
  const [row] = (await corral.json('/models')).body.data
  t.match(row, { id: MODEL, status: { value: 'unloaded' }, source: 'cache', can_remove: true })
  const chat = { model: name, messages: [CAPITAL_QUESTION], temperature: 0 }
  t.equal((await corral.json('/chat/completions', chat)).body.choices[0].message.content, CAPITAL_ANSWER)
  t.match(await corral.json('/models', { model: name }), {
    status: 400,
    body: { error: { code: 400, type: 'invalid_request_error', message: /already/, param: 'model' } }
  })
})

t.test('unload cancels a download by the requested name', async t => {
  hub.bandwidth = SLOW
  const name = `hf:${MODEL}:Q4_K_M`
  t.equal((await corral.json('/models', { model: name })).status, 200)
  await until('the feed reports progress', () => feed.kinds(name).includes('download_progress'))
  t.strictSame(await corral.json('/models/unload', { model: name }), { status: 200, body: { success: true } })
  t.strictSame((await corral.json('/api/pulls')).body.pulls, [])
  await until('the feed reports the failure', () => feed.kinds(name).includes('download_failed'))
  t.strictSame(feed.kinds(name), ['download_progress', 'download_failed'])
  t.match(feed.events.at(-1).data, { reason: /cancelled/ })
  t.equal((await corral.json('/models/unload', { model: name })).status, 400, 'nothing is left to cancel')
  t.strictSame(await ids(), [MODEL], 'the other variant is unaffected')
})

t.test('the feed reports downloads of other APIs, including failed ones', async t => {
  const fault = hub.fault({ on: 'bytes', kind: 'forbidden' })
  t.equal((await corral.json('/api/pull', { model: `${MODEL}:Q4_K_M`, detach: true })).status, 202)
  const own = () => feed.events.filter(({ model }) => model === `${MODEL}:Q4_K_M`)
  await until('the feed reports the failure', () => own().some(({ event }) => event === 'download_failed'))
  t.match(own().at(-1).data.reason, String)
  fault.remove()
  hub.bandwidth = {}
  t.equal((await corral.json('/api/pull', { model: `${MODEL}:Q4_K_M`, stream: false })).status, 200)
  await until('the feed reports the end', () => own().at(-1).event === 'download_finished')
})

t.test('deleting one row of the list keeps the others', async t => {
  t.strictSame((await ids()).sort(), [MODEL, `${MODEL}:Q4_K_M`])
  t.strictSame(await remove(MODEL), { status: 200, body: { success: true } })
  await until('the feed reports the removal', () => feed.kinds(MODEL).includes('model_remove'))
  t.strictSame(await ids(), [MODEL], 'the remaining variant becomes the default')
  t.match(feed.events.at(-1), { model: '*', event: 'models_reload' }, 'clients are told to reload the list')
  t.strictSame((await remove(MODEL)).body, { success: true })
  t.strictSame(await ids(), [])
  t.match(await remove(MODEL), { status: 404, body: { error: { code: 404, corral_code: 'model_not_found' } } })
  t.match(await corral.json('/models', undefined, { method: 'DELETE' }), {
    status: 400,
    body: { error: { corral_code: 'invalid_model_name' } }
  })
})

t.test('LM Studio downloads a model and shows its progress', async t => {
  hub.bandwidth = SLOW
  const download = { model: MODEL, quantization: 'Q8_0' }
  const { body: job } = await corral.json('/api/v1/models/download', download)
  t.match(job, { job_id: String, status: 'downloading', total_size_bytes: Q8_0.length, started_at: String })
  const path = `/api/v1/models/download/status/${job.job_id}`
  const status = async () => (await corral.json(path)).body
  t.match(await status(), { job_id: job.job_id, status: 'downloading', bytes_per_second: Number })
  await corral.json('/api/pulls/pause', { id: job.job_id })
  t.match(await status(), { status: 'paused' })
  hub.bandwidth = {}
  t.match((await corral.json('/api/v1/models/download', download)).body, { job_id: job.job_id })
  await until('the download has ended', async () => (await status()).status === 'completed')
  t.match(await status(), { downloaded_bytes: Q8_0.length, completed_at: String })
  t.strictSame((await corral.json('/api/v1/models/download', download)).body, { status: 'already_downloaded' })
  t.strictSame(await ids(), [MODEL])
  t.equal((await remove(MODEL)).status, 200)
})

t.test('the llama-server API refuses to download a model that no hub has', async t => {
  t.match(await corral.json('/models', { model: 'nobody/nothing' }), {
    status: 404,
    body: { error: { code: 404, type: 'not_found_error', corral_code: 'repo_not_found' } }
  })
  t.match(await corral.json('/models', {}), { status: 400, body: { error: { corral_code: 'invalid_model_name' } } })
})
