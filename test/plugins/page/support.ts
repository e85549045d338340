import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Locator, Page } from 'playwright-core'
import type { Test } from 'tap'
import { type OpenedPage, type OpenOptions, testBrowser } from '../../support/browser.ts'
import { until } from '../../support/corral.ts'
import { listen } from '../../support/listen.ts'

/** Options of a page test. */
interface PageTestOptions extends OpenOptions {
  /** Path of the page below the server, such as `/#/models`. */
  path?: string
  /** Whether console errors and refused requests are allowed. */
  mayFail?: boolean
  /** Whether the model writes titles. Otherwise chats keep the first line of their first message. */
  titles?: boolean
}

/**
 * Returns a function that defines tests with a page of their own, all in one browser. A test fails if the page logs
 * errors or if the server refuses its requests. Expected ones are taken out with `complaints.splice(0)`.
 */
export function pageTests(file: Test, url: string, flags?: string[]) {
  const browser = testBrowser(file, flags)
  return (
    title: string,
    { path = '', mayFail = false, titles = false, ...options }: PageTestOptions,
    body: (t: Test, opened: OpenedPage, open: () => Promise<OpenedPage>) => Promise<void>
  ) =>
    file.test(title, { skip: browser.skip }, async t => {
      const open = async () => {
        const opened = await browser.open(t, url + path, options)
        if (!titles)
          await opened.context.route('**/v1/chat/completions', route =>
            route.request().headers()['x-corral-background']
              ? route.fulfill({ json: { choices: [] } })
              : route.continue()
          )
        return opened
      }
      const opened = await open()
      await body(t, opened, open)
      if (mayFail) return
      t.strictSame(opened.complaints, [], 'the page logs no errors')
      t.strictSame(opened.refusals, [], 'the server refuses nothing')
    })
}

/** The message field. */
export const messageField = (page: Page): Locator => page.getByLabel('Message', { exact: true })

/** Asks something in the open chat. */
export async function ask(page: Page, question: string): Promise<void> {
  await messageField(page).fill(question)
  await page.getByRole('button', { name: 'Send', exact: true }).click()
}

/** Chooses the model of the open chat. */
export async function choose(page: Page, model: string): Promise<void> {
  await page.getByRole('button', { name: /^Model:/ }).click()
  await page.locator('.menu-list').getByRole('button', { name: model }).click()
  await page.getByRole('button', { name: `Model: ${model}` }).waitFor()
}

/** Chooses an entry in the menu of a chat in the sidebar. */
export async function chooseForChat(page: Page, title: string, entry: string): Promise<void> {
  await page.getByRole('button', { name: `More: ${title}` }).click()
  await page.locator('.menu-list').getByRole('button', { name: entry, exact: true }).click()
}

/** Renames a chat in the sidebar. */
export async function renameChat(page: Page, title: string, next: string): Promise<void> {
  await chooseForChat(page, title, 'Rename')
  await page.getByRole('textbox', { name: 'Rename' }).fill(next)
  await page.keyboard.press('Enter')
}

/** Deletes a chat in the sidebar. */
export async function deleteChat(page: Page, title: string): Promise<void> {
  await chooseForChat(page, title, 'Delete')
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
}

/** Enters the key that the page asks for. */
export async function enter(page: Page, key: string): Promise<void> {
  const field = page.locator('input[type=password]')
  await field.fill(key)
  await page.keyboard.press('Enter')
  await field.waitFor({ state: 'hidden' })
}

/** Enters the key, and drops the complaints from before. */
export async function signIn({ page, complaints, refusals }: OpenedPage, key: string): Promise<void> {
  await enter(page, key)
  complaints.splice(0)
  refusals.splice(0)
}

/** The answers from a model. */
export const answersOf = (page: Page, model = 'corral/tiny-chat'): Locator =>
  page.getByRole('article', { name: `Answer from ${model}` })

/** Waits until the last answer is complete. */
export async function ended(page: Page, model?: string): Promise<Locator> {
  const answer = answersOf(page, model).last()
  await answer.and(page.locator('[aria-busy=false]')).waitFor()
  return answer
}

/** Asks something and waits for the complete answer. */
export async function answered(page: Page, question: string, model?: string): Promise<Locator> {
  // Earlier answers are complete, too.
  await page.evaluate(`for (const article of document.querySelectorAll('article')) article.dataset.old = ''`)
  await ask(page, question)
  const answer = answersOf(page, model).last()
  await answer.and(page.locator('[aria-busy=false]:not([data-old])')).waitFor()
  return answer
}

/** Fills fields in the settings of the open chat. */
export async function setOptions(page: Page, fields: Record<string, string>): Promise<void> {
  await page.getByRole('button', { name: 'Chat settings' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.locator('details').evaluate(details => details.setAttribute('open', ''))
  for (const [name, value] of Object.entries(fields)) await dialog.locator(`[name=${name}]`).fill(value)
  await dialog.getByRole('button', { name: 'Save', exact: true }).click()
  await dialog.waitFor({ state: 'hidden' })
}

/** The width of the page, which is that of the window unless something is wider. */
export const widthOf = (page: Page) => page.evaluate('document.documentElement.scrollWidth') as Promise<number>

/** Reads the messages in the page's database. */
export const storedMessages = (page: Page) =>
  page.evaluate(`new Promise(resolve => {
    const opening = indexedDB.open('corral')
    opening.onsuccess = () => {
      const all = opening.result.transaction('messages').objectStore('messages').getAll()
      all.onsuccess = () => resolve(all.result)
    }
  })`) as Promise<{ role: string; content: string; state?: string; finish?: string }[]>

/** Waits until the page has prepared what it needs to show an answer. */
export const becomesReady = (page: { evaluate(code: string): Promise<unknown> }) =>
  until('the page is ready', () => page.evaluate("performance.getEntriesByName('corral-ready').length > 0"))

/** Makes the remote model the model for new chats, and waits until the page is ready. */
export async function preferWriter(page: Page): Promise<void> {
  await page.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await page.reload()
  await page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
  await becomesReady(page)
}

/** Writes the answer of the remote model to one request. */
type Writer = (write: (delta: object) => void, request: { messages: any[]; model: string }) => Promise<void> | void

/**
 * Starts a remote server with OpenAI's API, for answers that the built-in model cannot give.
 * @returns the section `remote` of a configuration, with the model `far/writer`
 */
export async function startWriter(t: Pick<Test, 'teardown'>, writer: Writer, capabilities = ['completion', 'tools']) {
  const event = (body: unknown) => `data: ${JSON.stringify(body)}\n\n`
  const reply = async (request: IncomingMessage, response: ServerResponse) => {
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
  const port = await listen(
    t,
    createServer((request, response) => void reply(request, response))
  )
  const url = `http://127.0.0.1:${port}/v1`
  const models = { 'far/writer': { model: 'writer', servers: [{ url }], capabilities, context: 100_000 } }
  return `remote: ${JSON.stringify({ models })}\n`
}

/** An event of a browser's trace. Times in microseconds, `tdur` of the processor. */
interface TraceEvent {
  name: string
  ph: string
  pid: number
  tid: number
  ts: number
  dur?: number
  tdur?: number
}

/** Records the tasks of a page's main thread. @returns a function that ends the recording and reports it */
export async function recordTasks(page: Page) {
  const session = await page.context().browser()!.newBrowserCDPSession()
  const events: TraceEvent[] = []
  session.on('Tracing.dataCollected', ({ value }) => void events.push(...(value as unknown as TraceEvent[])))
  const includedCategories = ['disabled-by-default-devtools.timeline', 'devtools.timeline', 'blink.user_timing']
  await session.send('Tracing.start', { traceConfig: { excludedCategories: ['*'], includedCategories } })
  await page.evaluate("performance.mark('corral-recorded')")
  return async () => {
    const ended = once(session as unknown as EventTarget, 'Tracing.tracingComplete')
    await session.send('Tracing.end')
    await ended
    const main = events.find(({ name }) => name === 'corral-recorded')!
    const all = events
      .filter(({ ph, pid, tid }) => ph === 'X' && pid === main.pid && tid === main.tid)
      .map(({ name, ts, dur = 0, tdur = dur }) => ({ name, began: ts, ended: ts + dur, work: tdur / 1000 }))
      .sort((a, b) => a.began - b.began)
    const tasks = all.filter(({ name }) => name === 'RunTask')
    const commits = all.filter(({ name }) => name === 'Commit')
    const frames = tasks.filter(task => commits.some(({ began }) => began > task.began && began < task.ended))
    let end = 0
    const calls = all.filter(({ name, began, ended }) => {
      // Nested calls are included in the outer ones.
      if (name !== 'FunctionCall' || began < end) return false
      end = ended
      return frames.some(frame => began > frame.began && began < frame.ended)
    })
    const sum = (of: typeof all) => of.reduce((sum, { work }) => sum + work, 0)
    const longest = Math.max(...tasks.map(({ work }) => work))
    const long = tasks.filter(({ work }) => work > 50).length
    const computed = sum(calls) / sum(frames)
    return {
      /** Processor time of the longest task and of all tasks, in ms. Other programs do not increase it. */
      longest,
      work: sum(tasks),
      /** Share of the frames' processor time that the page spent in its own code. */
      computed,
      text: `${long} tasks over 50 ms, the longest ${Math.round(longest)} ms; ${Math.round(sum(tasks))} ms of work; ${Math.round(100 * computed)} % of ${frames.length} frames in code`
    }
  }
}
