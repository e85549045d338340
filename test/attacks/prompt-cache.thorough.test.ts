import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { createKey, revokeKey } from '../../plugins/people/security/key-file.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'

/*
 * llama-server processes only the new part of a prompt and reports how much was cached. With several keys, these counts
 * must not reveal the prompts of another key.
 */

const SECRET = 'The code of the vault is this: the big dog runs to the river near old trees. Tell nobody about it.'
/** Long enough to be saved. */
const LONG_OTHER = 'Once there was a cat who sat in the sun. '.repeat(24)
const LONG_SECRET = `${SECRET} `.repeat(8)

/** Keys in the configuration. Keys of the key file are random. */
const makeKey = (name: string) => `${name}-0123456789-0123456789-0123456789`

/** Sends a request with a key and returns the body of its successful answer. */
const asking = (corral: Corral) => async (key: string, path: string, body: object) => {
  const reply = await corral.json(path, body, { headers: { authorization: `Bearer ${key}` } })
  if (reply.status !== 200) throw new Error(`${path}: ${JSON.stringify(reply.body)}`)
  return reply.body
}

/** Each guess uses a new key, since a key may know its own earlier prompts. */
const NAMES = [
  'victim',
  'leaver',
  'one',
  'two',
  'keeper',
  'finder',
  'displaced',
  ...Array.from({ length: 13 }, (_, index) => `guesser-${index}`)
]
const [victim, leaver] = NAMES.map(makeKey) as [string, string]

const server = startCorral(t, {
  config: `defaults: { num_parallel: 2 }\nsecurity:\n  api_keys: [${NAMES.map(makeKey).join(', ')}]`
}).then(corral => ({ corral, ask: asking(corral) }))

const chat = (content: string, more: object = {}) => ({
  model: DEMO,
  messages: [{ role: 'user', content }],
  max_tokens: 2,
  temperature: 0,
  ...more
})
const completion = (more: object = {}) => ({ model: DEMO, prompt: SECRET, max_tokens: 2, temperature: 0, ...more })

const cachedIn = (body: any): number => body.usage.prompt_tokens_details.cached_tokens

/** All numbers in a reply that report how much of a prompt was cached. */
function counts(reply: unknown): number[] {
  const found: number[] = []
  JSON.stringify(reply, (name, value) => {
    const isCount = /^(cache_n|cached_tokens|cached|cache_read_input_tokens)$/.test(name)
    if (isCount && typeof value === 'number') found.push(value)
    return value
  })
  return found
}

/** The flags of an engine. */
const readFlags = (pid: number) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')

t.test('cache counts do not reveal what another key has asked', async t => {
  const marked = [{ type: 'text', text: SECRET, cache_control: { type: 'ephemeral' } }]
  const guesses: [string, string, object, object?][] = [
    ['chat', '/v1/chat/completions', chat(SECRET)],
    ['its beginning', '/v1/chat/completions', chat(SECRET), chat(SECRET.slice(0, 50))],
    ['fields of llama-server', '/v1/chat/completions', chat(SECRET), chat(SECRET, { cache_prompt: true, id_slot: 1 })],
    ['another slot', '/v1/chat/completions', chat(SECRET), chat(SECRET, { id_slot: 0, n_cache_reuse: 1 })],
    ['an option', '/v1/chat/completions', chat(SECRET), chat(SECRET, { options: { id_slot: 0, cache_prompt: true } })],
    ['names for caches', '/v1/chat/completions', chat(SECRET), chat(SECRET, { prompt_cache_key: 'x', user: 'x' })],
    ['several choices', '/v1/chat/completions', chat(SECRET), chat(SECRET, { n: 2 })],
    ['a text', '/v1/completions', completion()],
    ['several texts', '/v1/completions', completion(), completion({ prompt: [SECRET, 'x'] })],
    ['the best of several', '/v1/completions', completion(), completion({ best_of: 2 })],
    ['a response', '/v1/responses', { model: DEMO, input: SECRET, max_output_tokens: 2 }],
    ['a message', '/v1/messages', chat(SECRET)],
    ['a marked message', '/v1/messages', { ...chat(''), messages: [{ role: 'user', content: marked }] }]
  ]
  const { ask, corral } = await server
  for (const [index, [what, path, asked, guess = asked]] of guesses.entries()) {
    await ask(victim, path, asked)
    const own = counts(await ask(victim, path, asked))
    t.ok(Math.max(...own) > 20, `${what}: its own key has the prompt cached`)
    const cacheCounts = counts(await ask(makeKey(`guesser-${index}`), path, guess))
    t.ok(cacheCounts.length > 0, 'there are counts')
    t.ok(
      cacheCounts.every(count => count === 0),
      `${what}: ${cacheCounts}`
    )
  }
  const streamed = await corral.send('/v1/chat/completions', chat(SECRET, { stream: true }), {
    headers: { authorization: `Bearer ${victim}` }
  })
  t.match(await streamed.text(), /"cache_n":[2-9]\d/, 'streams of the same key report it too')
  t.notMatch(corral.log(), /code of the vault/, 'no log contains the prompt')
  const flags = readFlags(corral.enginePids()[0]!)
  t.equal(flags[flags.lastIndexOf('--cache-ram') + 1], '0', "llama-server's own prompt cache is off")
})

t.test("disconnecting before the answer does not reveal another key's prompts", async t => {
  const { ask, corral } = await server
  // Both slots contain the victim's prompts.
  await Promise.all([0, 1].map(() => ask(victim, '/v1/chat/completions', chat(LONG_SECRET))))
  for (const wait of [0, 1, 3, 6, 10]) {
    const leaving = new AbortController()
    const headers = { authorization: `Bearer ${leaver}` }
    const abandoned = corral.send('/v1/chat/completions', chat(LONG_OTHER), { headers, signal: leaving.signal })
    for (let turn = 0; turn < wait; turn++) await new Promise(setImmediate)
    leaving.abort()
    await abandoned.catch(() => undefined)
  }
  const [count] = counts(await ask(leaver, '/v1/chat/completions', chat(SECRET)))
  // The prompts of the abandoned requests may be cached, and they begin like every conversation.
  t.ok(count! < 10, `${count} tokens are cached`)
})

t.test('conversations of two keys continue from their own cached prompts', async t => {
  const keys = [makeKey('one'), makeKey('two')]
  const { ask } = await server
  const first = ['What is the capital of France?', 'Why is the sky blue and the grass green?']
  const conversations: object[][] = [[], []]
  for (let turn = 0; turn < 3; turn++) {
    for (const [index, key] of keys.entries()) {
      const messages = conversations[index]!
      messages.push({ role: 'user', content: turn === 0 ? first[index] : 'And what then?' })
      const body = await ask(key, '/v1/chat/completions', { ...chat(''), max_tokens: 8, messages })
      messages.push(body.choices[0].message)
      if (turn > 0) t.ok(cachedIn(body) > 12, `turn ${turn} of key ${index}: ${cachedIn(body)} tokens were cached`)
    }
  }
})

t.test('a running server that gets its first keys isolates their prompts', async t => {
  const corral = await startCorral(t)
  const { body } = await corral.json('/api/chat', { model: DEMO, messages: [CAPITAL_QUESTION], stream: false })
  t.equal(body.message.content, CAPITAL_ANSWER)
  const several = await corral.json('/v1/chat/completions', { ...chat(''), messages: [CAPITAL_QUESTION], n: 3 })
  t.equal(several.body.choices.length, 3)

  const plain = await corral.json('/v1/chat/completions', chat(SECRET))
  t.equal(plain.status, 200)
  const again = await corral.json('/v1/chat/completions', chat(SECRET))
  t.ok(cachedIn(again.body) > 20, 'keyless callers are one owner')
  const [first] = corral.enginePids()

  const ask = asking(corral)
  const file = join(corral.home, 'keys.json')
  const { key: one } = await createKey(file, { name: 'one', role: 'admin' })
  t.equal(cachedIn(await ask(one, '/v1/chat/completions', chat(SECRET))), 0, 'a key is another owner')
  const [second] = corral.enginePids()
  t.equal(second, first, 'the same engine serves several owners')
  const { key: two } = await createKey(file, { name: 'two' })
  t.equal(cachedIn(await ask(two, '/v1/chat/completions', chat(SECRET))), 0)
  t.ok(cachedIn(await ask(one, '/v1/chat/completions', chat(SECRET))) > 20)
  t.same(corral.enginePids(), [second])
})

t.test('saved prompts are restored only for their own key', async t => {
  const [one, two] = [makeKey('keeper'), makeKey('finder')]
  const { ask } = await server
  await ask(one, '/v1/chat/completions', chat(LONG_SECRET))
  await ask(one, '/api/stop', { model: DEMO })
  t.equal(cachedIn(await ask(two, '/v1/chat/completions', chat(LONG_SECRET))), 0, 'restored for another key')
  t.ok(cachedIn(await ask(one, '/v1/chat/completions', chat(LONG_SECRET))) > 100, 'restored for its own key')
})

t.test('conversations that displace each other reveal nothing to other keys', async t => {
  const keys = ['one', 'two', 'displaced'].map(makeKey)
  const { ask } = await server
  const prompts = keys.map((_, at) => `${LONG_SECRET} ${at}`)
  for (let round = 0; round < 2; round++) {
    for (const [at, key] of keys.entries()) {
      const cached = cachedIn(await ask(key, '/v1/chat/completions', chat(prompts[at]!)))
      t.ok(round === 0 ? cached < 20 : cached > 100, `round ${round}, key ${at}: ${cached} tokens`)
    }
  }
  for (const [at, prompt] of prompts.entries()) {
    const guess = await ask(makeKey(`guesser-${at}`), '/v1/chat/completions', chat(prompt))
    t.equal(cachedIn(guess), 0, 'another key finds nothing')
  }
})

t.test('stored conversations are listed by size only, and deleted on request and with their key', async t => {
  const corral = await startCorral(t, { config: 'defaults: { num_parallel: 1 }' })
  const file = join(corral.home, 'keys.json')
  const { key: admin } = await createKey(file, { name: 'admin', role: 'admin' })
  const { key: user } = await createKey(file, { name: 'user' })
  const ask = asking(corral)
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  const report = async () => (await corral.json('/api/cache', undefined, as(admin))).body.models
  for (const text of [LONG_SECRET, LONG_OTHER]) await ask(user, '/v1/chat/completions', chat(text))
  await ask(admin, '/v1/chat/completions', chat(LONG_OTHER))
  t.match((await corral.json('/api/ps', undefined, as(user))).body.models[0].prompt_cache, {
    hits: 0,
    misses: 3,
    restored_tokens: 0
  })
  await ask(admin, '/api/stop', { model: DEMO })
  t.match(await report(), [{ model: DEMO, conversations: 3, misses: 3 }])
  t.notMatch(JSON.stringify(await report()), /vault|cat who/)
  for (const method of ['GET', 'DELETE']) {
    t.equal((await corral.json('/api/cache', undefined, { method, ...as(user) })).status, 403, `${method} needs a role`)
  }
  await revokeKey(file, 'user')
  await until('the states of the revoked key are gone', async () => (await report())[0].conversations === 1)
  const path = `/api/cache?model=${encodeURIComponent(DEMO)}`
  t.match((await corral.json(path, undefined, { method: 'DELETE', ...as(admin) })).body, { deleted: 1 })
  t.match(await report(), [{ conversations: 0, memory: 0, disk: 0 }])
  await ask(admin, '/v1/chat/completions', chat(LONG_SECRET))
  await corral.json('/api/cache', undefined, { method: 'DELETE', ...as(admin) })
  await ask(admin, '/api/stop', { model: DEMO })
  t.match(await report(), [{ conversations: 0, memory: 0, disk: 0 }], 'what slots held is not stored later')
  const missing = await corral.json('/api/cache?model=no/such', undefined, { method: 'DELETE', ...as(admin) })
  t.match([missing.status, missing.body.code], [404, 'model_not_found'])
})
