import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { startCorral } from '../../support/corral.ts'
import { readFixture } from '../../support/fixture.ts'
import { newFolder } from '../../support/folder.ts'
import {
  answered,
  answersOf,
  becomesReady,
  chooseForChat,
  messageField,
  pageTests,
  preferWriter,
  recordTasks,
  renameChat,
  startWriter,
  widthOf
} from './support.ts'

type Parts = (string | [part: string, times: number])[]
const { hostile, costly } = readFixture<Record<'hostile' | 'costly', Record<string, Parts>>>('hostile-markdown.yaml')
const write = (parts: Parts) => parts.map(part => (typeof part === 'string' ? part : part[0].repeat(part[1]))).join('')
const writeAll = (texts: Record<string, Parts>): [string, string][] =>
  Object.entries(texts).map(([name, parts]) => [name, write(parts)])
const nestedLists = (depth: number) => Array.from({ length: depth }, (_, at) => `${'  '.repeat(at)}- ${at}`).join('\n')
const HOSTILE = new Map([...writeAll(hostile), ['nested lists', nestedLists(200)]])
const COSTLY = new Map([...writeAll(costly), ['deeply nested lists', nestedLists(500)]])

const config = await startWriter(t, async (write, { messages }) => {
  const question: string = messages.at(-1).content
  const text = HOSTILE.get(question) ?? COSTLY.get(question)!
  for (let at = 0; at < text.length; at += 2000) {
    write({ content: text.slice(at, at + 2000) })
    // The page parses the answer again and again while it grows.
    if (COSTLY.has(question)) await sleep(10)
  }
})
const corral = await startCorral(t, { config })
const test = pageTests(t, corral.url)

const ACTIVE = 'script, svg:not(.icon), img, iframe, [onclick], [onload], [onerror]'

test('output of malicious models is shown, runs nothing and loads nothing', {}, async (t, { page, context }) => {
  const elsewhere: string[] = []
  context.on('request', request => {
    if (!new RegExp(`^(data:|file:.*html|blob:${corral.url}|${corral.url})`).test(request.url()))
      elsewhere.push(request.url())
  })
  const file = join(newFolder(t), 'chat.html')
  const exported = await context.newPage()
  exported.on('console', message => void elsewhere.push(message.text()))
  const saveAs = async (title: string) => {
    const download = page.waitForEvent('download')
    await chooseForChat(page, title, 'Export as HTML')
    await (await download).saveAs(file)
    await exported.goto(`file://${file}`)
    await page.bringToFront()
  }
  await preferWriter(page)
  for (const [name, text] of HOSTILE) {
    await page.goto(`${corral.url}/#/chat`)
    await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
    const answer = await answered(page, name, 'far/writer')
    t.equal(await answer.locator(ACTIVE).count(), 0, `${name}: nothing active`)
    t.equal(await answer.locator('a:not([href^="http"])').count(), 0, `${name}: only web links`)
    t.equal(await page.evaluate('window.ran'), undefined, `${name}: nothing ran`)
    t.ok((await answer.innerText()).length > Math.min(20, text.length / 2), `${name}: the text is shown`)
    t.equal(await widthOf(page), 1280, name)
    await messageField(page).fill('Still there?')
    await page.reload()
    await answersOf(page, 'far/writer').waitFor()

    await saveAs(name)
    const said = exported.locator('.is-assistant')
    t.equal(await exported.locator(`${ACTIVE}, form, button`).count(), 0, `${name}: nothing active in the file`)
    t.equal(await said.locator('a:not([href^="http"])').count(), 0, `${name}: only web links in the file`)
    t.ok((await said.innerText()).length > Math.min(20, text.length / 2), `${name}: the text is in the file`)
  }
  const title = '</title><script>ran = 1</script>'
  const [last = ''] = [...HOSTILE.keys()].slice(-1)
  await renameChat(page, last, title)
  await saveAs(title)
  t.equal(await exported.title(), title)
  t.equal(await exported.locator('h1').innerText(), title)
  t.equal(await exported.locator(ACTIVE).count(), 0)
  t.strictSame(elsewhere, [])
})

test('Markdown that is slow to parse causes no long tasks', { mayFail: true }, async (t, { page }) => {
  const costs = new Map<string, { longest: number; work: number }>()
  await preferWriter(page)
  for (const [name, text] of COSTLY) {
    await page.goto(`${corral.url}/#/chat`)
    await page.reload()
    await page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
    await becomesReady(page)
    const tasks = await recordTasks(page)
    const answer = await answered(page, name, 'far/writer')
    t.ok((await answer.textContent())!.length > text.length / 10, `${name}: the text is shown`)
    const { longest, work, text: figures } = await tasks()
    costs.set(name, { longest, work })
    t.comment(`${name}, ${text.length} characters: ${figures}`)
  }
  // The plain text has 250,000 characters, more than most of the others.
  const plain = costs.get('plain text')!
  for (const [name, { longest, work }] of costs) {
    const ms = (time: number) => `${Math.round(time)} ms`
    t.ok(longest < 4 * plain.longest, `${name}: longest task ${ms(longest)}, for plain text ${ms(plain.longest)}`)
    t.ok(work < 4 * plain.work, `${name}: total work ${ms(work)}, for plain text ${ms(plain.work)}`)
  }
})
