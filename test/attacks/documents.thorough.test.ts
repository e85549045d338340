import { deflateSync } from 'node:zlib'
import t from 'tap'
import { residentMemory } from '../../scripts/bench/measuring.ts'
import { DEMO, startCorral } from '../support/corral.ts'
import { onePage, pdfOf, pdfStream, pdfWith } from '../support/pdf.ts'
import { thorough } from '../support/thorough.ts'

const MIB = 2 ** 20
const [HONEST, ATTACKER] = ['honest-'.padEnd(32, 'x'), 'attacker-'.padEnd(32, 'x')] as const
const configWith = (time: string) =>
  `limits: { document_time: ${time}, document_memory: 64MiB }\nsecurity: { api_keys: [${HONEST}, ${ATTACKER}] }`
const corral = await startCorral(t, { config: configWith('1s') })

function prompt(key: string, documents: readonly Buffer[], signal?: AbortSignal) {
  const content = documents.map(bytes => ({ type: 'file', file: { file_data: bytes.toString('base64') } }))
  const messages = [{ role: 'user', content: 'Read.' }, CALL, { role: 'tool', tool_call_id: 'a', content }]
  const headers = { authorization: `Bearer ${key}` }
  return corral.json('/apply-template', { model: DEMO, messages }, { headers, ...(signal && { signal }) })
}
const CALL = {
  role: 'assistant',
  tool_calls: [{ id: 'a', type: 'function', function: { name: 'read', arguments: '{}' } }]
}

const LINE = 'BT /F1 18 Tf 20 100 Td (Hello) Tj ET\n'
const packed = (content: Buffer) => deflateSync(content, { level: 9 })
const deflated = (content: Buffer) => pdfStream(packed(content), '/Filter/FlateDecode')

/** Forms that draw the next one ten times each. */
const forms = (count: number) =>
  Object.fromEntries(
    Array.from({ length: count }, (_, index) => {
      const resources = `/Resources<</Font<</F1 3 0 R>>/XObject<</X ${index + 11} 0 R>>>>`
      return [
        index + 10,
        pdfStream(`${'/X Do '.repeat(10)}${LINE}`, `/Type/XObject/Subtype/Form/BBox[0 0 9 9]${resources}`)
      ]
    })
  )

/** Draws for minutes without any text. Each PDF is different, so that none is cached. */
const slow = (number: number) =>
  pdfOf({
    1: '<</Type/Catalog/Pages 2 0 R>>',
    2: `<</Type/Pages/Kids[${'3 0 R '.repeat(200)}]/Count 200>>`,
    3: '<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>',
    4: deflated(Buffer.alloc(2 * MIB, `${number} 0 m 1 1 l n `))
  })

const chain = (length: number) =>
  Object.fromEntries(
    Array.from({ length }, (_, index) => [index + 2, `<</Type/Pages/Kids[${index + 3} 0 R]/Count 1>>`])
  )

t.test('PDFs that take too much memory or time, or are damaged on purpose, become a sentence', thorough, async t => {
  await corral.reload(configWith('10s'))
  t.match(await prompt(HONEST, [pdfWith('Hello')]), { status: 200 })
  const bombs: [string, Buffer, RegExp][] = [
    ['a stream of 256 MiB', onePage(deflated(Buffer.alloc(256 * MIB, LINE))), /more than 67 MB of memory/],
    [
      'a stream that is packed twice',
      onePage(pdfStream(packed(packed(Buffer.alloc(512 * MIB, ' '))), '/Filter[/FlateDecode/FlateDecode]')),
      /more than 67 MB of memory/
    ],
    ['forms in forms', onePage(pdfStream('/X Do'), forms(30), '/XObject<</X 10 0 R>>'), /memory|takes longer/],
    ['slow pages', slow(0), /takes longer than 10 s/],
    [
      'a cycle of pages',
      pdfOf({ 1: '<</Type/Catalog/Pages 2 0 R>>', 2: '<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2147483647>>' }),
      /damaged|no text|takes longer/
    ],
    [
      'a deep tree of pages',
      pdfOf({ 1: '<</Type/Catalog/Pages 2 0 R>>', ...chain(20_000) }),
      /damaged|no text|takes longer/
    ],
    [
      'deep lists',
      pdfOf({ 1: '<</Type/Catalog/Pages 2 0 R>>', 2: '['.repeat(MIB) + ']'.repeat(MIB) }),
      /damaged|no text|takes longer/
    ]
  ]
  const before = residentMemory(corral.process.pid!)
  for (const [what, bytes, sentence] of bombs) {
    const { status, body } = await prompt(ATTACKER, [bytes])
    t.equal(status, 200, what)
    t.match(body.prompt ?? JSON.stringify(body), sentence, what)
    const grown = residentMemory(corral.process.pid!) - before
    t.ok(grown < 300, `${what}: ${grown} MiB`)
  }
  const pages = pdfWith(...Array.from({ length: 10_000 }, (_, page) => `p${page}`))
  t.match((await prompt(ATTACKER, [pages])).body.prompt, /first 200 pages of this/)
  t.match((await prompt(HONEST, [pdfWith('Still here')])).body.prompt, 'Still here')
})

t.test('a client gets events while a slow PDF is read', async t => {
  await corral.reload(configWith('1s'))
  const pdf = (number: number) => slow(number).toString('base64')
  const cases = [
    [
      '/v1/messages',
      { max_tokens: 1 },
      { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: pdf(900) } },
      /^event: message_start[\s\S]*event: error\ndata: .*takes longer than 1 s/m
    ],
    [
      '/v1/responses',
      {},
      { type: 'input_file', file_data: pdf(901) },
      /^event: response.created[\s\S]*event: response.failed[\s\S]*takes longer than 1 s/m
    ],
    [
      '/v1/chat/completions',
      {},
      { type: 'file', file: { file_data: pdf(902) } },
      /^data: .*chat.completion.chunk[\s\S]*data: .*takes longer than 1 s/m
    ]
  ] as const
  const headers = { authorization: `Bearer ${HONEST}` }
  for (const [path, more, part, expected] of cases) {
    const messages = [{ role: 'user', content: [part] }]
    const body = { model: DEMO, messages, input: messages, stream: true, ...more }
    const reply = await corral.send(path, body, { headers })
    t.equal(reply.status, 200)
    t.match(await reply.text(), expected)
  }
})

t.test('slow PDFs of one client do not hold up others, and are left when it disconnects', async t => {
  // A small PDF may take longer than a second on a busy machine.
  await corral.reload(configWith('20s'))
  const gone = new AbortController()
  let ended = 0
  const attacks = [1, 2].map(async request => {
    const documents = Array.from({ length: 16 }, (_, number) => slow(100 * request + number))
    await prompt(ATTACKER, documents, gone.signal).catch(() => {})
    ended++
  })
  for (const name of ['a', 'b', 'c']) {
    t.match((await prompt(HONEST, [pdfWith(name)])).body.prompt, `[Page 1]\n${name}\n`)
  }
  t.equal(ended, 0, 'the attacker still waits')
  const next = prompt(ATTACKER, [pdfWith('next')])
  gone.abort()
  await Promise.all(attacks)
  // A client has one turn at a time, so this request would wait for the others.
  t.match((await next).body.prompt, '[Page 1]\nnext\n')
})
