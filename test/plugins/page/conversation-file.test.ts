import { open, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { readHead } from '../../../plugins/page/conversation-file.ts'

const about = { format: 1, id: 'one', title: 'A "title", "text":"', pinned: false, updated_at: '2026-01-01' }

/** Writes a file and reads its head. */
async function read(content: string, withText = true) {
  const path = join(t.testdirName, 'file')
  await writeFile(path, content)
  const file = await open(path, 'r')
  const pieces: string[] = []
  try {
    const found = await readHead(file, withText ? piece => void pieces.push(piece) : undefined)
    return { ...found, text: pieces.join(''), longest: Math.max(0, ...pieces.map(({ length }) => length)) }
  } finally {
    await file.close()
  }
}

t.before(() => void t.testdir({}))

t.test('the head of a conversation is read in pieces, with its exact text', async t => {
  const awkward = '"\\/\n\u0001\ud800 ü漢🙂\\"n'
  for (const [name, text] of Object.entries({
    none: '',
    short: 'a "word"',
    'only quotes': '"'.repeat(200_000),
    'only backslashes': '\\'.repeat(200_001),
    'control characters': '\u0001'.repeat(50_000),
    'characters of several bytes': '漢'.repeat(100_000),
    awkward: awkward.repeat(20_000),
    // A piece ends within each of these characters and escapes.
    ...Object.fromEntries(Array.from({ length: 40 }, (_, at) => [at, 'x'.repeat(65_400 + at) + awkward.repeat(10)]))
  })) {
    const document = '{"a":[1,"text"]}'
    const line = JSON.stringify({ ...about, text, version: 3 })
    for (const withText of [true, false]) {
      const found = await read(`${line}\n${document}\n`, withText)
      t.match(found.value?.head, { ...about, version: 3, text: '' }, name)
      t.equal(found.value?.documentAt, Buffer.byteLength(line) + 1, name)
      if (withText) t.ok(found.text === text, `${name}: the same text`)
      t.ok(found.longest <= 70_000, `${name}: one piece at a time`)
    }
  }
})

t.test('a file that is not a conversation has a fault', async t => {
  for (const [content, fault] of [
    ['', /does not start/],
    ['x'.repeat(300_000), /does not start/],
    [`${JSON.stringify({ ...about, format: 2, text: '', version: 1 })}\n1\n`, /format/],
    ['{"format":1,"id":"one","text":"never ends', /ends within/],
    ['{"format":1,"id":"one","text":"" and more\n', /JSON/]
  ] as const) {
    t.match((await read(content)).fault, fault, content.slice(0, 40))
  }
})
