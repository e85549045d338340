import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { type Corral, until } from '../support/corral.ts'
import { sha256Of } from '../support/hub-emulator/contents.ts'
import { type HubEmulator, startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import {
  contractFaults,
  corralWithHub,
  largeGguf,
  listed,
  MIB,
  partialBytes,
  pulls,
  quantizedModels,
  storedDigests,
  timedPull
} from './support.ts'

const { Q4_K_M } = quantizedModels()
const FILE = largeGguf(24 * MIB, 3)
const DIGEST = await sha256Of(FILE)
const PATH = 'slow-Q8_0.gguf'
const NAME = 'test/slow-GGUF'
const SLOW = { total: 6 * MIB }
/** Soon done, and yet so slow that no bytes wait in sockets, which would count as served. */
const QUICK = { total: 24 * MIB }

/** A hub that serves a model slowly, and a corral that asks it. `config`: more of its settings. */
async function slowHub(t: Parameters<typeof startHubEmulator>[0], config = '') {
  const hub = await startHubEmulator(t, {
    repositories: { [NAME]: { files: { [PATH]: FILE, 'slow-Q4_K_M.gguf': Q4_K_M } } },
    bandwidth: SLOW
  })
  return { hub, corral: await corralWithHub(t, hub, { config }) }
}

const served = (hub: HubEmulator) => hub.traffic.bytes(PATH)
const flowing = (hub: HubEmulator, bytes = 2 * MIB) => {
  const before = served(hub)
  return until('bytes flow', () => served(hub) - before >= bytes)
}
const only = async (corral: Corral) => {
  const records = await pulls(corral)
  if (records.length !== 1) throw new Error(`${records.length} pulls: ${JSON.stringify(records)}`)
  return records[0]
}
const state = (corral: Corral, wanted: string) =>
  until(`the pull is ${wanted}`, async () => (await only(corral)).state === wanted)
const done = (corral: Corral, name = NAME) =>
  until(`${name} is listed`, async () => (await listed(corral)).some(found => found.startsWith(name)))
const MODEL = { model: `${NAME}:Q8_0` }

t.test('two clients share one pull', async t => {
  const { hub, corral } = await slowHub(t)
  const first = corral.events('/api/pull', MODEL)
  await flowing(hub)
  const joined = corral.events('/api/pull', MODEL)
  const whole = corral.json('/api/pull', { ...MODEL, stream: false })
  const record = await only(corral)
  t.match(record, { model: `${NAME}:Q8_0`, state: 'downloading', detached: false, total: FILE.size })
  t.match(record, { id: /./, origin: /slow-GGUF/, created_at: /^\d{4}-\d\d-\d\dT/, files: [{ path: PATH }] })
  t.ok(record.completed > 0 && record.completed < record.total, 'it is on its way')
  t.same(contractFaults(await first, MODEL.model), [])
  const events = await joined
  t.same(contractFaults(events, MODEL.model), [])
  t.ok(events.find(event => event.digest).completed > 0, 'who joins sees how far it is at once')
  t.match(await whole, { status: 200, body: { status: 'success' } })
  t.ok(served(hub) <= FILE.size + MIB, 'the bytes were fetched once')
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [DIGEST])
})

t.test('a pull pauses when its last client leaves', async t => {
  const { hub, corral } = await slowHub(t)
  const leaving = new AbortController()
  const left = timedPull(corral, MODEL, { signal: leaving.signal }).catch(() => {})
  await flowing(hub)
  leaving.abort()
  await left
  t.equal((await only(corral)).state, 'downloading', 'it goes on for a moment')
  const back = new AbortController()
  const returned = timedPull(corral, MODEL, { signal: back.signal }).catch(() => {})
  await flowing(hub, MIB)
  back.abort()
  await returned
  hub.bandwidth = { total: 1 * MIB }
  await state(corral, 'paused')
  t.ok((await only(corral)).reason, 'it says why')
  await until('the line is quiet', () => hub.traffic.active() === 0)
  const before = served(hub)
  t.ok(before < FILE.size)
  await sleep(500)
  t.equal(served(hub), before, 'nothing flows any more')
  t.same(await listed(corral), [])
  t.ok(partialBytes(corral.home) > 0, 'what came is kept')
  hub.bandwidth = QUICK
  const events = await corral.events('/api/pull', MODEL)
  t.same(contractFaults(events, MODEL.model), [])
  t.ok(events.find(event => event.digest).completed >= 2 * MIB, 'the next pull begins where it stood')
  t.ok(served(hub) <= FILE.size + MIB, `nothing is fetched twice but what was in the line: ${served(hub) - FILE.size}`)
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [DIGEST])
})

t.test('detached pulls', async t => {
  const { hub, corral } = await slowHub(t, 'downloads:\n  pause_after: 0s\n')
  const accepted = await corral.json('/api/pull', { ...MODEL, detach: true })
  t.equal(accepted.status, 202)
  await flowing(hub)
  const { id } = await only(corral)
  t.match(await only(corral), { detached: true, state: 'downloading' })
  t.match((await corral.json('/api/pulls/pause', { id })).status, 200)
  t.match(await only(corral), { state: 'paused' })
  await until('the line is quiet', () => hub.traffic.active() === 0)
  const before = served(hub)
  t.match(await corral.json('/api/pulls/resume', { model: MODEL.model }), { status: 200 }, 'by its model too')
  await flowing(hub, MIB)
  t.ok(served(hub) > before)

  await corral.end('SIGTERM')
  hub.bandwidth = QUICK
  const restarted = await corralWithHub(t, hub, { home: corral.home })
  await done(restarted)
  t.same(await pulls(restarted), [], 'a restart goes on with it by itself')
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [DIGEST])
  t.ok(served(hub) <= FILE.size + 2 * MIB, `${served(hub) - FILE.size} bytes were fetched twice`)

  for (const [path, body] of [
    ['pause', { id: 'nothing' }],
    ['resume', { model: 'no/model' }],
    ['cancel', { id: '' }]
  ] as const) {
    const { status, body: answer } = await restarted.json(`/api/pulls/${path}`, body)
    t.ok(status === 404 || status === 400, `${path}: ${status}`)
    t.type(answer.error, 'string')
  }
})

t.test('a paused pull stays paused after a restart', async t => {
  const { hub, corral } = await slowHub(t)
  const watched = corral.events('/api/pull', MODEL)
  await flowing(hub)
  await corral.json('/api/pulls/pause', MODEL)
  const last = (await watched).at(-1)
  t.not(last.status, 'success', 'its watchers are told')
  t.type(last.code, 'string')
  await corral.end('SIGKILL')
  const restarted = await corralWithHub(t, hub, { home: corral.home })
  t.match(await only(restarted), { state: 'paused' })
  const before = served(hub)
  await sleep(700)
  t.equal(served(hub), before)
  hub.bandwidth = QUICK
  t.equal((await restarted.events('/api/pull', MODEL)).at(-1).status, 'success')
  t.ok(served(hub) <= FILE.size + 9 * MIB)
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [DIGEST])
})

t.test('cancelling and deleting pulls', async t => {
  const { hub, corral } = await slowHub(t)
  const gone = async (what: string) => {
    t.same(await pulls(corral), [], `${what}: no pull`)
    t.same(await listed(corral), [], `${what}: no model`)
    t.equal(partialBytes(corral.home), 0, `${what}: nothing on the disk`)
    await until('the line is quiet', () => hub.traffic.active() === 0)
  }
  let watched = corral.events('/api/pull', MODEL)
  await flowing(hub)
  const cancelled = await corral.json('/api/pulls/cancel', { id: (await only(corral)).id })
  t.equal(cancelled.status, 200)
  t.match((await watched).at(-1), { code: 'pull_cancelled', errorCode: 409, status: /^error: / })
  await gone('cancelled')

  watched = corral.events('/api/pull', MODEL)
  await flowing(hub)
  const deleted = await corral.json('/api/delete', { model: NAME }, { method: 'DELETE' })
  t.match(deleted, { status: 200, body: { status: 'deleted' } })
  const last = (await watched).at(-1)
  t.match(last.code, /^(pull_cancelled|model_deleted)$/)
  await gone('deleted while it is pulled')
  const again = await corral.json('/api/delete', { model: NAME }, { method: 'DELETE' })
  t.equal(again.status, 404, 'now it is unknown')

  watched = corral.events('/api/pull', MODEL)
  await flowing(hub)
  await corral.json('/api/pulls/pause', MODEL)
  await watched
  t.equal((await corral.json('/api/pulls/cancel', MODEL)).status, 200, 'a paused one can be cancelled')
  await gone('paused and cancelled')
})

t.test('other requests during a pull', async t => {
  const { hub, corral } = await slowHub(t)
  const watched = corral.events('/api/pull', MODEL)
  await flowing(hub)
  const messages = [{ role: 'user', content: 'hi' }]
  t.match(await corral.json('/api/chat', { model: NAME, messages }), { status: 404, body: { code: 'model_not_found' } })
  t.match(await corral.json('/api/stop', { model: NAME }), { status: 404, body: { code: 'model_not_found' } })
  t.match(await corral.json('/api/show', { model: NAME }), { status: 404, body: { code: 'model_not_found' } })
  const path = join(t.testdir(), 'other-Q8_0.gguf')
  writeFileSync(path, Q4_K_M)
  const imported = await corral.json('/api/import', { path, model: MODEL.model, stream: false })
  t.match(imported, { status: 409, body: { code: 'model_exists' } }, 'an import of the same is refused')
  t.same(await listed(corral), [])
  hub.bandwidth = QUICK
  t.same(contractFaults(await watched, MODEL.model), [])
})

t.test('two variants are pulled at the same time', async t => {
  const { hub, corral } = await slowHub(t)
  const [one, other] = await Promise.all([
    corral.events('/api/pull', MODEL),
    corral.events('/api/pull', { model: `${NAME}:Q4_K_M` })
  ])
  t.same(contractFaults(one, MODEL.model), [])
  t.same(contractFaults(other, `${NAME}:Q4_K_M`), [])
  t.equal((await listed(corral)).length, 2)
  // Where one connection hands the rest of its range to another, what is in the line is for nothing.
  t.ok(hub.traffic.bytes() <= FILE.size + Q4_K_M.length + MIB, 'the bytes were fetched once')
})
