import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Delta, EngineFields } from '../../../core/contracts/engines.ts'
import { createLlamaServerEngine } from '../../../runtimes/llama-server/engine.ts'
import { chooseSlot, getTrail, SlotOwners, type SlotState } from '../../../runtimes/llama-server/slot-owners.ts'
import { engineDeps, engineSpec, realBuild } from './support.ts'

const { signal } = new AbortController()
const said = (...texts: string[]): EngineFields => ({
  messages: texts.map((content, at) => ({ role: at % 2 ? 'assistant' : 'user', content }))
})

/** Completes an answer and returns the fields that chose its slot. */
async function ask(owners: SlotOwners, owner: string | undefined, body = said('Hi')) {
  const use = await owners.take(owner, body, signal)
  use.begun()
  use.end()
  return use.fields
}

t.test('does not choose slots for a single owner', async t => {
  const owners = new SlotOwners(2, false)
  t.strictSame(await ask(owners, 'a'), {})
  t.strictSame(await ask(owners, undefined), {}, 'also for requests of the server')
  t.strictSame(await ask(owners, 'a'), {})
  t.equal(owners.getOwner(1), 'a', 'all slots belong to this owner')
  t.strictSame(await ask(owners, 'b'), { cache_prompt: false })
  t.strictSame(await ask(owners, 'a'), { cache_prompt: false }, 'the contents of its slots are no longer known')
  t.equal(owners.getOwner(1), undefined)
})

t.test("a slot with another owner's prompt is used without its cache", async t => {
  const owners = new SlotOwners(1, true)
  t.strictSame(await ask(owners, 'a'), { id_slot: 0, cache_prompt: false })
  t.strictSame(await ask(owners, 'a'), { id_slot: 0 })
  t.strictSame(await ask(owners, 'b'), { id_slot: 0, cache_prompt: false })
  t.strictSame(await ask(owners, undefined), { id_slot: 0, cache_prompt: false }, 'the server is an owner too')
  t.strictSame(await ask(owners, ''), { id_slot: 0 })

  const failing = await owners.take('c', said('Hi'), signal)
  failing.end()
  t.equal(owners.getOwner(0), undefined, 'a failed request may have left the earlier prompt')
  t.strictSame(await ask(owners, 'c'), { id_slot: 0, cache_prompt: false })

  const own = await owners.take('c', said('Hi'), signal)
  own.end()
  t.strictSame(await ask(owners, 'c'), { id_slot: 0 }, 'which makes no difference if the slot was its own')
})

t.test('a request waits for a free slot', async t => {
  const owners = new SlotOwners(1, true)
  const first = await owners.take('a', said('Hi'), signal)
  const leaving = new AbortController()
  const left = owners.take('b', said('Hi'), leaving.signal)
  const order: string[] = []
  const waiting = ['b', 'c'].map(async owner => {
    const use = await owners.take(owner, said('Hi'), signal)
    order.push(owner)
    return use
  })
  leaving.abort(new Error('gone'))
  await t.rejects(left, { message: 'gone' })
  first.end()
  const second = await waiting[0]!
  t.same(order, ['b'])
  second.end()
  const third = await waiting[1]!
  third.end()
  t.same(order, ['b', 'c'])

  const held = await owners.take('a', said('Hi'), signal)
  const woken = new AbortController()
  const both = [owners.take('b', said('Hi'), woken.signal), owners.take('c', said('Hi'), signal)]
  held.end()
  woken.abort(new Error('gone'))
  await t.rejects(both[0]!, { message: 'gone' })
  t.ok(await both[1]!, 'a request that leaves when woken wakes the next one')
})

t.test('chooses the slot for a prompt', t => {
  const long = 'The instructions that all conversations of this program begin with. '.repeat(20)
  const slot = (id: number, owner: string | undefined, body: EngineFields | undefined, usedAt: number): SlotState => ({
    id,
    owner,
    trail: body && getTrail(body),
    usedAt
  })
  const table: [string, SlotState[], EngineFields, number][] = [
    ['the first one', [slot(0, undefined, undefined, 0), slot(1, undefined, undefined, 0)], said('Hi'), 0],
    [
      'the conversation that continues',
      [
        slot(0, 'a', said('One, two and three'), 1),
        slot(1, 'a', said('Where is Paris?'), 2),
        slot(2, undefined, undefined, 0)
      ],
      said('Where is Paris?', 'In France.', 'And Rome?'),
      1
    ],
    [
      'with most in common',
      [slot(0, 'a', said('Where is Paris?'), 3), slot(1, 'a', said('Where is Paris?', 'In France.'), 2)],
      said('Where is Paris?', 'In France.', 'And Rome?'),
      1
    ],
    [
      "not another owner's, however similar",
      [slot(0, 'b', said('Where is Paris?'), 1), slot(1, 'a', said('Hi'), 2)],
      said('Where is Paris?', 'In France.', 'And Rome?'),
      0
    ],
    [
      'an unused slot before an own slot with the same instructions',
      [slot(0, 'a', said(long, 'Yes.', 'x'.repeat(9000)), 1), slot(1, undefined, undefined, 0)],
      said(long, 'Yes.', 'Count.'),
      1
    ],
    [
      'an own slot with the same instructions before the oldest slot',
      [slot(0, 'b', said('Hi'), 1), slot(1, 'a', said(long, 'Yes.', 'x'.repeat(9000)), 2)],
      said(long, 'Yes.', 'Count.'),
      1
    ],
    [
      'an own slot with an unknown prompt before an unused slot',
      [slot(0, undefined, undefined, 0), slot(1, 'a', undefined, 2)],
      said('What is this?'),
      1
    ],
    ['the oldest one', [slot(0, 'b', said('Hi'), 7), slot(1, 'a', said('Hello'), 6)], said('What is this?'), 1]
  ]
  for (const [what, free, body, wanted] of table) t.equal(chooseSlot(free, 'a', getTrail(body)).id, wanted, what)
  const toolTrail = getTrail({ ...said('Hi'), tools: [{ type: 'function' }] })
  t.notSame(toolTrail, getTrail(said('Hi')), 'tools are written before the messages')
  t.ok(getTrail({ prompt: 'x'.repeat(5_000_000) }).sums.length < 2000, 'long prompts have few sums')
  t.end()
})

// ---- with llama-server ------------------------------------------------------------------------------------------------

/** Starts an engine for several owners, although its flags enable llama-server's cache of other prompts. */
async function sharedEngine(t: Pick<Test, 'teardown'>, num_parallel = 2) {
  const run = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const spec = engineSpec({ options: { ...engineSpec().options, num_parallel, num_ctx: 1024, isolated: true } })
  const extraArguments = ['--threads', '1', '--threads-batch', '1', '--cache-ram', '64']
  const engine = await createLlamaServerEngine(realBuild(), spec, engineDeps(run, { extraArguments }), {})
  t.teardown(async () => {
    await engine.stop()
    rmSync(run, { recursive: true, force: true })
  })
  /** Returns the cached prompt tokens of an owner's answer, by choice. */
  async function cached(owner: string, body: EngineFields): Promise<number[]> {
    const counts: number[] = []
    const take = (deltas: readonly Delta[]) => {
      for (const { usage, choice = 0 } of deltas) if (usage) counts[choice] = usage.cachedTokens
      return undefined
    }
    const call = body.messages ? engine.chat! : engine.completion!
    await call({ max_tokens: 4, temperature: 0, ...body }, { signal, owner, take })
    return counts
  }
  return { engine, cached }
}

const secret = 'The secret word of the first owner is this: the big river runs near old trees, and nobody knows.'

t.test("an owner learns nothing about another owner's prompts", async t => {
  const { engine, cached } = await sharedEngine(t)
  const attacks: [string, EngineFields][] = [
    ['a guess', said(secret)],
    ['the beginning of one', said(secret.slice(0, 60))],
    ['with a slot of its own choice', { ...said(secret), id_slot: 1, cache_prompt: true }],
    ['with another slot of its own choice', { ...said(secret), id_slot: 0 }],
    ['with parts of the cache wherever they are', { ...said(secret), n_cache_reuse: 1 }],
    ['several choices', { ...said(secret), n: 2 }],
    ['a text', { prompt: secret }],
    ['several texts', { prompt: [secret, secret], n: 2 }]
  ]
  for (const [index, [what, attack]] of attacks.entries()) {
    const victim = attack.prompt ? { prompt: secret } : said(secret)
    await cached('victim', victim)
    t.ok((await cached('victim', victim))[0]! > 20, 'its own owner has it cached')
    // A new owner each time, without any prompts so far.
    const counts = await cached(`guesser ${index}`, attack)
    t.equal(counts[0], 0, what)
    t.notOk(counts.length > 1 && !attack.prompt && counts[1]! > 0, what)
  }

  await cached('victim', said(secret))
  let streamed = ''
  const body = { ...said(secret), max_tokens: 2, stream_options: { include_usage: true } }
  const take = (bytes: Buffer) => {
    streamed += bytes
    return undefined
  }
  await engine.chatBytes!(body, { signal, owner: 'reader of bytes', take })
  t.match(streamed, /"cache_n":0\b/)
  t.match(streamed, /"cached_tokens":0\b/)
  await t.rejects(engine.chatBytes!({ ...body, n: 2 }, { signal, owner: 'b', take }), {
    code: 'unsupported_capability'
  })
})

t.test('interrupted answers reveal nothing either', async t => {
  const { cached, engine } = await sharedEngine(t, 1)
  await cached('victim', said(secret))
  for (let delay = 0; delay < 4; delay++) {
    const leaving = new AbortController()
    const left = engine.chat!({ ...said(secret) }, { signal: leaving.signal, owner: 'guesser', take: () => undefined })
    for (let turn = 0; turn < 2 * delay; turn++) await new Promise(setImmediate)
    leaving.abort(new Error('gone'))
    await t.rejects(left, { message: 'gone' })
  }
  const failing = { ...said(secret.repeat(100)) }
  await t.rejects(cached('guesser', failing), { code: 'context_exceeded' })
  t.same(await cached('guesser', said(secret.slice(0, 60))), [0], 'its own prompts were never processed as a whole')
})

t.test('each conversation of an owner returns to its slot', async t => {
  const { cached } = await sharedEngine(t, 4)
  const questions = ['Where is Paris?', 'What is a river?', 'Who runs to the old trees?']
  const turns = (at: number) => said(questions[at]!, 'It is near the green grass.', 'And then?')
  for (const question of questions) await cached('a', said(question))
  await cached('b', said('The sky is blue.'))
  for (const at of [2, 0, 1]) {
    const [before] = await cached('a', turns(at))
    t.ok(before! > 4, `its first turn was cached: ${before} tokens`)
  }
  t.ok((await cached('b', said('The sky is blue.', 'It is.', 'Why?')))[0]! > 4, 'also with another owner in between')
})
