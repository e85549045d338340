import t from 'tap'
import { splitPage } from '../../../core/answers/split-page.ts'
import {
  bestOf,
  estimateTokens,
  fitsByEstimate,
  passagesOf,
  promptRoom,
  quantized,
  scoreTerms,
  similarity,
  termCounter,
  termsOf,
  withPassages
} from '../../../plugins/page/browser/state/passage-search.ts'

const words = (count: number, word = 'word') => Array.from({ length: count }, (_, at) => `${word}${at}`).join(' ')

t.test('pages are split before headings and between paragraphs', async t => {
  const cases: [title: string, page: string, parts: [first: string, last: string, heading?: string][]][] = [
    ['an empty page', ' \n ', []],
    [
      'a long paragraph overlaps',
      words(300),
      [
        ['word0', 'word219'],
        ['word180', 'word299']
      ]
    ],
    [
      'a paragraph begins a passage',
      `${words(150)}\n\n${words(150, 'next')}`,
      [
        ['word0', 'word149'],
        ['next0', 'next149']
      ]
    ],
    ['an early paragraph does not', `a\n \n${words(219)}`, [['a', 'word218']]],
    [
      'headings begin passages, unless the section is tiny',
      `# Title\n## Part\n${words(30)}\n2.1 Next\n${words(30, 'next')}`,
      [
        ['# Title', 'word29', 'Part'],
        ['2.1 Next', 'next29', '2.1 Next']
      ]
    ],
    ['sentences are not headings', `${words(30)}\n3 Things matter here.\n${words(5)}`, [['word0', 'word4']]],
    [
      'Chinese headings',
      `${'字'.repeat(30)}\n第三章 结论\n${'字'.repeat(9)}`,
      [
        ['字', '字'],
        ['第三章', '字', '第三章 结论']
      ]
    ]
  ]
  for (const [title, page, expected] of cases) {
    const parts = [...splitPage(page)]
    t.equal(parts.length, expected.length, title)
    for (const [index, [first, last, heading]] of expected.entries()) {
      const { start, end, heading: found } = parts[index]!
      const text = page.slice(start, end)
      t.ok(text.startsWith(first) && text.endsWith(last), `${title}: ${text.slice(0, 20)} … ${text.slice(-20)}`)
      t.equal(found, heading, title)
    }
  }
})

t.test('passages know their place in the document', async t => {
  const text = `1 Begin\nOne.\f\f${words(3)}`
  const passages = [...passagesOf('a.pdf', text)]
  t.strictSame(passages, [
    { name: 'a.pdf', at: 0, text: '1 Begin\nOne.', page: 1, heading: '1 Begin' },
    { name: 'a.pdf', at: 14, text: 'word0 word1 word2', page: 3, heading: '1 Begin' }
  ])
  for (const passage of passages) t.ok(text.startsWith(passage.text, passage.at))
  const [wide] = passagesOf('wide.txt', `a${' '.repeat(10_000)}b`)
  t.equal(wide!.text.length, 4000, 'space does not make passages longer')
  t.match(
    withPassages('Why?', passages),
    /\[1\] "a\.pdf", page 1, "1 Begin"\n[\s\S]*\[2\][\s\S]*like \[1\][\s\S]*Why\?$/
  )
})

t.test('words, names and numbers are found', async t => {
  const texts = [
    'The refund policies of the shop apply for 30 days.',
    'The contract 1,234.50 was signed by Mrs. Müller in 2024.',
    'The number 1,234.5 is not a contract, and 12024 is not a year.',
    '该公司的退款政策很清楚。',
    'The the the the the shop. A dog (or c++) barks.'
  ]
  for (const [question, expected] of [
    ['What is the refund policy?', 0],
    ['refunded', 0],
    ['MÜLLER?', 1],
    ['1,234.50', 1],
    ['What was in 2024?', 1],
    ['1,234.5', 2],
    ['退款政策是什么', 3],
    ['the c++ dog', 4],
    ['.*(', undefined],
    ['', undefined],
    ['zebra', undefined]
  ] as const) {
    const count = termCounter(termsOf(question))
    const scores = scoreTerms(
      texts.map(count),
      texts.map(({ length }) => length)
    )
    t.equal(bestOf([scores], 5)[0], expected, question)
  }
  t.equal(termsOf(words(100)).length, 24)
})

t.test('ranks by meaning and by words are combined', async t => {
  for (const [scores, expected] of [
    [[[0, 0, 0]], []],
    [[[1, 3, 2]], [1, 2, 0]],
    [
      [
        [0, 5, 0],
        [0.9, 0.8, 0.1]
      ],
      [1, 0]
    ],
    [
      [
        [0, 5, 0],
        [0, 0, 0]
      ],
      [1]
    ],
    [
      [
        [1, 1],
        [1, 1]
      ],
      [0, 1]
    ]
  ] as const) {
    t.strictSame(bestOf(scores, 5), expected, JSON.stringify(scores))
  }
  const rows = new Int8Array([...quantized([1, 0]), ...quantized([0.5, 0.5]), ...quantized([0, 0])])
  const near = [0, 1, 2].map(index => similarity(quantized([2, 0]), rows, index))
  t.ok(near[0]! > 0.999 && Math.abs(near[1]! - Math.SQRT1_2) < 0.01 && near[2] === 0, near.join())
})

t.test('tokens are estimated, and counted in doubt', async t => {
  for (const [text, least, most] of [
    ['', 0, 0],
    ['Hello world, this is English.', 7, 10],
    ['这是中文', 4, 4],
    ['word '.repeat(100_000), 100_000, 150_000]
  ] as const) {
    const tokens = estimateTokens(text)
    t.ok(tokens >= least && tokens <= most, `${text.slice(0, 20)}: ${tokens}`)
  }
  t.strictSame(
    [100, 300, 4000, 7000].map(tokens => fitsByEstimate(tokens, 1000)),
    [true, undefined, undefined, false]
  )
  t.strictSame(
    [
      promptRoom(8192),
      promptRoom(2048),
      promptRoom(8192, { num_ctx: 4096, max_tokens: 96 }),
      promptRoom(1000, { max_tokens: 100_000, num_ctx: 'x' })
    ],
    [7168, 1536, 4000, 750]
  )
})
