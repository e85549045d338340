import { connect, createServer, type Socket } from 'node:net'
import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { listen } from '../../support/listen.ts'
import { answersOf, ask, ended, pageTests, setOptions, storedMessages } from './support.ts'

/** Starts a proxy whose connections can be cut. */
async function startWire(t: Test, target: () => string) {
  const sockets = new Set<Socket>()
  const server = createServer(client => {
    const { hostname, port } = new URL(target())
    const far = connect(Number(port), hostname)
    for (const socket of [client, far]) {
      sockets.add(socket)
      socket.on('error', () => undefined)
      socket.on('close', () => {
        sockets.delete(socket)
        client.destroy()
        far.destroy()
      })
    }
    client.pipe(far).pipe(client)
  })
  const cut = () => {
    for (const socket of sockets) socket.destroy()
  }
  t.teardown(cut)
  return { url: `http://127.0.0.1:${await listen(t, server)}`, cut }
}

const STORY = 'Tell me a story.'
const TOKENS = 900
const OPTIONS = { seed: '7', temperature: '1', max_tokens: String(TOKENS), others: '{"ignore_eos": true}' }
const corral = await startCorral(t)
const test = pageTests(t, corral.url)
const length = (page: Page) =>
  answersOf(page)
    .innerText()
    .then(
      text => text.length,
      () => 0
    )

test('an answer survives lost connections and a reload unchanged', { mayFail: true }, async (t, { page }) => {
  const body = {
    model: DEMO,
    messages: [{ role: 'user', content: STORY }],
    options: { seed: 7, temperature: 1, ignore_eos: true, max_tokens: TOKENS }
  }
  const undisturbed = (await corral.json('/v1/chat/completions', body)).body.choices[0].message.content
  const wire = await startWire(t, () => corral.url)
  await page.goto(wire.url)
  await setOptions(page, OPTIONS)
  await ask(page, STORY)
  await until('the answer grows', async () => (await length(page)) > 60)
  wire.cut()
  const before = await length(page)
  await until('the answer continues', async () => (await length(page)) > before + 40)
  await page.reload()
  await until('the answer continues after a reload', async () => (await length(page)) > before + 80)
  wire.cut()
  await ended(page)
  const stored = (await storedMessages(page)).find(({ role }) => role === 'assistant')!
  t.equal(stored.content, undisturbed)
  t.equal(stored.state, undefined)
})

test('a reload before the first token repeats the request', { mayFail: true }, async (t, { page }) => {
  // Loading the model takes a moment.
  await corral.json('/api/stop', { model: DEMO })
  await ask(page, 'What is the capital of France?')
  await page.getByRole('button', { name: 'Stop' }).waitFor()
  await page.reload()
  await answersOf(page).getByText('The capital of France is').waitFor()
  t.equal(await answersOf(page).count(), 1)
})

test('an answer of a killed server keeps its text and can be continued', { mayFail: true }, async (t, { page }) => {
  const first = await startCorral(t)
  let url = first.url
  const wire = await startWire(t, () => url)
  await page.goto(wire.url)
  await setOptions(page, { max_tokens: '3000', others: '{"ignore_eos": true}' })
  await ask(page, STORY)
  await until('the answer grows', async () => (await length(page)) > 60)
  await first.end('SIGKILL')
  await page.getByText('The server cannot be reached.').waitFor()
  await page.getByText('Connection lost. Reconnecting').waitFor()
  url = corral.url
  await page.getByText('stream_not_found').waitFor()
  await page.getByText('The server restarted during the answer').waitFor()
  await page.getByText('The server cannot be reached.').waitFor({ state: 'hidden' })
  t.ok((await length(page)) > 60, 'the received text stays')
  await setOptions(page, { max_tokens: '30' })
  await page.getByRole('button', { name: 'Continue' }).click()
  await page.getByText('The answer reached the maximum length.').waitFor()
})
