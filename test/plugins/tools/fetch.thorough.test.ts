import { writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { createServer } from 'node:https'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { isListed } from '../../../plugins/tools/mcp/built-in/fetch-page.ts'
import { pageText } from '../../../plugins/tools/mcp/built-in/page-text.ts'
import { startCorral } from '../../support/corral.ts'
import { newFolder } from '../../support/folder.ts'
import { listen } from '../../support/listen.ts'
import { localhostCertificate } from '../../support/localhost-certificate.ts'

t.test('hosts are listed by name, by a pattern or by port', async t => {
  const listed = (address: string, ...entries: string[]) => isListed(new URL(address), entries)
  for (const [address, entry] of [
    ['https://a.org/x', 'a.org'],
    ['https://A.org./x', 'a.ORG'],
    ['https://b.a.org/x', '*.a.org'],
    ['https://a.org/x', '*'],
    ['https://a.org:8443/x', 'a.org:8443'],
    ['https://[::1]:8443/x', '[::1]:8443']
  ] as const) {
    t.ok(listed(address, 'x.org', entry), `${address} ${entry}`)
  }
  for (const [address, entry] of [
    ['https://a.org.evil.com/', 'a.org'],
    ['https://evila.org/', '*.a.org'],
    ['https://a.org/', '*.a.org'],
    ['https://a.org:8443/', 'a.org'],
    ['https://a.org:8443/', '*'],
    ['https://a.org@evil.com/', 'a.org']
  ] as const) {
    t.notOk(listed(address, entry), `${address} ${entry}`)
  }
  t.notOk(listed('https://a.org/'))
})

t.test('pages become text with headings, lists and links', async t => {
  const html = `<!doctype html><html><head><title> A &amp; B </title><style>p{}</style></head><body>
    <script>if (a < b) alert("<p>no</p>")</script><h1>Cats</h1><p>They   <b>purr</b>,<br>and <a href="/dogs?x=1#y">fight dogs</a>.
    <ul><li>one<li>two</ul><a href="javascript:alert(1)">bad</a> <a href="#top">up</a>
    <svg><title>drawn</title><text>no</text></svg><table><tr><td>1<td>2</table><noscript>no</noscript>&copy; &eacute;`
  t.strictSame(await pageText(html, new URL('https://a.org/cats')), {
    title: 'A & B',
    text: '# Cats\n\nThey purr,\nand [fight dogs](https://a.org/dogs?x=1#y).\n\n- one\n- two\nbad up\n\n| 1 | 2\n© é'
  })
  const bomb = '<b>'.repeat(100_000) + '</i>'.repeat(100_000)
  await t.rejects(pageText(bomb, new URL('https://a.org')), { message: /more than 500 levels/ })
  const flat = '<p>a</p></i>'.repeat(50_000)
  t.equal((await pageText(flat, new URL('https://a.org'))).text.length, 150_000 - 2)
})

t.test('fetch reads listed hosts only, and no private address by any way', async t => {
  const asked: string[] = []
  let secure = 0
  const answers: Record<string, (response: ServerResponse) => void> = {
    '/page': response => html(response, '<title>Hello</title><p>A page.'),
    '/long': response => void response.setHeader('content-type', 'text/plain').end('0123456789'.repeat(2500)),
    '/latin': response =>
      void response.setHeader('content-type', 'text/plain; charset=iso-8859-1').end(Buffer.from([0xe9])),
    '/packed': response => {
      response.setHeader('content-encoding', 'gzip')
      html(response, gzipSync('<p>Packed.'))
    },
    '/bomb': response => {
      response.setHeader('content-encoding', 'gzip')
      html(response, gzipSync(Buffer.alloc(50_000_000)))
    },
    '/endless': response => {
      response.setHeader('content-type', 'text/html')
      const more = () => response.destroyed || response.write('x'.repeat(65_536), more)
      more()
    },
    '/silent': response => response.setHeader('content-type', 'text/html').flushHeaders(),
    '/picture': response => void response.setHeader('content-type', 'image/png').end('x'),
    '/missing': response => void response.writeHead(404, { 'content-type': 'text/html' }).end('secret'),
    '/moved': response => redirect(response, '/page'),
    '/loop': response => redirect(response, '/loop'),
    '/to-unlisted': response => redirect(response, `https://127.0.0.1:${secure}/page`),
    '/to-http': response => redirect(response, `http://listed.example.com:${secure}/page`),
    '/to-private': response => redirect(response, 'https://inside.example.com/secret'),
    '/to-link': response => redirect(response, 'https://169.254.169.254/latest/meta-data'),
    '/to-file': response => redirect(response, 'file:///etc/passwd')
  }
  const html = (response: ServerResponse, body: string | Buffer) =>
    void response.setHeader('content-type', 'text/html').end(body)
  const redirect = (response: ServerResponse, location: string) => void response.writeHead(302, { location }).end()
  const server = createServer(localhostCertificate, (request, response) => {
    asked.push(`${request.headers.host?.split(':')[0]}${request.url}`)
    answers[request.url!]!(response)
  })
  secure = await listen(t, server)

  // DNS of this test: listed.example.com is at 127.0.0.1, which the settings allow, and inside.example.com at 127.0.0.2.
  const folder = newFolder(t)
  const preload = join(folder, 'dns.cjs')
  writeFileSync(
    preload,
    `const dns = require('node:dns'), real = dns.lookup
dns.lookup = (name, options, done) => {
  const address = { 'listed.example.com': '127.0.0.1', 'inside.example.com': '127.0.0.2' }[name]
  if (!address) return real(name, options, done)
  process.nextTick(() => options.all ? done(null, [{ address, family: 4 }]) : done(null, address, 4))
}
require('node:module').syncBuiltinESMExports()
process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'
`
  )
  const start = async (env: Record<string, string>, allowed = '127.0.0.1') => {
    const corral = await startCorral(t, {
      env: { NODE_OPTIONS: `--require=${preload}`, ...env },
      config: `downloads: { private_addresses: [${allowed}] }
mcp:
  call_timeout: 5s
  fetch_from: ["listed.example.com:${secure}", inside.example.com, localhost, "*.internal", "169.254.169.254", "[::1]", "127.0.0.2:${secure}"]
  servers: { web: { built_in: [fetch] } }
`
    })
    return async (url: string, more: object = {}) => {
      const given = { tool: 'fetch', arguments: { url, ...more } }
      return (await corral.json('/api/mcp/web/call', given, { local: true })).body
    }
  }
  const fetch = await start({})
  const at = (path: string) => `https://listed.example.com:${secure}${path}`
  t.strictSame(await fetch(at('/page')), { output: `Address: ${at('/page')}\nTitle: Hello\n\nA page.`, failed: false })
  t.match(await fetch(at('/moved')), { output: `Address: ${at('/page')}\n`, failed: false })
  t.match(await fetch(at('/latin')), { output: /é$/, failed: false })
  t.match(await fetch(at('/packed')), { output: /Packed\.$/, failed: false })
  const long = await fetch(at('/long'))
  t.match(long.output, /0123456789\n\[To continue, fetch it again with "start": 20000 of 25000\.\]$/)
  t.equal((await fetch(at('/long'), { start: 20_000 })).output.length, `Address: ${at('/long')}\n\n`.length + 5000)

  asked.length = 0
  for (const [url, message] of [
    [at('/picture'), /sends "image\/png", not text/],
    [at('/missing'), /answers 404\.$/],
    [at('/endless'), /sends more than 2\.1 MB/],
    [at('/bomb'), /sends more than 2\.1 MB/],
    [at('/silent'), /took longer than 5 s/],
    [at('/loop'), /redirects more than 5 times/],
    [at('/to-unlisted'), /127\.0\.0\.1:\d+ may not be fetched.*mcp\.fetch_from/],
    [at('/to-http'), /redirects from https to the insecure/],
    [at('/to-private'), /leads to a private address/],
    [at('/to-link'), /leads to a private address/],
    [at('/to-file'), /redirects to an address of the kind "file:"/]
  ] as const) {
    t.match(await fetch(url), { output: message, failed: true }, url)
  }
  t.ok(
    asked.every(each => /^listed/.test(each)),
    'no other host was asked'
  )
  asked.length = 0
  for (const [url, message] of [
    [`https://127.0.0.1:${secure}/page`, /may not be fetched/],
    [`https://127.1:${secure}/page`, /may not be fetched/],
    [`https://2130706433:${secure}/page`, /may not be fetched/],
    ['https://example.org/', /example\.org may not be fetched/],
    [`https://127.0.0.2:${secure}/page`, /private address/],
    ['https://inside.example.com/', /private address/],
    ['https://169.254.169.254/', /private address/],
    ['https://[::1]/', /private address/],
    [`http://listed.example.com:${secure}/page`, /only addresses with https/],
    [`https://a:b@listed.example.com:${secure}/page`, /must not contain a password/],
    ['file:///etc/passwd', /only addresses with https/],
    ['page', /is not an address/]
  ] as const) {
    t.match(await fetch(url), { output: message, failed: true }, url)
  }
  t.strictSame(asked, [], 'nothing was asked')
  const strict = await start({}, '')
  for (const url of [at('/page'), 'https://localhost/', 'https://wiki.internal/']) {
    t.match(await strict(url), { output: /private address/, failed: true }, url)
  }
  t.strictSame(asked, [])
  const offline = await start({ HF_HUB_OFFLINE: '1' })
  t.match(await offline(at('/page')), { output: /HF_HUB_OFFLINE is set/, failed: true })
})
