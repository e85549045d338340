import { cpSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import hub from '../../examples/folder-hub/index.ts'
import { hubContract, startTestCorral } from '../../testing/index.ts'

/** A shared folder with one model: the demo model under another name. */
function sharedFolder(t: Test): string {
  const folder = t.testdir()
  mkdirSync(join(folder, 'team', 'helper'), { recursive: true })
  cpSync(join(packageRoot, 'plugins', 'models', 'storage', 'demo-model'), join(folder, 'team', 'helper'), {
    recursive: true
  })
  return folder
}

t.test('the example hub pulls models from a folder', async t => {
  const folder = sharedFolder(t)
  const corral = await startTestCorral({ plugins: [hub], config: `folder-hub: { folder: ${folder} }` })
  t.teardown(() => corral.close())
  t.match(await corral.plugin('folder-hub'), { state: 'active', needs: ['downloads'] })
  const pulled = await corral.json('/api/pull', { model: 'folder:team/helper', stream: false })
  t.match(pulled, { status: 200, body: { status: 'success' } })
  const { body } = await corral.json('/api/tags')
  const found = body.models.find((model: any) => model.model === 'team/helper')
  t.ok(found, 'it is listed')
  const messages = [{ role: 'user', content: 'hello from the folder' }]
  const answer = await corral.json('/v1/chat/completions', { model: 'team/helper', messages })
  t.equal(answer.body.choices[0].message.content, 'hello from the folder')
  t.match(await corral.json('/api/pull', { model: 'folder:team/nothing', stream: false }), {
    status: 404,
    body: { code: 'repo_not_found', error: /no model team\/nothing in the shared folder/ }
  })
})

t.test('the example hub fulfils the hub contract', async t => {
  const config = `folder-hub: { folder: ${sharedFolder(t)} }`
  await hubContract(hub, { id: 'team/helper', absent: 'team/nothing', config })
})

t.test('a plugin without a hub fails the hub contract', async t => {
  const none = { ...hub, setup: () => ({}) }
  await t.rejects(hubContract(none, { id: 'team/helper', absent: 'team/nothing' }), { message: /it adds a hub/ })
})
