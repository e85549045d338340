import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type LookupFunction } from 'node:net'
import t from 'tap'
import { allowedLookup, isAllowedEntry, requireAllowedHost } from '../../core/system/allowed-address.ts'
import { isLoopback, isPrivateHost, isPublicAddress } from '../../core/system/private-address.ts'

const NONE = new Set<string>()

t.test('isPublicAddress tells public from private and special addresses', async t => {
  const isPublic = (address: string) => isPublicAddress(address, NONE)
  for (const address of [
    '8.8.8.8',
    '172.32.0.1',
    '100.128.0.1',
    '198.20.0.1',
    '2606:4700::1111',
    '2a00:1450:4001::1',
    '::ffff:8.8.8.8',
    // An IPv4 address in the notation of IPv6-only networks.
    '64:ff9b::8.8.8.8'
  ]) {
    t.equal(isPublic(address), true, address)
  }
  for (const address of [
    '0.0.0.0',
    '0.1.2.3',
    '10.0.0.1',
    '100.64.0.1',
    // Alibaba's metadata.
    '100.100.100.200',
    '127.0.0.1',
    '127.255.255.254',
    // Metadata of most clouds; Azure's, Oracle's and Amazon's by IPv6.
    '169.254.169.254',
    '168.63.129.16',
    '192.0.0.192',
    'fd00:ec2::254',
    '172.16.0.1',
    '192.168.255.255',
    '192.0.2.1',
    '192.88.99.1',
    '198.18.0.1',
    '198.19.255.255',
    '198.51.100.1',
    '203.0.113.1',
    '224.0.0.1',
    '239.255.255.250',
    '240.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    // Deprecated spellings of 127.0.0.1.
    '::7f00:1',
    '::ffff:127.0.0.1',
    '::ffff:0:127.0.0.1',
    '::ffff:a9fe:a9fe',
    '64:ff9b::127.0.0.1',
    '64:ff9b::a9fe:a9fe',
    '64:ff9b:1::8.8.8.8',
    '2002:7f00:1::',
    '2002:808:808::1',
    '2001::1',
    '2001:db8::1',
    '3fff::1',
    '100::1',
    'fc00::1',
    'fd12:3456::1',
    'fe80::1',
    'fe80::1%eth0',
    'fec0::1',
    'ff02::1',
    '5f00::1',
    '4000::1'
  ]) {
    t.equal(isPublic(address), false, address)
  }
  t.equal(isPublicAddress('8.8.8.8', new Set(['8.8.8.8'])), false, 'an address of this machine')
})

t.test('all spellings of addresses in URLs are recognized', async t => {
  for (const host of [
    '127.0.0.1',
    '127.1',
    '127.0.1',
    '0',
    '2130706433',
    '0x7f000001',
    '0x7f.1',
    '0177.0.0.1',
    '017700000001',
    '①②⑦.⓪.⓪.①',
    '127.0.0.1.',
    '[::1]',
    '[0:0:0:0:0:0:0:1]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[64:ff9b::7f00:1]',
    '169.254.169.254',
    '2852039166',
    'localhost',
    'LOCALHOST',
    'localhost.',
    'a.b.localhost',
    'metadata.google.internal',
    'printer.local',
    'nas'
  ]) {
    const { hostname } = new URL(`http://${host}/a.gguf`)
    t.throws(() => requireAllowedHost(hostname, [], true), { code: 'address_not_allowed', status: 403 }, host)
    t.equal(isPrivateHost(hostname), true, host)
    requireAllowedHost(hostname, ['*'], true)
  }
  for (const host of [
    'huggingface.co',
    '8.8.8.8',
    '[2606:4700::1111]',
    'localhost.example.org',
    '127.0.0.1.example.org'
  ]) {
    requireAllowedHost(host, [], true)
    t.equal(isLoopback(host), false, host)
  }
})

t.test('addresses that an admin allows may be connected to', async t => {
  const refuses = (host: string, allowed: string[], isLookedUp = true) => {
    try {
      requireAllowedHost(host, allowed, isLookedUp)
      return false
    } catch {
      return true
    }
  }
  t.equal(refuses('10.1.2.3', ['10.0.0.0/8']), false)
  t.equal(refuses('[::ffff:10.1.2.3]', ['10.0.0.0/8']), false, 'the same address in another spelling')
  t.equal(refuses('11.1.2.3', ['10.0.0.0/8']), false, 'it is public')
  t.equal(refuses('192.168.1.1', ['10.0.0.0/8', '192.168.1.2']), true)
  t.equal(refuses('192.168.1.2', ['10.0.0.0/8', '192.168.1.2']), false)
  t.equal(refuses('[fd00::5]', ['fd00::/64']), false)
  t.equal(refuses('[fd01::5]', ['fd00::/64', '0.0.0.0/0']), true)
  t.equal(refuses('nas', ['NAS']), false)
  t.equal(refuses('other', ['nas']), true, 'without a lookup, since none of its addresses could be allowed')
  t.equal(refuses('other', ['10.0.0.0/8']), false, 'its address decides')
  t.equal(refuses('other', ['10.0.0.0/8'], false), true, 'a proxy does not say which it is')

  for (const entry of ['*', 'nas', 'hub.example.org', '10.0.0.1', '10.0.0.0/8', 'fd00::/8', '::1']) {
    t.equal(isAllowedEntry(entry), true, entry)
  }
  for (const entry of ['', '10.0.0/8', '10.0.0.0/33', 'http://nas', 'nas:80', '*.lan', '127.1', 'a b', '[::1]']) {
    t.equal(isAllowedEntry(entry), false, entry)
  }
})

type Resolve = NonNullable<Parameters<typeof allowedLookup>[1]>

/** A name server that returns these answers one after another. */
function answers(...all: string[][]): Resolve {
  let next = 0
  const resolve: LookupFunction = (_name, _options, callback) => {
    const found = all[Math.min(next++, all.length - 1)]!.map(address => ({
      address,
      family: address.includes(':') ? 6 : 4
    }))
    callback(null, found)
  }
  return resolve as unknown as Resolve
}

t.test('names are checked by the addresses that sockets connect to', async t => {
  let connections = 0
  const server = createServer(socket => {
    connections++
    socket.destroy()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const reach = async (lookup: LookupFunction, autoSelectFamily: boolean) => {
    const socket = connect({ host: 'models.example.org', port, lookup, autoSelectFamily })
    try {
      await once(socket, 'connect')
      return 'connected'
    } catch (error) {
      return (error as { code: string }).code
    } finally {
      socket.destroy()
    }
  }
  for (const both of [true, false]) {
    for (const found of [['127.0.0.1'], ['93.184.216.34', '127.0.0.1'], ['::1'], ['64:ff9b::7f00:1'], ['0.0.0.0']]) {
      t.equal(await reach(allowedLookup([], answers(found)), both), 'address_not_allowed', found.join(' and '))
    }
    const rebinding = allowedLookup([], answers(['93.184.216.34'], ['127.0.0.1']))
    await new Promise(done => rebinding('models.example.org', { all: true }, done))
    t.equal(await reach(rebinding, both), 'address_not_allowed', 'a name that has another address the second time')
    t.equal(connections, 0)
    t.equal(await reach(allowedLookup(['127.0.0.0/8'], answers(['127.0.0.1'])), both), 'connected')
    t.equal(await reach(allowedLookup(['models.example.org'], answers(['127.0.0.1'])), both), 'connected')
    connections = 0
  }
  const gone = ((_: string, _options: object, callback: (error: Error) => void) =>
    callback(Object.assign(new Error('no such name'), { code: 'ENOTFOUND' }))) as unknown as Resolve
  t.equal(await reach(allowedLookup([], gone), true), 'ENOTFOUND', 'a name that does not exist')
})
