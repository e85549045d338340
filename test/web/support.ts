import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Locator, Page } from 'playwright-core'
import type { Test } from 'tap'

/** Asks something in the chat that is open. */
export async function ask(page: Page, question: string): Promise<void> {
  await page.getByLabel('Message', { exact: true }).fill(question)
  await page.getByRole('button', { name: 'Send', exact: true }).click()
}

/** Gives the page the key that it asks for. */
export async function enter(page: Page, key: string): Promise<void> {
  await page.getByLabel('Key', { exact: true }).fill(key)
  await page.keyboard.press('Enter')
  await page.getByLabel('Key', { exact: true }).waitFor({ state: 'hidden' })
}

/** The answers of a model that are shown. */
export const answersOf = (page: Page, model = 'corral/tiny-chat'): Locator =>
  page.getByRole('article', { name: `Answer of ${model}` })

/** Waits until the last answer has ended. */
export async function ended(page: Page, model?: string): Promise<Locator> {
  const answer = answersOf(page, model).last()
  await answer.and(page.locator('[aria-busy=false]')).waitFor()
  return answer
}

/** Sets options of the chat that is open, by the fields of its settings. */
export async function setOptions(page: Page, fields: Record<string, string>): Promise<void> {
  await page.getByRole('button', { name: 'Settings of this chat' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.locator('details').evaluate(details => details.setAttribute('open', ''))
  for (const [name, value] of Object.entries(fields)) await dialog.locator(`[name=${name}]`).fill(value)
  await dialog.getByRole('button', { name: 'Save', exact: true }).click()
  await dialog.waitFor({ state: 'hidden' })
}

/** Whether something is wider than the window. */
export const widthOf = (page: Page) => page.evaluate('document.documentElement.scrollWidth') as Promise<number>

/** What a server elsewhere answers to one question. */
export type Writer = (
  write: (delta: object) => void,
  request: { messages: any[]; model: string }
) => Promise<void> | void

/**
 * A server elsewhere that speaks as OpenAI's does, for answers that the built-in model cannot give.
 * @returns the section `remote` of a configuration, with the model `far/writer`
 */
export async function startWriter(t: Pick<Test, 'teardown'>, writer: Writer, capabilities = ['completion', 'tools']) {
  const event = (body: unknown) => `data: ${JSON.stringify(body)}\n\n`
  const listen = async (request: IncomingMessage, response: ServerResponse) => {
    if (request.url === '/v1/models') {
      response.setHeader('content-type', 'application/json')
      response.end(JSON.stringify({ data: [] }))
      return
    }
    let text = ''
    for await (const part of request.setEncoding('utf8')) text += part
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    let finish = 'stop'
    let tokens = 0
    await writer(delta => {
      tokens += 1
      if ('tool_calls' in delta) finish = 'tool_calls'
      response.write(event({ choices: [{ index: 0, delta, finish_reason: null }] }))
    }, JSON.parse(text))
    response.write(event({ choices: [{ index: 0, delta: {}, finish_reason: finish }] }))
    response.write(event({ choices: [], usage: { prompt_tokens: 3, completion_tokens: tokens } }))
    response.end('data: [DONE]\n\n')
  }
  const server = createServer((request, response) => void listen(request, response)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  const models = { 'far/writer': { model: 'writer', servers: [{ url }], capabilities, context: 100_000 } }
  return `remote: ${JSON.stringify({ models })}\n`
}
