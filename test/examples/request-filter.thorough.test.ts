import t from 'tap'
import filter from '../../examples/request-filter/index.ts'
import { filterContract, startTestCorral } from '../../testing/index.ts'

const MODEL = 'corral/tiny-chat'
const config = `
request-filter:
  refuse: [weather]
  replace: { cat: dog }
  system: Be brief.
`

t.test('the example filter fulfils the filter contract', async () => {
  await filterContract(filter, { refused: 'How is the weather?', config })
})

t.test('the example filter refuses requests and replaces words of answers on every API', async t => {
  const corral = await startTestCorral({ plugins: [filter], config })
  t.teardown(() => corral.close())
  const messages = [{ role: 'user', content: 'a cat sleeps' }]
  for (const [path, read] of [
    ['/api/chat', body => body.message.content],
    ['/v1/chat/completions', body => body.choices[0].message.content],
    ['/v1/messages', body => body.content[0].text],
    ['/ollama/api/chat', body => body.message.content]
  ] as [string, (body: any) => string][]) {
    const { body } = await corral.json(path, { model: MODEL, messages, stream: false, max_tokens: 50 })
    t.equal(read(body), 'a dog sleeps', path)
  }
  const events = await corral.events('/v1/chat/completions', { model: MODEL, messages, stream: true })
  t.equal(events.map(event => event.choices?.[0]?.delta?.content ?? '').join(''), 'a dog sleeps')

  const weather = { model: MODEL, messages: [{ role: 'user', content: 'The WEATHER?' }], max_tokens: 50 }
  t.match(await corral.json('/api/chat', weather), {
    status: 400,
    body: { code: 'invalid_request', error: 'Requests about "weather" are not answered here.' }
  })
  t.match(await corral.json('/v1/chat/completions', weather), {
    status: 400,
    body: { error: { message: 'Requests about "weather" are not answered here.' } }
  })
  t.match(await corral.json('/v1/messages', weather), { status: 400, body: { type: 'error' } })
  t.match(await corral.plugin('request-filter'), { state: 'active', hooks: ['request', 'event'], path: String })
})

t.test('words split across events are replaced, and nothing is lost', async t => {
  // The test engine ends an event after each space.
  const words = { 'red cat': 'dog', 'a b a b c': 'letters', 'the end is nigh': '' }
  const corral = await startTestCorral({
    plugins: [filter],
    config: `request-filter: ${JSON.stringify({ replace: words })}`
  })
  t.teardown(() => corral.close())
  for (const [content, expected] of [
    ['one red cat sleeps', 'one dog sleeps'],
    ['red red cat', 'red dog'],
    ['one red dog', 'one red dog'],
    ['a b a b a b c', 'a b letters'],
    ['this is red ', 'this is red '],
    ['the end is ', 'the end is '],
    ['now the end is nigh', 'now ']
  ]) {
    const messages = [{ role: 'user', content }]
    const events = await corral.events('/v1/chat/completions', { model: MODEL, messages, stream: true })
    t.equal(events.map(event => event.choices?.[0]?.delta?.content ?? '').join(''), expected)
    const { body } = await corral.json('/v1/chat/completions', { model: MODEL, messages })
    t.equal(body.choices[0].message.content, expected)
  }
})

t.test('the example filter reads the texts of every kind of request, but not role names', async t => {
  const corral = await startTestCorral({ plugins: [filter], config: 'request-filter: { refuse: [user, weather] }' })
  t.teardown(() => corral.close())
  const refused = { status: 400, body: { error: { message: /are not answered here/ } } }
  const messages = [{ role: 'user', content: [{ type: 'text', text: 'The weather' }] }]
  for (const [path, body] of [
    ['/v1/chat/completions', { messages }],
    ['/v1/completions', { prompt: 'The weather' }],
    ['/v1/embeddings', { input: 'The weather' }],
    ['/v1/embeddings', { input: ['One', 'The weather'] }],
    ['/v1/tokenize', { content: 'The weather' }]
  ] as const) {
    t.match(await corral.json(path, { model: MODEL, ...body }), refused, path)
  }
  const fine = { model: MODEL, messages: [{ role: 'user', content: 'Hello' }] }
  t.match(await corral.json('/v1/chat/completions', fine), { status: 200 })
})

t.test('a hook that throws is named, and the server continues', async t => {
  const broken = {
    name: 'broken',
    api: 1 as const,
    optional: true,
    setup: () => ({
      on: {
        request: ({ body }: { body: Record<string, unknown> }) => {
          if (JSON.stringify(body.messages).includes('crash')) throw new TypeError('no such thing')
        }
      }
    })
  }
  const corral = await startTestCorral({ plugins: [broken as never] })
  t.teardown(() => corral.close())
  const ask = (content: string) => ({ model: MODEL, messages: [{ role: 'user', content }], stream: false })
  for (let round = 0; round < 2; round++) {
    t.match(await corral.json('/api/chat', ask('crash')), {
      status: 500,
      body: { code: 'internal', error: /The plugin "broken" failed in its hook "request"/ }
    })
  }
  t.equal((await corral.json('/api/chat', ask('fine'))).body.message.content, 'fine')
  t.equal(corral.log().split('failed in its hook \\"request\\": no such thing').length, 2, 'it is logged once')
})
