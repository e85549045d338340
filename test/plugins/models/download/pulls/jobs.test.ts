import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { PullRecord } from '../../../../../core/contracts/downloads.ts'
import { CorralError } from '../../../../../core/errors.ts'
import { parseModelName } from '../../../../../core/models/model-name.ts'
import { until } from '../../../../support/corral.ts'
import { failing } from '../../../../support/failure.ts'
import { downloadsFolder, model, type Setting, setting, sha256, watching } from './support.ts'

const NAME = parseModelName('Acme/Tiny-GGUF')
const only = ({ downloads }: Setting): PullRecord => {
  const [record, ...more] = downloads.list()
  if (!record || more.length > 0) throw new Error(`there are ${downloads.list().length} pulls`)
  return record
}
const recordedState = (at: Setting) =>
  JSON.parse(readFileSync(join(downloadsFolder(at.home), only(at).id, 'job.json'), 'utf8')).state
const unreachable = () => new CorralError('hub_unreachable', 'Hugging Face cannot be reached. Check the network.')

t.test('a pull stores a model', async t => {
  const at = await setting(t)
  const { downloads, store, hub, transfers } = at
  const { pull, plan } = await at.pull('Acme/Tiny-GGUF')
  t.match(plan, { label: 'Q4_K_M', format: 'gguf', present: false, disk: { fits: true }, memory: { fits: true } })
  t.match(only(at), { model: 'Acme/Tiny-GGUF:Q4_K_M', state: 'downloading', detached: false })
  const { result, events } = watching(pull)
  const stored = await result
  t.same(store.list(), [stored])
  t.match(stored, {
    publicName: 'Acme/Tiny-GGUF',
    label: 'Q4_K_M',
    origin: { kind: 'hub', from: 'huggingface:Acme/Tiny-GGUF', revision: plan.repository.revision }
  })
  for (const { path, size } of plan.files) {
    const reported = events.filter(event => event.path === path)
    t.same(reported.at(-1), { path, completed: size, total: size }, `${path} ends complete`)
    t.ok(reported.every(event => event.total === size))
  }
  t.same(downloads.list(), [])
  t.same(at.folders(), [], 'nothing of it remains')
  const weights = stored.files.find(file => file.role === 'model')!
  t.equal(sha256(readFileSync(join(stored.directory, weights.path))), weights.sha256)

  const again = await at.plan('hf:acme/tiny-gguf')
  t.equal(again.present, true, 'in any spelling')
  t.equal(await downloads.pull(again, { detached: false }), undefined)
  t.equal(transfers.fetched.length, plan.files.length, 'nothing is downloaded twice')

  const q2 = await at.pull('Acme/Tiny-GGUF:q2_k')
  t.equal((await watching(q2.pull).result).publicName, 'Acme/Tiny-GGUF:Q2_K')
  t.notOk(transfers.requests.some(request => JSON.stringify(request.files).includes('signature')))
  t.ok(hub.requested.length > 0)
  t.match(at.finished, [
    { model: 'Acme/Tiny-GGUF:Q4_K_M', origin: plan.repository.address, size: stored.size },
    { model: 'Acme/Tiny-GGUF:Q2_K' }
  ])
})

t.test('pulls of the same variant at the same moment are one', async t => {
  const at = await setting(t)
  const together = await Promise.all([1, 2, 3].map(() => at.pull('Acme/Tiny-GGUF:Q2_K')))
  const stored = await Promise.all(together.map(({ pull }) => watching(pull).result))
  t.equal(new Set(stored.map(({ revision }) => revision)).size, 1)
  t.equal(at.transfers.fetched.filter(path => path.endsWith('Q2_K.gguf')).length, 1)
})

t.test('a pull without watchers pauses unless it is detached', async t => {
  const at = await setting(t, { pauseAfter: 400 })
  at.transfers.holdAt = /gguf/
  const { pull } = await at.pull('Acme/Tiny-GGUF')
  const [one, two] = [watching(pull), watching(pull)]
  one.leave()
  await t.rejects(one.result, /left/)
  await sleep(600)
  t.equal(only(at).state, 'downloading', 'while one stays')
  two.leave()
  await until('it pauses', () => only(at).state === 'paused')
  t.match(only(at), { reason: /watch/, speed: 0 })
  const again = await at.pull('Acme/Tiny-GGUF')
  t.equal(again.pull.record().id, pull.record().id, 'the next pull continues it')
  await until('it was never watched', () => again.pull.record().state === 'paused')

  const detached = await at.pull('Acme/Tiny-GGUF', { detached: true })
  watching(detached.pull).leave()
  await sleep(600)
  t.match(only(at), { state: 'downloading', detached: true })
  at.transfers.release()
  await until('it is stored', () => at.store.list().length === 1)
  t.same(at.transfers.fetched, ['tiny-Q4_K_M.gguf', 'README.md'])
})

t.test('a pull can be paused, resumed and cancelled', async t => {
  const at = await setting(t)
  const { downloads, transfers } = at
  transfers.holdAt = /gguf/
  const { pull } = await at.pull('Acme/Tiny-GGUF')
  const one = watching(pull)
  await until('it is running', () => only(at).completed > 0)
  t.match(await downloads.pause('acme/tiny-gguf'), { state: 'paused', detached: false })
  await t.rejects(one.result, { code: 'pull_cancelled', message: /paused.*kept/ })
  t.match(await downloads.pause(pull.record().id), { state: 'paused' }, 'twice does no harm')
  t.match(await downloads.resume(pull.record().id), { state: 'downloading', detached: true })
  t.match(await downloads.resume(pull.record().id), { state: 'downloading', detached: true })
  const two = watching(pull)
  await downloads.cancel('Acme/Tiny-GGUF:q4_k_m')
  await t.rejects(two.result, { code: 'pull_cancelled', message: /cancelled.*removed/ })
  await t.rejects(watching(pull).result, { code: 'pull_cancelled' }, 'a late watcher')
  t.same([downloads.list(), at.folders()], [[], []])

  for (const id of ['Acme/Tiny-GGUF', pull.record().id, 'nothing', '']) {
    await t.rejects(downloads.pause(id), { code: 'model_not_found' })
    await t.rejects(downloads.resume(id), { code: 'model_not_found' })
    await t.rejects(downloads.cancel(id), { code: 'model_not_found' })
  }

  const q4 = watching((await at.pull('Acme/Tiny-GGUF')).pull)
  const q2 = watching((await at.pull('Acme/Tiny-GGUF:Q2_K')).pull)
  await t.rejects(downloads.pause('Acme/Tiny-GGUF'), { code: 'invalid_request', message: /Q4_K_M.*Q2_K/ })
  const reason = new CorralError('pull_cancelled', 'it was deleted')
  t.equal(await downloads.cancelModel(parseModelName('Acme/Tiny-GGUF:Q4_K_M'), reason), 1)
  t.equal(await downloads.cancelModel(parseModelName('Acme/Other'), reason), 0)
  t.equal(await downloads.cancelModel(NAME, reason), 1)
  await t.rejects(q4.result, reason)
  await t.rejects(q2.result, reason)
  t.same([downloads.list(), at.folders()], [[], []])

  // A pull that is requested while it is being cancelled starts again.
  const going = await at.pull('Acme/Tiny-GGUF')
  const plan = await at.plan('Acme/Tiny-GGUF')
  const [, fresh] = await Promise.all([
    downloads.cancel(going.pull.record().id),
    downloads.pull(plan, { detached: false })
  ])
  t.not(fresh, going.pull)
  transfers.release()
  t.equal((await watching(fresh!).result).publicName, 'Acme/Tiny-GGUF')
})

t.test('a failure is reported and recorded, and can be continued', async t => {
  const at = await setting(t)
  at.transfers.failAt = { path: /gguf/, error: unreachable() }
  const { pull } = await at.pull('Acme/Tiny-GGUF')
  const one = watching(pull)
  await t.rejects(one.result, { code: 'hub_unreachable' })
  t.match(only(at), { state: 'failed', reason: /cannot be reached/ })
  t.ok(only(at).completed > 0)
  await until('it is recorded', () => recordedState(at) === 'failed')
  await watching((await at.pull('Acme/Tiny-GGUF')).pull).result
  t.same(at.transfers.continued, ['tiny-Q4_K_M.gguf'])

  at.transfers.failAt = { path: /gguf/, error: Object.assign(new Error('no space'), { code: 'ENOSPC' }) }
  const full = await at.pull('Acme/Tiny-GGUF:Q2_K')
  await t.rejects(watching(full.pull).result, { code: 'insufficient_storage', message: /is full/ })
  t.match(await at.downloads.resume('Acme/Tiny-GGUF:Q2_K'), { state: /downloading|storing/, detached: true })
  await until('it is stored', () => at.store.list().length === 2)

  t.test('an invalid model is refused after the download', async t => {
    const at = await setting(t, {
      contents: { 'Acme/Bad-GGUF': { 'bad-Q4_K_M.gguf': Buffer.from('this is no GGUF file') } }
    })
    const invalid = /^The model "Acme\/Bad-GGUF" at .* cannot be run: bad-Q4_K_M\.gguf is not a GGUF file/
    const { pull } = await at.pull('Acme/Bad-GGUF')
    await t.rejects(watching(pull).result, failing('unsupported_capability', invalid))
    t.same(at.store.list(), [])
    t.match(only(at), { state: 'failed' })
    await at.downloads.cancel('Acme/Bad-GGUF')
    t.same(at.folders(), [])
  })
})

t.test('a detached pull is retried until its hub answers', async t => {
  const at = await setting(t, { retryPauses: [60, 120] })
  at.hub.failure = undefined
  const plan = await at.plan('Acme/Tiny-GGUF')
  at.hub.failure = unreachable()
  const pull = await at.downloads.pull(plan, { detached: true })
  await until('it waits', () => only(at).state === 'paused')
  t.match(only(at), { detached: true, reason: /cannot be reached.*retried at \d{4}-/ })
  t.equal(recordedState(at), 'downloading', 'after a restart it is retried immediately')
  const before = at.hub.requested.length
  await until('it is retried repeatedly', () => at.hub.requested.length > before + 2)
  at.hub.failure = undefined
  await until('it is stored', () => at.store.list().length === 1)
  t.equal(pull?.record().model, 'Acme/Tiny-GGUF:Q4_K_M')

  at.transfers.failAt = { path: /gguf/, error: new CorralError('hub_forbidden', 'Agree to its terms first.') }
  const q2 = await at.plan('Acme/Tiny-GGUF:Q2_K')
  await at.downloads.pull(q2, { detached: true })
  await until('a permanent failure is not retried', () => only(at).state === 'failed')
  t.match(only(at), { reason: 'Agree to its terms first.' })
  t.match(await at.downloads.pause('Acme/Tiny-GGUF'), { state: 'failed', reason: 'Agree to its terms first.' })
})

t.test('a pull of another revision keeps unchanged files', async t => {
  const contents = { 'Acme/Seer-GGUF': { 'seer-Q4_K_M.gguf': model(1), LICENSE: Buffer.from('as is') } }
  const at = await setting(t, { contents })
  at.transfers.holdAt = /LICENSE/
  const first = await at.pull('Acme/Seer-GGUF')
  const one = watching(first.pull)
  await until('the weights are there', () => at.transfers.fetched.includes('LICENSE'))
  at.hub.contents['Acme/Seer-GGUF']!.LICENSE = Buffer.from('as was')
  await t.rejects(at.pull('Acme/Seer-GGUF'), { code: 'model_exists', message: /revision/ }, 'not while it runs')
  await at.downloads.pause('Acme/Seer-GGUF')
  await t.rejects(one.result)

  const second = await at.pull('Acme/Seer-GGUF')
  t.equal(second.pull.record().id, first.pull.record().id)
  at.transfers.release()
  const stored = await watching(second.pull).result
  t.same(at.transfers.fetched, ['seer-Q4_K_M.gguf', 'LICENSE', 'LICENSE'], 'unchanged files are kept')
  t.same(at.transfers.continued, [])
  t.equal(readFileSync(join(stored.directory, 'LICENSE'), 'utf8'), 'as was')

  at.hub.contents['Acme/Seer-GGUF']!.LICENSE = Buffer.from('as will be')
  const third = await watching((await at.pull('Acme/Seer-GGUF')).pull).result
  t.not(third.revision, stored.revision)
  const fetchedWeights = at.transfers.fetched.filter(path => path.endsWith('.gguf'))
  t.equal(fetchedWeights.length, 1, 'stored weights are not downloaded again')
  t.equal(readFileSync(join(third.directory, 'LICENSE'), 'utf8'), 'as will be')
  t.notOk(existsSync(stored.directory), 'one revision of a variant at a time')
  t.same(readdirSync(downloadsFolder(at.home)), [])
})
