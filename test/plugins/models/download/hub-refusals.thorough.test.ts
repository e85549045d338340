import { join } from 'node:path'
import t from 'tap'
import { readCases } from '../../../support/fixture.ts'
import type { FaultKind } from '../../../support/hub-emulator/faults.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import {
  corralWithHub,
  listed,
  partialBytes,
  pulls,
  quantizedModels,
  refusal,
  sha256,
  storedDigests
} from './support.ts'

const { Q8_0, Q4_K_M } = quantizedModels()
const TWO = { 'tiny-Q8_0.gguf': Q8_0, 'tiny-Q4_K_M.gguf': Q4_K_M }
const GOOD_TOKEN = 'hf_goodgoodgoodgoodgoodgoodgoodgood12'
const OTHER_TOKEN = 'hf_otherotherotherotherotherother1234'

const REPOSITORIES = {
  'test/tiny-GGUF': { files: TWO },
  'test/gated-GGUF': { files: TWO, gated: 'manual' as const, token: GOOD_TOKEN },
  'test/private-GGUF': { files: TWO, private: true, token: GOOD_TOKEN },
  'test/disabled-GGUF': { files: TWO, disabled: true },
  'test/empty': { files: { 'README.md': '# Nothing\n', '.gitattributes': '' } },
  'test/pickle': { files: { 'pytorch_model.bin': Q8_0, 'config.json': '{}' } },
  'test/damaged-GGUF': { files: { 'damaged-Q8_0.gguf': Buffer.alloc(100_000, 7) } },
  'test/shards-GGUF': { files: { 'x-Q8_0-00001-of-00003.gguf': Q8_0, 'x-Q8_0-00003-of-00003.gguf': Q8_0 } },
  'test/evil-GGUF': { files: { '../../evil-Q8_0.gguf': Q8_0 } }
}

/** Shared by all tests that need no settings of their own. */
const hub = await startHubEmulator(t, { repositories: REPOSITORIES })
const corral = await corralWithHub(t, hub)

/** Checks that a refusal left nothing behind. */
const clean = async (t: Tap, corral: Awaited<ReturnType<typeof corralWithHub>>) => {
  t.same(await listed(corral), [], 'nothing is listed')
  t.same(await pulls(corral), [], 'no pull remains')
  t.equal(partialBytes(corral.home), 0, 'no partial data remains')
}
type Tap = Pick<typeof t, 'same' | 'equal'>

/** Removes a test's leftovers from the shared corral. */
async function cleanUp(): Promise<void> {
  for (const { id } of await pulls(corral)) await corral.json('/api/pulls/cancel', { id })
  for (const model of await listed(corral)) await corral.json('/api/delete', { model }, { method: 'DELETE' })
}

t.test('pulls without a token are refused with advice', async t => {
  const cases = readCases<[string, number, string, RegExp][]>('hub-cases.yaml', 'refusedPulls')
  for (const [model, status, code, words] of cases) {
    const got = await refusal(corral, { model })
    t.match(got, { status, code, error: words }, JSON.stringify(model))
    t.ok(got.early, `${JSON.stringify(model)} is refused before the stream`)
    t.notMatch(got.error, /\n\s+at |undefined|\[object/, 'no stack or placeholder')
    t.ok(/[.!?]$/.test(got.error), `a sentence: ${got.error}`)
    const dry = await corral.json('/api/pull', { model, dry_run: true })
    t.equal(dry.status, got.status, `the same for a dry run of ${JSON.stringify(model)}`)
  }
  const misspelt = await refusal(corral, { model: 'test/TINY-gguf' })
  t.match(misspelt.error, /test\/tiny-GGUF/, 'a hub with a search shows the right spelling')
  hub.huggingFace.search = false
  t.match(await refusal(corral, { model: 'test/TINY-gguf' }), { status: 404, code: 'repo_not_found' })
  hub.huggingFace.search = true
  await clean(t, corral)

  const missing = await refusal(corral, {})
  t.match(missing, { status: 400, code: 'invalid_model_name' })
  const evil = await refusal(corral, { model: 'test/evil-GGUF' })
  t.ok(evil.status >= 400 && evil.code !== 'internal', `a path outside the folder: ${evil.status} ${evil.code}`)
  const damaged = await refusal(corral, { model: 'test/damaged-GGUF' })
  t.match(damaged, { status: 400, code: 'unsupported_capability' }, 'a file that is not a model is refused')
  t.match(damaged.error, /cannot be run: damaged-Q8_0\.gguf is not a GGUF file/)
  t.same(await listed(corral), [])
  await cleanUp()
})

t.test('pulls with a token are refused with advice', async t => {
  const hub = await startHubEmulator(t, { repositories: REPOSITORIES, tokens: [OTHER_TOKEN] })
  const other = await corralWithHub(t, hub, { env: { HF_TOKEN: OTHER_TOKEN } })
  t.match(await refusal(other, { model: 'test/unknown-GGUF' }), { status: 404, code: 'repo_not_found' })
  t.match(await refusal(other, { model: 'test/private-GGUF' }), { status: 404, code: 'repo_not_found' })
  const gated = await refusal(other, { model: 'test/gated-GGUF' })
  t.match(gated, { status: 403, code: 'hub_forbidden', error: /huggingface\.co|127\.0\.0\.1|terms|access/i })
  hub.huggingFace.gatedInfo = true
  t.match(await refusal(other, { model: 'test/gated-GGUF' }), { status: 403, code: 'hub_forbidden', early: true })
  hub.huggingFace.gatedInfo = false
  await clean(t, other)

  const bad = await corralWithHub(t, hub, { env: { HF_TOKEN: 'hf_badbadbadbadbadbadbadbadbadbadbad12' } })
  const refused = await refusal(bad, { model: 'test/tiny-GGUF' })
  t.match(refused, { status: 403, code: 'hub_forbidden', error: /token/i }, 'a token that the hub does not know')
  t.notMatch(refused.error, /hf_bad/, 'it is not repeated')
  await clean(t, bad)
})

t.test('a name in another case is stored under the hub’s spelling', async t => {
  const { casing: usual } = hub.huggingFace
  for (const casing of ['redirect', 'lenient'] as const) {
    hub.huggingFace.casing = casing
    const response = await corral.json('/api/pull', { model: 'Test/TINY-gguf:Q8_0', stream: false })
    if (response.status === 200) {
      t.match(await listed(corral), [/^test\/tiny-gguf$/i], `${casing}: one model`)
      const shown = await corral.json('/api/show', { model: 'test/tiny-GGUF' })
      t.equal(shown.status, 200, 'found by either spelling')
      await corral.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })
    } else {
      t.match(response.body, { code: 'repo_not_found', error: /test\/tiny-GGUF/ }, `${casing}: it names the right one`)
    }
  }
  hub.huggingFace.casing = usual
})

t.test('endpoints that are not hubs are reported', async t => {
  const faults = readCases<FaultKind[]>('hub-cases.yaml', 'notHubs')
  for (const fault of faults) {
    hub.clearFaults()
    hub.fault({ ...fault, on: 'info' })
    hub.fault({ ...fault, on: 'tree' })
    const got = await refusal(corral, { model: 'test/tiny-GGUF' })
    const what = JSON.stringify(fault)
    t.match(got.code, /^(hub_unreachable|hub_forbidden|repo_not_found)$/, what)
    if (!('status' in fault) || fault.status === 200) t.equal(got.code, 'hub_unreachable', what)
    t.ok(got.early, what)
    t.notMatch(got.error, /Unexpected token|SyntaxError|Cannot read/, got.error)
    t.match(got.error, /127\.0\.0\.1|Hugging Face/, 'it says who answered')
    await clean(t, corral)
  }
  hub.clearFaults()
  hub.fault({ kind: 'html', on: 'bytes' })
  const page = await refusal(corral, { model: 'test/tiny-GGUF:Q8_0' })
  t.ok(['hub_unreachable', 'checksum_mismatch'].includes(page.code), `a web page instead of bytes: ${page.code}`)
  t.same(await listed(corral), [])
  hub.clearFaults()
  const pulled = await corral.events('/api/pull', { model: 'test/tiny-GGUF:Q8_0' })
  t.equal(pulled.at(-1).status, 'success', 'then it works')
  await cleanUp()
})

t.test('a hub that is down or limits requests is reported', async t => {
  await hub.goDown()
  const down = await refusal(corral, { model: 'test/tiny-GGUF' })
  t.match(down, { status: 502, code: 'hub_unreachable', early: true, error: /127\.0\.0\.1/ })
  t.notMatch(down.error, /fetch failed/)
  await clean(t, corral)
  await hub.comeBack()
  hub.fault({ kind: 'rate-limit', form: 'retry-after', seconds: 900, on: 'info' })
  const response = await corral.send('/api/pull', { model: 'test/tiny-GGUF' })
  const body: any = await response.json()
  t.equal(response.status, 503)
  t.equal(body.code, 'hub_rate_limited')
  t.ok(Number(response.headers.get('retry-after')) > 800, 'the hub says when')
  await clean(t, corral)
})

t.test('a model is stored without an optional file that cannot be downloaded, and the reply says so', async t => {
  const files = { ...TWO, 'README.md': '# Tiny', LICENSE: 'free' }
  const hub = await startHubEmulator(t, { repositories: { 'test/tiny-GGUF': { files } } })
  const corral = await corralWithHub(t, hub)
  const gzip = { 'content-encoding': 'gzip' }
  hub.fault({ kind: 'status', status: 200, body: 'packed', headers: gzip, path: 'README.md' })
  hub.fault({ kind: 'forbidden', path: 'LICENSE' })
  const events = await corral.events('/api/pull', { model: 'test/tiny-GGUF:Q8_0' })
  t.match(events.at(-1), {
    status: 'success',
    warnings: [/^Stored without LICENSE\. .*403/, /^Stored without README\.md\. .*compressed \(gzip\)/]
  })
  hub.clearFaults()
  t.match((await corral.events('/api/pull', { model: 'test/tiny-GGUF:Q8_0' })).at(-1), { status: 'success' })
  const texts = await storedDigests(join(corral.home, 'models'), 'README.md')
  t.same(texts, [sha256(Buffer.from('# Tiny'))], 'the next pull adds it')

  hub.fault({ kind: 'status', status: 200, body: 'packed', headers: gzip, path: /Q4_K_M/ })
  const { body } = await corral.json('/api/pull', { model: 'test/tiny-GGUF:Q4_K_M', stream: false })
  t.match(body, { code: 'hub_unreachable', error: /tiny-Q4_K_M\.gguf could not be fetched: .*compressed \(gzip\)/ })
  hub.clearFaults()
  hub.fault({ kind: 'html', path: /Q4_K_M/ })
  const page = await corral.json('/api/pull', { model: 'test/tiny-GGUF:Q4_K_M', stream: false })
  t.match(page.body, { code: 'hub_unreachable', error: /sends a web page instead of the file.*\(title ".*log in/ })
})
