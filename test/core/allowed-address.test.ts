import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type LookupFunction } from 'node:net'
import t from 'tap'
import { allowedLookup, isAllowedEntry, requireAllowedHost } from '../../core/system/allowed-address.ts'
import { isLoopback, isPrivateHost, isPublicAddress } from '../../core/system/private-address.ts'
import { readFixture } from '../support/fixture.ts'

const NONE = new Set<string>()
type Lists = 'public' | 'private' | 'private_hosts' | 'public_hosts' | 'entries' | 'no_entries'
type Allowance = [host: string, allowed: string[], isRefused: boolean, how?: 'proxy']
const ADDRESSES = readFixture<Record<Lists, string[]> & { allowances: Allowance[] }>('addresses.yaml')

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
  for (const [host, allowed, isRefused, how] of ADDRESSES.allowances) {
    const require = () => requireAllowedHost(host, allowed, how !== 'proxy')
    t[isRefused ? 'throws' : 'doesNotThrow'](require, `${host} with ${allowed}`)
  }
  for (const entry of ADDRESSES.entries) t.equal(isAllowedEntry(entry), true, entry)
  for (const entry of ADDRESSES.no_entries) t.equal(isAllowedEntry(entry), false, entry)
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
