import { join } from 'node:path'
import t from 'tap'
import { sha256Of } from '../../../support/hub-emulator/contents.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { contractFaults, corralWithHub, largeGguf, MIB, storedDigests } from './support.ts'

/** Makes transfers give up sooner than usual. */
const SHORT_STALLS = 'downloads:\n  stall_timeout: 1s\n'

/**
 * Bytes that four connections may serve without being read: when a connection passes the rest of its range to another
 * one, its data in flight is lost.
 */
const IN_SOCKETS = 16 * MIB

t.test('a large file is pulled over several connections despite faults', async t => {
  const file = largeGguf(96 * MIB, 5)
  const digest = await sha256Of(file)
  const size = file.size
  const hub = await startHubEmulator(t, { repositories: {}, bandwidth: { total: 60 * MIB } })
  const corral = await corralWithHub(t, hub, { config: SHORT_STALLS })
  let number = 0
  const pull = async (what: string) => {
    const name = `test/large-${++number}`
    hub.add(name, { files: { 'large-Q8_0.gguf': file } })
    const before = hub.traffic.bytes()
    const events = await corral.events('/api/pull', { model: name })
    t.same(contractFaults(events, name, true), [], what)
    t.same(await storedDigests(join(corral.home, 'models', 'test', `large-${number}`), '.gguf'), [digest], what)
    await corral.json('/api/delete', { model: name }, { method: 'DELETE' })
    return hub.traffic.bytes() - before
  }

  const undisturbed = await pull('undisturbed')
  t.ok(undisturbed <= size + IN_SOCKETS, `each byte is used: ${undisturbed - size} more were served`)
  t.ok(new Set(hub.traffic.transfers().map(transfer => transfer.connection)).size > 1, 'several connections')

  // The hub has only one digest of the whole file, so the wrong byte is found by downloading everything before it
  // again.
  const wrong = hub.fault({ kind: 'wrong-byte', at: 20 * MIB, times: 1 })
  const served = await pull('a wrong byte in the middle')
  t.equal(wrong.hits, 1)
  t.ok(
    served <= size + 28 * MIB + 2 * IN_SOCKETS,
    `correct data is not downloaded again: ${served - size} bytes of ${size}`
  )

  hub.signedUrls.lifeBytes = 20 * MIB
  t.ok((await pull('addresses expire while bytes flow')) < size * 1.5, 'received data is kept')
  hub.signedUrls.lifeBytes = Infinity

  hub.signedUrls.lifeMs = 700
  t.ok((await pull('addresses live shorter than the pull')) < size * 1.5)
  hub.signedUrls.announced = false
  t.ok((await pull('the same, unannounced')) < size * 1.5)
  hub.signedUrls.announced = true
  hub.signedUrls.lifeMs = 3_600_000

  hub.fault({ kind: 'cut', after: 3 * MIB, times: 12 })
  t.ok((await pull('connections keep breaking')) < size * 1.3)
  hub.clearFaults()

  hub.connectionLimit = 1
  await pull('a server accepts only one connection')
  hub.connectionLimit = Infinity

  hub.fault({ kind: 'stall', after: 2 * MIB, times: 2 })
  t.ok((await pull('connections go silent')) < size * 1.3)
  hub.clearFaults()

  hub.fault({ kind: 'range-ignored' })
  await pull('ranges are ignored')
  hub.clearFaults()
})
