import { join } from 'node:path'
import { strToU8, zipSync } from 'fflate'
import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral } from '../../support/corral.ts'
import { readFixture } from '../../support/fixture.ts'
import { newFolder } from '../../support/folder.ts'
import { ask, chooseForChat, ended, messageField, pageTests } from './support.ts'

const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)

const lines = (records: object[]) => records.map(record => JSON.stringify(record)).join('\n')
const json = (name: string, value: unknown) => ({
  name,
  mimeType: 'application/json',
  buffer: Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))
})
const picker = (page: Page) => page.getByLabel('Import chats')

test('chats of other programs are imported and continued', {}, async (t, { page }) => {
  const foreign = readFixture<Record<string, object[]>>('foreign-chats.yaml')
  const open = (title: string) => page.getByRole('link', { name: title, exact: true }).click()
  const systemMessage = async () => {
    await page.getByRole('button', { name: 'Chat settings' }).click()
    const system = await page.getByLabel('System message').inputValue()
    await page.keyboard.press('Escape')
    return system
  }
  const answer = page.getByRole('article', { name: /^Answer from/ })
  const archive = zipSync({
    '2026_conv_A1_rivers.jsonl': strToU8(lines(foreign['llama.cpp']!)),
    'conversations.json': strToU8(JSON.stringify(foreign.ChatGPT))
  })
  await picker(page).setInputFiles([
    { name: 'export.zip', mimeType: 'application/zip', buffer: Buffer.from(archive) },
    json('chat-export-1.json', foreign['Open WebUI']),
    json('1750000000000.conversation.json', foreign['LM Studio'])
  ])
  await page.getByText('4 chats imported.').waitFor()

  await open('Rivers')
  await answer.locator('strong').waitFor()
  t.match(await answer.innerText(), /Thoughts[\s\S]*The Nile\./)
  t.ok(await page.getByText('rivers.txt').isVisible())
  t.equal(await systemMessage(), 'Be brief.')
  await answer.getByRole('button', { name: 'Next version' }).click()
  await answer.getByText('The Amazon.').waitFor()
  t.ok(await answer.getByText('2 of 2').isVisible())

  await open('Soup')
  await answer.getByText('Lentil soup.').waitFor()
  t.match(await answer.innerText(), /Thoughts[\s\S]*Lentil soup\./)
  t.equal(await systemMessage(), 'You cook.')
  await open('Planets')
  await answer.getByText('Eight.').waitFor()
  t.equal(await page.getByRole('article').count(), 2)
  await open('Birds')
  await answer.getByText('No, they swim.').waitFor()
  t.ok(await answer.getByText('2 of 2').isVisible())
  t.equal(await systemMessage(), 'You know birds.')
  t.strictSame(await accessibilityFaults(page), [])
  // The model of the chat is not installed, so an installed one continues.
  await ask(page, CAPITAL_QUESTION.content)
  t.match(await (await ended(page)).innerText(), CAPITAL_ANSWER)

  await picker(page).setInputFiles(json('chat-export-1.json', foreign['Open WebUI']))
  await page.getByText('1 chat imported.').waitFor()
  t.equal(await page.getByRole('link', { name: 'Soup', exact: true }).count(), 1, 'a second import adds nothing')
  for (const [name, value] of [
    ['recipes.json', [{ title: 'Bread' }]],
    ['broken.jsonl', '{"type": "session"'],
    ['broken.zip', 'PK\u0003\u0004 and no more']
  ] as const) {
    await picker(page).setInputFiles(json(name, value))
    await page.getByRole('alert').getByText(`${name} contains no chats in a known format`).waitFor()
    await page.getByRole('alert').getByRole('button', { name: 'Close' }).click()
  }
})

interface Broken {
  chat?: object
  messages?: (object | null)[]
  presets?: object[]
  lines?: object[]
  file?: object
  fault: string
}

/** Makes the file: an export of this page with changes to its second chat, or a file of another program. */
function fileWith({ chat, messages = [], presets, lines: records, file }: Broken): unknown {
  if (file ?? records) return file ?? lines(records!)
  const about = { createdAt: 1, updatedAt: 1 }
  const message = (more: { id?: string } | null) =>
    more && { chat: 'bad', role: 'user', content: more.id ?? '', at: 1, ...more }
  return {
    corral: 'chats',
    version: 1,
    chats: [
      { id: 'good', title: 'Good', ...about, leaf: 'g' },
      { id: 'bad', title: 'Bad', ...about, ...chat }
    ],
    messages: [{ id: 'g', chat: 'good', role: 'user', content: 'Fine', at: 1 }, ...messages.map(message)],
    ...(presets && { presets })
  }
}

const DEPTH = 1000
const BROKEN: Record<string, Broken> = {
  ...readFixture<Record<string, Broken>>('broken-chats.yaml'),
  'deeply nested options': {
    chat: { options: JSON.parse(`${'{"a":'.repeat(DEPTH)}1${'}'.repeat(DEPTH)}`) },
    fault: '"Bad".*"options"'
  },
  'more messages than the page can show': {
    messages: Array.from({ length: 20_001 }, (_, at) => ({ id: `m${at}` })),
    fault: 'more than 20000 messages'
  }
}

test('files with broken chats are refused with the reason and import nothing', {}, async (t, { page }) => {
  const chats = page.locator('.chat-line')
  const alert = page.getByRole('alert')
  for (const [name, broken] of Object.entries(BROKEN)) {
    await picker(page).setInputFiles(json('broken.json', fileWith(broken)))
    await alert.getByText(/broken\.json/).waitFor()
    t.match(await alert.innerText(), new RegExp(broken.fault), name)
    await alert.getByRole('button', { name: 'Close' }).click()
    t.equal(await chats.count(), 0, `${name}: nothing is imported`)
  }
  await page.reload()
  await messageField(page).waitFor()
  t.equal(await chats.count(), 0)
})

test('a chat is exported as one HTML file with all that it shows', {}, async (t, { page, context }) => {
  const at = 1_750_000_000_000
  const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
  const image = { name: 'dot.png', kind: 'image', type: 'image/png', data: `data:image/png;base64,${pixel}` }
  const call = { id: 'c', server: 'files', tool: 'read', name: 'files_read', arguments: '{"path":"a"}', at: 0 }
  const content = '# Sum\n\n$x^2$\n\n- [x] done\n\n|a|\n|-:|\n|1|\n\n```js\nlet a\n```'
  const calls = [{ ...call, output: '<b>5</b>' }]
  const messages = [
    { id: 'm1', chat: 'c1', role: 'user', content: 'a < b', at, attachments: [image] },
    { id: 'm2', chat: 'c1', parent: 'm1', role: 'assistant', model: 'me/model', content, at: at + 1, calls }
  ]
  const chats = [{ id: 'c1', title: 'Sums', createdAt: at, updatedAt: at, leaf: 'm2' }]
  await picker(page).setInputFiles(json('chats.json', { corral: 'chats', version: 1, chats, messages }))
  await page.getByText('1 chat imported.').waitFor()
  const download = page.waitForEvent('download')
  await chooseForChat(page, 'Sums', 'Export as HTML')
  t.equal((await download).suggestedFilename(), 'Sums.html')
  const file = join(newFolder(t), 'Sums.html')
  await (await download).saveAs(file)
  const shown = await context.newPage()
  await shown.goto(`file://${file}`)
  t.equal(await shown.evaluate("document.querySelector('img').naturalWidth"), 1)
  t.equal(await shown.locator('math').count(), 1)
  t.ok(await shown.locator('input').isChecked())
  t.equal(await shown.evaluate("getComputedStyle(document.querySelector('td')).textAlign"), 'right')
  t.match(await shown.innerText('body'), /Sums\s+You, 2025-06-15.*a < b\s+me\/model.*files · read.*<b>5<\/b>/s)
  t.strictSame(await accessibilityFaults(shown), [])
  await screenshot(shown, 'exported')
})
