import t from 'tap'
import { endingLoops, endsInLoop, noteRepeatedCalls } from '../../core/answers/repeats.ts'
import type { AnswerSink, Delta, EngineFields } from '../../core/contracts/engines.ts'

const SENTENCE = 'Wait, I should read the file again before I change it. '
const PARAGRAPH = Array.from({ length: 9 }, (_, line) => `${line}. ${SENTENCE}`).join('\n')
const rows = (count: number, row: (at: number) => string) =>
  Array.from({ length: count }, (_, at) => row(at)).join('\n')

/** Texts and whether they are loops. */
const TEXTS: [name: string, text: string, isLoop: boolean][] = [
  ['a sentence without end', SENTENCE.repeat(200), true],
  ['a sentence without end, cut within', `Sure. ${SENTENCE.repeat(200)}Wait, I sh`, true],
  ['a paragraph without end', PARAGRAPH.repeat(20), true],
  ['a sentence with a rule after it', `${SENTENCE}${'-'.repeat(200)}\n`.repeat(60), true],
  ['other scripts', 'もう一度ファイルを読みます。'.repeat(900), true],
  ['line breaks without end', '\n'.repeat(70_000), true],
  ['a sentence that a user wanted a hundred times', 'All work and no play makes Jack a dull boy\n'.repeat(100), false],
  ['a paragraph that is quoted some times', PARAGRAPH.repeat(15), false],
  ['a loop that has ended', `${SENTENCE.repeat(200)}Now I have read it. It has three functions.`, false],
  ['ten thousand zeros', '0, '.repeat(10_000), false],
  ['a matrix of zeros', rows(64, () => `[${'0, '.repeat(64)}],`), false],
  ['a table', rows(2000, at => `| ${at} | Monday | 9:00 | 17:00 | present |`), false],
  ['a drawing', rows(300, at => `${' '.repeat(at % 7)}${'*'.repeat(60)}`), false],
  ['code', rows(500, at => `  assert.equal(values[${at}], undefined, 'is absent')`), false],
  ['nothing', '', false]
]

t.test('the repeat detector finds passages that repeat without end, and no others', async t => {
  for (const [name, text, isLoop] of TEXTS) t.equal(endsInLoop(text, 16), isLoop, name)
  t.equal(endsInLoop(SENTENCE.repeat(200), 1000), false, 'the setting decides')
})

const event = (content: string) =>
  Buffer.from(`data: ${JSON.stringify({ choices: [{ delta: { content } }], created: Math.random() })}\n\n`)

/** Asks an engine that says the same until it is aborted, or these pieces. @returns the number of pieces, and the last */
async function answerOf<Piece extends readonly Delta[] | Buffer>(
  pieces: (at: number) => Piece,
  end: Piece,
  most = 50_000
) {
  const taken: Piece[] = []
  const client = new AbortController()
  let passed = 0
  const call = async (_: EngineFields, { signal, take }: AnswerSink<Piece>) => {
    for (; passed < most; passed++) {
      signal.throwIfAborted()
      await take(pieces(passed))
    }
  }
  const ended = endingLoops(call, 16, async () => end)
  await ended({}, { signal: client.signal, take: piece => void taken.push(piece) })
  return { passed, count: taken.length, last: taken.at(-1) }
}

t.test('the repeat detector ends an answer that repeats itself, also if its bytes are not parsed', async t => {
  const end: Delta[] = [{ finish: 'length' }]
  const words = SENTENCE.split(/(?<= )/)
  const deltas = (at: number): Delta[] => [{ [at < 4000 ? 'thinking' : 'content']: words[at % words.length]! }]
  const loop = await answerOf(deltas, end)
  t.equal(loop.last, end)
  t.ok(loop.passed < 5000, `${loop.passed} pieces`)
  t.equal(loop.count, loop.passed + 1)

  const bytes = await answerOf(at => event(words[at % words.length]!), Buffer.from('end'))
  t.equal(`${bytes.last}`, 'end')
  t.ok(bytes.passed < 10_000, `${bytes.passed} pieces`)

  const ended = await answerOf(
    at => [{ content: SENTENCE, ...(at === 1200 && { finish: 'stop' as const }) }],
    end,
    3000
  )
  t.equal(ended.count, 3000, 'the engine has ended it')

  const list = await answerOf(at => [{ content: `${at}. ${SENTENCE}` }], end, 6000)
  t.equal(list.count, 6000, 'an honest answer is complete')
})

t.test('errors of the engine and the client pass', async t => {
  const sink = { signal: new AbortController().signal, take: () => undefined }
  const broken = endingLoops(
    () => Promise.reject(new Error('broken')),
    16,
    async () => []
  )
  await t.rejects(broken({}, sink), { message: 'broken' })
  const left = AbortSignal.abort(new Error('left'))
  const abortable = endingLoops(
    (_, { signal }) => Promise.reject(signal.reason),
    16,
    async () => []
  )
  await t.rejects(abortable({}, { ...sink, signal: left }), { message: 'left' })
})

t.test('notes tool calls that are repeated with the same result', async t => {
  const turn = (id: number, result: unknown, path = 'a') => [
    { role: 'assistant', content: `${id}`, tool_calls: [{ id: `${id}`, function: { name: 'read', arguments: path } }] },
    { role: 'tool', tool_call_id: `${id}`, content: result }
  ]
  const turns = (count: number, result: (at: number) => unknown = () => 'x') => [
    { role: 'user', content: 'Hi' },
    ...Array.from({ length: count }, (_, at) => turn(at, result(at))).flat()
  ]
  const noted = (messages: object[]) =>
    (noteRepeatedCalls({ messages }).messages as { content: unknown }[]).map(({ content }) => content)
  const hasNote = (content: unknown) => JSON.stringify(content).includes('Note from the server')

  for (const honest of [
    turns(4),
    turns(9, at => `${at}`),
    turns(9, at => (at === 4 ? 'y' : 'x')),
    [...turns(4), ...turns(4)]
  ]) {
    t.same(
      noted(honest),
      honest.map(({ content }) => content)
    )
  }
  const six = noted(turns(6))
  t.same(six.filter(hasNote).length, 2)
  t.match(six.at(-1), /^x\n\n\[Note from the server: the last 6 tool calls/)
  t.same(six.slice(0, -2), noted(turns(5)), 'the next prompt begins with this one')
  t.match(noted(turns(5, () => [{ type: 'text', text: 'x' }])).at(-1), [
    { text: 'x' },
    { type: 'text', text: /the last 5/ }
  ])
  const later = [...turns(6), { role: 'user', content: 'Go on' }, ...turns(2).slice(1)]
  t.same(noted(later).slice(0, six.length), six, 'later prompts begin with it too')
  t.equal(noted(later).filter(hasNote).length, 2, 'a message of the user ends the row')
})
