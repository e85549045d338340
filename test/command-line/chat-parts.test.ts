import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { PromptLines } from '../../command-line/chat.ts'
import { readCommand } from '../../command-line/chat-commands.ts'
import { cutText } from '../../command-line/chat-session.ts'
import { applySetting, type ChatSettings, SETTING_NAMES, shownSettings } from '../../command-line/chat-settings.ts'
import { PromptHistory } from '../../command-line/prompt-history.ts'
import { imagesIn, readImage, typedPath } from '../../command-line/prompt-images.ts'
import { SavedChats } from '../../command-line/saved-chats.ts'
import { newHome } from './command.ts'
import { pattern, tables } from './tables.ts'

t.test('PromptLines assembles prompts and commands from lines', async t => {
  for (const [typed, kind, text] of tables.PromptLines!) {
    const lines = new PromptLines()
    const read = typed.map((line: string) => lines.add(line))
    t.same(read.pop(), text === undefined ? { kind } : { kind, text }, JSON.stringify(typed))
    for (const line of read) t.same(line, { kind: 'more' })
    t.equal(lines.unfinished, false)
  }
  for (const open of ['"""open', 'open \\']) {
    const lines = new PromptLines()
    lines.add(open)
    t.equal(lines.unfinished, true)
    lines.reset()
    t.same(lines.add('x'), { kind: 'prompt', text: 'x' })
  }
})

t.test('readCommand distinguishes commands, paths and typos', async t => {
  for (const line of ['/bye', '/QUIT', ' /? ', '/set system hello', '/set', '/clear']) {
    t.equal(readCommand(line).kind, 'command', line)
  }
  for (const line of ['/etc/hosts is what?', '/tmp', '/usr is a folder?', '//', '/*', '/a.png', '/']) {
    t.equal(readCommand(line).kind, 'prompt', line)
  }
  for (const [line, message] of [
    ['/sett temperature 1', /no command \/sett\. Did you mean \/set\?.*"""/],
    ['/hlep', /Did you mean \/help\?$/],
    ['/claer', /no command \/claer\. \/\? lists the commands\.$/],
    ['/constructor', /no command \/constructor\. \/\? lists/],
    ['/foo bar', /no command \/foo\. \/\? lists the commands\. To send/]
  ] as const) {
    t.match(readCommand(line), { kind: 'unknown', message }, line)
  }
})

t.test('applySetting validates the settings of a chat', async t => {
  const settings: ChatSettings = { model: 'me/model', options: {}, verbose: false, raw: false, history: true }
  for (const [name, text] of [
    ['temperature', '0.5'],
    ['num_predict', '7'],
    ['cache-type-k', 'Q8_0'],
    ['ignore_eos', 'on'],
    ['stop', '\\n'],
    ['system', ' Be brief.'],
    ['format', '{"type":"object"}'],
    ['think', 'off'],
    ['keep_alive', '10m']
  ] as const) {
    applySetting(settings, name, text)
  }
  t.same(settings, {
    model: 'me/model',
    options: { temperature: 0.5, max_tokens: 7, cache_type_k: 'q8_0', ignore_eos: true, stop: '\n' },
    system: ' Be brief.',
    format: { type: 'object' },
    think: false,
    keepAlive: '10m',
    verbose: false,
    raw: false,
    history: true
  })
  for (const [name, text, message] of tables.applySetting!) {
    t.throws(() => applySetting(settings, name, text), { message: pattern(message) }, `${name} ${text}`)
  }
  for (const name of SETTING_NAMES) applySetting(settings, name, 'default')
  t.same(shownSettings(settings), [
    ['verbose', 'off'],
    ['raw', 'off'],
    ['history', 'on']
  ])
})

t.test('cutText explains truncation and what to do', async t => {
  const counters = {
    total_duration: 1,
    load_duration: 1,
    eval_count: 5,
    contextLength: 256,
    largerContext: 512,
    dropped: 0
  }
  t.equal(cutText(counters, true), undefined)
  t.match(cutText({ ...counters, cutBy: 'max_tokens' }, false), /after 5 tokens.*max_tokens.*--max-tokens 100$/)
  t.match(cutText({ ...counters, cutBy: 'max_tokens' }, true), /\/set max_tokens 100$/)
  t.match(cutText({ ...counters, cutBy: 'context' }, false), /context of 256 tokens is full.*--num-ctx 512$/)
  t.match(cutText({ ...counters, cutBy: 'context', largerContext: 0 }, true), /is full, and the model was not trained/)
})

t.test('PromptHistory is persistent, private, limited and shared', async t => {
  const file = join(newHome(t), 'new', 'chat-history.jsonl')
  const open = async () => {
    const history = new PromptHistory(file)
    await history.open()
    return history
  }
  const one = await open()
  const other = await open()
  await Promise.all([
    ...Array.from({ length: 10 }, (_, at) => one.add(`one ${at}`, true)),
    ...Array.from({ length: 10 }, (_, at) => other.add(`other ${at}`, true))
  ])
  await one.add('several\nlines', true)
  await one.add('several\nlines', true)
  await one.add(' secret', true)
  await one.add('switched off', false)
  t.equal(one.prompts[0], 'switched off', 'it is available in its own chat')
  const later = await open()
  t.equal(later.prompts[0], 'several\nlines')
  t.equal(later.prompts.length, 21, 'none is lost')
  t.notMatch(readFileSync(file, 'utf8'), /secret|switched off/)
  t.equal(statSync(file).mode & 0o777, 0o600)

  for (let at = 0; at < 20; at++) await one.add(`${at} ${'x'.repeat(100_000)}`, true)
  t.ok(statSync(file).size <= 2 ** 20)
  t.equal(statSync(file).mode & 0o777, 0o600)
  t.match((await open()).prompts[0], /^19 /)
  writeFileSync(file, '"cut in the mid\n"whole"\n{}\n', { mode: 0o600 })
  t.same((await open()).prompts, ['whole'])
})

t.test('saved conversations are private and validated', async t => {
  const folder = join(newHome(t), 'chats')
  const saved = new SavedChats(folder)
  t.same(await saved.names(), [])
  t.equal(await saved.read('none'), undefined)
  const chat = { model: 'me/model', options: { seed: 1 }, turns: [{ prompt: 'a', answer: 'b' }] }
  await saved.write('Zoë-1', chat)
  t.match(await saved.read('Zoë-1'), chat)
  t.same(await saved.names(), ['Zoë-1'])
  t.equal(statSync(join(folder, 'Zoë-1.json')).mode & 0o777, 0o600)
  t.equal(statSync(folder).mode & 0o777, 0o700)
  await t.rejects(saved.write('../x', chat), /name of a conversation/)
  writeFileSync(join(folder, 'later.json'), '{"version":2}')
  await t.rejects(saved.read('later'), /a newer corral wrote it/)
})

t.test('imagesIn finds the images in a prompt', async t => {
  const folder = newHome(t)
  const png = Buffer.from('\x89PNG\r\n\x1a\nrest', 'latin1')
  const at = (name: string) => join(folder, name)
  mkdirSync(at('folder.png'))
  for (const name of ['a.png', 'with blank.PNG', 'not.png']) writeFileSync(at(name), name === 'not.png' ? 'text' : png)
  for (const [prompt, text, paths] of [
    [`What is in ${at('a.png')}?`, 'What is in ?', [at('a.png')]],
    [at('with\\ blank.PNG'), '', [at('with blank.PNG')]],
    [`'${at('with blank.PNG')}' and "${at('a.png')}" differ`, 'and differ', [at('with blank.PNG'), at('a.png')]],
    [`file://${at('a.png')} what?`, 'what?', [at('a.png')]],
    [`${at('none.png')} a`, `${at('none.png')} a`, []],
    [`${at('folder.png')} a`, `${at('folder.png')} a`, []],
    ['a.png b', 'a.png b', []]
  ] as const) {
    t.same(imagesIn(prompt), { text, paths }, prompt)
  }
  t.equal(readImage(at('a.png')), png.toString('base64'))
  t.throws(() => readImage(at('not.png')), /is not an image/)
  t.throws(() => readImage(at('none.png')), /the file does not exist/)
  t.throws(() => readImage(at('folder.png')), /cannot be read/)
  t.equal(typedPath(` "${at('a.png')}" `), at('a.png'))
})
