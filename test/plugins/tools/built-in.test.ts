import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import OpenAI, { toFile } from 'openai'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { calculate } from '../../../plugins/tools/mcp/built-in/arithmetic.ts'
import { currentTime } from '../../../plugins/tools/mcp/built-in/current-time.ts'
import { splitPassages } from '../../../plugins/tools/mcp/built-in/passages.ts'
import { randomEncoder } from '../../../scripts/random-models.ts'
import { newKey, startCorral } from '../../support/corral.ts'
import { readCases } from '../../support/fixture.ts'
import { newFolder } from '../../support/folder.ts'
import { pdfWith } from '../../support/pdf.ts'
import { MODEL, results, type Scripted, scriptedModel, toolNames } from './support.ts'

t.test('arithmetic is exact, and refuses what would take long', async t => {
  for (const [expression, expected] of readCases<[string, string][]>('tool-cases.yaml', 'calculated')) {
    t.equal(calculate({ expression }), expected, expression)
  }
  for (const [expression, message] of readCases<[string, string][]>('tool-cases.yaml', 'refused')) {
    t.throws(() => calculate({ expression }), { message: new RegExp(message) }, expression)
  }
  const deep = (levels: number) => ({ expression: `${'('.repeat(levels)}1${')'.repeat(levels)}` })
  t.equal(calculate(deep(49)), '1')
  t.throws(() => calculate(deep(200)), { message: /nested more than 50/ })
  t.throws(() => calculate({ expression: '-'.repeat(400) }), { message: /nested more than 50/ })
  t.throws(() => calculate({ expression: `1${'+ln(2)'.repeat(40)}` }), { message: /more than 30 functions/ })
  t.throws(() => calculate({ expression: `1${'+1'.repeat(300)}` }), { message: /longer than 500/ })
})

t.test('the time is in ISO form, in any time zone', async t => {
  const now = new Date('2026-03-29T01:30:00.500Z')
  const time = (timezone: string) => currentTime({ timezone }, undefined, now)
  t.equal(time('UTC'), '2026-03-29T01:30:00+00:00 (Sunday, UTC)')
  t.equal(time('Europe/Berlin'), '2026-03-29T03:30:00+02:00 (Sunday, Europe/Berlin)', 'in summer')
  t.equal(time('America/St_Johns'), '2026-03-28T23:00:00-02:30 (Saturday, America/St_Johns)')
  t.match(currentTime({}, undefined, now), /^2026-03-2[89]T.*\((Satur|Sun)day, /)
  t.throws(() => time('Mars/Base'), { message: /"Mars\/Base" is not a time zone/ })
})

t.test('passages overlap, and know their lines and pages', async t => {
  const words = Array.from({ length: 500 }, (_, at) => `w${at}${at % 10 === 9 ? '\n' : ' '}`).join('')
  const passages = await splitPassages(words, false, 100)
  t.strictSame(
    passages.map(({ lines }) => lines),
    [
      [1, 22],
      [19, 40],
      [37, 50]
    ]
  )
  t.match(passages[1]!.text, /^w180 .*w399$/s)
  t.equal((await splitPassages(words, false, 2)).length, 2)
  t.equal((await splitPassages('语'.repeat(500), false, 100)).length, 3, 'a script without spaces')
  t.equal((await splitPassages('x'.repeat(16 * 500), false, 100)).length, 3, 'a text without spaces')
  t.strictSame(await splitPassages(' \n ', false, 100), [])
  const paged = '[Page 1]\nFirst\n[Page 1]\n\n[Page 2: no text]\n\n[Page 3]\nThird\n[Page 7]'
  t.strictSame(await splitPassages(paged, true, 100), [
    { text: 'First\n[Page 1]', page: 1 },
    { text: 'Third\n[Page 7]', page: 3 }
  ])
})

let script: (body: any) => Scripted = () => ({ text: 'x' })
const { section, asked } = await scriptedModel(t, body => script(body))
const SETTINGS = `${section}mcp:
  map: { file_search: corral.documents }
  servers:
    corral: { built_in: [time, arithmetic, documents], roles: [user] }
    asking: { built_in: [time], ask: always, roles: [user] }
    some: { built_in: [time, fetch], tools: [time] }
`
const corral = await startCorral(t, { config: SETTINGS, importRoots: [] })
const call = async (tool: string, given: object = {}, init: object = { local: true }) =>
  (await corral.json('/api/mcp/corral/call', { tool, arguments: given }, init)).body

t.test('built-in tools have roles, approvals and lists like those of other servers', async t => {
  const key = await newKey(corral, 'reader', { role: 'user' })
  const headers = { authorization: `Bearer ${key}` }
  const { body } = await corral.json('/api/mcp', undefined, { headers })
  t.match(body.servers, [
    { name: 'corral', transport: 'built-in', state: 'running', tools: ['time', 'arithmetic', 'documents'] },
    { name: 'asking', tools: ['time'] }
  ])
  t.equal(body.servers.length, 2)
  t.match((await corral.json('/api/mcp/some', undefined, { local: true })).body.tools, [{ name: 'time', asks: false }])
  t.match(await corral.json('/api/mcp/some/call', { tool: 'fetch' }, { local: true }), { status: 400 })
  t.match(await call('arithmetic', { expression: '0.1 + 0.2' }), { output: '0.3', failed: false })
  t.match(await call('arithmetic', { expression: '9**9**9**9' }), { output: /too large/, failed: true })
  for (const given of [{}, { expression: 1 }, { expression: '1', more: 2 }]) {
    t.match(
      await call('arithmetic', given),
      { output: /^The call failed: "\w+" /, failed: true },
      JSON.stringify(given)
    )
  }
  t.match(await call('time', { timezone: 'Asia/Tokyo' }), { output: /\+09:00 \(\w+day, Asia\/Tokyo\)$/ })

  script = body =>
    results(body).length > 0
      ? {
          text: results(body)
            .join('; ')
            .replace(/\[.*?\]\n/g, '')
        }
      : {
          calls: [
            { name: 'corral_arithmetic', arguments: { expression: '2 ** 70' } },
            { name: 'asking_time', arguments: {} }
          ]
        }
  asked.length = 0
  const question = { model: MODEL, messages: [{ role: 'user', content: 'How much?' }] }
  const reply = await corral.json('/v1/chat/completions', question, {
    headers: { ...headers, 'x-corral-tools': 'corral.arithmetic, asking' }
  })
  t.strictSame(toolNames(asked[0]), ['corral_arithmetic', 'asking_time'])
  t.match(reply.body.choices[0].message.content, /^1180591620717411303424; The call was refused: it needs the approval/)
})

t.test('documents are found by meaning, with their place, and only by their owner', async t => {
  const keys = await Promise.all(['one', 'other'].map(name => newKey(corral, name, { role: 'operator' })))
  const [one, other] = keys.map(key => ({ headers: { authorization: `Bearer ${key}` } }))
  t.match(await call('documents', { query: 'x' }, one), { output: /the user has no documents/, failed: true })
  const openai = (key: string) => new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: key, maxRetries: 0 })
  const upload = async (
    key: string,
    name: string,
    content: Buffer | string,
    purpose: 'user_data' | 'batch' = 'user_data'
  ) => (await openai(key).files.create({ file: await toFile(Buffer.from(content), name), purpose })).id
  const sentences = ['cat sat', 'dog ran', 'fish swim']
  const text = `${'\n'.repeat(9)}${sentences[2]}`
  const pdf = await upload(keys[0]!, 'animals.pdf', pdfWith(sentences[0]!, sentences[1]!))
  await upload(keys[0]!, 'fish.txt', text)
  await upload(keys[0]!, 'picture.bin', Buffer.from([0xff, 0, 0xfe]))
  await upload(keys[0]!, 'batch.jsonl', `{"custom_id":"1","method":"POST","url":"/v1/embeddings","body":{}}\n`, 'batch')
  t.match(await call('documents', { query: 'x' }, one), {
    output: /no embedding model is installed/,
    failed: true
  })

  const file = join(newFolder(t), 'vectors.gguf')
  writeFileSync(
    file,
    randomEncoder('embedding', 1, {
      words: ['cat feline', 'sat rested', 'dog hound', 'ran', 'fish trout', 'swim'].map(each => each.split(' '))
    })
  )
  t.equal(
    (await corral.json('/api/import', { path: file, model: 'me/vectors', stream: false }, { local: true })).status,
    200
  )
  const search = async (given: object, as = one) => {
    const { output, failed } = await call('documents', given, as)
    t.equal(failed, false, output)
    return JSON.parse(output)
  }
  const found = await search({ query: sentences[1] })
  t.match(found.passages[0], { file: 'animals.pdf', file_id: pdf, page: 2, text: sentences[1] })
  t.ok(found.passages[0].score > found.passages[1].score, 'the best is first')
  t.match((await search({ query: 'feline rested', limit: 1 })).passages, [{ page: 1 }], 'other words, same meaning')
  t.equal(found.passages.length, 3)
  t.match(found.notes, [/^"picture\.bin" was not searched: corral reads text and PDFs/])
  t.match((await search({ query: sentences[2], limit: 1 })).passages, [{ file: 'fish.txt', lines: [10, 10] }])
  t.match((await search({ query: 'cat sat', files: [pdf] })).passages, [{ page: 1 }, { page: 2 }])
  t.match(await call('documents', { query: 'x', files: ['secret.txt'] }, one), {
    output: /no such document\. The documents are: .*fish\.txt/
  })

  await upload(keys[1]!, 'other.txt', 'mine alone')
  t.match((await search({ query: 'x' }, other)).passages, [{ file: 'other.txt' }])
  t.match(await call('documents', { query: 'x', files: [pdf] }, other), { output: /no such document/, failed: true })
  const usage = await corral.json('/api/usage?by=key', undefined, { local: true })
  t.ok(usage.body.usage.find(({ name }: any) => name === 'one').tokens_in > 0, 'embeddings count for the caller')

  await openai(keys[0]!).files.delete(pdf)
  t.notMatch(await search({ query: sentences[1] }), { passages: [{ file: 'animals.pdf' }] })

  script = body =>
    results(body).length > 0
      ? { text: 'Fish swim.' }
      : { calls: [{ name: 'corral_documents', arguments: { query: sentences[2] } }] }
  const asks = { model: MODEL, input: 'What swims?', tools: [{ type: 'file_search', vector_store_ids: ['vs_1'] }] }
  const { data: response, response: raw } = await openai(keys[0]!)
    .responses.create(asks as any)
    .withResponse()
  t.equal(raw.headers.get('x-corral-ignored-tools'), 'file_search.vector_store_ids')
  t.match((response as any).output, [
    {
      type: 'file_search_call',
      status: 'completed',
      queries: [sentences[2]],
      results: [{ filename: 'fish.txt', text: sentences[2] }]
    },
    { type: 'message', content: [{ text: 'Fish swim.' }] }
  ])
  asked.length = 0
  const next = { model: MODEL, input: 'And?', previous_response_id: (response as any).id }
  await openai(keys[0]!).responses.create(next as any)
  t.match(JSON.stringify(asked[0].messages), `fish.txt\\n${sentences[2]}`, 'the next turn still has the passages')
})

t.test('built-in tools and their libraries are loaded by their first call', async t => {
  const bundle = join(packageRoot, 'dist', 'bundle')
  const libraries = readdirSync(bundle)
    .filter(name => name.endsWith('.js'))
    .filter(name => /DecimalError|onclosetag|server\/discover/.test(readFileSync(join(bundle, name), 'utf8')))
  t.ok(libraries.length >= 3, 'they are in separate files')
  const folder = newFolder(t)
  const running = await startCorral(t, { config: SETTINGS, env: { NODE_V8_COVERAGE: folder } })
  t.equal((await running.json('/api/mcp/corral', undefined, { local: true })).body.tools.length, 3)
  t.equal((await running.json('/api/mcp/corral/call', { tool: 'time' }, { local: true })).status, 200)
  await running.end()
  const loaded = readdirSync(folder)
    .map(name => readFileSync(join(folder, name), 'utf8'))
    .join('')
  t.match(loaded, 'main.js')
  t.strictSame(
    libraries.filter(name => loaded.includes(`/${name}"`)),
    []
  )
})
