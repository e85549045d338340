import t from 'tap'
import { askWithinContext, dropOldest } from '../../core/answers/context-overflow.ts'
import type { Lease } from '../../core/contracts/scheduler.ts'

type Message = { role: string; content?: string; tool_calls?: object[] }

const TEXT = 'x'.repeat(100)
const of = (role: string, content = TEXT): Message => ({ role, content })
const call = (): Message => ({ role: 'assistant', content: TEXT, tool_calls: [{}] })
/** Messages of one letter each: system, user, assistant, call of a tool, tool. */
const conversation = (letters: string): Message[] =>
  [...letters].map(letter =>
    letter === 'c' ? call() : of({ s: 'system', u: 'user', a: 'assistant', t: 'tool', d: 'developer' }[letter]!)
  )
const roles = (messages: Message[] | undefined) =>
  messages?.map(({ role, tool_calls }) => (tool_calls ? 'c' : role[0])).join('')

t.test('which messages go', async t => {
  // The conversation, its tokens, the room there is, and what is left.
  const cases: [string, number, number, string | undefined][] = [
    ['suauau', 600, 400, 'suau'],
    ['suauau', 600, 399, 'su'],
    ['suauau', 600, 1, 'su'],
    ['uauau', 500, 499, 'uau'],
    ['u', 500, 100, undefined],
    ['su', 500, 100, undefined],
    ['sua', 500, 100, undefined],
    ['', 500, 100, undefined],
    ['ucttau', 600, 100, 'u'],
    // Of the last turn, older rounds of tool calls go with their results.
    ['suctctct', 800, 600, 'suctct'],
    ['suctctct', 800, 100, 'suct'],
    ['suctct', 600, 100, 'suct'],
    ['suct', 400, 100, undefined],
    ['uauctctt', 800, 400, 'uctt'],
    // What the system says in between holds for what follows.
    ['usadu', 500, 100, 'sdu'],
    // Where nobody is the user there are no turns.
    ['saa', 300, 100, undefined]
  ]
  for (const [given, tokens, room, left] of cases) {
    t.equal(roles(dropOldest(conversation(given), tokens, room)), left, `${given}, ${tokens} tokens into ${room}`)
  }
  const images = [
    { role: 'user', content: [{ type: 'image_url', image_url: { url: TEXT } }] },
    of('assistant'),
    of('user', 'What was it?')
  ]
  t.same(dropOldest(images, 300, 200), [images[2]])
})

t.test('the conversation gets shorter with each try', async t => {
  for (const letters of ['suauauauauauauau', 'uctctctctctctct', 'uauctctauctaau']) {
    let messages = conversation(letters)
    for (let tries = 0; ; tries++) {
      const fewer = dropOldest(messages, messages.length * 100, messages.length * 100)
      if (!fewer) break
      t.ok(fewer.length < messages.length)
      t.equal(fewer.at(-1), messages.at(-1), 'the last message stays')
      messages = fewer
      if (tries > 50) return t.fail('no end')
    }
  }
})

/** An engine whose tokens are a hundred to a message. */
function leaseOf(contextSize: number) {
  const asked: number[] = []
  const request = async ({ body }: { body: string }) => {
    const { messages } = JSON.parse(body)
    asked.push(messages.length)
    const tokens = messages.length * 100
    const { Readable } = await import('node:stream')
    const error = { code: 400, type: 'exceed_context_size_error', n_prompt_tokens: tokens, n_ctx: contextSize }
    const fits = tokens < contextSize
    return {
      status: fits ? 200 : 400,
      headers: {},
      body: Readable.from([Buffer.from(JSON.stringify(fits ? {} : { error }))])
    }
  }
  const lease = { engine: { request }, signal: new AbortController().signal } as unknown as Lease
  return { lease, asked }
}

t.test('it is asked again until it fits', async t => {
  const body = { messages: conversation('suauauauauau'), max_tokens: 10 }
  const dropped: number[] = []
  const drop = { policy: 'drop_oldest' as const, onDropped: (count: number) => void dropped.push(count) }

  const roomy = leaseOf(2000)
  t.equal((await askWithinContext(roomy.lease, { path: '/', body }, drop)).status, 200)
  t.same([roomy.asked, dropped], [[12], []])

  const tight = leaseOf(650)
  t.equal((await askWithinContext(tight.lease, { path: '/', body }, drop)).status, 200)
  t.same([tight.asked, dropped], [[12, 6], [6]])
  t.equal(body.messages.length, 12, 'the request stays as it is')

  const tiny = leaseOf(150)
  await t.rejects(askWithinContext(tiny.lease, { path: '/', body }, drop), {
    code: 'context_exceeded',
    details: { n_prompt_tokens: 200, n_ctx: 150 }
  })
  t.same(dropped, [6])

  const strict = leaseOf(650)
  await t.rejects(askWithinContext(strict.lease, { path: '/', body }, { ...drop, policy: 'error' }), {
    code: 'context_exceeded',
    details: { n_prompt_tokens: 1200, n_ctx: 650 }
  })
  t.same(strict.asked, [12])
})
