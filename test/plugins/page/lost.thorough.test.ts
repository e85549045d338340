import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { connect, createServer, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { answersOf, ask, ended, setOptions } from './support.ts'

const browser = testBrowser(t)

/** Passes connections on to a server, until they are cut. */
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
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const cut = () => {
    for (const socket of sockets) socket.destroy()
  }
  t.teardown(() => {
    cut()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, cut }
}

/** As the model alone would have answered: the same seed, no connection lost. */
async function whole(corral: Awaited<ReturnType<typeof startCorral>>, tokens: number): Promise<string> {
  const body = {
    model: DEMO,
    messages: [{ role: 'user', content: 'Tell me a story.' }],
    options: { seed: 7, temperature: 1, ignore_eos: true, max_tokens: tokens }
  }
  return (await corral.json('/v1/chat/completions', body)).body.choices[0].message.content
}
const TOKENS = 900
const OPTIONS = { seed: '7', temperature: '1', max_tokens: String(TOKENS), others: '{"ignore_eos": true}' }
/** Text as it is in the page's database. */
const STORED = `new Promise(resolve => {
  const opening = indexedDB.open('corral')
  opening.onsuccess = () => {
    const all = opening.result.transaction('messages').objectStore('messages').getAll()
    all.onsuccess = () => resolve(all.result.find(({ role }) => role === 'assistant'))
  }
})`

t.test(
  'an answer over a connection that is cut, and a page that is loaded again, is byte for byte the whole one',
  { skip: browser.skip },
  async t => {
    const corral = await startCorral(t)
    const wanted = await whole(corral, TOKENS)
    const wire = await startWire(t, () => corral.url)
    const { page } = await browser.open(t, wire.url)
    await setOptions(page, OPTIONS)
    await ask(page, 'Tell me a story.')
    const length = async () =>
      (
        await answersOf(page)
          .innerText()
          .catch(() => '')
      ).length
    await until('it has begun', async () => (await length()) > 60)
    wire.cut()
    const before = await length()
    await until('it continues', async () => (await length()) > before + 40)
    await page.reload()
    await until('it continues after a reload', async () => (await length()) > before + 80)
    wire.cut()
    await ended(page)
    const stored = (await page.evaluate(STORED)) as { content: string; state?: string; finish: string }
    t.equal(stored.content, wanted)
    t.equal(stored.state, undefined)
  }
)

t.test('a page that is loaded again before the first word', { skip: browser.skip }, async t => {
  const corral = await startCorral(t)
  const { page } = await browser.open(t, corral.url)
  // The model is loaded first.
  await ask(page, 'What is the capital of France?')
  await page.getByRole('button', { name: 'Stop' }).waitFor()
  await page.reload()
  await answersOf(page).getByText('The capital of France is').waitFor()
  t.equal(await answersOf(page).count(), 1)
})

t.test('a server that is killed in mid-answer', { skip: browser.skip }, async t => {
  const first = await startCorral(t)
  let url = first.url
  const wire = await startWire(t, () => url)
  const { page } = await browser.open(t, wire.url)
  await setOptions(page, { max_tokens: '3000', others: '{"ignore_eos": true}' })
  await ask(page, 'Tell me a story.')
  await until('it has begun', async () => (await answersOf(page).innerText()).length > 60)
  await first.end('SIGKILL')
  await page.getByText('The server cannot be reached.').waitFor()
  await page.getByText('Connection lost. Reconnecting').waitFor()
  const second = await startCorral(t)
  url = second.url
  await page.getByText('stream_not_found').waitFor()
  await page.getByText('The server restarted during the answer').waitFor()
  await page.getByText('The server cannot be reached.').waitFor({ state: 'hidden' })
  t.ok((await answersOf(page).innerText()).length > 60, 'what had come stays')
  await setOptions(page, { max_tokens: '30' })
  await page.getByRole('button', { name: 'Continue' }).click()
  await page.getByText('The answer reached the maximum length.').waitFor()
})
