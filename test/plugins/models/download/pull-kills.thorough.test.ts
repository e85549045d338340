import { join } from 'node:path'
import t from 'tap'
import { type Corral, until } from '../../../support/corral.ts'
import { sha256Of } from '../../../support/hub-emulator/contents.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, largeGguf, listed, MIB, pulls, storedDigests } from './support.ts'

const KILLS = 10
const SIZE = 160 * MIB
/** A kill may cost a second of transfer. */
const RATE = 8 * MIB
/**
 * Bytes that the emulator has sent and the killed process never received: one pause of its pacing, on each connection
 * of a file.
 */
const IN_THE_LINE = MIB

/**
 * Random moments, in bytes served since a start. Together they are at most nine tenths of the file, so it is never
 * complete.
 */
function moments(): number[] {
  const shares = Array.from({ length: KILLS }, () => 0.2 + Math.random())
  const sum = shares.reduce((total, share) => total + share, 0)
  return shares.map(share => Math.floor((share / sum) * SIZE * 0.9))
}

t.test('a pull survives ten kills of corral', { timeout: 240_000 }, async t => {
  const file = largeGguf(SIZE, 11)
  const hub = await startHubEmulator(t, {
    repositories: { 'test/killed-GGUF': { files: { 'killed-Q8_0.gguf': file } } },
    bandwidth: { total: RATE }
  })
  const model = 'test/killed-GGUF'
  let corral: Corral = await corralWithHub(t, hub)
  const { home } = corral
  t.equal((await corral.json('/api/pull', { model, detach: true })).status, 202)
  const at = moments()
  t.comment(`killed after ${at.map(bytes => (bytes / MIB).toFixed(1)).join(', ')} MiB`)
  for (const [index, bytes] of at.entries()) {
    const before = hub.traffic.bytes()
    await until(`bytes flow after ${index} kills`, () => hub.traffic.bytes() - before >= bytes)
    await corral.end('SIGKILL')
    await until('no bytes are in flight', () => hub.traffic.active() === 0)
    const useful = hub.traffic.bytes()
    corral = await corralWithHub(t, hub, { home })
    t.same(await listed(corral), [], 'no incomplete model is listed')
    const completed = await until('the completed bytes are known', async () => (await pulls(corral))[0].completed)
    const lost = useful - completed
    t.ok(
      lost <= (index + 1) * (Math.max(8 * MIB, RATE) + IN_THE_LINE),
      `kill ${index + 1}: ${(lost / MIB).toFixed(2)} MiB of ${(useful / MIB).toFixed(1)} must be downloaded again`
    )
  }
  hub.bandwidth = { total: 4 * RATE }
  await until('the model is listed', async () => (await listed(corral)).length === 1)
  t.same(await storedDigests(join(home, 'models'), '.gguf'), [await sha256Of(file)])
  t.same(await pulls(corral), [])
  const again = hub.traffic.bytes() - file.size
  t.comment(`${(again / MIB).toFixed(1)} MiB were downloaded twice in ${KILLS} kills`)
  t.ok(again <= KILLS * (Math.max(8 * MIB, RATE) + IN_THE_LINE))
  await corral.end()
})
