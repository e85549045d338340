import type { IncomingHttpHeaders } from 'node:http'
import { hostname } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { ConfigError } from '../../../../core/config/config-error.ts'
import { sentKeys } from '../../../../plugins/people/security/find-caller.ts'
import {
  hostAllowed,
  hostOf,
  isLoopbackHost,
  nameKey,
  ORIGIN_PATTERN,
  originAllowed,
  originPattern
} from '../../../../plugins/people/security/host-and-origin.ts'
import { judgeBind } from '../../../../plugins/people/security/index.ts'
import { openKeyStore } from '../../../../plugins/people/security/key-store.ts'

t.test('isLoopbackHost accepts loopback names and addresses', async t => {
  const loopback = [
    'localhost',
    'LOCALHOST',
    'localhost.',
    'corral.localhost',
    'a.b.localhost',
    'tauri.localhost',
    '127.0.0.1',
    '127.255.255.254',
    '127.0.1.1',
    '::1',
    '0:0:0:0:0:0:0:1',
    '::ffff:127.0.0.1',
    '::FFFF:7F00:1'
  ]
  for (const host of loopback) t.equal(isLoopbackHost(host), true, host)
  const others = [
    '',
    '0.0.0.0',
    '::',
    '127.1',
    '0x7f.0.0.1',
    '2130706433',
    '0177.0.0.1',
    '128.0.0.1',
    '10.0.0.1',
    '::2',
    '::ffff:10.0.0.1',
    '::1%lo',
    'fe80::1',
    '127.0.0.1.evil.com',
    'localhost.evil.com',
    'evil-localhost',
    'evillocalhost',
    '.localhost',
    'a..localhost',
    'localhost..',
    'localhost:80',
    '[::1]',
    'a b.localhost',
    '127.0.0.1.',
    hostname() === 'localhost' ? 'other' : hostname()
  ]
  for (const host of others) t.equal(isLoopbackHost(host), false, host)
})

t.test('hostAllowed checks Host headers', async t => {
  const names = new Set(['my-machine', 'models.example.org'])
  const allowed = [
    undefined,
    'localhost',
    'localhost:11435',
    'LocalHost:1',
    'localhost.:80',
    '127.0.0.1',
    '127.0.0.1:11435',
    '[::1]',
    '[::1]:1',
    '[::ffff:127.0.0.1]:11435',
    'x.localhost:3',
    'My-Machine:11435',
    'my-machine.',
    'models.example.org'
  ]
  for (const header of allowed) t.equal(hostAllowed(header, names), true, String(header))
  const refused = [
    '',
    ':80',
    'evil.com',
    'evil.com:11435',
    '127.0.0.1.evil.com',
    'localhost.evil.com:11435',
    '127.1',
    '0.0.0.0:11435',
    '[::]',
    '[::2]:1',
    '::1',
    '::1:80',
    '[::1',
    '[::1]x',
    '[::1]evil.com',
    'localhost@evil.com',
    'evil.com@localhost',
    'localhost:80:80',
    'localhost:abc',
    'localhost:',
    'localhost/evil',
    'localhost#',
    'localhost?',
    'localhost evil.com',
    'evil.com\\localhost',
    'x.models.example.org',
    'my-machine.evil.com',
    '[localhost]',
    '192.168.1.7:11435'
  ]
  for (const header of refused) t.equal(hostAllowed(header, names), false, header)
  for (const header of ['192.168.1.7:11435', '[fe80::1]:1', '10.0.0.1']) {
    t.equal(hostAllowed(header, names, { addresses: true }), true, `${header} if addresses are accepted`)
  }
  for (const header of ['evil.com', '192.168.1.7.evil.com', '192.168.1', '[::1', 'fe80::1']) {
    t.equal(hostAllowed(header, names, { addresses: true }), false, `${header} is not an address`)
  }
  t.equal(hostOf('[::1]:11435'), '::1')
  t.equal(hostOf('a.b:1'), 'a.b')
  t.equal(nameKey('A.B.'), 'a.b')
})

t.test('originAllowed checks origins', async t => {
  const host = 'box.lan:11435'
  const allowed = [
    undefined,
    'http://localhost',
    'https://localhost',
    'http://localhost:3000',
    'http://127.0.0.1:8080',
    'https://[::1]:1',
    'http://tauri.localhost',
    'http://box.lan:11435',
    'HTTP://BOX.LAN:11435',
    'https://box.lan:11435',
    'app://.',
    'app://obsidian.md',
    'tauri://localhost',
    'vscode-webview://0a1b2c'
  ]
  for (const origin of allowed) t.equal(originAllowed(origin, host, []), true, String(origin))
  const refused = [
    '',
    'null',
    'http://evil.com',
    'https://evil.com',
    'http://localhost.evil.com',
    'http://127.0.0.1.evil.com:80',
    'http://localhost@evil.com',
    'http://user:pass@localhost',
    'http://localhost:80@evil.com',
    'http://box.lan',
    'http://box.lan:11436',
    'http://evil.com\\@localhost',
    'http://evil.com/localhost',
    'http://localhost/',
    'http://127.1',
    'http://0.0.0.0:11435',
    'http://',
    'localhost',
    '//localhost',
    'file://',
    'file:///etc/passwd',
    'chrome-extension://abc',
    'javascript://localhost',
    'ftp://localhost',
    'http://localhost http://evil.com',
    'http://evil.com, http://localhost',
    'apps://x',
    'xapp://x',
    'http://[::1',
    'http://[::2]'
  ]
  for (const origin of refused) t.equal(originAllowed(origin, host, []), false, origin)

  // The default port of a scheme may be omitted on either side.
  t.equal(originAllowed('http://box.lan', 'box.lan:80', []), true)
  t.equal(originAllowed('http://box.lan:80', 'box.lan', []), true)
  t.equal(originAllowed('https://box.lan', 'box.lan', []), true)
  t.equal(originAllowed('https://box.lan', 'box.lan:80', []), false)
  t.equal(originAllowed('http://box.lan', undefined, []), false)

  const table: [string, string[], string[]][] = [
    ['*', ['http://evil.com', 'null', 'x'], []],
    ['null', ['null'], ['http://null', 'nullx']],
    [
      'https://chat.example.org',
      ['https://chat.example.org', 'https://CHAT.example.org'],
      [
        'http://chat.example.org',
        'https://chat.example.org:8443',
        'https://chatxexample.org',
        'https://chat.example.org.evil.com'
      ]
    ],
    [
      'https://*.example.org',
      ['https://a.example.org', 'https://a.b.example.org'],
      [
        'https://example.org',
        'https://.example.org.evil.com',
        'https://a.example.org:1',
        'https://evil.com/.example.org',
        'https://evil.com#.example.org',
        'http://a.example.org',
        'https://evilexample.org'
      ]
    ],
    [
      'http://lan.box:*',
      ['http://lan.box', 'http://lan.box:1', 'http://lan.box:65535'],
      ['http://lan.box:1x', 'http://lan.boxes:1']
    ],
    ['chrome-extension://*', ['chrome-extension://abcdef'], ['chrome-extensions://abcdef', 'chrome-extension://']]
  ]
  for (const [entry, yes, no] of table) {
    t.match(entry, new RegExp(ORIGIN_PATTERN))
    for (const origin of yes) t.equal(originAllowed(origin, host, [originPattern(entry)]), true, `${entry} ${origin}`)
    for (const origin of no) t.equal(originAllowed(origin, host, [originPattern(entry)]), false, `${entry} ${origin}`)
  }
  for (const entry of ['', 'example.org', 'https://', 'https://a/b', 'https://a b', 'https://u@a', '**']) {
    t.notMatch(entry, new RegExp(ORIGIN_PATTERN), `invalid entry: ${entry}`)
  }
})

t.test('sentKeys reads keys from headers', async t => {
  const log = { info() {}, error() {} }
  const keys = await openKeyStore(join(t.testdir({}), 'keys.json'), ['first-key', 'second-key'], log)
  t.teardown(() => keys.close())
  const check = (headers: IncomingHttpHeaders) => sentKeys(headers).some(key => keys.find(key) !== undefined)
  for (const headers of [
    { authorization: 'Bearer first-key' },
    { authorization: 'bearer   second-key ' },
    { 'x-api-key': 'second-key' },
    { authorization: 'Bearer wrong', 'x-api-key': 'first-key' },
    { authorization: 'Basic abc', 'x-api-key': 'first-key' }
  ]) {
    t.equal(check(headers), true, JSON.stringify(headers))
  }
  for (const headers of [
    {},
    { authorization: '' },
    { authorization: 'first-key' },
    { authorization: 'Bearer' },
    { authorization: 'Bearer ' },
    { authorization: 'Bearer first-key second-key' },
    { authorization: 'Bearer first-ke' },
    { authorization: 'Bearer FIRST-KEY' },
    { authorization: 'Basic first-key' },
    { 'x-api-key': '' },
    { 'x-api-key': 'first-key,second-key' }
  ]) {
    t.equal(check(headers), false, JSON.stringify(headers))
  }
})

t.test('judgeBind decides which addresses may be listened on', async t => {
  const closed = { keys: false, insecure: false }
  for (const host of ['127.0.0.1', 'localhost', '::1', '127.0.0.53']) {
    t.equal(judgeBind(host, closed), 'local', host)
    t.equal(judgeBind(host, { keys: true, insecure: true }), 'local', host)
  }
  for (const host of ['0.0.0.0', '::', '192.168.1.7', 'box.lan', '', '127.1']) {
    t.throws(() => judgeBind(host, closed), ConfigError, `refused: ${host}`)
    t.equal(judgeBind(host, { keys: true, insecure: false }), 'keys', host)
    t.equal(judgeBind(host, { keys: false, insecure: true }), 'open', host)
  }
  const message = (() => {
    try {
      judgeBind('0.0.0.0', closed)
      return ''
    } catch (error) {
      return (error as Error).message
    }
  })()
  for (const hint of ['0.0.0.0', 'security.api_keys', '127.0.0.1', 'security.insecure: true']) {
    t.ok(message.includes(hint), `says ${hint}`)
  }
})
