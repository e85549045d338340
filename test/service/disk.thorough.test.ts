import { createHash } from 'node:crypto'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_ANSWER, type Corral, capital, DEMO, startCorral } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { noSmallDisk, smallDisk } from '../support/small-disk.ts'

/* Errors that clients see when nothing can be written: on a full disk, and on a read-only one. */

const FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const BLOB = Buffer.alloc(1e6, 'x')
const LOCAL = { local: true }
const hub = await startHubEmulator(t, {
  repositories: { 'test/repo': { files: { 'model-f16.gguf': readFileSync(FILE) } } }
})

/** One write of each kind, by the folder that it goes to. */
const WRITES: Record<'home' | 'models', Record<string, (corral: Corral) => Promise<{ status: number; body: any }>>> = {
  home: {
    'keep a conversation': corral =>
      corral.json(
        '/api/conversations/one',
        { title: 'A chat', document: { text: 'x'.repeat(1e5) } },
        { method: 'PUT', ...LOCAL }
      ),
    'send a file': async corral => {
      const form = new FormData()
      form.set('purpose', 'batch')
      form.set('file', new Blob(['x'.repeat(1e5)]), 'requests.jsonl')
      const reply = await fetch(`${corral.url}/v1/files`, { method: 'POST', body: form })
      return { status: reply.status, body: await reply.json() }
    },
    'begin a capture': corral => corral.json('/api/captures', { model: DEMO, for: '1m' }, LOCAL),
    // This write comes last: afterwards requests need a key.
    'make a key': corral => corral.json('/api/keys', { name: 'alice' }, LOCAL)
  },
  models: {
    import: corral => corral.json('/api/import', { model: 'test/imported', path: FILE, copy: true }, LOCAL),
    create: corral =>
      corral.json('/api/create', { model: 'test/made', from: DEMO, system: 'Hi.', stream: false }, LOCAL),
    pull: corral => corral.json('/api/pull', { model: 'test/repo', stream: false }, LOCAL),
    'send a blob': async corral => {
      const digest = createHash('sha256').update(BLOB).digest('hex')
      const reply = await fetch(`${corral.url}/api/blobs/sha256:${digest}`, { method: 'POST', body: BLOB })
      return { status: reply.status, body: reply.ok ? undefined : await reply.json() }
    }
  }
}

async function serverOn(t: Test, place: 'home' | 'models') {
  const disk = smallDisk(t, '48m')
  const home = place === 'home' ? disk.folder : t.testdir()
  const env = { HF_ENDPOINT: hub.url, HF_HOME: join(home, 'hf'), HF_TOKEN: '', CORRAL_MODELS: '' }
  if (place === 'models') env.CORRAL_MODELS = disk.folder
  const corral = await startCorral(t, { config: 'web:\n  conversations: server\n', env, home })
  return { disk, corral }
}

async function answer(corral: Corral): Promise<string | undefined> {
  const question = capital()
  return (await corral.json('/api/chat', question)).body.message?.content
}

async function refusesAll(t: Test, corral: Corral, place: 'home' | 'models', code: string, why: RegExp) {
  for (const [what, write] of Object.entries(WRITES[place])) {
    const { status, body } = await write(corral)
    // On /v1 the error is an object.
    const { code: found, message } = body?.error?.code ? body.error : { ...body, message: body?.error }
    t.match({ status, code: found, message }, { status: 507, code, message: why }, what)
    t.notMatch(JSON.stringify(body), corral.home, `${what}: no path of the server`)
  }
  t.equal(await answer(corral), CAPITAL_ANSWER, 'it still answers')
}

const skip = noSmallDisk()
for (const place of ['home', 'models'] as const) {
  t.test(`requests report a full or read-only disk and succeed afterwards: ${place}`, { skip }, async t => {
    const { disk, corral } = await serverOn(t, place)
    await answer(corral)
    const filler = join(disk.folder, 'filler')
    t.throws(() => writeFileSync(filler, Buffer.alloc(48 << 20)), { code: 'ENOSPC' })
    await refusesAll(t, corral, place, 'insufficient_storage', /disk .*(is full|free)/)

    rmSync(filler)
    // The data directory has open files, so it cannot be remounted.
    if (place === 'models') {
      disk.remount('ro')
      await refusesAll(t, corral, place, 'storage_not_writable', /is read-only\. Make it writable/)
      disk.remount('rw')
    }
    for (const [what, write] of Object.entries(WRITES[place])) {
      const { status, body } = await write(corral)
      t.ok(status < 300, `${what}: ${status} ${JSON.stringify(body)}`)
    }
  })
}
