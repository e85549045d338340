import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { DEMO, startCorral } from '../support/corral.ts'
import { corral } from './command.ts'

t.test('bench --tune tries settings of the real engine and saves faster ones', async t => {
  const server = await startCorral(t, { threads: 1 })
  const { home } = server
  const before = readFileSync(join(home, 'config.yaml'), 'utf8')
  const { code, stdout, stderr } = await corral(['bench', DEMO, '--tune', '--quick', '--yes', '--json'], { home })
  t.equal(code, 0, stderr)
  const { steps, settings, confirmation, written } = JSON.parse(stdout)
  for (const name of ['threads', 'flash attention', 'batch', 'guessing ahead from the text', 'KV cache']) {
    t.ok(
      steps.some((step: { name: string }) => step.name === name),
      name
    )
  }
  t.match(steps.at(-1), { name: 'KV cache', result: 'changes answers' })
  const after = readFileSync(join(home, 'config.yaml'), 'utf8')
  if (written) {
    t.match(confirmation, { result: 'faster' })
    t.match(parse(after).models[DEMO], settings)
    t.equal(readFileSync(join(home, 'config.yaml.bak'), 'utf8'), before)
  } else t.equal(after, before)
  t.match(await corral(['config', 'check'], { home }), { code: 0 })
  t.match(await server.json('/api/generate', { model: DEMO, prompt: 'Hi', stream: false }), { status: 200 })
})
