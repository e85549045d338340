import { createHash, randomBytes } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { DEMO, startCorral, until } from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'

const home = newFolder(t)
const models = join(home, 'models')
const partsOf = () => readdirSync(join(models, '.blobs')).filter(name => name.endsWith('.part'))
const sha256 = (content: Buffer) => createHash('sha256').update(content).digest('hex')

/** Sends only the beginning of a file. */
function beginUpload(url: string, digest: string) {
  const upload = request(`${url}/ollama/api/blobs/sha256:${digest}`, {
    method: 'POST',
    headers: { 'content-length': 10_000_000 }
  })
  upload.on('error', () => {})
  upload.write(randomBytes(100_000))
  return upload
}

t.test('a server killed during an upload keeps nothing of the file', async t => {
  const corral = await startCorral(t, { home })
  const digest = 'a'.repeat(64)
  const cut = beginUpload(corral.url, digest)
  await until('the upload starts', () =>
    corral
      .json('/api/health')
      .then(() => partsOf().length === 1)
      .catch(() => false)
  )
  cut.destroy()
  await until('an aborted upload is deleted', () => partsOf().length === 0)

  beginUpload(corral.url, digest)
  await until('the upload starts', () => partsOf().length === 1)
  await corral.end('SIGKILL')
  t.equal(partsOf().length, 1)
  const next = await startCorral(t, { home })
  t.strictSame(readdirSync(join(models, '.blobs')), [])
  t.equal((await next.send(`/ollama/api/blobs/sha256:${digest}`, undefined, { method: 'HEAD' })).status, 404)
  await next.end()
})

t.test('a server killed while creating models contains only complete models', async t => {
  let corral = await startCorral(t, { home })
  for (let round = 0; round < 2; round++) {
    const killed = corral
    let made = 0
    const work = Array.from({ length: 12 }, (_, index) =>
      killed
        .json('/ollama/api/create', {
          model: `me/m${index % 4}`,
          from: DEMO,
          system: `You are number ${round}.${index}.`,
          stream: false
        })
        .then(() => made++)
        .catch(() => undefined)
    )
    if (round === 0) await sleep(20)
    else await until('some models are created', () => made > 2)
    await killed.end('SIGKILL')
    await Promise.all(work)

    const next = await startCorral(t, { home })
    corral = next
    const staging = join(models, '.staging')
    t.strictSame(existsSync(staging) ? readdirSync(staging) : [], [], 'no incomplete files are left')
    const { body } = await next.json('/api/tags')
    for (const { name } of body.models) {
      const shown = (await next.json('/api/show', { model: name })).body
      const [owner, model] = name.split('/')
      const folders = readdirSync(join(models, owner, model), { withFileTypes: true })
      const revisions = folders.filter(entry => entry.isDirectory())
      t.equal(revisions.length, 1, `${name} has one set of files`)
      for (const file of shown.files) {
        t.equal(sha256(readFileSync(join(models, owner, model, revisions[0]!.name, file.path))), file.sha256)
      }
      if (owner === 'me') t.match(shown.system, /^You are number \d\.\d+\.$/)
    }
  }
})
