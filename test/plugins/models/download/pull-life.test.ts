import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { formatPercent } from '../../../../command-line/progress-display.ts'
import { CTRL_C, onTerminal } from '../../../command-line/terminal.ts'
import { type Corral, until } from '../../../support/corral.ts'
import { sha256Of } from '../../../support/hub-emulator/contents.ts'
import { type HubEmulator, startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { thorough } from '../../../support/thorough.ts'
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
const SLOW = { total: 6 * MIB }
/** Quick, but slow enough that no bytes wait in sockets, which would count as served. */
const QUICK = { total: 24 * MIB }

interface SlowModel {
  hub: HubEmulator
  corral: Corral
  /** Its name, its file with the 8-bit variant, and the reference of that variant. */
  name: string
  path: string
  model: string
}

const shared = await startHubEmulator(t, { repositories: {} })
const corralOfAll = await corralWithHub(t, shared, { config: 'downloads: { pause_after: 1s }\n' })
let number = 0

/**
 * A model of its own that the hub serves slowly.
 * @param own a corral for this test alone, with more settings; by default tests share one
 */
async function slowModel(own?: { t: Parameters<typeof startHubEmulator>[0]; config?: string }): Promise<SlowModel> {
  const name = `test/slow-${++number}-GGUF`
  const path = `slow-${number}-Q8_0.gguf`
  shared.bandwidth = SLOW
  shared.add(name, { files: { [path]: FILE, [`slow-${number}-Q4_K_M.gguf`]: Q4_K_M } })
  const corral = own ? await corralWithHub(own.t, shared, { config: own.config ?? '' }) : corralOfAll
  return { hub: shared, corral, name, path, model: `${name}:Q8_0` }
}

const served = ({ hub, path }: SlowModel) => hub.traffic.bytes(path)
const flowing = (slow: SlowModel, bytes = 2 * MIB) => {
  const before = served(slow)
  return until('bytes flow', () => served(slow) - before >= bytes)
}
const stored = ({ corral, name }: SlowModel) => storedDigests(join(corral.home, 'models', name), '.gguf')
const isListed = async ({ corral, name }: SlowModel) => (await listed(corral)).some(found => found.startsWith(name))
const only = async (corral: Corral) => {
  const records = await pulls(corral)
  if (records.length !== 1) throw new Error(`${records.length} pulls: ${JSON.stringify(records)}`)
  return records[0]
}
const state = (corral: Corral, wanted: string) =>
  until(`the pull is ${wanted}`, async () => (await only(corral)).state === wanted)

t.test('two clients share one pull', async t => {
  const slow = await slowModel()
  const { corral, model } = slow
  const first = corral.events('/api/pull', { model })
  await flowing(slow)
  const joined = corral.events('/api/pull', { model })
  const whole = corral.json('/api/pull', { model, stream: false })
  const record = await only(corral)
  t.match(record, { model, state: 'downloading', detached: false, total: FILE.size })
  t.match(record, { id: /./, origin: /slow-\d+-GGUF/, created_at: /^\d{4}-\d\d-\d\dT/, files: [{ path: slow.path }] })
  t.ok(record.completed > 0 && record.completed < record.total, 'it is running')
  slow.hub.bandwidth = QUICK
  t.same(contractFaults(await first, model), [])
  const events = await joined
  t.same(contractFaults(events, model), [])
  t.ok(events.find(event => event.digest).completed > 0, 'a joining client gets the progress immediately')
  t.match(await whole, { status: 200, body: { status: 'success' } })
  t.ok(served(slow) <= FILE.size + MIB, 'the bytes were downloaded once')
  t.same(await stored(slow), [DIGEST])
})

t.test('a pull pauses when its last client disconnects', async t => {
  const slow = await slowModel()
  const { hub, corral, model } = slow
  const leaving = new AbortController()
  const left = timedPull(corral, { model }, { signal: leaving.signal }).catch(() => {})
  await flowing(slow)
  leaving.abort()
  await left
  t.equal((await only(corral)).state, 'downloading', 'it continues for a moment')
  const back = new AbortController()
  const returned = timedPull(corral, { model }, { signal: back.signal }).catch(() => {})
  await flowing(slow, MIB)
  back.abort()
  await returned
  hub.bandwidth = { total: 1 * MIB }
  await state(corral, 'paused')
  t.ok((await only(corral)).reason, 'it says why')
  await until('no bytes are being sent', () => hub.traffic.active() === 0)
  const before = served(slow)
  t.ok(before < FILE.size)
  await sleep(500)
  t.equal(served(slow), before, 'no more bytes flow')
  t.notOk(await isListed(slow))
  t.ok(partialBytes(corral.home) > 0, 'received data is kept')
  hub.bandwidth = QUICK
  const events = await corral.events('/api/pull', { model })
  t.same(contractFaults(events, model), [])
  t.ok(events.find(event => event.digest).completed >= 2 * MIB, 'the next pull continues it')
  t.ok(served(slow) <= FILE.size + MIB, `only data in flight is downloaded twice: ${served(slow) - FILE.size}`)
  t.same(await stored(slow), [DIGEST])
})

t.test('Ctrl-C and a closed terminal pause a pull immediately unless others follow it', async t => {
  // Without a client, it would continue for an hour.
  const slow = await slowModel({ t, config: 'downloads:\n  pause_after: 1h\n' })
  const { hub, corral, model } = slow
  hub.bandwidth = { total: 1 * MIB }
  const { home } = corral
  const paused = async () => {
    await state(corral, 'paused')
    await until('no bytes are being sent', () => hub.traffic.active() === 0)
    return formatPercent((await only(corral)).completed, FILE.size)
  }
  const first = onTerminal(t, ['pull', model], home)
  await first.sees(/[1-9]%/)
  await first.press(CTRL_C)
  t.equal(await first.ended(), 130)
  t.match(first.screen(), `paused at ${await paused()}`, 'it reports the amount so far')

  const follower = new AbortController()
  const second = onTerminal(t, ['pull', model], home)
  await second.sees(/[1-9]%/)
  const followed = timedPull(corral, { model }, { signal: follower.signal }).catch(() => {})
  await until('two follow it', async () => (await only(corral)).watchers === 2)
  await second.press(CTRL_C)
  t.equal(await second.ended(), 130)
  t.match(second.screen(), /for another\s+client/)
  t.match(await only(corral), { state: 'downloading', watchers: 1 })

  const third = onTerminal(t, ['pull', model], home)
  await third.sees(/[1-9]%/)
  follower.abort()
  await followed
  await until('one is left', async () => (await only(corral)).watchers === 1)
  third.close()
  await paused()
  hub.bandwidth = QUICK
})

t.test('a detached pull continues without clients', async t => {
  const slow = await slowModel({ t, config: 'downloads:\n  pause_after: 0s\n' })
  const { hub, corral, model } = slow
  const accepted = await corral.json('/api/pull', { model, detach: true })
  t.equal(accepted.status, 202)
  await flowing(slow)
  const { id } = await only(corral)
  t.match(await only(corral), { detached: true, state: 'downloading' })
  t.match((await corral.json('/api/pulls/pause', { id })).status, 200)
  t.match(await only(corral), { state: 'paused' })
  await until('no bytes are being sent', () => hub.traffic.active() === 0)
  const before = served(slow)
  t.match(await corral.json('/api/pulls/resume', { model }), { status: 200 }, 'by its model too')
  await flowing(slow, MIB)
  t.ok(served(slow) > before)

  await corral.end('SIGTERM')
  hub.bandwidth = QUICK
  const restarted = await corralWithHub(t, hub, { home: corral.home })
  await until('it is listed', () => isListed({ ...slow, corral: restarted }))
  // The model is listed a moment before its pull disappears.
  await until('a restart continues it to its end', async () => (await pulls(restarted)).length === 0)
  t.same(await stored(slow), [DIGEST])
  t.ok(served(slow) <= FILE.size + 2 * MIB, `${served(slow) - FILE.size} bytes were downloaded twice`)

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

t.test('cancelling a pull and deleting its model remove all its data', async t => {
  const slow = await slowModel()
  const { hub, corral, name, model } = slow
  const gone = async (what: string) => {
    t.same(await pulls(corral), [], `${what}: no pull`)
    t.notOk(await isListed(slow), `${what}: no model`)
    t.equal(partialBytes(corral.home), 0, `${what}: nothing on the disk`)
    await until('no bytes are being sent', () => hub.traffic.active() === 0)
  }
  let watched = corral.events('/api/pull', { model })
  await flowing(slow)
  const cancelled = await corral.json('/api/pulls/cancel', { id: (await only(corral)).id })
  t.equal(cancelled.status, 200)
  t.match((await watched).at(-1), { code: 'pull_cancelled', errorCode: 409, status: /^error: / })
  await gone('cancelled')

  watched = corral.events('/api/pull', { model })
  await flowing(slow)
  const deleted = await corral.json('/api/delete', { model: name }, { method: 'DELETE' })
  t.match(deleted, { status: 200, body: { status: 'deleted' } })
  const last = (await watched).at(-1)
  t.match(last.code, /^(pull_cancelled|model_deleted)$/)
  await gone('deleted while it is pulled')
  const again = await corral.json('/api/delete', { model: name }, { method: 'DELETE' })
  t.equal(again.status, 404, 'now it is unknown')

  watched = corral.events('/api/pull', { model })
  await flowing(slow)
  await corral.json('/api/pulls/pause', { model })
  await watched
  t.equal((await corral.json('/api/pulls/cancel', { model })).status, 200, 'a paused pull can be cancelled')
  await gone('paused and cancelled')
})

t.test('other requests work during a pull', thorough, async t => {
  const slow = await slowModel()
  const { hub, corral, name, model } = slow
  const watched = corral.events('/api/pull', { model })
  await flowing(slow)
  const messages = [{ role: 'user', content: 'hi' }]
  t.match(await corral.json('/api/chat', { model: name, messages }), { status: 404, body: { code: 'model_not_found' } })
  t.match(await corral.json('/api/stop', { model: name }), { status: 404, body: { code: 'model_not_found' } })
  t.match(await corral.json('/api/show', { model: name }), { status: 404, body: { code: 'model_not_found' } })
  const path = join(t.testdir(), 'other-Q8_0.gguf')
  writeFileSync(path, Q4_K_M)
  const imported = await corral.json('/api/import', { path, model, stream: false })
  t.match(imported, { status: 409, body: { code: 'model_exists' } }, 'an import of the same model is refused')
  t.notOk(await isListed(slow))
  hub.bandwidth = QUICK
  t.same(contractFaults(await watched, model), [])
})

t.test('two variants are pulled at the same time', thorough, async t => {
  const slow = await slowModel()
  const { hub, corral, name, model } = slow
  const before = hub.traffic.bytes()
  const [one, other] = await Promise.all([
    corral.events('/api/pull', { model }),
    corral.events('/api/pull', { model: `${name}:Q4_K_M` })
  ])
  t.same(contractFaults(one, model), [])
  t.same(contractFaults(other, `${name}:Q4_K_M`), [])
  t.equal((await listed(corral)).filter(found => found.startsWith(name)).length, 2)
  // When one connection passes the rest of its range to another, its data in flight is lost.
  t.ok(hub.traffic.bytes() - before <= FILE.size + Q4_K_M.length + MIB, 'the bytes were downloaded once')
})
