import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { parse } from 'yaml'
import { exposedKeysWarning } from '../../../../core/config/load.ts'
import { keylessCaller } from '../../../../core/contracts/callers.ts'
import type { Catalog, Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { catalogFor, isAllowed, requireAllowed } from '../../../../core/models/allowed-models.ts'
import { parseModelName, parseRequestedName } from '../../../../core/models/model-name.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { FailedAttempts } from '../../../../plugins/people/security/failed-attempts.ts'
import { createKey, parseKey, readKeys, revokeKey, rotateKey } from '../../../../plugins/people/security/key-file.ts'
import { parseExpiry, parseKeyLimits, partsOf } from '../../../../plugins/people/security/key-limits.ts'
import { type KnownCredential, openKeyStore } from '../../../../plugins/people/security/key-store.ts'
import { until } from '../../../support/corral.ts'
import { readCases } from '../../../support/fixture.ts'

const CASES: {
  limits: [text: string, limits: object][]
  wrongLimits: string[]
  expiry: [text: string, at: string][]
  wrongExpiry: string[]
  models: [allowed: string[], name: string, is: boolean][]
} = parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'keys.yaml'), 'utf8'))

t.test('parseKeyLimits parses limits', async t => {
  for (const [text, limits] of CASES.limits) t.same(parseKeyLimits(text), limits, text)
  for (const text of CASES.wrongLimits) t.throws(() => parseKeyLimits(text), Error, `refused: ${text}`)
  t.same(partsOf({ requests_per_minute: 1, tokens_per_day: 2, n: 3 }), {
    bounds: { n: 3 },
    budgets: { requests_per_minute: 1, tokens_per_day: 2 }
  })
})

t.test('parseExpiry parses when a key expires', async t => {
  const now = new Date('2030-01-01T00:00:00.000Z')
  for (const [text, at] of CASES.expiry) t.equal(parseExpiry(text, now), at, text)
  for (const text of CASES.wrongExpiry) t.throws(() => parseExpiry(text, now), Error, `refused: ${text}`)
})

const model = (name: string, label = 'Q8_0'): Model =>
  ({
    model: { ...parseModelName(name), variant: label },
    key: `${name}:${label}`.toLowerCase(),
    publicName: name
  }) as Model

t.test('keys restrict models by name and alias', async t => {
  for (const [allowed, name, is] of CASES.models) t.equal(isAllowed(allowed, model(name)), is, `${allowed} ${name}`)
  t.equal(isAllowed(undefined, model('a/b')), true, 'no list, no restriction')
  t.equal(isAllowed([], model('a/b')), false, 'an empty list allows nothing')

  for (const present of [model('c/d'), undefined]) {
    t.throws(() => requireAllowed(['a/b'], parseModelName('c/d'), present), { code: 'forbidden_model' })
  }
  t.doesNotThrow(() => requireAllowed(['a/b'], parseModelName('a/b')), 'a missing model is reported later')
  t.doesNotThrow(() => requireAllowed(['my/alias'], parseModelName('my/alias'), model('a/b')), 'by an alias')
  t.doesNotThrow(
    () => requireAllowed(['gpt-4o'], parseRequestedName('GPT-4o:latest'), model('a/b')),
    'without an owner'
  )

  const all = [model('a/b'), model('c/d')]
  const catalog = {
    list: () => all,
    variants: () => all,
    find: () => all[1],
    get: () => all[1]
  } as unknown as Catalog
  const seen = catalogFor(catalog, { models: ['a/*'] })
  t.same(seen.list(), [all[0]])
  t.same(seen.variants(parseModelName('a/b')), [all[0]])
  t.equal(catalogFor(catalog, {}), catalog)
})

const log = { info() {}, warn() {}, error() {} }

t.test('FailedAttempts limits wrong keys per address', async t => {
  const attempts = new FailedAttempts(log)
  const refusal = new CorralError('unauthorized', 'Wrong.')
  /** Sends wrong keys. @returns how many were checked */
  const admitted = (address: string, keys: (at: number) => string, count: number, now: number) =>
    Array.from({ length: count }, (_, at) => attempts.refuse(address, keys(at), refusal, now)).filter(
      error => error === refusal
    ).length
  const accepts = (address: string, now = 0, owner = 'key:1', isLong = false) =>
    attempts.accepts({ caller: { owner }, isLong } as KnownCredential, address, now)
  const guess = (at: number) => `guess-${at}`

  t.ok(accepts('192.0.2.50'))
  const checked = admitted('192.0.2.1', guess, 1000, 0)
  t.ok(checked > 5 && checked < 100, `${checked} of 1000 guesses are checked`)
  t.notOk(accepts('192.0.2.1'), 'not even a right guess')
  t.ok(accepts('192.0.2.1', 0, 'key:1', true), 'long keys cannot be guessed')
  t.ok(accepts('192.0.2.2'), 'another address is independent')
  t.match(attempts.refuse('192.0.2.1', 'x', refusal, 0), { code: 'rate_limited', retryAfter: Number })
  t.ok(admitted('192.0.2.1', at => `more-${at}`, 100, 10_000) < 20, 'some are forgiven over time')
  t.ok(accepts('192.0.2.1', 3_600_000))
  const repeated = admitted('192.0.2.3', () => 'an outdated key', 1000, 0)
  t.ok(repeated > checked && repeated < 500, `${repeated} of 1000 with the same key`)

  for (const [sender, other] of [
    ['2001:db8::1', '2001:db8:0:0:ffff::2'],
    ['::ffff:192.0.2.9', '192.0.2.9']
  ] as const) {
    admitted(sender, guess, 1000, 0)
    t.notOk(accepts(other), `${other} is the same network as ${sender}`)
  }
  t.ok(accepts('2001:db8:0:1::1'))

  admitted('192.0.2.50', guess, 1000, 0)
  t.ok(accepts('192.0.2.50'), 'a key that was accepted before')
  t.notOk(accepts('192.0.2.50', 0, 'key:2'))
  for (let at = 0; at < 30_000; at++) attempts.refuse(`2001:db8:${at.toString(16)}::1`, 'x', refusal, 0)
  t.ok(attempts.size <= 10_000, 'memory is limited')
})

t.test('key file stores hashes and names, and an id that never changes', async t => {
  const home = t.testdir({})
  const path = join(home, 'new', 'keys.json')
  t.equal(await readKeys(path), undefined)
  const { key, record } = await createKey(path, { name: 'alice', models: ['a/*'], limits: { n: 2 } })
  t.match(record, { name: 'alice', role: 'user', models: ['a/*'], limits: { n: 2 }, created: String })
  const text = readFileSync(path, 'utf8')
  t.notOk(text.includes(parseKey(key)!.secret), 'the key is not in the file')
  t.equal(statSync(path).mode & 0o777, 0o600)
  await t.rejects(createKey(path, { name: 'Alice' }), { code: 'key_exists' })
  for (const name of ['', 'a b', '../x', 'a\nb', '-x', 'x'.repeat(65)]) {
    await t.rejects(createKey(path, { name }), { code: 'invalid_request' }, JSON.stringify(name))
  }
  await t.rejects(createKey(path, { name: 'late', expires: '2001-01-01T00:00:00.000Z' }), { code: 'invalid_request' })
  await t.rejects(createKey(path, { name: 'x', models: ['invalid name'] }), { code: 'invalid_request' })
  await t.rejects(revokeKey(path, 'nobody'), { code: 'key_not_found' })
  await t.rejects(rotateKey(path, 'nobody'), { code: 'key_not_found' })

  const rotated = await rotateKey(path, 'alice')
  t.equal(parseKey(rotated.key)!.id, parseKey(key)!.id)
  t.not(rotated.key, key)
  await Promise.all(['b', 'c', 'd', 'e'].map(name => createKey(path, { name })))
  t.same((await readKeys(path))!.map(({ name }) => name).sort(), ['alice', 'b', 'c', 'd', 'e'], 'no key is lost')
  for (const text of ['', 'corral_', `${key}x`, key.slice(1), `corral_${'g'.repeat(16)}_${'a'.repeat(43)}`]) {
    t.equal(parseKey(text), undefined, text)
  }
})

async function opened(t: Test, path: string) {
  const store = await openKeyStore(path, [], log)
  t.teardown(() => store.close())
  return store
}

t.test('key store follows the file and stays closed once it had keys', async t => {
  const home = t.testdir({})
  const path = join(home, 'keys.json')
  const store = await opened(t, path)
  t.equal(store.required, false)
  const one = await createKey(path, { name: 'one', role: 'admin' })
  const two = await createKey(path, { name: 'two' })
  t.equal((await store.find(one.key))?.caller.name, 'one', 'immediately')
  t.equal(store.required, true)
  const known = (await store.find(two.key))!
  t.match(known.caller, { role: 'user', owner: `key:${parseKey(two.key)!.id}` })
  for (const wrong of [
    `${one.key.slice(0, -1)}${one.key.endsWith('A') ? 'B' : 'A'}`,
    'x',
    two.key.replace('corral', 'x')
  ]) {
    t.equal(await store.find(wrong), undefined, wrong)
  }
  const { id } = parseKey(one.key)!
  t.equal(await store.find(`corral_${id}_${parseKey(two.key)!.secret}`), undefined, "another key's secret")

  await revokeKey(path, 'one')
  await store.refresh()
  t.equal(await store.find(one.key), undefined)
  t.equal(known.caller.revoked?.aborted, false, 'others stay')
  await rotateKey(path, 'two')
  await store.refresh()
  t.match(known.caller.revoked?.reason, { code: 'unauthorized', message: /"two"/ })
  await revokeKey(path, 'two')
  await store.refresh()
  t.equal(store.required, true)
  rmSync(path)
  await store.refresh()
  t.equal(store.required, true, 'not even without the file')

  // A mistake in the file does not affect a running server, and is reported at the next start.
  const three = await createKey(path, { name: 'three' })
  await store.refresh()
  writeFileSync(path, '{ "version": 1, "keys": [')
  await store.refresh()
  t.ok(await store.find(three.key))
  await t.rejects(openKeyStore(path, [], log), /keys\.json.*cannot be used.*not JSON/)
  writeFileSync(path, JSON.stringify({ version: 1, keys: [{ ...(await entry()), expires: 'tomorrow' }] }))
  await t.rejects(openKeyStore(path, [], log), /keys\.json.*cannot be used/)
  if (process.platform !== 'win32') {
    rmSync(path)
    execFileSync('mkfifo', [path])
    await store.refresh()
    t.ok(await store.find(three.key), 'a pipe in its place does not block')
    await t.rejects(openKeyStore(path, [], log), /keys\.json, cannot be used: it is not a regular file/)
    rmSync(path)
  }
  async function entry() {
    const other = join(home, 'other', 'keys.json')
    mkdirSync(join(home, 'other'))
    await createKey(other, { name: 'x' })
    return (await readKeys(other))![0]
  }
})

t.test('an unreadable key file does not open the server', async t => {
  const home = t.testdir({})
  const path = join(home, 'keys.json')
  // As if the keys were on an unmounted disk.
  symlinkSync(join(home, 'nowhere', 'keys.json'), path)
  await t.rejects(
    openKeyStore(path, [], log),
    /keys\.json, cannot be used: it is a symbolic link to a file that does not/
  )
  await t.rejects(createKey(path, { name: 'one' }), /symbolic link/, 'nor is it replaced')
  rmSync(path)
  writeFileSync(path, '')
  truncateSync(path, 2 ** 31)
  await t.rejects(openKeyStore(path, [], log), /keys\.json, cannot be used: it is larger than 67 MB/)
  rmSync(path)
  const { key } = await createKey(path, { name: 'one', role: 'admin' })
  const [entry] = (await readKeys(path))!
  writeFileSync(path, JSON.stringify({ version: 1, keys: [{ ...entry, expires: '2026-13-45T99:99:99Z' }] }))
  const store = await opened(t, path)
  await t.rejects(async () => await store.find(key), { code: 'unauthorized' }, 'an invalid expiry has passed')
})

t.test('an expired key ends its answers, and other keys stay', async t => {
  const path = join(t.testdir({}), 'keys.json')
  const { key: lasting } = await createKey(path, { name: 'lasting' })
  const brief = async (name: string) =>
    (await createKey(path, { name, expires: new Date(Date.now() + 1000).toISOString() })).key
  const keys = [await brief('one')]
  const store = await opened(t, path)
  const known = [(await store.find(keys[0]!))!]
  keys.push(await brief('two'))
  known.push((await store.find(keys[1]!))!)
  await until('they expire', () => known.every(({ caller }) => caller.revoked!.aborted))
  for (const key of keys) {
    await t.rejects(async () => await store.find(key), { code: 'unauthorized', message: /was valid until/ })
  }
  t.notOk((await store.find(lasting))!.caller.revoked!.aborted)
})

t.test('configured keys are compared exactly', async t => {
  const store = await openKeyStore(join(t.testdir({}), 'keys.json'), ['first-key', 'second-key'], log)
  t.teardown(() => store.close())
  for (const key of ['first-key', 'second-key']) t.ok(store.find(key), key)
  for (const key of ['first-ke', 'FIRST-KEY', 'first-key,second-key']) t.equal(store.find(key), undefined, key)
})

t.test('a key is valid again after the clock jumped ahead and back', async t => {
  const path = join(t.testdir({}), 'keys.json')
  const { key } = await createKey(path, { name: 'lasting', expires: new Date(Date.now() + 3_600_000).toISOString() })
  const store = await opened(t, path)
  const known = (await store.find(key))!
  const { now } = Date
  t.teardown(() => Object.assign(Date, { now }))
  Date.now = () => now() + 7_200_000
  await until('the key expires', () => known.caller.revoked!.aborted)
  await t.rejects(async () => await store.find(key), { code: 'unauthorized' })
  Date.now = now
  const again = (await store.find(key))!
  t.equal(again.caller.revoked?.aborted, false, 'it is valid again')
  t.equal(await store.find(key), again)
  await revokeKey(path, 'lasting')
  await store.refresh()
  t.equal(again.caller.revoked?.aborted, true)
})

t.test('clients without keys are told apart by their network', async t => {
  const table: [string, string][] = readCases('people-cases.yaml', 'networks')
  for (const [address, client] of table) t.equal(keylessCaller(address).turn, client, address)
  const turnOf = (address: string) => keylessCaller(address).turn
  t.equal(turnOf('2001:db8::1'), turnOf('2001:db8:0:0:ffff::2'), 'one network')
  t.not(turnOf('2001:db8::1'), turnOf('2001:db8:0:1::1'))
  t.equal(turnOf('fe80::1%eth0'), turnOf('fe80::2%eth0'))
  t.equal(keylessCaller('2001:db8::1').address, '2001:db8::1', 'as shown in logs')
})

t.test('config check warns about keys in a file that others can read', async t => {
  const home = t.testdir({ 'config.yaml': 'security: { api_keys: [a-key-of-more-than-20-characters] }' })
  const file = join(home, 'config.yaml')
  const origins = { 'security.api_keys': 'config.yaml:1:13' }
  const sections = { security: { api_keys: ['a-key-of-more-than-20-characters'] } }
  chmodSync(file, 0o644)
  t.match(await exposedKeysWarning({ file, origins, sections }), /can read the API keys in .*config\.yaml.*chmod 600/)
  const fromEnvironment = { 'security.api_keys': 'env CORRAL_API_KEYS' }
  t.equal(await exposedKeysWarning({ file, origins: fromEnvironment, sections }), undefined)
  t.equal(await exposedKeysWarning({ file, origins: {}, sections }), undefined)
  t.equal(await exposedKeysWarning({ file, origins, sections: { security: { api_keys: [] } } }), undefined, 'no keys')
  chmodSync(file, 0o600)
  t.equal(await exposedKeysWarning({ file, origins, sections }), undefined)
})
