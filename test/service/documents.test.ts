import Anthropic from '@anthropic-ai/sdk'
import OpenAI, { toFile } from 'openai'
import t from 'tap'
import { pngBytes } from '../plugins/apis/openai/media/support.ts'
import { DEMO, startCorral } from '../support/corral.ts'
import { failure } from '../support/failure.ts'
import { pdfOf, pdfWith } from '../support/pdf.ts'

const corral = await startCorral(t, {
  config:
    'limits:\n  document_pages: 3\n  document_text: 2000\n  document_size: 1MB\ndefaults:\n  max_tokens: 2\n  num_ctx: 4096\n'
})
const openai = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: 'any', maxRetries: 0 })
const anthropic = new Anthropic({ baseURL: corral.url, apiKey: 'any', maxRetries: 0 })

const base64 = (data: string | Buffer) => Buffer.from(data as string).toString('base64')
const PDF = pdfWith('Hello corral', '', 'The end')
const PDF_TEXT = (name = '') =>
  `<document${name} pages="3">\n[Page 1]\nHello corral\n\n[Page 2: no text]\n\n[Page 3]\nThe end\n</document>`
const ENCRYPTED = pdfOf(
  {
    1: '<</Type/Catalog/Pages 2 0 R>>',
    2: '<</Type/Pages/Kids[]/Count 0>>',
    3: `<</Filter/Standard/V 1/R 2/O(${'a'.repeat(32)})/U(${'b'.repeat(32)})/P -4>>`
  },
  '/Encrypt 3 0 R/ID[(x)(x)]'
)
const file = (data: string | Buffer, filename?: string) => ({
  type: 'file',
  file: { file_data: base64(data), ...(filename && { filename }) }
})
const asked = (...content: unknown[]) => ({ role: 'user', content })
const question = { type: 'text', text: 'What is in it?' }
const call = {
  role: 'assistant',
  tool_calls: [{ id: 'a', type: 'function', function: { name: 'read', arguments: '{}' } }]
}
const returned = (...content: unknown[]) => [
  { role: 'user', content: 'Read it.' },
  call,
  { role: 'tool', tool_call_id: 'a', content }
]

async function prompt(...messages: unknown[]): Promise<string> {
  const { status, body } = await corral.json('/apply-template', { model: DEMO, messages })
  return status === 200 ? body.prompt : `${status} ${JSON.stringify(body)}`
}

t.test('models get documents as text', async t => {
  const pdfText = PDF_TEXT(' name="a.pdf"')
  t.ok((await prompt(asked(file(PDF, 'a.pdf'), question))).includes(`${pdfText}\nWhat is in it?`))
  const inUrl = { type: 'file', file: { file_data: `data:application/pdf;base64,${base64(PDF)}` } }
  t.ok((await prompt(asked(inUrl))).includes(PDF_TEXT()), 'a data URL without a name')
  t.ok((await prompt(...returned(file(PDF)))).includes(PDF_TEXT()), 'in the result of a tool')
  const texts: [string, string | Buffer, string][] = [
    ['a.csv', 'a;b\n1;2', 'a;b\n1;2'],
    ['utf-16', Buffer.from('\ufeffö', 'utf16le'), 'ö'],
    ['mark', '\ufeffö', 'ö'],
    ['line breaks in "name"\n', 'x', 'x']
  ]
  for (const [name, data, text] of texts) {
    const shown = name.replace(/["\n]/g, '')
    t.ok((await prompt(asked(file(data, name)))).includes(`<document name="${shown}">\n${text}\n</document>`), name)
  }
  const wrapped = { type: 'file', file: { file_data: base64(PDF).replace(/.{76}/g, '$&\r\n') } }
  t.ok((await prompt(asked(wrapped))).includes(PDF_TEXT()), 'base64 in lines')
})

t.test('documents that cannot be used fail only in the newest user message', async t => {
  const cases: [string, object, string, RegExp, RegExp][] = [
    ['encrypted', file(ENCRYPTED), 'invalid_request', /needs a password/, /was left out here: it needs a password/],
    ['damaged', file('%PDF-1.4 and nothing'), 'invalid_request', /it is damaged/, /it is damaged/],
    ['scanned', file(pdfWith('', '')), 'unsupported_capability', /scanned/, /contains no text/],
    ['office', file('PK\x03\x04\0\0', 'a.docx'), 'unsupported_capability', /type "docx"/, /"a\.docx" was left out/],
    ['large', file(Buffer.alloc(1e6 + 3, 'a')), 'over_limit', /limits\.document_size/, /larger than 1\.0 MB/],
    [
      'pages',
      file(pdfWith('a', 'b', 'c', 'd')),
      'over_limit',
      /document_pages/,
      /\[Page 3\]\nc\n\[Only the first 3 pages/
    ],
    [
      'pdf text',
      file(pdfWith('a'.repeat(2001))),
      'over_limit',
      /document_text/,
      /a{2000}.*\n\[Only the first 2000 char/
    ],
    ['text', file('b'.repeat(2001)), 'over_limit', /document_text/, /\nb{2000}\n\[Only the first 2000 characters/],
    ['nothing', { type: 'file', file: {} }, 'invalid_request', /contains no data/, /contains no data/],
    ['no file', { type: 'file' }, 'invalid_request', /contains no data/, /contains no data/],
    ['not base64', { type: 'file', file: { file_data: '?' } }, 'invalid_request', /base64/, /base64/],
    ['a URL', { type: 'file', file: { file_url: 'http://x' } }, 'invalid_request', /does not fetch/, /is a URL/],
    ['URL as data', { type: 'file', file: { file_data: 'http://x' } }, 'invalid_request', /does not fetch/, /a URL/],
    ['an unknown file', { type: 'file', file: { file_id: 'x' } }, 'file_not_found', /GET \/v1\/files/, /no file/]
  ]
  for (const [what, part, code, message, sentence] of cases) {
    const { status, body } = await corral.json('/v1/chat/completions', {
      model: DEMO,
      messages: [asked(question), { role: 'assistant', content: 'Hm.' }, asked(question, part)]
    })
    t.match(
      { status, error: body.error },
      { status: code === 'file_not_found' ? 404 : 400, error: { code, message, param: 'messages[2].content[1].file' } },
      what
    )
    t.match(await prompt(...returned(part)), sentence, `${what} in the result of a tool`)
    t.match(
      await prompt(asked(part), { role: 'assistant', content: 'Hm.' }, asked(question)),
      sentence,
      `earlier ${what}`
    )
    t.match(await prompt(...returned(question), asked(part)), sentence, `${what} behind the result of a tool`)
    t.match(await prompt(asked(part), asked(question)), sentence, `${what} in an earlier user message`)
  }
})

t.test('a request fails when a user message ends with the beginning of an answer', async t => {
  const messages = [asked(file(ENCRYPTED)), { role: 'assistant', content: 'It' }]
  t.match(await prompt(...messages), /^400 .*needs a password/)
})

t.test('documents of the Messages API count as their text', async t => {
  const document = (source: object, more = {}) => ({ type: 'document', source, ...more }) as never
  const pdf = { type: 'base64', media_type: 'application/pdf', data: base64(PDF) }
  const count = async (content: unknown) => {
    const request = { model: DEMO, messages: [{ role: 'user' as const, content: content as never }] }
    return (await anthropic.messages.countTokens(request)).input_tokens
  }
  const text = (text: string) => ({ type: 'text', text })
  t.equal(await count([document(pdf)]), await count(PDF_TEXT()))
  const described = document(pdf, { title: 'a.pdf', context: 'Mine.' })
  t.equal(await count([described, text('Q?')]), await count(`Mine.\n${PDF_TEXT(' name="a.pdf"')}\nQ?`))
  const read = (source: object) =>
    anthropic.messages.create({
      model: DEMO,
      max_tokens: 2,
      messages: [
        { role: 'user', content: 'Read it.' },
        { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'Read', input: {} }] },
        {
          role: 'user',
          content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: [text('PDF file read'), document(source)] }]
        }
      ] as never
    })
  const { usage } = await read(pdf)
  const again = await read(pdf)
  t.ok(again.usage.cache_read_input_tokens! > 0.9 * (usage.input_tokens + usage.cache_read_input_tokens!))
  for (const source of [
    { type: 'url', url: 'http://x' },
    { ...pdf, data: base64(ENCRYPTED) }
  ]) {
    t.ok(await read(source), 'a tool may return anything')
    t.match(await failure(count([document(source)])), {
      status: 400,
      error: { error: { param: 'messages.0.content.0.source' } }
    })
    const earlier = { role: 'user', content: [document(source)] }
    const request = { model: DEMO, messages: [earlier, { role: 'user', content: 'Go on.' }] as never }
    t.ok(await anthropic.messages.countTokens(request), 'the user continues after the failure')
  }
})

t.test('the Responses API and uploaded files accept documents', async t => {
  const tokens = async (part: object) =>
    (await corral.json('/v1/responses/input_tokens', { model: DEMO, input: [{ role: 'user', content: [part] }] })).body
  const { input_tokens } = await tokens({ type: 'input_text', text: PDF_TEXT(' name="a.pdf"') })
  const data = `data:application/pdf;base64,${base64(PDF)}`
  t.match(await tokens({ type: 'input_file', filename: 'a.pdf', file_data: data }), { input_tokens })
  const sent = await openai.files.create({ file: await toFile(PDF, 'a.pdf'), purpose: 'user_data' })
  t.match(sent, { purpose: 'user_data', filename: 'a.pdf' })
  t.match(await tokens({ type: 'input_file', file_id: sent.id }), { input_tokens })
  t.ok((await prompt(asked({ type: 'file', file: { file_id: sent.id } }))).includes(PDF_TEXT(' name="a.pdf"')))
  t.match(await tokens({ type: 'input_file', file_url: 'http://x/a.pdf' }), {
    error: { code: 'invalid_request', param: 'input[0].content[0]', message: /does not fetch/ }
  })
  const { id } = await openai.responses.create({
    model: DEMO,
    input: [{ role: 'user', content: [{ type: 'input_file', file_id: sent.id }] }]
  })
  await openai.files.delete(sent.id)
  const next = await openai.responses.create({ model: DEMO, previous_response_id: id, input: 'Go on.' })
  t.equal(next.status, 'incomplete', 'a deleted file in an earlier turn')
})

t.test('images that tools return to models that cannot see become a sentence', async t => {
  const url = `data:image/png;base64,${base64(pngBytes())}`
  const image = { type: 'image_url', image_url: { url } }
  const sentence = 'There was an image here, but this model cannot understand images.'
  t.match(await prompt(...returned({ type: 'text', text: 'Done.' }, image)), `Done.\n[${sentence}]`)
  t.match(await prompt(asked(image), { role: 'assistant', content: 'Hm.' }, asked(question)), sentence)
  t.match(await prompt(asked(image)), /^400 .*unsupported_capability/)
  const native = { model: DEMO, stream: false, options: { max_tokens: 1 } }
  const images = [base64(pngBytes())]
  const history = [
    { role: 'user', content: 'See.', images },
    { role: 'assistant', content: 'Hm.' }
  ]
  const last = { role: 'user', content: 'And?' }
  t.match(await corral.json('/api/chat', { ...native, messages: [...history, last] }), { status: 200 })
  t.match(await corral.json('/api/chat', { ...native, messages: [{ ...last, images }] }), {
    status: 400,
    body: { code: 'unsupported_capability' }
  })
  const output = { type: 'function_call_output', call_id: 'c', output: [{ type: 'input_image', image_url: url }] }
  const input = [{ type: 'function_call', call_id: 'c', name: 'see', arguments: '{}' }, output]
  t.match(await corral.json('/v1/responses', { model: DEMO, input }), { status: 200 })
  const source = { type: 'base64', media_type: 'image/png', data: images[0] }
  const messages = [
    { role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'see', input: {} }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: [{ type: 'image', source }] }] }
  ]
  t.match(await corral.json('/v1/messages', { model: DEMO, max_tokens: 1, messages }), { status: 200 })
})
