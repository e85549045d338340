import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { BrowserContext, Page } from 'playwright-core'
import t from 'tap'
import { randomEncoder } from '../../../scripts/random-models.ts'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { newFolder } from '../../support/folder.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { pdfWith } from '../../support/pdf.ts'
import { answered, ask, choose, deleteChat, ended, pageTests, setOptions, startWriter } from './support.ts'

const EMBEDDER = 'nomic-ai/nomic-embed-text-v1.5-GGUF'
const words = [['lighthouse', 'beacon'], ['keeper', 'warden'], ['wrote'], ['field'], ['harvest'], ['rain']]
const encoder = (seed: number) => randomEncoder('embedding', seed, { words })
const hub = await startHubEmulator(t, {
  repositories: { [EMBEDDER]: { files: { 'nomic-embed-text-v1.5.Q8_0.gguf': encoder(1) } } }
})
/** Cites a passage, and tries to write something else that can be clicked. */
const remote = await startWriter(t, write =>
  write({ content: 'The code is 4711 [1, 2]. Not [0], [77] or `[1]`: <button>[1]</button> [1](javascript:alert(1))' })
)
const corral = await startCorral(t, {
  env: { HF_ENDPOINT: hub.url },
  config: `${remote}defaults:\n  temperature: 0\nweb:\n  conversations: server\n`
})
const test = pageTests(t, corral.url)

const SECRET = 'The keeper of the lighthouse wrote: the code is 4711.'
const FACT_PAGE = 57
const OTHER_QUESTION = 'What code has the lighthouse?'
const pages = Array.from({ length: 100 }, (_, at) =>
  at === FACT_PAGE - 1 ? SECRET : `Harvest ${at}. ${'rain on the field '.repeat(12)}`
)
const REPORT = { name: 'report.pdf', mimeType: 'application/pdf', buffer: pdfWith(...pages) }

const attach = async (page: Page, ...files: (typeof REPORT)[]) => {
  await page.locator('input[aria-label="Add files"]').setInputFiles(files)
  for (const { name } of files) await page.getByRole('button', { name: `Remove ${name}` }).waitFor()
}
/** Follows the prompts of the page. @returns the last message of the newest one */
function followPrompts(context: BrowserContext): () => string {
  let last = ''
  context.on('request', request => {
    if (!request.url().endsWith('/v1/chat/completions')) return
    last = JSON.stringify(request.postDataJSON().messages.at(-1).content)
  })
  return () => last
}
/** Documents whose vectors are stored, with the number of their passages. */
const stored = (page: Page) =>
  page.evaluate(`new Promise(resolve => {
    const opening = indexedDB.open('corral-passages ')
    opening.onsuccess = () => {
      const all = opening.result.transaction('entries').objectStore('entries').getAll()
      all.onsuccess = () => resolve(all.result.filter(({ id }) => id !== '').map(({ version, count }) => ({ version, count })))
    }
  })`) as Promise<{ version: string; count: number }[]>
const documents = (page: Page) => page.getByRole('button', { name: /^Documents: / })

test(
  'the right passage of a long PDF is sent, and its citation opens the page',
  {},
  async (t, { page, context }, open) => {
    const prompt = followPrompts(context)
    await choose(page, DEMO)
    await setOptions(page, { num_ctx: '1024', max_tokens: '16' })
    await attach(page, REPORT)
    const first = await answered(page, 'Which code has the lighthouse?')
    t.match(prompt(), `[1] \\"report.pdf\\", page ${FACT_PAGE}\\n${SECRET}`, 'found by its words')
    await first.getByText('Found by words only.').waitFor()
    t.strictSame(await accessibilityFaults(page), [])

    t.comment('an embedding model is offered and downloaded with one click')
    await documents(page).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText(/100 pages · about [\d,]+ tokens/).waitFor()
    const offer = dialog.getByRole('listitem').filter({ hasText: EMBEDDER })
    t.strictSame(await accessibilityFaults(page), [])
    await screenshot(page, 'documents')
    await offer.getByRole('button', { name: /^Download/ }).click()
    await until('all passages have vectors', async () => (await stored(page))[0]?.count === 100)
    await offer.waitFor({ state: 'hidden' })
    await page.keyboard.press('Escape')
    const second = await answered(page, 'What did the beacon warden write?')
    t.match(prompt(), SECRET, 'found by its meaning')
    t.equal(await second.getByText('Found by words only.').count(), 0)

    t.comment('citations, also after a reload and in another browser')
    await choose(page, 'far/writer')
    await ask(page, 'Which code has the lighthouse?')
    const cited = async (page: Page, context = /Harvest 55.*57/s) => {
      const answer = await ended(page, 'far/writer')
      t.match(await answer.innerText(), 'The code is 4711 [1][2]. Not [0], [77] or [1]: <button>[1]</button> 1')
      t.equal(await answer.locator('.part button').count(), 3, 'nothing else can be clicked')
      t.equal(await answer.locator('.part a, .part code button').count(), 0)
      await answer.locator('.part button').first().click()
      const dialog = page.getByRole('dialog', { name: 'Passage 1: report.pdf' })
      await dialog.getByText(`page ${FACT_PAGE}`).waitFor()
      t.equal(await dialog.locator('mark').innerText(), SECRET)
      t.match(await dialog.locator('.passage').innerText(), context)
      t.strictSame(await accessibilityFaults(page), [])
      await screenshot(page, 'passage')
      await page.keyboard.press('Escape')
    }
    await cited(page)
    await page.reload()
    await cited(page)
    await until('the server has the chat', async () => {
      const { conversations } = (await corral.json('/api/conversations')).body
      const { document } = (await corral.json(`/api/conversations/${conversations[0].id}`)).body
      return document.messages.some(({ content }: { content: string }) => content.startsWith('The code'))
    })
    const other = await open()
    await other.page.getByRole('link', { name: 'Which code has the lighthouse?' }).click()
    await cited(other.page)

    t.comment('a removed document is removed everywhere, and its passages stay')
    await documents(other.page).click()
    await other.page.getByRole('button', { name: 'Remove report.pdf' }).click()
    await documents(other.page).waitFor({ state: 'hidden' })
    await cited(other.page, /^\s*The keeper[^\n]*\s*$/)
    await until('the other browser removes it', async () => {
      await page.evaluate("dispatchEvent(new Event('focus'))")
      return (await documents(page).count()) === 0
    })
    await until('its vectors are deleted', async () => (await stored(page)).length === 0)
  }
)

test(
  'one tab prepares the search, continues after a reload, and can be stopped',
  { mayFail: true },
  async (t, { page, context }) => {
    /** Passages that were embedded, and how many requests may still be answered. */
    const embedded: string[] = []
    let left = 2
    await context.route('**/api/embed', async route => {
      const { input } = route.request().postDataJSON()
      const isQuestion = input[0].startsWith('search_query')
      if (!isQuestion) await until('the request may be answered', () => left > 0)
      left -= isQuestion ? 0 : 1
      const response = await route.fetch().catch(() => undefined)
      if (!response) return
      await route.fulfill({ response }).then(
        () => embedded.push(...input),
        () => undefined
      )
    })
    const progress = (page: Page) => page.getByRole('progressbar', { name: 'Preparing the search' })
    const prompt = followPrompts(context)
    await choose(page, DEMO)
    await setOptions(page, { num_ctx: '1024', max_tokens: '16' })
    await attach(page, REPORT)
    await ask(page, OTHER_QUESTION)
    await page.getByText('Reading the documents 32%').waitFor()
    t.strictSame(await accessibilityFaults(page), [])
    const other = await context.newPage()
    await other.goto(page.url())
    await progress(other).waitFor()
    t.equal(await progress(other).getAttribute('value'), '32')
    await page.reload()
    await progress(page).waitFor()
    t.equal(prompt(), '', 'the question waits')
    left = 2
    await until('two more requests are answered', () => embedded.length === 64)

    t.comment('the user does not wait any longer')
    await page.getByRole('button', { name: 'Stop preparing the search' }).click()
    await progress(other).waitFor({ state: 'hidden' })
    await (await ended(page)).getByText(/^Passages/).waitFor()
    t.match(prompt(), SECRET)
    await page.reload()
    left = 10
    await page.getByRole('button', { name: 'Resume' }).click()
    await until('all passages have vectors', async () => (await stored(page))[0]?.count === 100)
    const passages = embedded.filter(text => text.startsWith('search_document'))
    // The reload and the stop each lost the answer to one request.
    t.ok(passages.length <= 100 + 2 * 16, `${passages.length} passages were embedded`)

    t.comment('another embedding model')
    left = 100
    const file = join(newFolder(t), 'other.gguf')
    writeFileSync(file, encoder(2))
    await corral.json('/api/import', { path: file, model: 'me/other', stream: false }, { local: true })
    await documents(page).click()
    await page.getByRole('dialog').getByRole('combobox').selectOption('me/other')
    await until('the vectors are made again', async () => {
      const [entry] = await stored(page)
      return entry?.version.startsWith('me/other') && entry.count === 100
    })
    await page.keyboard.press('Escape')
    await deleteChat(page, OTHER_QUESTION)
    await until('the vectors are deleted', async () => (await stored(page)).length === 0)
  }
)

test('documents of a project are for all of its chats', { mayFail: true }, async (t, { page, context }, open) => {
  const prompt = followPrompts(context)
  await page.getByRole('button', { name: 'New project' }).click()
  await page.getByRole('textbox', { name: 'Name' }).fill('Lighthouse')
  await page.keyboard.press('Enter')
  await choose(page, DEMO)
  await setOptions(page, { num_ctx: '1024', max_tokens: '16' })
  const photo = { name: 'photo.png', mimeType: 'image/png', buffer: Buffer.from('x') }
  const note = { name: 'note.txt', mimeType: 'text/plain', buffer: Buffer.from('The warden is called Ada.') }
  await page.getByLabel('Add documents').setInputFiles([REPORT, note, photo])
  await page.getByText('photo.png is not a PDF or a text file.').waitFor()
  await page.getByRole('button', { name: 'Documents: 2' }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await screenshot(page, 'project documents')
  await page.setViewportSize({ width: 375, height: 700 })
  t.equal(await page.evaluate('document.documentElement.scrollWidth'), 375)
  await page.setViewportSize({ width: 1280, height: 720 })

  t.comment('a chat searches them, and its citations open them')
  const first = await answered(page, OTHER_QUESTION)
  t.match(prompt(), SECRET)
  await first
    .getByRole('button', { name: /^Passage 1/ })
    .last()
    .click()
  t.match(
    await page.getByRole('dialog', { name: 'Passage 1: report.pdf' }).locator('.passage').innerText(),
    /Harvest 55/
  )
  await page.keyboard.press('Escape')
  await until('the project has the vectors', async () => (await stored(page)).length === 2)
  await documents(page).click()
  await page.getByRole('dialog').getByText('from the project Lighthouse').first().waitFor()
  t.equal(await page.getByRole('button', { name: /^Remove/ }).count(), 0)
  await page.keyboard.press('Escape')

  t.comment('other browsers have them, too')
  const other = await open()
  const otherPrompt = followPrompts(other.context)
  await other.page.getByRole('link', { name: 'Lighthouse', exact: true }).click()
  await other.page.getByRole('button', { name: 'Documents: 2' }).waitFor()
  await answered(other.page, 'What is the warden called?')
  t.match(otherPrompt(), 'The warden is called Ada.')
  await other.page.getByRole('link', { name: 'Lighthouse', exact: true }).click()
  await documents(other.page).click()
  await other.page.getByRole('button', { name: 'Remove report.pdf' }).click()
  await other.page.getByRole('button', { name: 'Remove report.pdf' }).waitFor({ state: 'hidden' })
  await until('the other browser removes it', async () => {
    await page.evaluate("dispatchEvent(new Event('focus'))")
    return page.getByRole('button', { name: 'Documents: 1' }).isVisible()
  })
  await until('its vectors are deleted', async () => (await stored(page)).length === 1)

  t.comment('they are deleted with the project')
  await page.getByRole('button', { name: 'More: Lighthouse' }).click()
  await page.locator('.menu-list').getByRole('button', { name: 'Delete' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Keep its chats' }).click()
  await documents(page).waitFor({ state: 'hidden' })
  await until('the vectors are deleted', async () => (await stored(page)).length === 0)
  await answered(page, 'What is the warden called?')
  t.notMatch(prompt(), 'Ada')
})
