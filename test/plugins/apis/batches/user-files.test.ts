import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { type FileLimits, secondsNow, UserFiles } from '../../../../plugins/apis/batches/user-files.ts'

const caller = { owner: 'alice' }
const log = { warn() {} }
const LIMITS: FileLimits = { fileSize: 1000, files: 3, bytes: 1500, keep: 60_000 }
const form = Promise.resolve({ purpose: 'batch' as const, keep: undefined as number | undefined })
const expiring = form.then(fields => ({ ...fields, keep: 3600 }))

async function* contentOf(...pieces: string[]) {
  for (const piece of pieces) yield Buffer.from(piece)
}
const arriving = (...pieces: string[]) => ({ filename: 'lines.jsonl', content: contentOf(...pieces) })

async function filesIn(t: Test, limits: Partial<FileLimits> = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'corral-files-'))
  const open = async () => {
    const files = new UserFiles(folder, () => ({ ...LIMITS, ...limits }), log)
    await files.load(() => false)
    return files
  }
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return { folder, open, files: await open() }
}

t.test('an upload to a full disk fails and leaves nothing', async t => {
  const { folder, files } = await filesIn(t)
  await t.rejects(files.receive(caller, arriving('x'), { length: 2 ** 60, form }), {
    code: 'insufficient_storage',
    details: { required: 2 ** 60 }
  })
  for (const code of ['ENOSPC', 'EDQUOT']) {
    const full = async function* () {
      yield Buffer.from('the beginning')
      throw Object.assign(new Error('no space left'), { code })
    }
    await t.rejects(files.receive(caller, { filename: 'a', content: full() }, { form }), {
      code: 'insufficient_storage',
      message: /disk of the data directory is full/
    })
  }
  t.same(readdirSync(folder), [])
  t.same(files.list('alice'), [])
  t.match(await files.receive(caller, arriving('once ', 'there is room'), { form }), { bytes: 18 })
})

t.test('limits include running uploads and apply per owner', async t => {
  const { folder, files } = await filesIn(t)
  await files.receive(caller, arriving('x'.repeat(900)), { form })
  await t.rejects(files.receive(caller, arriving('x'.repeat(600), 'x'), { form }), {
    code: 'over_limit',
    details: { limit: 'api-batches.bytes', value: 1501, maximum: 1500 }
  })
  let goOn = () => {}
  const more = new Promise<void>(resolve => {
    goOn = resolve
  })
  let halfCame = () => {}
  const half = new Promise<void>(resolve => {
    halfCame = resolve
  })
  const slow = async function* () {
    yield Buffer.from('x'.repeat(500))
    halfCame()
    await more
  }
  const first = files.receive(caller, { filename: 'slow', content: slow() }, { form })
  await half
  await t.rejects(files.receive(caller, arriving('x'.repeat(101)), { form }), { code: 'over_limit' })
  await files.receive({ owner: 'bob' }, arriving('x'.repeat(1000)), { form })
  goOn()
  await first
  t.equal(files.list('alice').length, 2)
  t.equal(readdirSync(folder).length, 6, 'there are only contents and records')
})

t.test('files are deleted when they expire, unless a batch needs them', async t => {
  const { folder, files, open } = await filesIn(t)
  const stays = await files.receive(caller, arriving('stays'), { form: expiring })
  t.equal(stays.expiresAt! - stays.createdAt, 3600)
  const expires = await files.receive(caller, arriving('expires'), { form: expiring })
  const old = await files.receive(caller, arriving('old'), { form })
  const edit = (id: string, change: object) => {
    const path = join(folder, `${id}.json`)
    writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, 'utf8')), ...change }))
  }
  edit(expires.id, { expiresAt: secondsNow() - 1 })
  edit(old.id, { createdAt: secondsNow() - 61 })
  const later = await open()
  const ids = () => later.list('alice').map(({ id }) => id)
  await later.sweep(() => true)
  t.equal(ids().length, 3, 'a running batch needs the files')
  await later.sweep(() => false)
  t.same(ids(), [stays.id])
  t.same(readdirSync(folder).sort(), [`${stays.id}.json`, `${stays.id}.jsonl`].sort())
})
