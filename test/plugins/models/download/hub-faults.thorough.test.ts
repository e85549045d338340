import { join } from 'node:path'
import t from 'tap'
import { readCases } from '../../../support/fixture.ts'
import { sha256Of } from '../../../support/hub-emulator/contents.ts'
import type { Fault } from '../../../support/hub-emulator/faults.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import {
  contractFaults,
  corralWithHub,
  largeGguf,
  listed,
  MIB,
  pulls,
  quantizedModels,
  refusal,
  sha256,
  storedDigests,
  timedPull
} from './support.ts'

const { Q8_0 } = quantizedModels()
/** Makes transfers give up sooner than usual. */
const SHORT_STALLS = 'downloads:\n  stall_timeout: 1s\n'

/** One pull of a small model for each fault. Each ends with the right bytes. */
const SURVIVED = readCases<[string, Fault[]][]>('hub-cases.yaml', 'survivedFaults')

t.test('a pull survives temporary faults', async t => {
  const hub = await startHubEmulator(t, { repositories: {} })
  const corral = await corralWithHub(t, hub, { config: SHORT_STALLS })
  const pull = async (what: string, faults: Fault[]) => {
    const file = `${what.replaceAll(/\W+/g, '-')}-Q8_0.gguf`
    const name = `test/${what.replaceAll(/\W+/g, '-')}`
    hub.add(name, { files: { [file]: Q8_0, 'README.md': '# Tiny\n' } })
    const set = faults.map(fault => hub.fault(fault.on === 'info' ? fault : { path: file, ...fault }))
    const events = await corral.events('/api/pull', { model: `${name}:Q8_0` })
    t.same(contractFaults(events, `${name}:Q8_0`, true), [], what)
    for (const { hits } of set) t.ok(hits > 0, `${what}: the fault occurred`)
    t.same(await storedDigests(join(corral.home, 'models', name), '.gguf'), [sha256(Q8_0)], `${what}: the right bytes`)
  }
  // A fault of a file affects one pull, so several run in parallel. A fault of the listing would affect them all.
  const ofListings = SURVIVED.filter(([, faults]) => faults.some(({ on }) => on === 'info'))
  const ofFiles = SURVIVED.filter(one => !ofListings.includes(one))
  for (const [what, faults] of ofListings) await pull(what, faults)
  const worker = async () => {
    for (let next = ofFiles.shift(); next; next = ofFiles.shift()) await pull(...next)
  }
  await Promise.all(Array.from({ length: 4 }, worker))
  t.same(await pulls(corral), [])
})

t.test('a pull fails on permanent faults', async t => {
  const file = (kind: string) => `${kind}-Q8_0.gguf`
  const kinds = ['wrong-byte', 'forbidden', 'range-unsatisfiable']
  const repositories = Object.fromEntries(kinds.map(kind => [`test/${kind}`, { files: { [file(kind)]: Q8_0 } }]))
  const hub = await startHubEmulator(t, { repositories })
  const corral = await corralWithHub(t, hub, { config: SHORT_STALLS })
  const ask = async (fault: Fault) => {
    hub.fault({ path: file(fault.kind), ...fault })
    return await refusal(corral, { model: `test/${fault.kind}` })
  }
  const [wrong, forbidden, unsatisfiable] = await Promise.all([
    ask({ kind: 'wrong-byte', at: 77_777 }),
    ask({ kind: 'forbidden' }),
    ask({ kind: 'range-unsatisfiable' })
  ])
  t.same(await listed(corral), [], 'nothing is listed')
  t.match(wrong, { status: 502, code: 'checksum_mismatch', error: /wrong-byte-Q8_0\.gguf/ })
  t.ok(hub.traffic.bytes(file('wrong-byte')) <= 4 * Q8_0.length, 'it is not retried for ever')
  t.match(forbidden, { status: 403, code: 'hub_forbidden', error: /not available in your region/ }, 'its words')
  t.notMatch(forbidden.error, /Signature=/)
  const requests = hub.traffic.requests.filter(({ url }) => url.includes('forbidden'))
  t.ok(requests.length < 30, 'only a few requests')
  t.match(unsatisfiable.code, /^(hub_unreachable|checksum_mismatch|hub_forbidden|repo_not_found)$/)

  hub.clearFaults()
  const events = await corral.events('/api/pull', { model: 'test/wrong-byte:Q8_0' })
  t.same(contractFaults(events, 'test/wrong-byte:Q8_0', true), [], 'the next pull works')
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [sha256(Q8_0)])
})

t.test('a pull finishes its commit when the file changes at the hub', async t => {
  const [one, other] = [largeGguf(24 * MIB, 1), largeGguf(24 * MIB, 2)]
  const hub = await startHubEmulator(t, {
    repositories: { 'test/moving-GGUF': { files: { 'm-Q8_0.gguf': one } } },
    bandwidth: { total: 12 * MIB }
  })
  const corral = await corralWithHub(t, hub, { config: SHORT_STALLS })
  const events: any[] = []
  await timedPull(
    corral,
    { model: 'test/moving-GGUF' },
    {
      onEvent(event) {
        events.push(event)
        if (events.length === 6) {
          hub.change('test/moving-GGUF', { 'm-Q8_0.gguf': other })
          hub.fault({ kind: 'cut', after: 0, times: 1 })
        }
      }
    }
  )
  t.same(contractFaults(events, 'test/moving-GGUF', true), [])
  const models = join(corral.home, 'models')
  t.same(await storedDigests(models, '.gguf'), [await sha256Of(one)], 'the planned commit is completed')
  hub.bandwidth = {}
  await corral.events('/api/pull', { model: 'test/moving-GGUF' })
  const shown = await storedDigests(models, '.gguf')
  t.same(shown, [await sha256Of(other)], 'the next pull replaces it with the new revision')
})
