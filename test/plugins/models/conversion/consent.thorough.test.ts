import { existsSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { TINY_SAFETENSORS } from '../../../support/conversion-python.ts'
import { CAPITAL_ANSWER, startCorral } from '../../../support/corral.ts'
import { capital, importModel, MODEL, placeEnvironment, scriptedPython } from './support.ts'

// Nothing listens there, so an installation fails immediately.
const NO_INDEX = 'package_index: http://127.0.0.1:9/simple, torch_index: ""'

t.test('a load does not install the converter without consent', async t => {
  const config = `conversion: { ${NO_INDEX} }\n`
  const corral = await startCorral(t, { config, env: { PIP_RETRIES: '0', UV_HTTP_RETRIES: '0' } })
  await importModel(corral, TINY_SAFETENSORS)
  for (const path of ['/api/chat', '/v1/chat/completions', '/api/load', '/api/convert']) {
    const messages = [{ role: 'user', content: 'Hi' }]
    const { status, body } = await corral.json(path, { model: MODEL, messages, stream: false })
    const refusal = path.startsWith('/v1') ? body.error : body
    t.match([status, refusal.code], [503, 'conversion_not_installed'], path)
    const text = path.startsWith('/v1') ? refusal.message : refusal.error
    t.match(text, /about \d\.\d GB in .*"corral conversion install".*conversion\.install to auto/, path)
  }
  const { body } = await capital(corral, {})
  t.ok(body.required >= 1e9, 'bytes for programs')
  t.notOk(existsSync(join(corral.home, 'python')), 'nothing was started')

  const failed = (await corral.events('/api/conversion/install', {})).at(-1)
  t.match(failed, { code: 'conversion_failed' }, 'an operator starts it')
  t.match((await capital(corral, {})).body, { code: 'conversion_not_installed' }, 'refused again')

  await placeEnvironment(corral, scriptedPython(t).path)
  t.match((await corral.events('/api/conversion/install', {})).at(-1), { status: 'success' }, 'installed')
  t.equal((await capital(corral, {})).body.message.content, CAPITAL_ANSWER, 'no back-off delays it')
})

t.test('conversion.install: auto installs the converter on the first load', async t => {
  const corral = await startCorral(t, {
    config: `conversion: { install: auto, ${NO_INDEX} }\n`,
    env: { PIP_RETRIES: '0' }
  })
  await importModel(corral, TINY_SAFETENSORS)
  t.match((await capital(corral, {})).body, { code: 'conversion_failed' }, 'it was started')
})

t.test('users cannot install the converter', async t => {
  const corral = await startCorral(t, { config: `conversion: { ${NO_INDEX} }\n` })
  const { key } = (await corral.json('/api/keys', { name: 'someone', role: 'user' }, { local: true })).body
  const headers = { authorization: `Bearer ${key}` }
  const { status, body } = await corral.json('/api/conversion/install', { stream: false }, { headers })
  t.match([status, body.code], [403, 'forbidden_role'])
})
