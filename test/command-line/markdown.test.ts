import pc from 'picocolors'
import t from 'tap'
import { MarkdownStream, type TextOutput } from '../../command-line/markdown-stream.ts'
import { chatServer, DONE, say } from './chat-server.ts'
import { corral, newHome } from './command.ts'
import { newScreen, renderScreen } from './screen.ts'
import { fixture } from './tables.ts'
import { CTRL_C, onTerminal } from './terminal.ts'

const ANSWER = fixture('answer.md')

/** The terminal output of a text that arrives in parts of this length. */
function streamed(text: string, { columns = 80, rows = 24, step = 3, colors = false } = {}): string {
  let sent = ''
  const output: TextOutput = { write: part => (sent += part), columns, rows }
  const stream = new MarkdownStream(output, pc.createColors(colors))
  for (let at = 0; at < text.length; at += step) stream.push(text.slice(at, at + step))
  stream.end()
  return sent
}

t.test('MarkdownStream prints the same for any chunk size and breaks no word', async t => {
  for (const columns of [40, 120]) {
    const whole = await renderScreen(streamed(ANSWER, { columns, step: ANSWER.length }), columns)
    for (const step of [1, 2, 3, 7, 50]) {
      const { lines } = await renderScreen(streamed(ANSWER, { columns, step }), columns)
      t.same(lines, whole.lines, `${columns} columns, ${step} characters at a time`)
    }
    const shown = whole.lines.join('\n')
    for (const word of new Set(ANSWER.match(/(?<= )[a-z]{4,}(?= )/gi))) {
      t.match(shown, new RegExp(`\\b${word}\\b`), `${word} is whole`)
    }
    const tooLong = whole.wrapped.map(index => whole.lines[index])
    t.same(tooLong, columns === 40 ? ['/not/fit/into/forty/columns/at/all.'] : [], 'the terminal wraps an address')
  }
})

t.test('MarkdownStream renders at 40 columns', async t => {
  const { lines } = await renderScreen(streamed(ANSWER, { columns: 40 }), 40)
  t.same(lines, fixture('answer-at-40-columns.txt').split('\n'))
  const colored = await renderScreen(streamed(ANSWER, { columns: 40, colors: true }), 40)
  const plain = (text: string) => text.replace(/[`#]|^ +/gm, '').trim()
  t.equal(
    plain(colored.lines.slice(0, 5).join(' ')),
    plain(lines.slice(0, 5).join(' ')),
    'colours replace # and backticks'
  )
})

t.test('MarkdownStream appends words, and redraws only lines that change', async t => {
  const plain = 'One two.\n\n- first\n- second\n\n```js\nlet a = 1\n\nlet b\n```\n\nEnd.'
  t.notMatch(streamed(plain, { step: 1 }), '\x1b', 'the cursor does not move')
  const [, after] = ANSWER.split(/(?=\| Name)/)
  t.match(streamed(after!, { step: 1 }), '\x1b[J')
  for (const [text, line] of [
    [`| a | b |\n|---|---|\n${'| one | two |\n'.repeat(100)}\nEnd.`, 'one │ two'],
    [`${'one\n'.repeat(100)}End.`, 'one'],
    [`| a | b |\n|---|---|\n${'| one | two |\n'.repeat(50)}| longer | x |\n`, 'one    │ two']
  ] as const) {
    const { lines } = await renderScreen(streamed(text, { columns: 80 }), 80)
    const count = text.split('one').length - 1
    t.equal(lines.filter(each => each === line).length, count, `${line}, also taller than the terminal`)
  }
  let sent = ''
  const stream = new MarkdownStream({ write: part => (sent += part) }, pc.createColors(false))
  stream.push('This is **bold and `code with ')
  t.equal(sent, 'This is bold and `code with`', 'unclosed marks of bold text are not shown')
  stream.end()
})

t.test('MarkdownStream follows a resized terminal', async t => {
  for (const [from, to] of [
    [100, 40],
    [40, 100]
  ] as const) {
    for (const at of [60, 300, 1050, 1100, 1300]) {
      const screen = newScreen(from)
      const output = { write: screen.write, columns: from, rows: 24 }
      const stream = new MarkdownStream(output, pc.createColors(false))
      for (const character of ANSWER.slice(0, at)) stream.push(character)
      output.columns = to
      await screen.resize(to)
      for (const character of ANSWER.slice(at)) stream.push(character)
      stream.end()
      const words = (lines: string[]) =>
        lines
          .join(' ')
          .match(/\p{L}{2,}/gu)!
          .filter(word => !/[漢字中文]/.test(word))
      // The terminal itself may have wrapped earlier output.
      const sorted = (lines: string[]) => words(lines).slice(-12)
      const whole = await renderScreen(streamed(ANSWER, { columns: to }), to)
      const { lines } = await screen.read()
      t.same(sorted(lines), sorted(whole.lines), `from ${from} to ${to} columns after ${at} characters`)
      t.equal(lines.filter(line => line.includes('llama')).length, 1, 'the table appears once')
    }
  }
})

t.test("MarkdownStream removes a model's escape sequences", async t => {
  const evil =
    '\x1b]0;title\x07 \x1b[2Jgone \x9b31mred `\x1b[1mcode` [a\x1b[2J](http://x/\x1b]8;;y\x07)\n\n```\x1b[5m\n\x1b[6mx\r\n```\n'
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not be there
  for (const step of [1, 100]) t.notMatch(streamed(evil, { step }), /[\x00-\x09\x0b-\x1f\x7f-\x9f]/)
})

t.test('run renders Markdown at a terminal, and prints it raw with --raw and in a pipe', async t => {
  const server = await chatServer(t, reply => {
    for (const part of ANSWER.match(/.{1,4}/gsu)!) reply.write(say(part))
    reply.end(DONE)
  })
  const home = newHome(t)
  const ask = ['run', 'me/model', 'go', ...server.flags]
  const terminal = onTerminal(t, ask, home, { columns: 40 })
  t.equal(await terminal.ended(), 0)
  const { lines } = await renderScreen(terminal.screen(), 40)
  t.match(lines.join('\n'), 'ls # a comment\n\necho done\n──────')
  t.match(lines.join('\n'), /漢字モデル │ 12 GB │ +code\n/)
  t.notMatch(lines.join('\n'), '**several')
  const raw = onTerminal(t, [...ask, '--raw'], home, { columns: 200 })
  t.equal(await raw.ended(), 0)
  t.match((await renderScreen(raw.screen(), 200)).lines.join('\n'), ANSWER)
  t.equal((await corral(ask, { home })).stdout, `${ANSWER}\n`)
})

t.test('run ends the line and its colours when an answer is stopped', async t => {
  const server = await chatServer(t, reply => reply.write(say('| a | b |\n|---|---|\n| one | two |\n| **th')))
  const terminal = onTerminal(t, ['run', 'me/model', 'go', ...server.flags], newHome(t))
  await terminal.sees('one')
  await terminal.press(CTRL_C)
  t.equal(await terminal.ended(), 130)
  const { lines } = await renderScreen(terminal.screen(), 80)
  t.match(lines.join('\n'), /one\s+│ two\n\*\*th │ ?$/, 'the text so far, without repetition')
})
