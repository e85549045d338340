import { chmodSync, mkdirSync, readdirSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { serverFolders, withoutServerPaths } from '../../core/http/server-folders.ts'
import { DEMO, startCorral } from '../support/corral.ts'

t.test("texts lose only the server's paths", t => {
  const folders = serverFolders({ home: '/srv/a.b', models: '/srv/a.b/models' })
  for (const [text, shown] of [
    ['The disk of /srv/a.b/models is full.', 'The disk of <models> is full.'],
    ['/srv/a.b/models/o/x, /srv/a.b', '<models>/o/x, <data directory>'],
    ['/srv/a.bc and /srv/axb stay, as does POST /api/create', '/srv/a.bc and /srv/axb stay, as does POST /api/create'],
    [`${homedir()}/.ollama`, '~/.ollama'],
    [`/mnt${homedir()}/x stays`, `/mnt${homedir()}/x stays`]
  ] as const) {
    t.strictSame(withoutServerPaths({ list: [text, 1, null] }, folders), { list: [shown, 1, null] })
  }
  t.end()
})

t.test('no reply to a network client reveals where the server stores its files', async t => {
  const corral = await startCorral(t)
  const { home } = corral
  const models = join(home, 'models')
  const roots = [home, models]
  const replies: { what: string; text: string }[] = []
  const look = async (what: string, path: string, body?: unknown, method?: string) => {
    const reply = await corral.send(path, body, { ...(method && { method }) })
    replies.push({ what: `${what}: ${method ?? ''} ${path} ${reply.status}`, text: await reply.text() })
    return reply.status
  }
  // Errors of an import of the server's own files.
  for (const path of [
    home,
    models,
    join(models, 'none.gguf'),
    join(home, 'version'),
    join(models, 'corral', 'tiny-chat')
  ]) {
    await look('an import', '/api/import', { model: 'me/x', path })
  }
  const link = join(models, 'link')
  symlinkSync(link, link)
  await look('an import through a loop', '/api/import', { model: 'me/x', path: link })
  rmSync(link)
  // A folder in the way of a model, and a folder with a damaged manifest.
  writeFileSync(join(models, 'file'), '')
  t.not(await look('a file in the way', '/api/copy', { source: DEMO, destination: 'file/x' }), 200)
  mkdirSync(join(models, 'bad', 'one'), { recursive: true })
  writeFileSync(join(models, 'bad', 'one', 'manifest.json'), '{')
  t.not(await look('a damaged manifest', '/api/copy', { source: DEMO, destination: 'bad/one' }), 200)
  // A model whose files are damaged, then deleted.
  await look('a copy', '/api/copy', { source: DEMO, destination: 'me/cut' })
  const folder = join(models, 'me', 'cut')
  const revision = readdirSync(folder).find(name => name !== 'manifest.json')!
  const file = join(folder, revision, 'tiny-chat-f16.gguf')
  rmSync(file)
  writeFileSync(file, 'GGUF')
  truncateSync(file, 4096)
  const asking = { model: 'me/cut', messages: [{ role: 'user', content: 'Hi' }], max_tokens: 5 }
  const paths =
    '/api/chat /ollama/api/chat /v1/chat/completions /v1/messages /chat/completions /api/v0/chat/completions'
  for (const damage of ['damaged', 'gone']) {
    for (const path of [...paths.split(' '), '/api/load', '/v1/responses']) {
      for (const stream of [false, true]) await look(`a ${damage} model`, path, { ...asking, input: 'Hi', stream })
    }
    if (damage === 'damaged') rmSync(join(folder, revision), { recursive: true })
  }
  await look('a copy of a model that is gone', '/api/copy', { source: 'me/cut', destination: 'me/again' })
  // A read-only folder. The superuser may write to it all the same.
  chmodSync(models, 0o555)
  await look('a folder that cannot be written', '/api/create', { model: 'new/one', from: DEMO, system: 'x' })
  chmodSync(models, 0o755)
  await look('a default', '/api/default', { model: 'me/cut' })
  await look('a file that is gone', '/api/files/me/cut')
  // Lists and records about all of this.
  for (const model of [DEMO, 'me/cut']) {
    await look('show', '/api/show', { model })
    await look('show', '/ollama/api/show', { model })
    await look('logs', `/api/logs/${model}`)
  }
  const lists =
    '/api/tags /api/ps /v1/models /models /api/pulls /api/runtimes /api/plugins /api/hardware /metrics /props /api/settings'
  for (const path of lists.split(' ')) await look('a list', path)
  for (const { what, text } of replies) {
    const found = roots.find(root => text.includes(root))
    t.notOk(
      found,
      `${what}${found ? `: ${text.slice(Math.max(0, text.indexOf(found) - 80), text.indexOf(found) + 120)}` : ''}`
    )
  }
  t.ok(
    replies.filter(({ text }) => /<models>|<data directory>/.test(text)).length > 0,
    'some errors would have contained a path'
  )

  const imported = await corral.json('/api/import', { model: 'me/x', path: join(models, 'none.gguf') }, { local: true })
  t.match(imported.body.error, models, 'the user who runs the server sees the path')
})
