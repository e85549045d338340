import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../../../../support/corral.ts'
import { downloadsFolder, type Setting, setting, watching } from './support.ts'

const states = ({ downloads }: Setting) => downloads.list().map(({ model, state }) => `${model} ${state}`)

t.test('a pull continues after a kill during the download', async t => {
  const homes = t.testdir({ a: {}, b: {} })
  const at = await setting(t, { home: join(homes, 'a') })
  at.transfers.holdAt = /Q4_K_M/
  const { pull } = await at.pull('Acme/Tiny-GGUF')
  const one = watching(pull)
  await until('it is running', () => pull.record().completed > 0)
  const home = join(homes, 'b')
  cpSync(at.home, home, { recursive: true })
  at.transfers.release()
  await one.result

  const next = await setting(t, { home })
  await until('it continues by itself', () => next.store.list().length === 1 && next.folders().length === 0)
  t.same(next.transfers.continued, ['tiny-Q4_K_M.gguf'], 'from where it was')
  t.same(next.downloads.list(), [])
})

t.test('a pull continues after a kill while the model is stored', async t => {
  const homes = t.testdir({ a: {}, b: {}, c: {} })
  const at = await setting(t, { home: join(homes, 'a') })
  const adopt = at.store.adopt
  const copyTo = (name: string) => cpSync(at.home, join(homes, name), { recursive: true })
  at.store.adopt = async (request, waiting) => {
    copyTo('b')
    const stored = await adopt(request, waiting)
    copyTo('c')
    return stored
  }
  await watching((await at.pull('Acme/Tiny-GGUF')).pull).result
  for (const [name, what] of [
    ['b', 'before'],
    ['c', 'after']
  ] as const) {
    const [id] = readdirSync(downloadsFolder(join(homes, name)))
    t.match(JSON.parse(readFileSync(join(downloadsFolder(join(homes, name)), id!, 'job.json'), 'utf8')), {
      state: 'storing'
    })
    const next = await setting(t, { home: join(homes, name) })
    await until(`it is stored, killed ${what}`, () => next.downloads.list().length === 0)
    t.equal(next.store.list().length, 1)
    t.same(next.transfers.fetched, [], 'nothing is downloaded again')
    await until('its folder is removed', () => next.folders().length === 0)
  }
})

t.test('a pull fails if its files have ended the process twice', async t => {
  const homes = t.testdir({ first: {}, second: {}, third: {} })
  const home = (name: string) => join(homes, name)
  /** Starts with the files that a process left, and copies the folder while they are read. */
  const dying = async (from: string, to: string) => {
    const at = await setting(t, { home: home(from), onAdopt: () => cpSync(home(from), home(to), { recursive: true }) })
    if (from === 'first') await at.pull('Acme/Tiny-GGUF', { detached: true })
    await until(`${from}: the files are read`, () => at.store.list().length === 1)
  }
  await dying('first', 'second')
  await dying('second', 'third')
  for (const start of ['first', 'second']) {
    const { downloads } = await setting(t, { home: home('third') })
    const reason = /ended twice while it read the files of this pull.*Resume it to try again, or cancel it/
    t.match(downloads.list(), [{ state: 'failed', reason }], `${start} start`)
    await downloads.stop()
  }
  const next = await setting(t, { home: home('third') })
  t.same(next.store.list(), [])
  await next.downloads.resume(next.downloads.list()[0]!.id)
  await until('it is stored', () => next.store.list().length === 1 && next.folders().length === 0)
  t.same(next.transfers.fetched, [], 'nothing is downloaded again')
})

t.test('an orderly stop pauses pulls and keeps detached ones for the next start', async t => {
  const at = await setting(t)
  at.transfers.holdAt = /gguf/
  const watched = watching((await at.pull('Acme/Tiny-GGUF')).pull)
  await at.pull('Acme/Tiny-GGUF:Q2_K', { detached: true })
  await until('both are running', () => at.downloads.list().every(({ completed }) => completed > 0))
  await at.downloads.stop()
  await t.rejects(watched.result, { code: 'shutting_down' })
  await t.rejects(at.plan('Acme/Tiny-GGUF'), { code: 'shutting_down' })

  const next = await setting(t, { home: at.home })
  t.match(states(next), ['Acme/Tiny-GGUF:Q4_K_M paused', /Q2_K/])
  await until('the detached one continues', () => next.store.list().length === 1)
  t.equal(next.store.list()[0]?.label, 'Q2_K')
  const [paused] = next.downloads.list()
  t.match(paused, { state: 'paused', reason: /stopped/ })
  await watching((await next.pull('Acme/Tiny-GGUF')).pull).result
  t.same(next.transfers.continued.sort(), ['tiny-Q2_K.gguf', 'tiny-Q4_K_M.gguf'])
})

t.test('paused and failed pulls do not continue at a start', async t => {
  const at = await setting(t)
  at.transfers.holdAt = /gguf/
  await at.pull('Acme/Tiny-GGUF')
  await until('it is running', () => at.transfers.fetched.includes('tiny-Q4_K_M.gguf'))
  await at.downloads.pause('Acme/Tiny-GGUF')
  at.transfers.release()
  at.transfers.failAt = { path: /README/, error: new Error('boom') }
  const failing = watching((await at.pull('Acme/Tiny-GGUF:Q2_K')).pull)
  await t.rejects(failing.result, { code: 'internal' })
  await at.downloads.stop()
  const next = await setting(t, { home: at.home })
  t.same(states(next), ['Acme/Tiny-GGUF:Q4_K_M paused', 'Acme/Tiny-GGUF:Q2_K failed'])
  const failed = next.downloads.list()[1]!
  t.match(failed, { reason: /inside corral/ })
  t.equal(failed.completed, failed.files.find(({ path }) => path.endsWith('.gguf'))?.total, 'data on disk counts')
  await next.downloads.cancel('Acme/Tiny-GGUF:Q2_K')
  t.equal(next.folders().length, 1)
})

t.test('unusable pull folders are reported and kept', async t => {
  const home = t.testdir()
  const folder = downloadsFolder(home)
  for (const name of ['0123456789ab', 'broken', 'newer', 'other'])
    mkdirSync(join(folder, name, 'files'), { recursive: true })
  writeFileSync(join(folder, '0123456789ab', 'files', 'x.gguf'), 'a part')
  writeFileSync(join(folder, 'broken', 'job.json'), '{ "version": 1')
  writeFileSync(join(folder, 'newer', 'job.json'), '{ "version": 2 }')
  writeFileSync(join(folder, 'other', 'job.json'), '{ "version": 1, "id": "../../../etc" }')
  writeFileSync(join(folder, 'a file'), 'kept')
  const at = await setting(t, { home })
  t.same(at.folders().sort(), ['a file', 'broken', 'newer', 'other'], 'a folder without a record is removed')
  t.same(at.downloads.list(), [])
  const log = at.log.join('')
  for (const name of ['broken', 'newer', 'other'])
    t.match(log, new RegExp(`The pull in [^"]*/${name} cannot be continued`))
  t.match(log, /a newer corral wrote it/)
  t.ok(existsSync(join(folder, 'a file')))
})
