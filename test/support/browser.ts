import { existsSync, mkdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Browser, BrowserContext, BrowserContextOptions, devices, Page } from 'playwright-core'
import type { Test } from 'tap'

const require = createRequire(import.meta.url)

/** Folder for screenshots: CORRAL_SCREENSHOTS, or a folder in the system's temporary directory. */
const SCREENSHOTS = process.env.CORRAL_SCREENSHOTS ?? join(tmpdir(), 'corral-screenshots')
/** Milliseconds that an action waits for its element. Test machines are slow and shared. */
const PATIENCE = 30_000
const PROGRAMS = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/Applications/Chromium.app/Contents/MacOS/Chromium',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'
]

export interface OpenOptions extends BrowserContextOptions {
  /** A device name of Playwright: its window, touch and user agent. */
  device?: keyof typeof devices & string
}

/** A page in a new browser context, which shares no storage with other pages. */
export interface OpenedPage {
  page: Page
  context: BrowserContext
  /** Console errors, which include violations of the content security policy, and uncaught errors. */
  complaints: string[]
  /** Replies with a status of 400 or more, as `404 GET /path`. */
  refusals: string[]
}

export interface TestBrowser {
  /** Why browser tests are skipped on this machine. */
  skip: string | false
  /** Opens an address. Its context closes when test `t` ends, with a screenshot if the test failed. */
  open(t: Test, address: string, options?: OpenOptions): Promise<OpenedPage>
}

/** Finds the system's Chromium or CORRAL_CHROMIUM, or says what is missing. */
export function findChromium(): { program: string } | { missing: string } {
  try {
    require.resolve('playwright-core')
  } catch {
    return { missing: 'playwright-core is not installed (npm ci)' }
  }
  const stated = process.env.CORRAL_CHROMIUM
  const program = stated ?? PROGRAMS.find(existsSync)
  if (program !== undefined && existsSync(program)) return { program }
  return { missing: stated ? `there is no ${stated}` : 'Chromium is not installed (or name it by CORRAL_CHROMIUM)' }
}

/**
 * The system's Chromium for one test file. The first page starts it, and the end of the file stops it.
 * @param flags more arguments of Chromium
 */
export function testBrowser(file: Pick<Test, 'teardown'>, flags: string[] = []): TestBrowser {
  const found = findChromium()
  let started: Promise<Browser> | undefined
  let opened = 0
  const start = async (executablePath: string) => {
    const { chromium } = await import('playwright-core')
    const browser = await chromium.launch({
      executablePath,
      // Its sandbox does not start for root, and tests in containers run as root.
      args: [...flags, ...(process.getuid?.() === 0 ? ['--no-sandbox'] : [])]
    })
    file.teardown(() => browser.close())
    return browser
  }
  return {
    skip: 'missing' in found && `PAGES ARE NOT TESTED IN A BROWSER HERE: ${found.missing}.`,
    async open(t, address, { device, ...options } = {}) {
      if ('missing' in found) throw new Error(found.missing)
      started ??= start(found.program)
      const browser = await started
      const { devices } = await import('playwright-core')
      const context = await browser.newContext({ ...(device && devices[device]), ...options })
      context.setDefaultTimeout(PATIENCE)
      const page = await context.newPage()
      opened += 1
      const picture = `failed-${t.name}-${opened}`
      t.teardown(async () => {
        if (!t.passing()) t.comment(`How the page looked: ${await screenshot(page, picture)}`)
        await context.close()
      })
      const complaints: string[] = []
      const refusals: string[] = []
      page.on('console', message => {
        if (message.type() === 'error') complaints.push(message.text())
      })
      page.on('pageerror', error => complaints.push(String(error)))
      page.on('response', response => {
        const { pathname, search } = new URL(response.url())
        if (response.status() >= 400) {
          refusals.push(`${response.status()} ${response.request().method()} ${pathname}${search}`)
        }
      })
      await page.goto(address)
      return { page, context, complaints, refusals }
    }
  }
}

/**
 * Accessibility faults that axe-core finds, as `rule: elements`.
 * @param tags rule sets of axe-core; by default WCAG 2.2 at level AA and axe's best practices
 */
export async function accessibilityFaults(
  page: Page,
  tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']
): Promise<string[]> {
  const { source } = require('axe-core') as { source: string }
  await page.evaluate(source)
  return await page.evaluate(
    `axe.run(document, { runOnly: ${JSON.stringify(tags)} }).then(({ violations }) =>
      violations.map(({ id, nodes }) => id + ': ' + nodes.map(({ target }) => target.join(' ')).join(', ')))`
  )
}

/** Takes a screenshot of the whole page. @returns its path, outside of the repository */
export async function screenshot(page: Page, name: string): Promise<string> {
  mkdirSync(SCREENSHOTS, { recursive: true })
  const path = join(SCREENSHOTS, `${name.replaceAll(/[^\w.-]+/g, '-').slice(0, 100)}.png`)
  await page.screenshot({ path, fullPage: true })
  return path
}
