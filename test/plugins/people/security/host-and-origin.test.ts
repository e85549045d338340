import { readFileSync } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import { hostname } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { ConfigError } from '../../../../core/config/config-error.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
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
import { failure } from '../../../support/failure.ts'

type Lists = Record<'yes' | 'no', string[]>
const { loopback, hosts, origins, configured } = JSON.parse(
  readFileSync(join(packageRoot, 'test', 'fixtures', 'hosts-and-origins.json'), 'utf8')
) as { loopback: Lists; hosts: Lists; origins: Lists; configured: (Lists & { entry: string })[] }

/** Checks both lists. */
function check({ yes, no }: Lists, is: (text: string) => boolean, what = ''): void {
  for (const text of yes) t.equal(is(text), true, `${what}${text}`)
  for (const text of no) t.equal(is(text), false, `not ${what}${text}`)
}

t.test('isLoopbackHost accepts loopback names and addresses', async t => {
  check(loopback, isLoopbackHost)
  t.equal(isLoopbackHost(hostname()), hostname() === 'localhost')
})

t.test('hostAllowed checks Host headers', async t => {
  const names = new Set(['my-machine', 'models.example.org'])
  check(hosts, host => hostAllowed(host, names))
  t.ok(hostAllowed(undefined, names))
  const addresses = {
    yes: ['192.168.1.7:11435', '[fe80::1]:1', '10.0.0.1'],
    no: ['evil.com', '192.168.1.7.evil.com', '192.168.1', '[::1', 'fe80::1']
  }
  check(addresses, host => hostAllowed(host, names, { addresses: true }), 'if addresses are accepted: ')
  t.equal(hostOf('[::1]:11435'), '::1')
  t.equal(hostOf('a.b:1'), 'a.b')
  t.equal(nameKey('A.B.'), 'a.b')
})

t.test('originAllowed checks origins', async t => {
  const host = 'box.lan:11435'
  check(origins, origin => originAllowed(origin, host, []))
  t.ok(originAllowed(undefined, host, []))
  // The default port of a scheme may be omitted on either side.
  for (const [origin, host, is] of [
    ['http://box.lan', 'box.lan:80', true],
    ['http://box.lan:80', 'box.lan', true],
    ['https://box.lan', 'box.lan', true],
    ['https://box.lan', 'box.lan:80', false],
    ['http://box.lan', undefined, false]
  ] as const) {
    t.equal(originAllowed(origin, host, []), is, `${origin} at ${host}`)
  }
  for (const { entry, ...lists } of configured) {
    t.match(entry, new RegExp(ORIGIN_PATTERN))
    check(lists, origin => originAllowed(origin, host, [originPattern(entry)]), `${entry}: `)
  }
  for (const entry of ['', 'example.org', 'https://', 'https://a/b', 'https://a b', 'https://u@a', '**']) {
    t.notMatch(entry, new RegExp(ORIGIN_PATTERN), `invalid entry: ${entry}`)
  }
})

t.test('sentKeys reads keys from headers', async t => {
  for (const [headers, keys] of [
    [{}, []],
    [{ authorization: 'Bearer one' }, ['one']],
    [{ authorization: 'bearer   one ' }, ['one']],
    [{ 'x-api-key': 'two' }, ['two']],
    [{ authorization: 'Bearer one', 'x-api-key': 'two' }, ['one', 'two']],
    [{ authorization: 'Basic abc', 'x-api-key': 'two' }, ['two']],
    [{ 'x-api-key': 'one,two' }, ['one,two']],
    [{ 'x-api-key': '' }, []],
    ...['', 'one', 'Bearer', 'Bearer ', 'Bearer one two', 'Basic one'].map(text => [{ authorization: text }, []])
  ] as [IncomingHttpHeaders, string[]][]) {
    t.same(sentKeys(headers), keys, JSON.stringify(headers))
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
  const { message } = await failure((async () => judgeBind('0.0.0.0', closed))())
  t.match(message, /0\.0\.0\.0.*security\.api_keys.*127\.0\.0\.1.*security\.insecure: true/)
})
