import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'
import { chatServer, DONE, openChat, say } from './chat-server.ts'
import { corral, newHome } from './command.ts'
import { event } from './scripted-server.ts'
import { tables } from './tables.ts'
import { CTRL_C, ENTER, onTerminal, type Terminal } from './terminal.ts'

const UP = '\x1b[A'
const TAB = '\t'
/** The empty prompt. */
const PROMPT = '>>> \\x1b\\[5G$'
const shown = (before: string) => new RegExp(`${before}${PROMPT}`, 's')
/** Types the lines of a conversation in the tables, and waits for what each shows. */
async function types(terminal: Terminal, conversation: string): Promise<void> {
  for (const [typed, seen] of tables[`chat, ${conversation}`]!) {
    await terminal.press(`${typed}${ENTER}`, shown(`${seen}.*`))
  }
}
const answering = (reply: { end(text: string): unknown }, count: number) => reply.end(say(`answer ${count}`) + DONE)

t.test('run sends each prompt to a base model separately and explains it', thorough, async t => {
  const server = await chatServer(t, answering)
  const base = /me\/base is a base model: it completes your text/
  for (const [model, begin] of [
    ['me/base', base],
    ['me/model', /Chatting with me\/model\./]
  ] as const) {
    const terminal = onTerminal(t, ['run', model, ...server.flags], newHome(t), { columns: 120 })
    await terminal.sees(begin)
    if (model === 'me/model') {
      await terminal.press(`one${ENTER}`, shown('answer 1.*'))
      await terminal.press(`/model me/base${ENTER}`, base)
    }
    await terminal.press(`two${ENTER}`, shown('<two>.*'))
    await terminal.press(`/set system S${ENTER}three${ENTER}`, shown('<S three>.*'))
  }
  t.equal(server.chats.length, 1)
  const { stdout } = await corral(['run', 'me/base', 'four', ...server.flags], { home: newHome(t) })
  t.equal(stdout, '<four>\n')
})

t.test('run never sends settings or mistyped commands to the model', async t => {
  const server = await chatServer(t, answering)
  const terminal = await openChat(t, server, { columns: 40 })
  await types(terminal, 'settings')
  await terminal.press(`/etc/hosts is what?${ENTER}`, shown('answer 1.*'))
  t.match(server.chats, [
    {
      messages: [
        { role: 'system', content: 'hello' },
        { role: 'user', content: '/etc/hosts is what?' }
      ],
      options: { temperature: 0.25, context_overflow: 'drop_oldest' },
      think: true
    }
  ])
  t.equal(await terminal.leave(), 0)
})

t.test('run saves, loads, regenerates and moves conversations to another model', async t => {
  const server = await chatServer(t, answering)
  const home = newHome(t)
  const terminal = await openChat(t, server, { args: ['--seed', '7'], home })
  await types(terminal, 'saving')
  const [first, second, third] = server.chats
  t.same([first!.messages.length, second!.messages.length, third!.messages.length], [1, 1, 1])
  t.equal(first!.options.seed, 7)
  t.not(second!.options.seed, 7, 'the same seed would give the same answer')
  t.equal(third!.options.seed, 42)
  t.equal(server.chats[3]!.options.seed, 7, 'the seed applies to one answer')
  t.match(server.chats[4], {
    model: 'me/seeing',
    messages: [{ content: 'one' }, { content: 'answer 3' }, { content: 'three' }]
  })
  t.equal(statSync(join(home, 'chats', 'mine.json')).mode & 0o777, 0o600)
  await terminal.press(`/bye${ENTER}`)
  t.equal(await terminal.ended(), 0)
})

t.test('run attaches images by command and by path for models with vision', thorough, async t => {
  const server = await chatServer(t, answering)
  const home = newHome(t)
  const png = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1')
  writeFileSync(join(home, 'cat.png'), png)
  const terminal = await openChat(t, server, { home, columns: 120 })
  await types(terminal, 'no images')
  t.same(server.chats, [])
  await types(terminal, 'one image')
  await terminal.press(`/image ca${TAB}`, /ca.*t\.png/)
  await types(terminal, 'two images')
  t.same(server.chats[0]!.messages, [{ role: 'user', content: 'rename ./cat.png' }])
  const image = png.toString('base64')
  t.match(server.chats[2]!.messages.slice(2), [
    { content: 'What is this?', images: [image] },
    { content: 'answer 2' },
    { content: 'And here?', images: [image] }
  ])
  t.equal(await terminal.leave(), 0)
})

t.test('run completes with Tab and recalls prompts of earlier chats', thorough, async t => {
  const server = await chatServer(t, answering)
  const home = newHome(t)
  const chat = (env: Record<string, string> = {}) => openChat(t, server, { home, columns: 120, env })
  let terminal = await chat()
  await terminal.press(`/se${TAB}`, /\/se.*t /)
  await terminal.press(`tempe${TAB}0${ENTER}`, shown('rature 0.*temperature is 0.*'))
  await terminal.press(`/model me/s${TAB}${ENTER}`, shown('Now chatting with me\\/seeing.*'))
  await terminal.press(`/set${TAB}cache_type_k q5${TAB}${TAB}`, /q5_0 +q5_1/)
  await terminal.press(CTRL_C, '>>> ')
  await terminal.press(`"""first${ENTER}second"""${ENTER}`, shown('answer 1.*'))
  await terminal.press(` not kept${ENTER}`, shown('answer 2.*'))
  await terminal.press(`/set history off${ENTER}`, shown('history is off.*'))
  await terminal.press(`nor this${ENTER}`, shown('answer 3.*'))
  await terminal.leave()
  const file = join(home, 'chat-history.jsonl')
  t.equal(statSync(file).mode & 0o777, 0o600)
  t.notMatch(readFileSync(file, 'utf8'), /not kept|nor this/)

  terminal = await chat()
  await terminal.press(UP, '/set history off')
  await terminal.press(UP)
  // Node.js 26 marks the lines of one entry.
  await terminal.sees(/first\r*\n(\| )?second/)
  await terminal.press(ENTER, shown('answer 4.*'))
  t.equal(server.chats.at(-1)!.messages.at(-1)!.content, 'first\nsecond')
  await terminal.leave()

  terminal = await chat({ CORRAL_HISTORY: 'off' })
  await terminal.press(`unseen${ENTER}`, shown('answer 5.*'))
  await terminal.leave()
  t.notMatch(readFileSync(file, 'utf8'), 'unseen')
})

t.test('run continues a chat beyond its context and explains truncation', thorough, async t => {
  const server = await startCorral(t)
  const terminal = onTerminal(t, ['run', DEMO, '--num-ctx', '256'], server.home)
  await terminal.sees('>>> ')
  let dropped = false
  for (let story = 0; story < 5 && !dropped; story++) {
    await terminal.press(`Tell me another story.${ENTER}`, shown('\\r\\n\\r\\n.{0,9}'))
    dropped ||= /oldest messages no longer fit.*num_ctx 512/s.test(terminal.screen())
  }
  t.ok(dropped, 'the oldest turns are dropped with a notice')
  await terminal.press(`${'word '.repeat(400)}${ENTER}`, shown('has \\d+ tokens.*This message alone is too long.*'))
  await terminal.press(`Hi${ENTER}`, shown('Hi.*\\r\\n\\r\\n.{0,9}'))
  t.notMatch(terminal.screen(), 'error:', 'the message that was too long is forgotten')
  await terminal.press(`/set max_tokens 3${ENTER}`, shown('max_tokens is 3.*'))
  await terminal.press(
    `Tell me a story.${ENTER}`,
    shown('stopped after 3 tokens, the limit set by max_tokens.*\\/set max_tokens 100.*')
  )
  t.equal(await terminal.leave(), 0)

  const { home } = server
  const ask = ['run', DEMO, 'Tell me a story', '--max-tokens', '5', '--temperature', '0']
  t.match(await corral(ask, { home }), {
    code: 0,
    stdout: /\w/,
    stderr: /^note: .*stopped after 5 tokens.*--max-tokens 100/
  })
  t.match(await corral([...ask, '--format', 'json'], { home }), { code: 1, stderr: /^error: The JSON is incomplete\./ })
  const long = await corral(['run', DEMO, `Repeat: ${'frog '.repeat(100)}`, '--max-tokens', '-1'], { home })
  t.match(long, { code: 0 })
  t.match(await corral(['run', DEMO, 'Hi', '--temperature', 'warm'], { home }), {
    code: 2,
    stderr: /temperature must be a number .*; got warm/
  })
})

t.test('run explains an answer that fills the context', async t => {
  const server = await chatServer(t, reply =>
    reply.end(say('[1, 2') + event({ done: true, done_reason: 'length', prompt_eval_count: 4000, eval_count: 96 }))
  )
  const home = newHome(t)
  t.match(await corral(['run', 'me/model', 'go', ...server.flags], { home }), {
    code: 0,
    stdout: '[1, 2\n',
    stderr: /stopped after 96 tokens: the context of 4096 tokens is full. Get more with: --num-ctx 8192/
  })
})
