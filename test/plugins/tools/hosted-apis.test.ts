import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { startCorral } from '../../support/corral.ts'
import { checkEvents, collectEvents, mustBe, typeFaults } from '../apis/openai/declared-types.ts'
import { ADDER, MODEL, results, type Scripted, scriptedModel, searchServer, toolNames, toolProgram } from './support.ts'

let script: (body: any) => Scripted = () => ({ text: 'nothing' })
const { section, asked } = await scriptedModel(t, body => script(body))
const follow = (next: typeof script) => {
  asked.length = 0
  script = next
}
const program = toolProgram(t, ADDER)
const url = await searchServer(t)
const corral = await startCorral(t, {
  config: `${section}mcp:
  servers:
    math: { command: node, arguments: [${program}] }
    search: { url: "${url}" }
  map: { web_search: search.web_search }
`
})
const openai = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: 'any', maxRetries: 0 })
const anthropic = new Anthropic({ baseURL: corral.url, apiKey: 'any', maxRetries: 0 })

const input = 'What is 2 + 40?'
const mcp: OpenAI.Responses.Tool.Mcp = {
  type: 'mcp',
  server_label: 'math',
  require_approval: 'never',
  allowed_tools: ['add', 'delete']
}
const calling = (name: string, given: object) => (body: any) => {
  const result = results(body).at(-1)
  return result === undefined
    ? { text: 'Let me see.', calls: [{ name, arguments: given }] }
    : { text: `It is ${result.split('\n').at(-1)}.` }
}
const add = calling('math_add', { a: 2, b: 40 })
const called = { type: 'mcp_call', server_label: 'math', name: 'add', arguments: '{"a":2,"b":40}', output: '42' }

t.test('Responses: tools of a server are listed, called and shown as items and events', async t => {
  follow(add)
  const response = await openai.responses.create({ model: MODEL, input, tools: [mcp] })
  mustBe('Response', response)
  t.match(response.output, [
    { type: 'mcp_list_tools', server_label: 'math', tools: [{ name: 'add' }, { name: 'delete' }] },
    { type: 'message', content: [{ text: 'Let me see.' }] },
    { ...called, status: 'completed', error: null },
    { type: 'message', content: [{ text: 'It is 42.' }] }
  ])
  t.match(response.tools, [mcp])
  t.strictSame(toolNames(asked[0]), ['math_add', 'math_delete'])

  follow(add)
  const events = await collectEvents(await openai.responses.create({ model: MODEL, input, tools: [mcp], stream: true }))
  checkEvents(t, events)
  t.strictSame(
    events.map(({ type }) => type).filter(type => type.includes('mcp')),
    [
      'response.mcp_list_tools.in_progress',
      'response.mcp_list_tools.completed',
      'response.mcp_call.in_progress',
      'response.mcp_call_arguments.delta',
      'response.mcp_call_arguments.done',
      'response.mcp_call.completed'
    ]
  )

  follow(body => ({ text: `${body.messages.length}` }))
  const more = { model: MODEL, input: 'And?', tools: [mcp], previous_response_id: response.id }
  const next = await openai.responses.create(more)
  t.strictSame(
    next.output.map(({ type }) => type),
    ['message'],
    'the list is not repeated'
  )
  t.match(asked[0].messages.slice(1, 5), [
    { role: 'assistant', tool_calls: [{ function: { name: 'math_add' } }] },
    { role: 'tool', content: '42' },
    { role: 'assistant', content: 'It is 42.' },
    { role: 'user', content: 'And?' }
  ])
})

t.test('Responses: calls wait for an approval, which is valid once', async t => {
  follow(calling('math_delete', {}))
  const tools = [{ ...mcp, require_approval: { never: { tool_names: ['add', 'delete'] } } }]
  const first = await openai.responses.create({ model: MODEL, input, tools })
  mustBe('Response', first)
  const wanted = first.output.at(-1) as OpenAI.Responses.ResponseItem.McpApprovalRequest
  t.match(wanted, { type: 'mcp_approval_request', server_label: 'math', name: 'delete', arguments: '{}' })
  const answer = (approve: boolean, id = wanted.id) =>
    openai.responses.create({
      model: MODEL,
      tools,
      previous_response_id: first.id,
      input: [{ type: 'mcp_approval_response', approval_request_id: id, approve }]
    })
  await t.rejects(answer(true, 'mcpr_invented'), { status: 400, message: /is not the id of a call that waits/ })
  const races = await Promise.allSettled([answer(true), answer(true), answer(true)])
  const won = races.flatMap(race => (race.status === 'fulfilled' ? [race.value] : []))
  t.equal(won.length, 1, 'one of several requests uses it')
  mustBe('Response', won[0])
  t.match(won[0]!.output, [
    { type: 'mcp_call', name: 'delete', output: 'deleted', approval_request_id: wanted.id },
    { type: 'message', content: [{ text: 'It is deleted.' }] }
  ])
  // OpenAI's default.
  follow(add)
  const usual = await openai.responses.create({ model: MODEL, input, tools: [{ type: 'mcp', server_label: 'math' }] })
  t.equal(usual.output.at(-1)!.type, 'mcp_approval_request')
  const denied = await openai.responses.create({
    model: MODEL,
    tools: [mcp],
    previous_response_id: usual.id,
    input: [{ type: 'mcp_approval_response', approval_request_id: (usual.output.at(-1) as any).id, approve: false }]
  })
  t.match(denied.output, [{ content: [{ text: 'It is The user did not allow this call..' }] }])
})

t.test('servers that are not configured are refused by name', async t => {
  follow(add)
  const ask = (more: object) =>
    openai.responses.create({ model: MODEL, input, tools: [{ type: 'mcp', server_label: 'evil', ...more }] } as never)
  await t.rejects(ask({}), { status: 400, param: 'tools[0].server_label', message: /"evil"/ })
  const address = { server_url: 'http://169.254.169.254/mcp' }
  await t.rejects(ask(address), {
    status: 400,
    param: 'tools[0].server_url',
    message: /http:\/\/169\.254\.169\.254\/mcp/
  })
  await t.rejects(ask({ connector_id: 'connector_gmail' }), { status: 400, message: /connector_gmail/ })
  const known = await openai.responses.create({
    model: MODEL,
    input,
    tools: [{ type: 'mcp', server_label: 'x', server_url: url }]
  })
  t.match(known.output[0], { type: 'mcp_list_tools', server_label: 'x', tools: [{ name: 'web_search' }] })
  const messages = (more: object) =>
    anthropic.beta.messages.create({
      model: MODEL,
      max_tokens: 100,
      messages: [{ role: 'user', content: input }],
      ...more
    })
  const set = { type: 'mcp_toolset', mcp_server_name: 'evil' } as const
  await t.rejects(
    messages({ mcp_servers: [{ type: 'url', name: 'evil', url: 'https://evil.example/mcp' }], tools: [set] }),
    {
      status: 400,
      message: /https:\/\/evil\.example\/mcp/
    }
  )
  await t.rejects(messages({ tools: [set] }), { status: 400, message: /evil/ })
  t.equal(asked.length, 1, 'no other request reached the model')
})

t.test('the Messages API returns separate blocks for tools that corral runs', async t => {
  const ask = {
    model: MODEL,
    max_tokens: 100,
    messages: [{ role: 'user' as const, content: input }],
    mcp_servers: [{ type: 'url' as const, name: 'calc', url: 'configured:math' }],
    tools: [
      {
        type: 'mcp_toolset' as const,
        mcp_server_name: 'calc',
        default_config: { enabled: false },
        configs: { add: { enabled: true } }
      }
    ]
  }
  follow(add)
  const whole = await anthropic.beta.messages.create(ask)
  const content = [
    { type: 'text', text: 'Let me see.' },
    { type: 'mcp_tool_use', name: 'add', server_name: 'calc', input: { a: 2, b: 40 } },
    { type: 'mcp_tool_result', is_error: false, content: [{ type: 'text', text: '42' }] },
    { type: 'text', text: 'It is 42.' }
  ]
  t.match(whole, { content, stop_reason: 'end_turn' })
  t.equal((whole.content[2] as any).tool_use_id, (whole.content[1] as any).id)
  t.strictSame(toolNames(asked[0]), ['math_add'])
  follow(add)
  t.match((await anthropic.beta.messages.stream(ask).finalMessage()).content, content)
  follow(body => ({ text: `${body.messages.length}` }))
  const messages = [
    ...ask.messages,
    { role: 'assistant' as const, content: whole.content as never },
    { role: 'user' as const, content: 'And?' }
  ]
  await anthropic.beta.messages.create({ ...ask, messages })
  t.match(asked[0].messages, [
    {},
    { role: 'assistant', tool_calls: [{ function: { name: 'math_add' } }] },
    { role: 'tool', content: '42' },
    { role: 'assistant', content: 'It is 42.' },
    { role: 'user' }
  ])
  follow(calling('math_delete', {}))
  const refused = await anthropic.beta.messages.create({
    ...ask,
    mcp_servers: [],
    tools: [{ type: 'mcp_toolset', mcp_server_name: 'configured:math' }]
  })
  t.match(refused.content[2], { type: 'mcp_tool_result', is_error: true, content: [{ text: /needs the approval/ }] })
})

t.test('hosted searches are mapped to a tool, with the items of each API', async t => {
  const search = calling('search_web_search', { query: 'cats' })
  follow(search)
  const response = await openai.responses.create({
    model: MODEL,
    input,
    tools: [{ type: 'web_search' }],
    tool_choice: { type: 'web_search_preview' } as never
  })
  mustBe('Response', response)
  t.match(response.output[1], {
    type: 'web_search_call',
    status: 'completed',
    action: { type: 'search', query: 'cats', sources: [{ type: 'url', url: 'https://example.org/cats' }] }
  })
  follow(search)
  const events = await collectEvents(
    await openai.responses.create({ model: MODEL, input, tools: [{ type: 'web_search' }], stream: true })
  )
  checkEvents(t, events)
  follow(search)
  const message = await anthropic.messages.create({
    model: MODEL,
    max_tokens: 100,
    messages: [{ role: 'user', content: input }],
    tools: [{ type: 'web_search_20250305', name: 'web_search' }],
    tool_choice: { type: 'tool', name: 'web_search' }
  })
  t.match(message.content.slice(1, 3), [
    { type: 'server_tool_use', name: 'web_search', input: { query: 'cats' } },
    { type: 'web_search_tool_result', content: [{ type: 'web_search_result', url: 'https://example.org/cats' }] }
  ])
  t.equal(asked[0].tool_choice, 'required')
  t.equal(asked[1].tool_choice, undefined)
})

t.test('items and events have the types that the official client declares', async t => {
  t.equal(typeFaults(), '')
})
