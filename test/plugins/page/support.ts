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
  page.getByRole('article', { name: `Answer from ${model}` })

/** Waits until the last answer has ended. */
export async function ended(page: Page, model?: string): Promise<Locator> {
  const answer = answersOf(page, model).last()
  await answer.and(page.locator('[aria-busy=false]')).waitFor()
  return answer
}

/** Sets options of the chat that is open, by the fields of its settings. */
export async function setOptions(page: Page, fields: Record<string, string>): Promise<void> {
  await page.getByRole('button', { name: 'Chat settings' }).click()
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

/** An event of a browser's trace. Times in microseconds: by the clock, and of the processor's. */
interface TraceEvent {
  name: string
  ph: string
  pid: number
  tid: number
  ts: number
  dur?: number
  tdur?: number
}

/** Records what the main thread of a page does from now on. @returns ends it, and says what that was */
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
      .map(({ name, ts, dur = 0, tdur = dur }) => ({
        name,
        began: ts,
        ended: ts + dur,
        took: dur / 1000,
        work: tdur / 1000
      }))
      .sort((a, b) => a.began - b.began)
    const tasks = all.filter(({ name }) => name === 'RunTask')
    const commits = all.filter(({ name }) => name === 'Commit')
    const frames = tasks.filter(task => commits.some(({ began }) => began > task.began && began < task.ended))
    let end = 0
    const calls = all.filter(({ name, began, ended }) => {
      // Calls in calls are parts of them.
      if (name !== 'FunctionCall' || began < end) return false
      end = ended
      return frames.some(frame => began > frame.began && began < frame.ended)
    })
    const sum = (of: typeof all) => of.reduce((sum, { work }) => sum + work, 0)
    const longest = Math.max(...tasks.map(({ work }) => work))
    const long = tasks.filter(({ work }) => work > 50).length
    const longestByClock = Math.round(Math.max(...tasks.map(({ took }) => took)))
    const duration = Math.round((tasks.at(-1)!.ended - tasks[0]!.began) / 1000)
    const computed = sum(calls) / sum(frames)
    return {
      /** Of the longest task, and of all of them: the processor's time in ms, which other programs make no longer. */
      longest,
      work: sum(tasks),
      /** Of the frames, the part in which the page computed something. */
      computed,
      text: `tasks that worked over 50 ms: ${long}, the longest ${Math.round(longest)} ms (${longestByClock} ms by the clock); ${Math.round(sum(tasks))} ms of work within ${duration} ms; of its ${frames.length} frames, ${Math.round(100 * computed)} % computed`
    }
  }
}
