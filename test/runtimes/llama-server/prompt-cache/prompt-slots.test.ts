import { mock } from 'node:test'
import t, { type Test } from 'tap'
import type { Delta, EngineFields } from '../../../../core/contracts/engines.ts'
import { PromptSlots, type SlotStates } from '../../../../runtimes/llama-server/prompt-cache/prompt-slots.ts'
import type { SavedState } from '../../../../runtimes/llama-server/prompt-cache/retention.ts'
import { startWith } from './support.ts'

const { signal } = new AbortController()
const said = (...texts: string[]): EngineFields => ({
  messages: texts.map((content, at) => ({ role: at % 2 ? 'assistant' : 'user', content }))
})
const long = (name: string) => `${name}: ${'the instructions of this agent. '.repeat(100)}`

/** Completes an answer and returns the fields that chose its slot. */
async function ask(slots: PromptSlots, owner: string | undefined, body = said('Hi')) {
  const use = await slots.take({ owner, signal }, body)
  use.begun()
  use.end()
  return use.fields
}

t.test("a slot with another owner's prompt is used without its cache", async t => {
  const slots = new PromptSlots(1)
  t.strictSame(await ask(slots, 'a'), { id_slot: 0, cache_prompt: false })
  t.strictSame(await ask(slots, 'a'), { id_slot: 0 })
  t.strictSame(await ask(slots, 'b'), { id_slot: 0, cache_prompt: false })
  t.strictSame(await ask(slots, undefined), { id_slot: 0, cache_prompt: false }, 'the server is an owner too')
  t.strictSame(await ask(slots, ''), { id_slot: 0 })

  const failing = await slots.take({ owner: 'c', signal }, said('Hi'))
  failing.end()
  const afterFailure = await ask(slots, 'c')
  t.strictSame(afterFailure, { id_slot: 0, cache_prompt: false }, 'a failed request may have left the earlier prompt')

  const own = await slots.take({ owner: 'c', signal }, said('Hi'))
  own.end()
  t.strictSame(await ask(slots, 'c'), { id_slot: 0 }, 'which makes no difference if the slot was its own')
})

t.test('a request waits for a free slot', async t => {
  const slots = new PromptSlots(1)
  const first = await slots.take({ owner: 'a', signal }, said('Hi'))
  const leaving = new AbortController()
  const left = slots.take({ owner: 'b', signal: leaving.signal }, said('Hi'))
  const order: string[] = []
  const waiting = ['b', 'c'].map(async owner => {
    const use = await slots.take({ owner, signal }, said('Hi'))
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

  const held = await slots.take({ owner: 'a', signal }, said('Hi'))
  const woken = new AbortController()
  const both = [
    slots.take({ owner: 'b', signal: woken.signal }, said('Hi')),
    slots.take({ owner: 'c', signal }, said('Hi'))
  ]
  held.end()
  woken.abort(new Error('gone'))
  await t.rejects(both[0]!, { message: 'gone' })
  t.ok(await both[1]!, 'a request that leaves when woken wakes the next one')
})

const NOW: Promise<unknown> = Promise.resolve()

/** States that are saved and restored immediately, or when `hold` settles. A save ends when `finish` settles too. */
function fakeStates({ exact = false, hold = NOW, finish = NOW, fails = false } = {}) {
  const done: string[] = []
  const saved: SavedState[] = []
  let id = 0
  const states: SlotStates = {
    exact,
    pace: 1,
    restoreSpeed: 1e6,
    find: owner => saved.filter(state => state.owner === owner),
    has: state => saved.includes(state),
    async save({ id: slot, owner, trail, last, copied }) {
      done.push(`save ${owner} in ${slot}${last ? ` after ${last.path}` : ''}`)
      await hold
      copied()
      await finish
      if (fails) return undefined
      const common = { variant: 'v', key: 'k', revision: '1', slots: 1, tier: 'memory' as const }
      const state: SavedState = { id: `${++id}`, ...common, owner, trail, tokens: trail.length, bytes: 100, usedAt: id }
      saved.push(state)
      return state
    },
    async restore(slot, { owner, id }) {
      done.push(`restore ${id} of ${owner} in ${slot}`)
      await hold
      return !fails
    },
    count: isFound => void done.push(isFound ? 'hit' : 'miss'),
    summary: () => ({
      conversations: 0,
      tokens: 0,
      memory: 0,
      disk: 0,
      hits: 0,
      misses: 0,
      restoredTokens: 0,
      restoreTime: 0
    })
  }
  return { states, done, saved }
}

t.test('a conversation that loses its slot is saved, and restored when it returns', async t => {
  const slots = new PromptSlots(1)
  const { states, done } = fakeStates()
  slots.attach(states)
  await ask(slots, 'a', said(long('first')))
  t.strictSame(await ask(slots, 'b', said(long('second'))), { id_slot: 0, cache_prompt: false })
  await new Promise(resolve => setTimeout(resolve, 10))
  t.same(done, ['miss', 'save a in 0', 'miss', 'save b in 0'], 'saved at once while conversations compete')
  done.length = 0
  t.strictSame(await ask(slots, 'a', said(long('first'), 'Yes.', 'And?')), { id_slot: 0 })
  t.same(done, ['restore 1 of a in 0', 'hit'], 'what was saved already is not saved again')
  done.length = 0
  await ask(slots, 'a', { ...said(long('third')), cache_prompt: false })
  await ask(slots, 'a', said('Hi'))
  await ask(slots, 'a', { ...said(long('fourth')), cache: false })
  await ask(slots, 'a', said('Hi'))
  t.same(
    done,
    ['save a in 0', 'miss', 'miss', 'miss', 'miss'],
    'neither a prompt that must not be stored nor a short one is saved'
  )
})

t.test('a state that was evicted is saved again before its slot is taken', async t => {
  const slots = new PromptSlots(1)
  const { states, done, saved } = fakeStates()
  slots.attach(states)
  await ask(slots, 'a', said(long('first')))
  await slots.saveAll()
  saved.length = 0
  await ask(slots, 'b', said(long('second')))
  t.same(done, ['miss', 'save a in 0', 'save a in 0', 'miss'])
})

t.test('a slot waits for a save in progress before another conversation takes the slot', async t => {
  const slots = new PromptSlots(1)
  let go = () => {}
  const { states, done } = fakeStates({ hold: new Promise<void>(resolve => (go = resolve)) })
  slots.attach(states)
  await ask(slots, 'a', said(long('first')))
  const leaving = new AbortController()
  const second = slots.take({ owner: 'b', signal: leaving.signal }, said(long('second')))
  const third = slots.take({ owner: 'c', signal }, said('Hi'))
  leaving.abort(new Error('gone'))
  await new Promise(setImmediate)
  t.same(done, ['miss', 'save a in 0'])
  go()
  await t.rejects(second, { message: 'gone' })
  t.strictSame((await third).fields, { id_slot: 0, cache_prompt: false }, 'the slot goes to the next request')
})

t.test(
  'another conversation takes the slot once it is copied, and the saved one waits for the end of its save',
  async t => {
    const slots = new PromptSlots(1)
    let go = () => {}
    const { states, done } = fakeStates({ finish: new Promise<void>(resolve => (go = resolve)) })
    slots.attach(states)
    await ask(slots, 'a', said(long('first')))
    t.strictSame(await ask(slots, 'b', said('Hi')), { id_slot: 0, cache_prompt: false })
    const returning = slots.take({ owner: 'a', signal }, said(long('first'), 'Yes.', 'And?'))
    await new Promise(setImmediate)
    t.same(done, ['miss', 'save a in 0', 'miss'])
    go()
    t.strictSame((await returning).fields, { id_slot: 0 })
    t.same(done.slice(3), ['restore 1 of a in 0', 'hit'])
  }
)

t.test('a conversation whose slot was just taken waits until it is saved', async t => {
  const slots = new PromptSlots(2)
  let go = () => {}
  const { states, done } = fakeStates({ hold: new Promise<void>(resolve => (go = resolve)) })
  slots.attach(states)
  await ask(slots, 'a', said(long('first')))
  const busy = await slots.take({ owner: 'a', signal }, said('Hi'))
  const taking = slots.take({ owner: 'b', signal }, said(long('second')))
  await new Promise(setImmediate)
  busy.end()
  const returning = slots.take({ owner: 'a', signal }, said(long('first'), 'Yes.', 'And?'))
  await new Promise(setImmediate)
  t.notOk(done.some(step => step.startsWith('restore')))
  go()
  t.strictSame((await returning).fields, { id_slot: 1 })
  await taking
  t.ok(done.includes('restore 1 of a in 1'), done.join(', '))
})

t.test('a background request waits a second rather than displace a long conversation', async t => {
  // The wait alone does not keep the process running.
  const alive = setInterval(() => {}, 1000)
  t.teardown(() => clearInterval(alive))
  const slots = new PromptSlots(2)
  const [main, other] = [said(long('main')), said(long('other'))]
  await ask(slots, 'a', main)
  const title = await slots.take({ owner: 'a', signal }, said('Make a title.'))
  const summary = slots.take({ owner: 'a', background: true, signal }, other)
  await new Promise(setImmediate)
  title.end()
  t.equal((await summary).fields.id_slot, 1, 'it takes the slot of the other background request')
  const impatient = await slots.take({ owner: 'a', signal }, { ...said(long('third')), max_tokens: 8 })
  t.equal(impatient.fields.id_slot, 0, 'after a second it does not wait any longer')
  impatient.end()

  const next = await slots.take({ owner: 'b', signal }, other)
  t.equal(next.fields.id_slot, 0, 'a conversation does not wait')
  const left = new AbortController()
  const leaving = slots.take({ owner: 'a', background: true, signal: left.signal }, other)
  left.abort(new Error('gone'))
  await t.rejects(leaving, { message: 'gone' })
})

t.test('a failed save or restore costs only a new prefill', async t => {
  const slots = new PromptSlots(1)
  const { states, done, saved } = fakeStates({ fails: true })
  slots.attach(states)
  await ask(slots, 'a', said(long('first')))
  await ask(slots, 'b', said(long('second')))
  const trail = { sums: [], length: 0 }
  saved.push({
    ...(await fakeStates().states.save({ id: 0, owner: 'a', trail, last: undefined, copied() {} }))!,
    owner: 'a'
  })
  t.strictSame(await ask(slots, 'a', said(long('first'))), { id_slot: 0, cache_prompt: false })
  t.ok(done.includes('save a in 0'))
})

t.test('the request of a state that has no way back is kept for its save', async t => {
  const slots = new PromptSlots(1)
  const { states, done } = fakeStates({ exact: true })
  slots.attach(states)
  const use = await slots.take({ owner: 'a', signal }, said(long('first')))
  use.sent({ path: '/v1/chat/completions', fields: {} })
  use.begun()
  use.end()
  await ask(slots, 'b', said(long('second')))
  t.same(done, ['miss', 'save a in 0 after /v1/chat/completions', 'miss'])
})

t.test('what is new of a conversation decides whether a state that has no way back is saved when idle', async t => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const slots = new PromptSlots(1)
  const { states, done } = fakeStates({ exact: true })
  slots.attach(states)
  const book = `${long('first')}${long('more')}`
  for (const [turns, isSaved] of [
    [[book], true],
    [[book, 'Yes.', 'And?'], false],
    [[book, 'Yes.', `And? ${book}`], true]
  ] as const) {
    done.length = 0
    await ask(slots, 'a', said(...turns))
    mock.timers.tick(6000)
    await new Promise(setImmediate)
    t.equal(done.includes('save a in 0'), isSaved, turns.at(-1)!.slice(0, 9))
  }
})

// ---- with llama-server -----------------------------------------------------------------------------------------------

/** Starts an engine, although its flags enable llama-server's cache of other prompts. */
async function sharedEngine(t: Pick<Test, 'teardown'>, num_parallel = 2) {
  const settings = { arguments: ['--cache-ram', '64'], environment: {}, loras: [], speculation: { ngram: false } }
  const engine = await startWith(t, undefined, { num_parallel, num_ctx: 1024 }, { settings })
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
  await t.rejects(cached('guesser', said(secret.repeat(100))), { code: 'context_exceeded' })
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
