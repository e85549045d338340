import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults } from '../../support/browser.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../../support/corral.ts'
import { readFixture } from '../../support/fixture.ts'
import { pdfOf, pdfWith } from '../../support/pdf.ts'
import { pngBytes } from '../apis/openai/media/support.ts'
import { answered, answersOf, ask, choose, ended, messageField, pageTests, setOptions, startWriter } from './support.ts'

/** The last request to the remote model, and its messages. */
let request: any = {}
let sent: any[] = []
const { blocks } = readFixture<{ blocks: string }>('page-answers.yaml')
/** Reports the images and the text of the question, or writes an answer with all kinds of blocks. */
const remote = await startWriter(
  t,
  (write, body) => {
    const { messages } = body
    request = body
    sent = messages
    const { content } = messages.findLast(({ role }) => role === 'user')
    if (/^(First|Second) question$/.test(content)) return write({ content: blocks })
    const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content
    const images = parts.filter(({ type }: { type: string }) => type === 'image_url').length
    const text = parts.map(({ text = '' }: { text?: string }) => text).join(' ')
    write({ content: `Images: ${images}. Text: ${text.replaceAll(/\s+/g, ' ')}` })
  },
  ['completion', 'vision', 'thinking']
)
const corral = await startCorral(t, { config: `${remote}defaults:\n  temperature: 0\n` })
const test = pageTests(t, corral.url)
const WRITER = 'far/writer'
const QUESTION = CAPITAL_QUESTION.content

const LOCKED = pdfOf(
  {
    1: '<</Type/Catalog/Pages 2 0 R>>',
    2: '<</Type/Pages/Kids[]/Count 0>>',
    3: `<</Filter/Standard/V 1/R 2/O(${'a'.repeat(32)})/U(${'b'.repeat(32)})/P -4>>`
  },
  '/Encrypt 3 0 R/ID[(x)(x)]'
)

interface GivenFile {
  name: string
  type: string
  bytes: Buffer
}
const IMAGE: GivenFile = { name: 'cat.png', type: 'image/png', bytes: pngBytes() }
/** Draws an image in the page. @param fill CSS colour of its left half, on a transparent ground */
async function draw(page: Page, type: string, [width, height]: [number, number], fill = 'red'): Promise<GivenFile> {
  const base64 = (await page.evaluate(`(async () => {
    const canvas = Object.assign(document.createElement('canvas'), { width: ${width}, height: ${height} })
    const context = canvas.getContext('2d')
    context.fillStyle = '${fill}'
    context.fillRect(0, 0, ${width / 2}, ${height})
    return canvas.toDataURL('${type}').split(',')[1]
  })()`)) as string
  return { name: `drawn ${width}.${type.slice(6)}`, type, bytes: Buffer.from(base64, 'base64') }
}

/** Adds the note to a JPEG that it must be turned by 90 degrees. */
function turned({ bytes, ...rest }: GivenFile): GivenFile {
  const exif = Buffer.from('ffe1002245786966000049492a000800000001001201030001000000060000000000000000', 'hex')
  exif.writeUInt16BE(exif.length - 2, 2)
  return { ...rest, bytes: Buffer.concat([bytes.subarray(0, 2), exif, bytes.subarray(2)]) }
}

const file = (name: string, bytes: Buffer | string, type = 'text/plain') => ({ name, type, bytes: Buffer.from(bytes) })

/** Drops or pastes files. */
async function give(page: Page, how: 'drop' | 'paste', ...files: GivenFile[]): Promise<void> {
  const given = files.map(({ name, type, bytes }) => ({ name, type, base64: bytes.toString('base64') }))
  await page.evaluate(`{
    const all = new DataTransfer()
    for (const { name, type, base64 } of ${JSON.stringify(given)}) {
      all.items.add(new File([Uint8Array.from(atob(base64), letter => letter.charCodeAt(0))], name, { type }))
    }
    const field = document.getElementById('message')
    const about = { bubbles: true, cancelable: true }
    if ('${how}' === 'drop') field.dispatchEvent(new DragEvent('drop', { ...about, dataTransfer: all }))
    else field.dispatchEvent(new ClipboardEvent('paste', { ...about, clipboardData: all }))
  }`)
}

test('files can be dropped and pasted, and rejected files are explained', {}, async (t, { page }) => {
  await page.getByRole('button', { name: `Model: ${DEMO}` }).waitFor()
  const field = messageField(page)
  const alert = page.getByRole('alert')
  const remove = (name: string) => page.getByRole('button', { name: `Remove ${name}` })
  await field.fill('What is this?')
  for (const [given, reason] of [
    [IMAGE, 'This model does not support images: cat.png was left out.'],
    [file('odd.bin', Buffer.from([0, 255, 254, 1]), ''), 'odd.bin is not an image'],
    [file('empty.txt', ' \n'), 'empty.txt contains no text.'],
    [file('torn.pdf', '%PDF-1.4 torn', 'application/pdf'), 'torn.pdf is not an image'],
    [file('locked.pdf', LOCKED, 'application/pdf'), 'locked.pdf needs a password']
  ] as const) {
    await give(page, 'drop', given)
    await alert.getByText(reason).waitFor()
    t.equal(await remove(given.name).count(), 0, given.name)
    t.equal(await field.inputValue(), 'What is this?', 'the text stays')
  }
  await alert.getByRole('button', { name: 'Close' }).click()

  t.comment('a model that supports images')
  await choose(page, WRITER)
  t.equal(await field.inputValue(), 'What is this?')
  await give(page, 'drop', IMAGE, file('notes.txt', 'Grüße from the notes'))
  await remove('notes.txt').waitFor()
  await give(page, 'paste', { ...IMAGE, name: 'image.png' })
  await remove('image.png').waitFor()
  await give(page, 'drop', file('letter.pdf', pdfWith('The secret word is marmalade.'), 'application/pdf'))
  await remove('letter.pdf').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await field.press('Enter')
  const answer = await ended(page, WRITER)
  t.match(
    await answer.innerText(),
    /Images: 2\. Text: File "notes.txt": Grüße from the notes File "letter.pdf": The secret word is marmalade\. What is this\?/
  )
  await page.getByRole('article', { name: 'You' }).getByRole('img', { name: 'cat.png' }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])

  t.comment('a model without image support continues the chat without them')
  await choose(page, DEMO)
  await ask(page, 'And what is the capital of France?')
  await (await ended(page)).getByText(CAPITAL_ANSWER).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.reload()
  await page.getByRole('img', { name: 'cat.png' }).waitFor()
  await choose(page, WRITER)
  await answersOf(page).getByRole('button', { name: 'Regenerate with' }).click()
  await page.locator('.menu-list').getByRole('button', { name: WRITER }).click()
  await answersOf(page, WRITER).getByText('Text: And what is the capital of France?').waitFor()
})

test('a worker reads PDFs, and ends when it is stopped or has read enough', {}, async (t, { page }) => {
  const field = messageField(page)
  const send = page.getByRole('button', { name: 'Send', exact: true })
  const long = file('long.pdf', pdfWith(...Array(1001).fill('A page.')), 'application/pdf')
  await field.fill('What is this?')
  const [worker] = await Promise.all([page.waitForEvent('worker'), give(page, 'drop', long)])
  t.match(worker.url(), `${corral.url}/page/pdf-worker-`)
  const stop = page.getByRole('button', { name: 'Stop reading long.pdf' })
  await stop.waitFor()
  t.ok(await send.isDisabled(), 'a message waits for its files')
  const [closed] = await Promise.all([worker.waitForEvent('close'), stop.dispatchEvent('click')])
  t.ok(closed)
  await stop.waitFor({ state: 'hidden' })
  const remove = page.getByRole('button', { name: 'Remove long.pdf' })
  t.equal(await remove.count(), 0)
  t.ok(await send.isEnabled())

  t.comment('more pages than are read')
  await give(page, 'drop', long)
  await stop.waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  const alert = page.getByRole('alert')
  await alert.getByText(/Only the first 1000 pages of long\.pdf were read/).waitFor()
  await remove.waitFor()
  t.equal(page.workers().length, 0)
  const box = (await alert.boundingBox())!
  const input = (await field.boundingBox())!
  t.ok(box.y + box.height <= input.y || input.y + input.height <= box.y, 'the message does not cover the field')
})

test('each chat keeps its unsent message', {}, async (t, { page }) => {
  const field = messageField(page)
  // The page learns of a new URL in a later task.
  const hasDraft = (text: string) => until(`the draft is "${text}"`, async () => (await field.inputValue()) === text)
  await choose(page, DEMO)
  await answered(page, QUESTION)
  await field.fill('half a thought')
  await page
    .locator('input[aria-label="Add files"]')
    .setInputFiles([{ name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('notes') }])
  await page.getByText('notes.txt', { exact: true }).waitFor()
  await page.getByRole('link', { name: 'New chat' }).click()
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  t.equal(await field.inputValue(), '')
  await field.fill('something else')
  await page.getByRole('link', { name: QUESTION }).click()
  await hasDraft('half a thought')
  t.ok(await page.getByText('notes.txt', { exact: true }).isVisible(), 'the draft has its file')
  await page.reload()
  await page.getByText(CAPITAL_ANSWER).waitFor()
  t.equal(await field.inputValue(), 'half a thought', 'the draft survives a reload')
  await page.getByRole('link', { name: 'New chat' }).click()
  await hasDraft('something else')
  await answered(page, 'What is 7 + 8?')
  await page.reload()
  await page.getByText('15').first().waitFor()
  t.equal(await field.inputValue(), '', 'a sent message is no longer a draft')
})

test('a long pasted text becomes a file, which can be inserted into the message', {}, async (t, { page }) => {
  const field = messageField(page)
  await field.waitFor()
  const paste = (text: string) =>
    page.evaluate(`(() => {
      const data = new DataTransfer()
      data.setData('text/plain', ${JSON.stringify(text)})
      const target = document.getElementById('message')
      return target.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))
    })()`)
  t.equal(await paste('short'), true, 'the browser pastes a short text')
  const long = 'A line of a long text.\n'.repeat(300)
  t.equal(await paste(long), false)
  await page.getByText('Pasted text 1').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await choose(page, WRITER)
  await answered(page, 'Shorten it.', WRITER)
  t.match(sent.at(-1).content, /^File "Pasted text 1":\n\nA line of[\s\S]*Shorten it\.$/)
  await paste(long)
  await page.getByRole('button', { name: 'Insert Pasted text 1 into the message' }).click()
  t.equal(await field.inputValue(), long)
})

test('chat settings become a preset for other chats', {}, async (t, { page }) => {
  const dialog = page.getByRole('dialog')
  const system = dialog.getByLabel('System message')
  const preset = dialog.getByLabel('Preset', { exact: true })
  await page.getByRole('button', { name: 'Chat settings' }).click()
  await system.fill('You are a pirate.')
  await dialog.getByLabel('temperature').fill('0.3')
  await dialog.getByRole('button', { name: 'Save as preset' }).click()
  await dialog.getByLabel('Preset name').fill('Pirate')
  t.strictSame(await accessibilityFaults(page), [])
  await page.keyboard.press('Enter')
  await preset.waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.keyboard.press('Escape')
  await page.reload()
  await page.getByRole('button', { name: 'Preset: No preset' }).click()
  await page.getByRole('button', { name: 'Pirate' }).click()
  await page.getByRole('button', { name: 'Preset: Pirate' }).waitFor()
  await choose(page, WRITER)
  await answered(page, 'Who are you?', WRITER)
  t.match(sent, [{ role: 'system', content: 'You are a pirate.' }, { role: 'user' }])
  await page.getByRole('button', { name: 'Chat settings' }).click()
  t.equal(await dialog.getByLabel('temperature').inputValue(), '0.3')
  await preset.selectOption('No preset')
  t.equal(await system.inputValue(), '')
  await preset.selectOption('Pirate')
  t.equal(await system.inputValue(), 'You are a pirate.')
  await dialog.getByRole('button', { name: 'Delete preset Pirate' }).click()
  t.equal(await preset.count(), 0)
})

test('an answer is read aloud without its code, and branches into a new chat', {}, async (t, { page, context }) => {
  // Chromium has no voices here, so the texts for them are recorded.
  await context.addInitScript(`
    window.spoken = []
    speechSynthesis.speak = one => window.spoken.push(one)
    speechSynthesis.cancel = () => window.spoken.push('stop')`)
  await page.reload()
  await choose(page, WRITER)
  await answered(page, 'First question', WRITER)
  await answered(page, 'Second question', WRITER)
  const more = answersOf(page, WRITER).first().getByRole('button', { name: 'More' })
  await more.click()
  t.match(await page.locator('.menu-note').innerText(), /^3 prompt tokens, 0 of them cached; 1 generated/)
  t.strictSame(await accessibilityFaults(page), [])
  const menu = await page.locator('.menu-list').boundingBox()
  const messages = await page.locator('.messages').boundingBox()
  t.ok(menu!.y >= messages!.y, 'the menu of the first answer is not cut off')
  await page.getByRole('button', { name: 'Read aloud' }).click()
  const spoken = () => page.evaluate('window.spoken.map(one => one.text ?? one)') as Promise<string[]>
  t.strictSame(await spoken(), ['stop', 'Heading', 'First part.', 'one', 'two', 'a, b', '1, 2', 'Last part.'])
  await more.click()
  await page.getByRole('button', { name: 'Stop reading' }).click()
  t.equal((await spoken()).at(-1), 'stop')
  await more.click()
  await page.getByRole('button', { name: 'Branch into a new chat' }).click()
  await page.getByText('Second question').waitFor({ state: 'hidden' })
  const articles = page.getByRole('article')
  await articles.nth(1).waitFor()
  t.equal(await articles.count(), 2, 'the new chat ends with the answer')
  await page.getByRole('link', { name: 'First question' }).last().click()
  await page.getByText('Second question').waitFor()
  t.equal(await articles.count(), 4, 'the original chat is unchanged')
})

test('images are scaled for the model, upright and with their transparency', {}, async (t, { page }) => {
  await choose(page, WRITER)
  const chips = page.locator('.attachments li')
  for (const [given, type, size, note] of [
    [await draw(page, 'image/png', [300, 200]), 'png', [300, 200], ''],
    [await draw(page, 'image/png', [3000, 30]), 'png', [2048, 20], 'scaled from 3000 × 30 to 2048 × 20'],
    [await draw(page, 'image/jpeg', [30, 4096]), 'jpeg', [15, 2048], 'scaled from 30 × 4096 to 15 × 2048'],
    [await draw(page, 'image/webp', [40, 20]), 'png', [40, 20], ''],
    [turned(await draw(page, 'image/jpeg', [40, 20])), 'jpeg', [20, 40], '']
  ] as const) {
    await give(page, 'drop', given)
    await chips.getByText(note || given.name).waitFor()
    await page.getByRole('status').getByText(`Attached: ${given.name}`).waitFor({ state: 'attached' })
    await answered(page, 'What is this?', WRITER)
    const { url } = sent.at(-1).content[0].image_url
    t.match(url, `data:image/${type};base64,`, given.name)
    const shown = await page.evaluate(`(async () => {
      const image = Object.assign(new Image(), { src: '${url}' })
      await image.decode()
      const { naturalWidth: width, naturalHeight: height } = image
      const context = Object.assign(document.createElement('canvas'), { width, height }).getContext('2d')
      context.drawImage(image, 0, 0)
      return { size: [width, height], alpha: context.getImageData(width - 1, 0, 1, 1).data[3] }
    })()`)
    t.strictSame(shown, { size, alpha: type === 'png' ? 0 : 255 }, given.name)
  }
  t.equal(page.workers().length, 0)
  await give(page, 'drop', file('torn.png', 'no image', 'image/png'))
  await page.getByRole('alert').getByText('torn.png cannot be read as an image. Save it as PNG or JPEG').waitFor()
})

test('files can be dropped anywhere on a chat', {}, async (t, { page }) => {
  const drag = (name: string) =>
    page.evaluate(`{
      const dataTransfer = new DataTransfer()
      dataTransfer.items.add(new File(['Hello'], 'dragged.txt'))
      const about = { bubbles: true, cancelable: true, dataTransfer, relatedTarget: null }
      document.querySelector('h1').dispatchEvent(new DragEvent('${name}', about))
    }`)
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  const area = page.getByText('Drop files to attach them')
  for (const end of ['dragleave', 'drop']) {
    await drag('dragover')
    await area.waitFor()
    t.strictSame(await accessibilityFaults(page), [])
    await drag(end)
    await area.waitFor({ state: 'hidden' })
  }
  await page.getByRole('button', { name: 'Remove dragged.txt' }).waitFor()
})

test('the effort of thinking is chosen for each chat, if the model can think', {}, async (t, { page }) => {
  await choose(page, DEMO)
  const effort = page.getByRole('button', { name: /^Thinking: / })
  t.equal(await effort.count(), 0)
  await choose(page, WRITER)
  for (const [name, sent] of [
    ['Automatic', undefined],
    ['Off', 'none'],
    ['High', 'high']
  ] as const) {
    await effort.click()
    await page.locator('.menu-list').getByRole('button', { name }).click()
    await page.getByRole('button', { name: `Thinking: ${name}` }).waitFor()
    await answered(page, 'Think.', WRITER)
    t.equal(request.reasoning_effort, sent)
  }
  await page.getByRole('link', { name: 'New chat' }).click()
  await page.getByRole('button', { name: 'Thinking: Automatic' }).waitFor()
})

test(
  'the server counts the tokens of a message, and the page warns before the context is full',
  {},
  async (t, { page }) => {
    const field = messageField(page)
    const use = page.locator('.context-use')
    await corral.json('/api/stop', { model: DEMO })
    await choose(page, DEMO)
    await field.fill('Not loaded, not counted')
    await new Promise(done => setTimeout(done, 1500))
    t.equal(await use.count(), 0)
    t.match((await corral.json('/api/ps')).body.models, [], 'counting does not load the model')
    await answered(page, QUESTION)
    await setOptions(page, { num_ctx: '100' })
    const count = async (text: string, result: RegExp) => {
      await field.fill(text)
      await until(`${result}`, async () => result.test((await use.getAttribute('title').catch(() => '')) ?? ''))
    }
    await count('Short', /^[3-6]\d of 100 tokens$/)
    t.equal(await page.locator('.context-warning').count(), 0)
    t.strictSame(await accessibilityFaults(page), [])
    await count('word '.repeat(200), /^[4-6]\d\d of 100 tokens$/)
    const warning = /the context holds only 100\. Shorten the message, remove files, or start a new chat/
    await page.locator('.context-warning').getByText(warning).waitFor()
    await page.getByRole('status').getByText(warning).waitFor({ state: 'attached' })
    t.strictSame(await accessibilityFaults(page), [])
    await field.fill('')
    await page.locator('.context-warning').waitFor({ state: 'hidden' })
  }
)

test('a slash lists commands and saved prompts', {}, async (t, { page }) => {
  const field = messageField(page)
  const options = page.getByRole('option')
  const dialog = page.getByRole('dialog')
  const run = async (text: string, option: string | RegExp) => {
    await field.fill(text)
    await options.filter({ hasText: option }).waitFor()
    await page.keyboard.press('Enter')
  }
  await choose(page, WRITER)
  await run('/prom', '/prompts')
  await dialog.getByRole('button', { name: 'New prompt' }).click()
  await dialog.getByLabel('Name').fill('Translate')
  await dialog.getByLabel('Text').fill('Translate "{{text}}" to {{language=French}}. Only {{language}}!')
  t.strictSame(await accessibilityFaults(page), [])
  await dialog.getByRole('button', { name: 'Save' }).click()
  await dialog.getByRole('button', { name: 'Edit prompt Translate' }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.keyboard.press('Escape')

  t.comment('a prompt asks for its values, which are inserted as they are')
  await page.reload()
  await run('/transl', '/Translate')
  t.equal(await dialog.getByLabel('language').inputValue(), 'French')
  await page.keyboard.type('$& {{language}}')
  t.strictSame(await accessibilityFaults(page), [])
  await dialog.getByRole('button', { name: 'Insert' }).click()
  await dialog.waitFor({ state: 'hidden' })
  t.equal(await field.inputValue(), 'Translate "$& {{language}}" to French. Only French!')

  t.comment('keys')
  await field.fill('/')
  await options.first().waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  const current = page.getByRole('option', { selected: true })
  const first = await current.innerText()
  await page.keyboard.press('ArrowUp')
  await current.getByText('/Translate').waitFor()
  t.equal(await field.getAttribute('aria-activedescendant'), await current.getAttribute('id'))
  await page.keyboard.press('ArrowDown')
  t.equal(await current.innerText(), first)
  await page.keyboard.press('Escape')
  t.equal(await options.count(), 0)
  t.equal(await field.inputValue(), '/')
  await field.fill('')
  await field.fill('/no-such-command')
  await page.getByText('No command starts with this text').waitFor()
  await page.keyboard.press('Enter')
  await (await ended(page, WRITER)).getByText('Text: /no-such-command').waitFor()

  t.comment('commands for a chat')
  const downloads = page.waitForEvent('download')
  await run('/export-j', '/export-json')
  t.match((await downloads).suggestedFilename(), /^corral-chats-.*json$/)
  await run('/sys', '/system')
  await dialog.getByLabel('System message').fill('Be brief.')
  await dialog.getByRole('button', { name: 'Save', exact: true }).click()
  await run('/clear', '/clear')
  await dialog.getByRole('button', { name: 'Delete' }).click()
  await answersOf(page, WRITER).waitFor({ state: 'hidden' })
  await answered(page, 'Hello', WRITER)
  t.match(sent, [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'Hello' }
  ])
  await run('/new', '/new')
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()

  t.comment('saved prompts are exported and imported')
  const all = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Settings', exact: true }).click()
  await page.getByRole('button', { name: 'Export all chats' }).click()
  const path = (await (await all).path())!
  await run('/prompts', '/prompts')
  await dialog.getByRole('button', { name: 'Delete prompt Translate' }).click()
  await dialog.getByText('Nothing yet').waitFor()
  await page.keyboard.press('Escape')
  await page.getByLabel('Import chats').setInputFiles(path)
  await field.fill('/tran')
  await options.getByText('/Translate').waitFor()
})
