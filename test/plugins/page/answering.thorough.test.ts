import t from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { CAPITAL_ANSWER, DEMO, startCorral, until } from '../../support/corral.ts'
import { answersOf, ask, ended, setOptions, startWriter } from './support.ts'

const browser = testBrowser(t)
const remote = await startWriter(t, async (write, { messages }) => {
  const last = messages.at(-1)
  if (last.role === 'tool') {
    const results = messages.filter(({ role }) => role === 'tool').map(({ content }) => content)
    return write({ content: `The results are ${results.join(' and ')}.` })
  }
  const call = (index: number, city: string) => ({
    index,
    id: `call_${index}`,
    type: 'function',
    function: { name: 'weather', arguments: JSON.stringify({ city }) }
  })
  write({ tool_calls: [call(0, 'Paris'), call(1, 'Rome')] })
})
// Room for answers that last until they are stopped, also where a machine is quick.
const settings = `defaults:\n  temperature: 0\n  num_ctx: 32000\ndefault_model: ${DEMO}\n`
const corral = await startCorral(t, { config: `${remote}${settings}` })
const running = async () => {
  const { models } = (await corral.json('/api/ps')).body
  return models.reduce((sum: number, model: any) => sum + (model.running ?? 0) + (model.queued ?? 0), 0)
}
/** Options by which an answer continues for so many tokens. */
const endless = (tokens: number) => ({ max_tokens: String(tokens), others: '{"ignore_eos": true}' })
await corral.json('/api/load', { model: DEMO, stream: false })

t.test('an answer is stopped, and its slot is free; it can be continued', { skip: browser.skip }, async t => {
  const { page, complaints, refusals } = await browser.open(t, corral.url)
  await setOptions(page, endless(20_000))
  await ask(page, 'Tell me a story.')
  await page.getByRole('button', { name: 'Stop' }).waitFor()
  await until('it has begun', async () => (await answersOf(page).innerText()).length > 40)
  t.equal(await running(), 1)
  await page.getByRole('button', { name: 'Stop' }).click()
  await page.getByText('Stopped.').waitFor()
  await until('the slot is free', async () => (await running()) === 0, 10_000)
  const before = await answersOf(page).locator('.markdown').innerText()
  await setOptions(page, endless(20))
  await answersOf(page).getByRole('button', { name: 'Continue' }).click()
  await page.getByText('The answer reached the maximum length.').waitFor()
  const after = await answersOf(page).locator('.markdown').innerText()
  t.ok(after.startsWith(before.slice(0, -1)) && after.length > before.length, 'it continues where it was')
  await page.reload()
  await page.getByText('The answer reached the maximum length.').waitFor()
  t.equal(await answersOf(page).locator('.markdown').innerText(), after, 'all is there after a reload')
  await answersOf(page).getByRole('button', { name: 'Continue' }).click()
  await until(
    'it is longer',
    async () => (await answersOf(page).locator('.markdown').innerText()).length > after.length
  )
  await ended(page)
  t.strictSame([complaints, refusals], [[], []])
})

t.test('what is deleted while it is answered is not answered to its end', { skip: browser.skip }, async t => {
  const { page, complaints } = await browser.open(t, corral.url)
  await setOptions(page, endless(20_000))
  await ask(page, 'Tell me a story.')
  await until('it has begun', async () => (await running()) === 1)
  await page.getByRole('button', { name: 'More: Tell me a story.' }).click()
  await page.getByRole('button', { name: 'Delete' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await page.getByText('What is on your mind?').waitFor()
  await until('the slot is free', async () => (await running()) === 0, 20_000)
  t.strictSame(complaints, [])
})

t.test(
  'versions: answered again, by another model, edited with and without sending, deleted',
  { skip: browser.skip },
  async t => {
    const { page, complaints, refusals } = await browser.open(t, corral.url)
    await ask(page, 'What is the capital of France?')
    await (await ended(page)).getByText(CAPITAL_ANSWER).waitFor()
    await page.getByRole('button', { name: 'Regenerate', exact: true }).click()
    await page.getByText('2 of 2').waitFor()
    await ended(page)
    await page.getByRole('button', { name: 'Regenerate with' }).click()
    await page.getByRole('button', { name: 'far/writer' }).last().click()
    await page.getByText('Calls weather').first().waitFor()
    await page.getByText('3 of 3').waitFor()
    await page.getByRole('button', { name: 'Previous version' }).click()
    await answersOf(page).getByText(CAPITAL_ANSWER).waitFor()
    const question = page.getByRole('article', { name: 'You' })
    await question.getByRole('button', { name: 'Edit' }).click()
    await page.getByRole('textbox', { name: 'Edit' }).fill('What is the capital of Italy?')
    await page.locator('form.is-edited').getByRole('button', { name: 'Send' }).click()
    await question.getByText('2 of 2').waitFor()
    await ended(page, 'far/writer')
    await question.getByRole('button', { name: 'Previous version' }).click()
    await question.getByText('What is the capital of France?').waitFor()
    await page.getByText('3 of 3').waitFor()
    await question.getByRole('button', { name: 'Edit' }).click()
    await page.getByRole('textbox', { name: 'Edit' }).fill('What is its capital?')
    await page.locator('form.is-edited').getByRole('button', { name: 'Save', exact: true }).click()
    await question.getByText('What is its capital?').waitFor()
    t.ok(await question.getByText('1 of 2').isVisible(), 'it is no new version')
    t.ok(await page.getByText('3 of 3').isVisible(), 'its answers stay')
    await page.reload()
    await question.getByText('What is its capital?').waitFor()
    const answer = page.getByRole('article', { name: /Answer from/ })
    await answer.getByRole('button', { name: 'More' }).click()
    await page.getByRole('button', { name: 'Delete from here' }).click()
    await page.getByText('2 of 2').waitFor()
    t.strictSame([complaints, refusals], [[], []])
  }
)

t.test('a system message, a JSON schema and tools; results of two calls by hand', { skip: browser.skip }, async t => {
  const { page, complaints, refusals } = await browser.open(t, corral.url)
  const asked: any[] = []
  page.on('request', request => {
    if (request.url().endsWith('/v1/chat/completions')) asked.push(request.postDataJSON())
  })
  const schema =
    '{"type":"object","properties":{"city":{"type":"string","maxLength":9}},"required":["city"],"additionalProperties":false}'
  await setOptions(page, { system: 'Be brief.', temperature: '0.65', num_ctx: '4096', max_tokens: '200', schema })
  await ask(page, 'Name a city.')
  const answer = await ended(page)
  t.match(JSON.parse(await answer.locator('.markdown').innerText()), { city: String })
  t.match(asked[0], {
    messages: [{ role: 'system', content: 'Be brief.' }, {}],
    options: { temperature: 0.65, num_ctx: 4096 }
  })
  await page.getByRole('button', { name: 'Chat settings' }).click()
  await page.getByLabel('JSON schema for answers').fill('{ no')
  await page.getByRole('dialog').getByRole('button', { name: 'Save', exact: true }).click()
  await page.getByRole('alert').getByText('Invalid JSON for this field').waitFor()
  await page.keyboard.press('Escape')
  await page.getByRole('link', { name: 'New chat' }).click()
  await page.getByRole('button', { name: /^Model:/ }).click()
  await page.getByRole('button', { name: /far\/writer/ }).click()
  await setOptions(page, {
    tools: '[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]'
  })
  await ask(page, 'What is the weather?')
  await ended(page, 'far/writer')
  t.equal(await page.getByLabel('Result of weather').count(), 2)
  await page.getByLabel('Result of weather').first().fill('sunny')
  await page.getByLabel('Result of weather').last().fill('rainy')
  await page.getByRole('button', { name: 'Submit result' }).click()
  await page.getByText('The results are sunny and rainy.', { exact: true }).waitFor()
  t.strictSame([complaints, refusals], [[], []])
})

t.test(
  'two tabs: one takes the answer, both show it, and the other continues when it is closed',
  { skip: browser.skip },
  async t => {
    const { page: first, context, complaints } = await browser.open(t, corral.url)
    let feeds = 0
    let streams = 0
    context.on('request', request => {
      if (request.url().endsWith('/api/events')) feeds += 1
      if (/\/v1\/streams\//.test(request.url())) streams += 1
    })
    await setOptions(first, endless(20_000))
    await ask(first, 'Tell me a story.')
    await until('it has begun', async () => (await answersOf(first).innerText()).length > 40)
    const second = await context.newPage()
    await second.goto(first.url())
    await until('it is shown there too', async () => (await answersOf(second).innerText()).length > 60)
    t.ok(await second.getByRole('button', { name: 'Stop' }).isVisible())
    t.equal(streams, 0, 'the second tab does not ask for the answer')
    t.ok(await second.getByRole('button', { name: `Model: ${DEMO}` }).isVisible(), 'it knows the server all the same')
    // The tab that takes it goes: the other one continues with it.
    await first.close()
    await until('it continues', () => streams > 0)
    await until('it reads the feed', () => feeds > 0, 10_000)
    await second.getByRole('button', { name: 'Stop' }).click()
    await until('the slot is free', async () => (await running()) === 0, 10_000)
    await second.getByText('Stopped.').waitFor()
    t.strictSame(complaints, [])
  }
)
