import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { createKey, keyFilePath } from '../../plugins/people/security/key-file.ts'
import { corral as command, newHome } from '../command-line/command.ts'
import { startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { archiveName, engineArchive } from '../support/release-archives.ts'

// Installing an archive from the server's disk runs the programs in it.

t.test("only an admin may install an archive from the server's disk", async t => {
  const folder = newFolder(t)
  const mark = join(folder, 'it-was-run')
  const archive = join(folder, archiveName('b777'))
  const script = `#!/bin/sh\n: > '${mark}'\nexec "$(dirname "$0")/llama-server-real" "$@"\n`
  writeFileSync(archive, await engineArchive('b777', script))
  const corral = await startCorral(t)
  const port = new URL(corral.url).port
  const body = { archive, stream: false }

  const keyless: Record<string, string>[] = [
    {},
    { origin: 'http://localhost:3000' },
    { origin: 'app://x' },
    { 'x-api-key': 'any' }
  ]
  for (const headers of keyless) {
    for (const sent of [body, { ...body, stream: true }, { archive: '/etc/passwd' }, {}]) {
      const refused = await corral.json('/api/runtimes/install', sent, { headers })
      t.match(refused, { status: 403, body: { code: 'forbidden_role' } }, JSON.stringify({ headers, sent }))
    }
  }
  for (const path of ['/api/runtimes/use', '/api/runtimes/upgrade']) {
    t.match(await corral.json(path, { runtime: 'cpu' }), { status: 403, body: { code: 'forbidden_role' } })
  }
  t.equal((await corral.send('/api/runtimes/b1', undefined, { method: 'DELETE' })).status, 403)

  const page = { headers: { origin: 'http://localhost:3000' }, local: true }
  t.match(await corral.json('/api/runtimes/install', body, page), { status: 403, body: { code: 'origin_not_allowed' } })

  const elsewhere = newHome(t)
  const overTcp = await command(['runtime', 'install', archive, '--port', port], { home: elsewhere })
  t.match(overTcp, { code: 1, stderr: /role "admin".*used TCP without a key, since .*corral key create/s })

  for (const role of ['user', 'operator'] as const) {
    const { key } = await createKey(keyFilePath(corral), { name: role, role })
    await until('keys are needed', async () => (await corral.send('/api/tags')).status === 401)
    const headers = { authorization: `Bearer ${key}` }
    const refused = await corral.json('/api/runtimes/install', body, { headers })
    t.match(refused, { status: 403, body: { code: 'forbidden_role' } }, role)
  }
  t.equal((await corral.json('/api/runtimes/install', body)).status, 401)
  t.notOk(existsSync(mark), 'nothing in it was run')

  const installed = await command(['runtime', 'install', archive], { home: corral.home })
  t.match(installed, { code: 0 }, 'the user who runs the server may install it through the private socket')
  t.ok(existsSync(mark), 'the programs in it are run')
})
