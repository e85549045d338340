import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { until } from './corral.ts'

const DRIVER = '/usr/bin/WebKitWebDriver'
const DISPLAY_SERVER = '/usr/bin/Xvfb'

/** Why tests in WebKit are skipped on this machine. */
export const withoutWebKit =
  !(existsSync(DRIVER) && existsSync(DISPLAY_SERVER)) &&
  'THE PAGE IS NOT TESTED IN WEBKIT HERE: install webkit2gtk-driver and xvfb (Debian).'

/** Milliseconds after which a call fails instead of waiting for the page. */
const TIMEOUTS = { script: 60_000, pageLoad: 60_000 }
/** Key under which WebDriver returns an element. */
const ELEMENT = 'element-6066-11e4-a52e-4f735466cecf'

/**
 * Starts WebKitGTK's MiniBrowser on a virtual display and drives it by WebDriver, because Playwright needs a build of
 * its own. Everything stops when the test ends.
 */
export async function startWebKit(t: Pick<Test, 'teardown'>) {
  const home = mkdtempSync(join(tmpdir(), 'corral-webkit-'))
  // Xvfb writes the number of a free display to descriptor 3.
  const display = spawn(DISPLAY_SERVER, ['-displayfd', '3', '-screen', '0', '1300x900x24'], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe']
  })
  const [number] = await once(display.stdio[3]!, 'data')
  const env = {
    ...process.env,
    HOME: home,
    XDG_CACHE_HOME: home,
    XDG_DATA_HOME: home,
    DISPLAY: `:${String(number).trim()}`,
    // Its sandbox does not start in containers.
    WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: '1'
  }
  // WebKitWebDriver cannot choose a port and report it.
  const unused = createServer().listen(0, '127.0.0.1')
  await once(unused, 'listening')
  const { port } = unused.address() as AddressInfo
  await new Promise(done => unused.close(done))
  const driver = spawn(DRIVER, [`--port=${port}`], { env, stdio: 'ignore' })
  const call = async (method: string, path: string, body?: object): Promise<any> => {
    const init = { method, ...(body && { body: JSON.stringify(body) }) }
    const { value } = (await (await fetch(`http://127.0.0.1:${port}${path}`, init)).json()) as any
    if (value?.error) throw new Error(`${path}: ${value.error}: ${value.message}`)
    return value
  }
  await until('WebKitWebDriver listens', () => call('GET', '/status').catch(() => undefined))
  const { sessionId } = await call('POST', '/session', { capabilities: { alwaysMatch: { timeouts: TIMEOUTS } } })
  const session = `/session/${sessionId}`
  t.teardown(async () => {
    await call('DELETE', session).catch(() => undefined)
    for (const child of [driver, display]) {
      child.kill('SIGKILL')
      await once(child, 'exit').catch(() => undefined)
    }
    await rm(home, { recursive: true, force: true, maxRetries: 5 })
  })
  const evaluate = async (code: string): Promise<any> => {
    const script = `const done = arguments[0];
      Promise.resolve(${code}).then(value => done([JSON.stringify(value)]), error => done({ name: error.name }))`
    const reply = await call('POST', `${session}/execute/async`, { script, args: [] })
    if (!Array.isArray(reply)) throw new Error(reply?.name)
    return reply[0] == null ? undefined : JSON.parse(reply[0])
  }
  /** Errors after the page has loaded. WebDriver reports none, and no earlier ones can be seen. */
  const complaints: string[] = []
  const collect = () =>
    evaluate(
      `(window.faults = [], ['error', 'unhandledrejection', 'securitypolicyviolation'].forEach(type =>
        addEventListener(type, event => faults.push(type + ' ' + (event.message ?? event.violatedDirective)))), null)`
    )
  return {
    complaints,
    async open(url: string) {
      complaints.push(...((await evaluate('window.faults ?? []')) as string[]))
      await call('POST', `${session}/url`, { url })
      await collect()
    },
    async reload() {
      complaints.push(...((await evaluate('window.faults ?? []')) as string[]))
      await call('POST', `${session}/refresh`, {})
      await collect()
    },
    evaluate,
    /** Evaluates code in the first frame of the page. */
    async evaluateInFrame(code: string) {
      const id = await call('POST', `${session}/element`, { using: 'css selector', value: 'iframe' })
      await call('POST', `${session}/frame`, { id: { [ELEMENT]: id[ELEMENT] } })
      try {
        return await evaluate(code)
      } finally {
        await call('POST', `${session}/frame`, { id: null })
      }
    },
    /** Types text where the focus is. */
    async type(text: string) {
      const actions = [...text].flatMap(value => ['keyDown', 'keyUp'].map(type => ({ type, value })))
      await call('POST', `${session}/actions`, { actions: [{ type: 'key', id: 'keyboard', actions }] })
    }
  }
}
