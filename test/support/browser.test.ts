import { once } from 'node:events'
import { statSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { accessibilityFaults, screenshot, testBrowser } from './browser.ts'

const browser = testBrowser(t)

const PAGE = `<!doctype html><html lang="en"><title>A page</title><meta name="viewport" content="width=device-width">
<main><h1>A page</h1><button></button><p style="color: red">Red</p></main><script src="/script.js"></script></html>`
const SCRIPT = "console.error('body'); fetch('/none'); setTimeout(() => { throw new Error('thrown') })"

t.test('faults of a page are reported', { skip: browser.skip }, async t => {
  const server = createServer(({ url }, response) => {
    response.setHeader('content-security-policy', "default-src 'self'")
    if (url === '/') return response.setHeader('content-type', 'text/html').end(PAGE)
    if (url === '/script.js') return response.setHeader('content-type', 'text/javascript').end(SCRIPT)
    return response.writeHead(404).end()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => server.close())
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`

  const { page, complaints, refusals } = await browser.open(t, address)
  await page.waitForLoadState('networkidle')
  t.ok(refusals.includes('404 GET /none'), 'a refused request')
  t.ok(complaints.includes('body'), 'an error of the console')
  t.ok(
    complaints.some(line => line.includes('thrown')),
    'an error that nobody catches'
  )
  t.ok(
    complaints.some(line => line.includes('Content Security Policy')),
    'a breach of its policy'
  )
  t.strictSame(await accessibilityFaults(page), ['button-name: button'], 'a button without a name')
  t.ok(statSync(await screenshot(page, t.name)).size > 1000, 'a picture of it')

  const phone = await browser.open(t, address, { device: 'Pixel 7', colorScheme: 'dark' })
  t.ok(await phone.page.evaluate("innerWidth < 500 && matchMedia('(prefers-color-scheme: dark)').matches"))
})
