import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../../support/corral.ts'
import { answered, answersOf, ask, choose, deleteChat, ended, pageTests, setOptions, startWriter } from './support.ts'

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
// A large context, so that answers last until they are stopped on any machine.
const settings = `defaults:\n  temperature: 0\n  num_ctx: 32000\ndefault_model: ${DEMO}\n`
const corral = await startCorral(t, { config: `${remote}${settings}` })
const test = pageTests(t, corral.url)
const running = async () => {
  const { models } = (await corral.json('/api/ps')).body
  return models.reduce((sum: number, model: any) => sum + (model.running ?? 0) + (model.queued ?? 0), 0)
}
/** Options for an answer of this many tokens. */
const endless = (tokens: number) => ({ max_tokens: String(tokens), others: '{"ignore_eos": true}' })
const isFree = () => until('the slot is free', async () => (await running()) === 0, 20_000)
const STORY = 'Tell me a story.'
await corral.json('/api/load', { model: DEMO, stream: false })

test('a stopped answer frees its slot and can be continued', {}, async (t, { page }) => {
  const text = () => answersOf(page).locator('.markdown').innerText()
  const stop = page.getByRole('button', { name: 'Stop' })
  await setOptions(page, endless(20_000))
  await ask(page, STORY)
  await stop.waitFor()
  await until('the answer grows', async () => (await answersOf(page).innerText()).length > 40)
  t.equal(await running(), 1)
  await stop.click()
  await page.getByText('Stopped.').waitFor()
  await isFree()
  const before = await text()
  await setOptions(page, endless(20))
  await answersOf(page).getByRole('button', { name: 'Continue' }).click()
  const reachedLimit = page.getByText('The answer reached the maximum length.')
  await reachedLimit.waitFor()
  const after = await text()
  t.ok(after.startsWith(before.slice(0, -1)) && after.length > before.length, 'the text is continued')
  await page.reload()
  await reachedLimit.waitFor()
  // It is shown as written until the Markdown parser is loaded.
  await until('a reload keeps the text', async () => (await text()) === after)
  await answersOf(page).getByRole('button', { name: 'Continue' }).click()
  await until('the answer grows again', async () => (await text()).length > after.length)
  await ended(page)
})

test('deleting a chat stops its answer', { mayFail: true }, async (t, { page, complaints }) => {
  await setOptions(page, endless(20_000))
  await ask(page, STORY)
  await until('the answer has started', async () => (await running()) === 1)
  await deleteChat(page, STORY)
  await page.getByText('What is on your mind?').waitFor()
  await isFree()
  t.strictSame(complaints, [])
})

test('messages have versions: regenerated, edited, saved and deleted', {}, async (t, { page }) => {
  const question = page.getByRole('article', { name: 'You' })
  const edit = async (text: string, button: 'Send' | 'Save') => {
    await question.getByRole('button', { name: 'Edit' }).click()
    await page.getByRole('textbox', { name: 'Edit' }).fill(text)
    await page.locator('form.is-edited').getByRole('button', { name: button, exact: true }).click()
  }
  await ask(page, CAPITAL_QUESTION.content)
  await (await ended(page)).getByText(CAPITAL_ANSWER).waitFor()
  await page.getByRole('button', { name: 'Regenerate', exact: true }).click()
  await page.getByText('2 of 2').waitFor()
  await ended(page)
  await page.getByRole('button', { name: 'Regenerate with' }).click()
  await page.locator('.menu-list').getByRole('button', { name: 'far/writer' }).click()
  await page.getByText('Calls weather').first().waitFor()
  await page.getByText('3 of 3').waitFor()
  await page.getByRole('button', { name: 'Previous version' }).click()
  await answersOf(page).getByText(CAPITAL_ANSWER).waitFor()

  t.comment('sending an edited question adds a version')
  await edit('What is the capital of Italy?', 'Send')
  await question.getByText('2 of 2').waitFor()
  await ended(page, 'far/writer')
  await question.getByRole('button', { name: 'Previous version' }).click()
  await question.getByText(CAPITAL_QUESTION.content).waitFor()
  await page.getByText('3 of 3').waitFor()

  t.comment('saving replaces the question and keeps its answers')
  await edit('What is its capital?', 'Save')
  await question.getByText('What is its capital?').waitFor()
  t.ok(await question.getByText('1 of 2').isVisible())
  t.ok(await page.getByText('3 of 3').isVisible())
  await page.reload()
  await question.getByText('What is its capital?').waitFor()
  const answer = page.getByRole('article', { name: /Answer from/ })
  await answer.getByRole('button', { name: 'More' }).click()
  await page.getByRole('button', { name: 'Delete from here' }).click()
  await page.getByText('2 of 2').waitFor()
})

test('chats have a system message, options, a JSON schema and tools', {}, async (t, { page }) => {
  const asked: any[] = []
  page.on('request', request => {
    if (request.url().endsWith('/v1/chat/completions')) asked.push(request.postDataJSON())
  })
  const schema =
    '{"type":"object","properties":{"city":{"type":"string","maxLength":9}},"required":["city"],"additionalProperties":false}'
  await setOptions(page, { system: 'Be brief.', temperature: '0.65', num_ctx: '4096', max_tokens: '200', schema })
  const answer = await answered(page, 'Name a city.')
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

  t.comment('the user enters the results of two tool calls')
  await page.getByRole('link', { name: 'New chat' }).click()
  await choose(page, 'far/writer')
  await setOptions(page, {
    tools: '[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]'
  })
  await answered(page, 'What is the weather?', 'far/writer')
  const results = page.getByLabel('Result of weather')
  t.equal(await results.count(), 2)
  await results.first().fill('sunny')
  await results.last().fill('rainy')
  await page.getByRole('button', { name: 'Submit result' }).click()
  await page.getByText('The results are sunny and rainy.', { exact: true }).waitFor()
})

test('two tabs show an answer that one receives, and the other takes over', {}, async (t, { page: first, context }) => {
  let feeds = 0
  let streams = 0
  context.on('request', request => {
    if (request.url().endsWith('/api/events')) feeds += 1
    if (/\/v1\/streams\//.test(request.url())) streams += 1
  })
  await setOptions(first, endless(20_000))
  await ask(first, STORY)
  await until('the answer grows', async () => (await answersOf(first).innerText()).length > 40)
  const second = await context.newPage()
  await second.goto(first.url())
  await until('the second tab shows it', async () => (await answersOf(second).innerText()).length > 60)
  const stop = second.getByRole('button', { name: 'Stop' })
  t.ok(await stop.isVisible())
  t.equal(streams, 0, 'the second tab does not request the answer')
  t.ok(await second.getByRole('button', { name: `Model: ${DEMO}` }).isVisible(), 'the second tab knows the models')
  await first.close()
  await until('the second tab resumes the answer', () => streams > 0)
  await until('the second tab reads the feed', () => feeds > 0, 10_000)
  await stop.click()
  await isFree()
  await second.getByText('Stopped.').waitFor()
})
