import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral } from '../../../support/corral.ts'
import { writeGguf } from '../../../support/gguf-writer.ts'

const SAFETENSORS = join(packageRoot, 'test', 'fixtures', 'tiny-chat-safetensors')

async function filesOf(corral: Corral, name: string) {
  const { body } = await corral.json(`/api/files/${name}`)
  return body.variants?.map(({ label, format, digest, files }: any) => ({ label, format, digest, files }))
}

t.test('one corral pulls models from another', async t => {
  const giver = await startCorral(t, { config: 'security:\n  api_keys: [secret]' })
  const headers = { authorization: 'Bearer secret' }
  const dir = t.testdir()
  for (const [label, seed] of [
    ['Q4_K_M', 4],
    ['Q8_0', 8]
  ] as const) {
    const path = join(dir, `m-${label}.gguf`)
    writeGguf(path, { tensors: [{ name: 'w', shape: [1024, 1024] }], seed })
    t.equal((await giver.json('/api/import', { path, model: 'me/two' }, { headers })).status, 200)
  }
  t.equal((await giver.json('/api/import', { path: SAFETENSORS, model: 'me/st' }, { headers })).status, 200)
  const given = async (name: string) => {
    const { body } = await giver.json(`/api/files/${name}`, undefined, { headers })
    return body.variants.map(({ label, format, digest, files }: any) => ({ label, format, digest, files }))
  }

  const taker = await startCorral(t, {
    config: `storage:\n  demo_model: false\ncorral-hub:\n  endpoint: ${giver.url}\n  token: secret`
  })
  const host = new URL(giver.url).host
  const events = await taker.events('/api/pull', { model: `corral://${host}/${DEMO}` })
  t.match(events.at(-1), { status: 'success' })
  t.same(await filesOf(taker, DEMO), await given(DEMO), 'has the same files with the same digests')
  const { body } = await taker.json('/api/chat', {
    model: DEMO,
    messages: [CAPITAL_QUESTION],
    stream: false,
    options: { temperature: 0 }
  })
  t.equal(body.message?.content, CAPITAL_ANSWER)

  t.match((await taker.events('/api/pull', { model: 'corral:me/two:Q8_0' })).at(-1), { status: 'success' })
  const [q8] = (await given('me/two')).filter(({ label }: any) => label === 'Q8_0')
  t.same(await filesOf(taker, 'me/two'), [q8], 'pulls one of two quantizations')
  t.match((await taker.events('/api/pull', { model: 'corral:me/st' })).at(-1), { status: 'success' })
  t.same(await filesOf(taker, 'me/st'), await given('me/st'), 'pulls a SafeTensors model')

  t.match(await taker.json('/api/pull', { model: 'corral:me/none' }), { status: 404, body: { code: 'repo_not_found' } })
  const stranger = await startCorral(t, {
    config: 'storage:\n  demo_model: false\ndownloads:\n  private_addresses: [127.0.0.1]'
  })
  t.match(await stranger.json('/api/pull', { model: `corral://${host}/${DEMO}` }), {
    status: 403,
    body: { code: 'hub_forbidden', error: /API key/ }
  })
})
