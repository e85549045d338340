import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { WebSocket } from 'ws'
import { until } from './corral.ts'

const PROGRAMS = ['/usr/bin/firefox-esr', '/usr/bin/firefox', '/Applications/Firefox.app/Contents/MacOS/firefox']
const program = process.env.CORRAL_FIREFOX ?? PROGRAMS.find(existsSync)

/** Why tests in Firefox are skipped on this machine. */
export const withoutFirefox =
  program === undefined && 'THE PAGE IS NOT TESTED IN FIREFOX HERE: it is not installed (or name it by CORRAL_FIREFOX).'

interface Tree {
  context: string
  children: Tree[]
}

/**
 * Starts Firefox and drives it by WebDriver BiDi, because Playwright needs a build of its own. Firefox stops when the
 * test ends.
 */
export async function startFirefox(t: Pick<Test, 'teardown'>) {
  const profile = mkdtempSync(join(tmpdir(), 'corral-firefox-'))
  const child = spawn(program!, ['--headless', '--no-remote', '--profile', profile, '--remote-debugging-port', '0'])
  t.teardown(async () => {
    child.kill('SIGKILL')
    await once(child, 'exit').catch(() => undefined)
    await rm(profile, { recursive: true, force: true, maxRetries: 5 })
  })
  let output = ''
  child.stderr.setEncoding('utf8').on('data', text => (output += text))
  const address = await until('Firefox listens', () => /WebDriver BiDi listening on (ws:\S+)/.exec(output)?.[1])
  const socket = new WebSocket(`${address}/session`)
  await once(socket, 'open')
  const waiting = new Map<number, (reply: any) => void>()
  /** Errors in the console. */
  const complaints: string[] = []
  socket.on('message', data => {
    const message = JSON.parse(String(data))
    if (message.method === 'log.entryAdded' && message.params.level === 'error') complaints.push(message.params.text)
    waiting.get(message.id)?.(message)
  })
  let last = 0
  const send = async (method: string, params: object): Promise<any> => {
    last += 1
    const id = last
    socket.send(JSON.stringify({ id, method, params }))
    const { result, message } = await new Promise<any>(resolve => waiting.set(id, resolve))
    if (!result) throw new Error(`${method}: ${message}`)
    return result
  }
  await send('session.new', { capabilities: {} })
  await send('session.subscribe', { events: ['log.entryAdded'] })
  const tree = async (): Promise<Tree> => (await send('browsingContext.getTree', {})).contexts[0]
  const { context } = await tree()
  const evaluateIn = async (context: string, code: string): Promise<any> => {
    const expression = `Promise.resolve(${code}).then(value => JSON.stringify(value))`
    const reply = await send('script.evaluate', { expression, target: { context }, awaitPromise: true })
    if (reply.type === 'exception') throw new Error(reply.exceptionDetails.text)
    return reply.result.value === undefined ? undefined : JSON.parse(reply.result.value)
  }
  return {
    complaints,
    open: (url: string) => send('browsingContext.navigate', { context, url, wait: 'complete' }),
    reload: () => send('browsingContext.reload', { context, wait: 'complete' }),
    evaluate: (code: string) => evaluateIn(context, code),
    /** Evaluates code in the first frame of the page. */
    async evaluateInFrame(code: string) {
      const frame = await until('a frame', async () => (await tree()).children[0])
      return evaluateIn(frame.context, code)
    },
    /** Types text where the focus is. */
    async type(text: string) {
      const actions = [...text].flatMap(value => ['keyDown', 'keyUp'].map(type => ({ type, value })))
      await send('input.performActions', { context, actions: [{ type: 'key', id: 'keyboard', actions }] })
    }
  }
}
