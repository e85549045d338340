import t from 'tap'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { chatServer, DONE, openChat, say } from './chat-server.ts'
import { corral, newHome } from './command.ts'
import { event } from './scripted-server.ts'
import { CTRL_C, ENTER, onTerminal } from './terminal.ts'

const server = await startCorral(t)

t.test('run chats with the real model at a terminal', async t => {
  const terminal = onTerminal(t, ['run', DEMO, '--temperature', '0'], server.home)
  await terminal.sees('>>> ')
  await terminal.press(`My name is Omar.${ENTER}`, /Omar.*Omar.*>>> /s)
  await terminal.press(`What is my name?${ENTER}`, /name\?.*Omar.*>>> /s)
  await terminal.press(`/clear${ENTER}`, /The conversation was cleared.*>>> /s)
  await terminal.press(`What is the capital of France?${ENTER}`, /Paris.*>>> /s)
  await terminal.press(`/bye${ENTER}`)
  t.equal(await terminal.ended(), 0)
})

t.test('run stops an answer at Ctrl-C and continues the chat', async t => {
  const server = await chatServer(t, (reply, count) => {
    reply.write(': loading 42%\n\n')
    reply.write(say(count === 1 ? 'endless ' : 'short'))
    if (count > 1) reply.end(DONE)
  })
  const terminal = await openChat(t, server, { args: ['--system', 'Be brief.'] })
  await terminal.press(`first${ENTER}`, 'endless')
  await terminal.press('typed meanwhile')
  await terminal.press(CTRL_C, '>>> ')
  await until('the server is not affected', server.left)
  await terminal.press(`second${ENTER}`, /short.*>>> /s)
  t.same(server.chats[1]!.messages, [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'first' },
    { role: 'assistant', content: 'endless ' },
    { role: 'user', content: 'second' }
  ])
  t.equal(await terminal.leave(), 0)
})

t.test('run drops the line at Ctrl-C and quits when it is pressed twice', async t => {
  const server = await chatServer(t, reply => reply.end(say('ok') + DONE))
  const terminal = await openChat(t, server)
  await terminal.press('half a line', 'half a line')
  await terminal.press(CTRL_C, '>>> ')
  t.notMatch(terminal.screen(), 'leave', 'the first Ctrl-C only dropped the line')
  await terminal.press(`next${ENTER}`, /ok.*>>> /s)
  t.equal(server.chats[0]!.messages[0]!.content, 'next')
  await terminal.press(CTRL_C, /Press Ctrl-C again or Ctrl-D to leave.*>>> /s)
  await terminal.press(CTRL_C)
  t.equal(await terminal.ended(), 130)
})

t.test('run accepts prompts of several lines in triple quotes or pasted', async t => {
  const server = await chatServer(t, reply => reply.end(say('ok') + DONE))
  const terminal = await openChat(t, server)
  await terminal.press(`"""one${ENTER}`, '... ')
  await terminal.press(`two"""${ENTER}`, /ok.*>>> /s)
  await terminal.press('\x1b[200~pasted\rlines\x1b[201~', 'lines')
  await terminal.press(ENTER, /ok.*>>> /s)
  await terminal.press(`three \\${ENTER}`, '... ')
  await terminal.press(`four${ENTER}`, /ok.*>>> /s)
  t.same(
    server.chats.map(({ messages }) => messages.at(-1)!.content),
    ['one\ntwo', 'pasted\nlines', 'three \nfour']
  )
  await terminal.press(`/?${ENTER}`, '/clear')
  t.equal(await terminal.leave(), 0)
})

t.test('run shows progress, thinking, counters and failures of an answer', async t => {
  const server = await chatServer(t, (reply, count) => {
    if (count === 2)
      return reply.end(say('half') + event({ done: true, error: 'The engine crashed.', code: 'engine_crashed' }))
    if (count === 3) return reply.end(say('cut'))
    reply.write(': loading 42%\n\n')
    setTimeout(() => {
      reply.write(event({ message: { role: 'assistant', content: '', thinking: 'hmm' }, done: false }))
      reply.end(say('an \x1b[2Janswer') + DONE)
    }, 500)
  })
  const home = newHome(t)
  const terminal = await openChat(t, server, { args: ['--verbose'], home })
  await terminal.press(`go${ENTER}`, 'loading 42%')
  await terminal.sees(/hmm.*an \[2Janswer.*2 tokens in 1\.00 s, 2\.0 tokens\/s.*>>> /s)
  await terminal.press(`crash${ENTER}`, /half.*The engine crashed\..*>>> /s)
  await terminal.press(`cut${ENTER}`, /answer is incomplete.*>>> /s)
  t.equal(await terminal.leave(), 0)

  const plain = await corral(['run', 'me/model', 'go', '--seed', '7', '--num-ctx', '64', ...server.flags], { home })
  t.match(plain, { code: 0, stdout: 'an \x1b[2Janswer\n', stderr: '' }, 'a pipe gets only the answer')
  t.same(server.chats.at(-1)!.options, { context_overflow: 'drop_oldest', seed: 7, num_ctx: 64 })
})

t.test('run reports failures of a single answer and stops when interrupted', async t => {
  const server = await chatServer(t, (reply, count) => {
    if (count === 1) return reply.end(event({ done: true, error: 'Out of memory.', code: 'insufficient_memory' }))
    if (count === 2) return reply.destroy()
    reply.write(say('endless '))
  })
  const home = newHome(t)
  const ask = ['run', 'me/model', 'go', ...server.flags]
  t.match(await corral(ask, { home }), { code: 1, stdout: '', stderr: 'error: Out of memory.\n' })
  t.match(await corral(ask, { home }), { code: 1, stdout: '', stderr: /answer is incomplete|closed before/ })
  const terminal = onTerminal(t, ask, home)
  await terminal.sees('endless')
  await terminal.press(CTRL_C)
  t.equal(await terminal.ended(), 130)
  await until('the server notices that the client has left', server.left)
})

t.test('run keeps text typed during a load or an answer for its prompt', async t => {
  let finish = () => {}
  const server = await chatServer(t, (reply, count) => {
    reply.write(say(`answer ${count} `))
    if (count > 1) reply.end(DONE)
    else finish = () => reply.end(DONE)
  })
  const terminal = onTerminal(t, ['run', 'me/model', ...server.flags], newHome(t), { columns: 40 })
  await terminal.press(`one${ENTER}two${ENTER}\x1b[200~pasted\rlines\x1b[201~`, />>> one.*answer 1/s)
  await terminal.press(' and more')
  t.notMatch(terminal.screen(), 'more', 'it does not appear in the answer')
  finish()
  await terminal.sees(/>>> two.*answer 2.*>>> .*pasted\r*\nlines.* and more/s)
  await terminal.press(ENTER, /answer 3.*>>> /s)
  t.same(
    server.chats.map(({ messages }) => messages.at(-1)!.content),
    ['one', 'two', 'pasted\nlines and more']
  )
  t.equal(await terminal.leave(), 0)
})

t.test('run treats a long paste as one editable message', async t => {
  const server = await chatServer(t, reply => reply.end(say('ok') + DONE))
  const terminal = await openChat(t, server, { columns: 40 })
  const text = '日本語 👩‍👩‍👧 مرحبا word '.repeat(400)
  await terminal.press(`\x1b[200~${text}END\x1b[201~`, 'END')
  await terminal.press('\x7f\x7f\x7fX')
  await terminal.press(ENTER, /ok.*>>> /s)
  t.equal(server.chats[0]!.messages[0]!.content, `${text}X`)
  await terminal.press(`${'y'.repeat(10_000)}${ENTER}`, /ok.*>>> /s)
  t.equal(server.chats[1]!.messages.at(-1)!.content.length, 10_000, 'even if the terminal does not mark it as a paste')
  t.equal(await terminal.leave(), 0)
})

t.test('run continues a chat after the server restarts', async t => {
  const terminal = onTerminal(t, ['run', DEMO, '--temperature', '0'], server.home)
  await terminal.sees('>>> ')
  await terminal.press(`My name is Omar.${ENTER}`, /Omar.*Omar.*>>> /s)
  await server.end()
  await terminal.press(
    `What is my name?${ENTER}`,
    /No server is running.*Send the message again with: \/regenerate.*>>> /s
  )
  await startCorral(t, { home: server.home })
  await terminal.press(`/regenerate${ENTER}`, /regenerate.*Omar.*>>> /s)
  t.equal(await terminal.leave(), 0)
})
