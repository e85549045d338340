import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type LookupFunction } from 'node:net'
import t from 'tap'
import { allowedLookup, isAllowedEntry, requireAllowedHost } from '../../core/system/allowed-address.ts'
import { isLoopback, isPrivateHost, isPublicAddress } from '../../core/system/private-address.ts'
import { readFixture } from '../support/fixture.ts'

const NONE = new Set<string>()
const ADDRESSES =
  readFixture<Record<'public' | 'private' | 'private_hosts' | 'public_hosts', string[]>>('addresses.yaml')

t.test('isPublicAddress tells public from private and special addresses', async t => {
  const isPublic = (address: string) => isPublicAddress(address, NONE)
  for (const address of ADDRESSES.public) t.equal(isPublic(address), true, address)
  for (const address of ADDRESSES.private) t.equal(isPublic(address), false, address)
  t.equal(isPublicAddress('8.8.8.8', new Set(['8.8.8.8'])), false, 'an address of this machine')
})

t.test('all spellings of addresses in URLs are recognized', async t => {
  for (const host of ADDRESSES.private_hosts) {
    const { hostname } = new URL(`http://${host}/a.gguf`)
    t.throws(() => requireAllowedHost(hostname, [], true), { code: 'address_not_allowed', status: 403 }, host)
    t.equal(isPrivateHost(hostname), true, host)
    requireAllowedHost(hostname, ['*'], true)
  }
  for (const host of ADDRESSES.public_hosts) {
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
