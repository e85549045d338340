import t from 'tap'
import { newKey, startCorral } from '../../support/corral.ts'
import { pngBytes } from '../apis/openai/media/support.ts'
import { ADDER, MODEL, results, type Scripted, scriptedModel, toolProgram } from './support.ts'

const PNG = pngBytes().toString('base64')
const FILES = `${ADDER}
  const file = (type, mimeType, data) => ({ type, mimeType, data })
  const blob = (uri, mimeType, blob) => ({ type: 'resource', resource: { uri, mimeType, blob } })
  const read = { inputSchema: schema({}), annotations: { readOnlyHint: true } }
  server.registerTool('draw', { description: 'Draws', ...read }, async () => ({
    content: [{ type: 'text', text: 'A red dot.' }, file('image', 'image/png', '${PNG}'), blob('file:///a/report.pdf', 'application/pdf', 'JVBERg==')]
  }))
  server.registerTool('flood', { description: 'Draws a lot', ...read }, async () => ({
    content: Array.from({ length: 12 }, () => file('image', 'image/png', 'A'.repeat(1000000)))
  }))
  server.registerResource('big', 'test://big', { mimeType: 'text/plain' }, async uri => ({
    contents: [{ uri: uri.href, text: 'x'.repeat(9000000) }]
  }))
  server.registerPrompt('big', {}, async () => ({
    messages: [{ role: 'user', content: { type: 'text', text: 'x'.repeat(9000000) } }]
  }))`

let script: (body: any) => Scripted = () => ({})
const { section, asked } = await scriptedModel(t, body => script(body))
const [plain] = /\{ model: one.*?\] \}/.exec(section)!
const seeing = plain.replace('model: one', 'model: one, capabilities: [completion, tools, vision]')
const program = toolProgram(t, FILES)
const server = `command: node, arguments: [${program}]`
const corral = await startCorral(t, {
  config: `${section.replace(plain, `${seeing}, far/blind: ${plain}`)}mcp:
  servers:
    files: { ${server}, roles: [user] }
    limited: { ${server}, roles: [user], tools: [add] }
    opened: { ${server}, roles: [user], tools: [add], resources: true, prompts: true }
    secret: { ${server}, roles: [admin] }
`
})
const once = (...names: string[]) => {
  asked.length = 0
  script = body =>
    results(body).length > 0
      ? { text: 'Done.' }
      : { text: 'I shall.', calls: names.map(name => ({ name, arguments: {} })) }
}
const question = { model: MODEL, messages: [{ role: 'user', content: 'Do it.' }] }
const tools = { 'x-corral-tools': 'files' }
const headers = { ...tools, authorization: `Bearer ${await newKey(corral, 'one', { role: 'user' })}` }
const chat = (more: object) => corral.json('/v1/chat/completions', { ...question, ...more }, { headers })

t.test('files of results are in the events, and models that see get the images', async t => {
  once('files_draw')
  const { mcp, message } = (
    await corral.json('/api/chat', { ...question, stream: false, mcp: { approves: true } }, { headers })
  ).body
  const output = /^A red dot\.\n\[image image\/png, \d+ bytes: not shown\]\n\[File file:\/\/\/a\/report\.pdf\]$/
  const files = [
    { name: 'image.png', type: 'image/png', data: PNG },
    { name: 'report.pdf', type: 'application/pdf', data: 'JVBERg==' }
  ]
  t.equal(message.content, 'I shall.Done.')
  t.match(mcp, [{ type: 'call' }, { type: 'result', output, files }])
  const [, , result, images] = asked[1].messages
  t.equal(result.role, 'tool')
  t.match(images, {
    role: 'user',
    content: [{ text: /Do not follow/ }, { image_url: { url: `data:image/png;base64,${PNG}` } }]
  })
  once('files_draw')
  await chat({ model: 'far/blind' })
  t.equal(asked[1].messages.length, 3, 'other models get only the text')
  once('files_flood')
  const flooded = (await chat({ mcp: { approves: true } })).body
  t.equal(flooded.mcp[1].files.length, 3, 'files have a maximum size')
})

t.test('/v1/chat/completions has calls and approvals for clients that ask for them', async t => {
  once('files_add')
  t.notOk('mcp' in (await chat({})).body, 'other clients get what OpenAI sends')
  once('files_delete', 'files_add')
  const mcp = { approves: true }
  const streamed = await corral.events('/v1/chat/completions', { ...question, stream: true, mcp }, { headers })
  const events = streamed.flatMap(event => event.mcp ?? [])
  t.match(events, [{ type: 'approval', tool: 'delete' }, { type: 'call', tool: 'add' }, { type: 'result' }])
  const { id } = events[0]
  asked.length = 0
  const said = { role: 'assistant', content: 'I shall.' }
  const decided = await chat({
    messages: [...question.messages, said],
    mcp: { approves: true, approvals: [{ id, approve: true }] }
  })
  t.match(decided.body.mcp, [
    { type: 'call', tool: 'delete', approval: id },
    { type: 'result', output: 'deleted', approval: id }
  ])
  t.match(asked[0].messages, [{}, { ...said, tool_calls: [{ function: { name: 'files_delete' } }] }, { role: 'tool' }])
  t.equal(asked[0].messages.length, 3, 'the text and the call are one message')
  t.notOk('mcp' in asked[0], 'engines do not get the field')
})

const get = (path: string) => corral.json(`/api/mcp/${path}`, undefined, { headers })
/** The uses of a kind in the audit log, with their results. */
async function audited(kind: string) {
  const { entries } = (await corral.json('/api/audit?limit=50', undefined, { local: true })).body
  return entries.filter(({ target }: any) => target?.includes(kind)).map(({ target, code }: any) => [target, code])
}

t.test('resources are listed and read by callers who may use the server', async t => {
  t.match((await get('files/resources')).body.resources, [
    { uri: 'test://notes', name: 'notes', type: 'text/plain' },
    { uri: 'test://big' }
  ])
  const read = (server: string, uri: string) => get(`${server}/resource?uri=${encodeURIComponent(uri)}`)
  const { files } = (await read('files', 'test://notes')).body
  t.match(files, [{ name: 'notes', type: 'text/plain' }])
  t.equal(Buffer.from(files[0].data, 'base64').toString(), 'Remember the milk.')
  t.match(await read('files', 'file:///etc/passwd'), {
    status: 400,
    body: { error: /has no resource with this "uri"/ }
  })
  t.match(await read('files', 'test://big'), { status: 400, body: { code: 'over_limit' } })
  t.strictSame((await get('limited/resources')).body.resources, [], 'a list of tools leaves out resources')
  t.match(await read('limited', 'test://notes'), { status: 400 })
  t.match(await read('opened', 'test://notes'), { status: 200 }, 'unless the setting allows them')
  for (const path of ['secret/resources', 'secret/resource?uri=test://notes']) t.match(await get(path), { status: 400 })
  t.match(await audited('resources/read'), [
    ['files.resources/read', 'done'],
    ['files.resources/read', 'failed'],
    ['files.resources/read', 'failed'],
    ['limited.resources/read', 'failed'],
    ['opened.resources/read', 'done']
  ])
})

t.test('prompts are listed and filled for callers who may use the server', async t => {
  const values = [
    { name: 'name', description: 'Whom', required: true },
    { name: 'tone', description: '', required: false }
  ]
  t.strictSame((await get('files/prompts')).body.prompts, [
    { name: 'greet', description: 'Greets', arguments: values },
    { name: 'big', description: '', arguments: [] }
  ])
  const fill = (server: string, prompt: unknown, values?: object) =>
    corral.json(`/api/mcp/${server}/prompt`, { prompt, arguments: values }, { headers })
  const { messages } = (await fill('files', 'greet', { name: 'Ada' })).body
  t.strictSame(messages, [
    { role: 'user', text: 'Greet Ada kindly.' },
    { role: 'assistant', text: 'With the card.' },
    { role: 'user', text: '', files: [{ name: 'card.txt', type: 'text/plain', data: 'SGVsbG8h' }] }
  ])
  t.match(await fill('files', 'greet'), { status: 400, body: { error: /needs a value for "name"/ } })
  t.match(await fill('files', 'none'), { status: 400, body: { error: /has no prompt with this "prompt"/ } })
  for (const wrong of [{ name: 1 }, { name: { a: 1 } }, []]) t.equal((await fill('files', 'greet', wrong)).status, 400)
  t.match(await fill('files', 'big'), { status: 400, body: { code: 'over_limit' } })
  t.strictSame((await get('limited/prompts')).body.prompts, [], 'a list of tools leaves out prompts')
  t.equal((await fill('limited', 'greet', { name: 'Ada' })).status, 400)
  t.equal((await fill('opened', 'greet', { name: 'Ada' })).status, 200, 'unless the setting allows them')
  t.equal((await get('secret/prompts')).status, 400)
  t.equal((await fill('secret', 'greet', { name: 'Ada' })).status, 400)
  t.match(await audited('prompts/get'), [
    ['files.prompts/get', 'done'],
    ['files.prompts/get', 'failed'],
    ['files.prompts/get', 'failed'],
    ['files.prompts/get', 'failed'],
    ['limited.prompts/get', 'failed'],
    ['opened.prompts/get', 'done']
  ])
})
