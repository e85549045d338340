import t from 'tap'
import { DEMO, newKey, startCorral } from '../../support/corral.ts'
import { newFolder } from '../../support/folder.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { MIB, NO_SETTINGS, quantizedModels } from '../models/download/support.ts'
import { answered, pageTests } from './support.ts'

const RECOMMENDED = 'Qwen/Qwen3-4B-GGUF'
const QUESTION = 'What is the capital of France?'
const hub = await startHubEmulator(t, {
  // Slow enough for the page to see the download.
  bandwidth: { total: 2 * MIB },
  repositories: {
    [RECOMMENDED]: {
      files: {
        'Qwen3-4B-Q4_K_M.gguf': quantizedModels().Q4_K_M,
        'README.md': '---\nlicense: mit\n---\n# Speaks well\n'
      }
    }
  }
})
const options = {
  home: newFolder(t),
  env: { ...NO_SETTINGS, HF_ENDPOINT: hub.url },
  config: 'defaults:\n  temperature: 0\n'
}
const corral = await startCorral(t, options)
const key = await newKey(corral, 'newcomer', { role: 'operator' })
const test = pageTests(t, corral.url)

test('a newcomer gets a model, chats and is still signed in the next day', { mayFail: true }, async (t, opened) => {
  const { page, context } = opened
  await page.getByLabel('Key', { exact: true }).fill(key)
  await page.getByLabel('Stay signed in').check()
  await page.getByRole('button', { name: 'Continue' }).click()
  await answered(page, QUESTION, DEMO)
  await page.evaluate('globalThis.isSamePage = true')

  t.comment('a recommended model')
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  await page.getByRole('link', { name: 'Discover' }).click()
  const list = page.getByRole('region', { name: 'Models that fit this machine' })
  const all = list.getByRole('button', { name: 'Show models that are too large' })
  await list
    .getByText(/needs .* of memory/)
    .first()
    .waitFor()
  if (await all.isVisible()) await all.click()
  await list.getByRole('listitem').filter({ hasText: RECOMMENDED }).getByRole('button', { name: 'Choose' }).click()
  const dialog = page.getByRole('dialog', { name: RECOMMENDED })
  await dialog.getByRole('heading', { name: 'Speaks well' }).waitFor()
  await dialog.getByRole('button', { name: /^Download/ }).click()
  const notice = page.getByRole('status').filter({ hasText: `${RECOMMENDED} is installed.` })
  await notice.getByRole('button', { name: 'Chat' }).click()
  await answered(page, QUESTION, RECOMMENDED)
  t.equal(await page.evaluate('globalThis.isSamePage'), true, 'all within the page')
  await page.close()

  t.comment('the next day, after a restart of the server')
  await corral.end()
  await startCorral(t, { ...options, flags: ['--port', new URL(corral.url).port] })
  const next = await context.newPage()
  await next.clock.install({ time: Date.now() + 86_400_000 })
  await next.goto(corral.url)
  await next.getByRole('link', { name: QUESTION }).first().waitFor()
  await next.getByRole('button', { name: `Model: ${RECOMMENDED}` }).waitFor()
  await answered(next, QUESTION, RECOMMENDED)
  t.equal(await next.getByLabel('Key', { exact: true }).count(), 0)
  const { expires } = (await context.cookies()).find(({ name }) => name.startsWith('corral_'))!
  t.ok(expires * 1000 > Date.now() + 86_400_000, 'the session lasts for days')
})
