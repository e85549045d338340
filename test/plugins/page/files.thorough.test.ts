import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, testBrowser } from '../../support/browser.ts'
import { startCorral } from '../../support/corral.ts'
import { pngBytes } from '../apis/openai/media/support.ts'
import { answersOf, ask, ended, startWriter } from './support.ts'

const browser = testBrowser(t)
/** Says what it was given: how many images, and the text. */
const remote = await startWriter(
  t,
  (write, { messages }) => {
    const { content } = messages.findLast(({ role }) => role === 'user')
    const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content
    const images = parts.filter(({ type }: { type: string }) => type === 'image_url').length
    const text = parts.map(({ text = '' }: { text?: string }) => text).join(' ')
    write({ content: `Images: ${images}. Text: ${text.replaceAll(/\s+/g, ' ')}` })
  },
  ['completion', 'vision']
)
const corral = await startCorral(t, { config: `${remote}defaults:\n  temperature: 0\n` })

interface GivenFile {
  name: string
  type: string
  bytes: Buffer
}
const IMAGE: GivenFile = { name: 'cat.png', type: 'image/png', bytes: pngBytes() }

/** Gives the page files as a mouse drops them, or as the clipboard has them. */
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

/** A PDF whose pages all say the same. */
function pdfOf(text: string, pages = 1): Buffer {
  const stream = `BT /F1 24 Tf 72 700 Td (${text}) Tj ET`
  const kids = Array.from({ length: pages }, (_, page) => `${5 + page} 0 R`)
  const objects = [
    '<< /Type /Catalog /Pages 2 0 R >>',
    `<< /Type /Pages /Kids [${kids.join(' ')}] /Count ${pages} >>`,
    '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>',
    `<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`,
    ...kids.map(
      () =>
        '<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 3 0 R >> >> >>'
    )
  ]
  let file = '%PDF-1.4\n'
  const places = objects.map((object, index) => {
    const place = file.length
    file += `${index + 1} 0 obj\n${object}\nendobj\n`
    return `${String(place).padStart(10, '0')} 00000 n \n`
  })
  const table = file.length
  file += `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${places.join('')}`
  return Buffer.from(`${file}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${table}\n%%EOF\n`)
}

async function choose(page: Page, model: string): Promise<void> {
  await page.getByRole('button', { name: /^Model:/ }).click()
  await page.getByRole('button', { name: model }).click()
  await page.getByRole('button', { name: `Model: ${model}` }).waitFor()
}

t.test('files that are dropped and pasted, and what a model without eyes gets', { skip: browser.skip }, async t => {
  const { page, complaints, refusals } = await browser.open(t, corral.url)
  await page.getByRole('button', { name: 'Model: corral/tiny-chat' }).waitFor()
  const field = page.getByLabel('Message', { exact: true })
  const remove = (name: string) => page.getByRole('button', { name: `Remove ${name}` })
  await field.fill('What is this?')
  await give(page, 'drop', IMAGE)
  await page.getByRole('alert').getByText('This model does not support images: cat.png was left out.').waitFor()
  t.equal(await field.inputValue(), 'What is this?', 'nothing that was written is lost')
  t.equal(await remove('cat.png').count(), 0)

  t.comment('what is neither text nor anything that is known')
  await give(page, 'drop', { name: 'odd.bin', type: '', bytes: Buffer.from([0, 255, 254, 1]) })
  await page.getByRole('alert').getByText('odd.bin is not an image').waitFor()
  await give(page, 'drop', { name: 'empty.txt', type: 'text/plain', bytes: Buffer.from(' \n') })
  await page.getByRole('alert').getByText('empty.txt contains no text.').waitFor()
  await give(page, 'drop', { name: 'torn.pdf', type: 'application/pdf', bytes: Buffer.from('%PDF-1.4 torn') })
  await page.getByRole('alert').getByText('torn.pdf is not an image').waitFor()
  await page.getByRole('alert').getByRole('button', { name: 'Close' }).click()

  t.comment('a model that sees')
  await choose(page, 'far/writer')
  t.equal(await field.inputValue(), 'What is this?')
  await give(page, 'drop', IMAGE, { name: 'notes.txt', type: 'text/plain', bytes: Buffer.from('Grüße from the notes') })
  await remove('notes.txt').waitFor()
  await give(page, 'paste', { ...IMAGE, name: 'image.png' })
  await remove('image.png').waitFor()
  await give(page, 'drop', {
    name: 'letter.pdf',
    type: 'application/pdf',
    bytes: pdfOf('The secret word is marmalade.')
  })
  await remove('letter.pdf').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await field.press('Enter')
  const answer = await ended(page, 'far/writer')
  t.match(
    await answer.innerText(),
    /Images: 2\. Text: File "notes.txt": Grüße from the notes File "letter.pdf": The secret word is marmalade\. What is this\?/
  )
  await page.getByRole('article', { name: 'You' }).getByRole('img', { name: 'cat.png' }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])

  t.comment('the chat continues with a model that does not see: it says so, and the question stays')
  await choose(page, 'corral/tiny-chat')
  await ask(page, 'And what is the capital of France?')
  await page
    .getByRole('alert')
    .getByText(/cannot understand images.*Use a model that can/)
    .waitFor()
  t.strictSame(refusals.splice(0), ['400 POST /v1/chat/completions'])
  t.equal(complaints.splice(0).length, 1)
  t.strictSame(await accessibilityFaults(page), [])
  await page.getByText('And what is the capital of France?').waitFor()
  await page.reload()
  await page.getByRole('img', { name: 'cat.png' }).waitFor()
  await choose(page, 'far/writer')
  await answersOf(page).getByRole('button', { name: 'Regenerate with' }).click()
  await page.getByRole('button', { name: 'far/writer' }).last().click()
  await answersOf(page, 'far/writer').getByText('Text: And what is the capital of France?').waitFor()
  t.strictSame(complaints, [])
  t.strictSame(refusals, [])
})

t.test(
  'PDFs are read by a worker, which ends when it is stopped or has read enough',
  { skip: browser.skip },
  async t => {
    const { page, complaints } = await browser.open(t, corral.url)
    const field = page.getByLabel('Message', { exact: true })
    const send = page.getByRole('button', { name: 'Send', exact: true })
    const long = { name: 'long.pdf', type: 'application/pdf', bytes: pdfOf('A page.', 1001) }
    await field.fill('What is this?')
    const [worker] = await Promise.all([page.waitForEvent('worker'), give(page, 'drop', long)])
    t.match(worker.url(), `${corral.url}/page/pdf-worker-`)
    const stop = page.getByRole('button', { name: 'Stop reading long.pdf' })
    await stop.waitFor()
    t.ok(await send.isDisabled(), 'a message waits for its files')
    t.strictSame(await accessibilityFaults(page), [])
    const [closed] = await Promise.all([worker.waitForEvent('close'), stop.click()])
    t.ok(closed)
    await stop.waitFor({ state: 'hidden' })
    t.equal(await page.getByRole('button', { name: 'Remove long.pdf' }).count(), 0)
    t.ok(await send.isEnabled())

    t.comment('more pages than a model reads')
    await give(page, 'drop', long)
    await page
      .getByRole('alert')
      .getByText(/Only the first 1000 pages of long\.pdf were read/)
      .waitFor()
    await page.getByRole('button', { name: 'Remove long.pdf' }).waitFor()
    t.equal(page.workers().length, 0)
    const box = (await page.getByRole('alert').boundingBox())!
    const input = (await field.boundingBox())!
    t.ok(box.y + box.height <= input.y || input.y + input.height <= box.y, 'what is said does not cover the field')
    t.strictSame(complaints, [])
  }
)
