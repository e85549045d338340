import t from 'tap'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { sample } from '../support/thorough.ts'
import { Caller, type Operation } from './api-document.ts'

// Checks the errors of every operation against the document.

const CONFIG = 'link: { port: 0, discovery: false }\nbody_limit: 64KiB\ndefaults: { context: fixed }\n'
const corral = await startCorral(t, { env: { HF_HUB_OFFLINE: '1' }, config: CONFIG })
const { body: document } = await corral.json('/openapi.json')
const caller = new Caller(corral, document)
const { operations } = caller.checker
const takesJson = ({ requestBody }: Operation) => requestBody?.content['application/json'] !== undefined
const hasId = ({ path }: Operation) => path.includes('{')

const NOWHERE = 'nobody/nothing'
/** Additional fields without which routes do not look for the model. */
const BESIDE = {
  messages: [{ role: 'user', content: 'x' }],
  max_tokens: 1,
  input: 'x',
  prompt: 'x',
  query: 'x',
  documents: ['x'],
  content: 'x',
  action: 'reasoning_end',
  call: 'tokenize',
  id: 'none',
  tokens: [1],
  voice: 'x',
  session: 'x',
  file: 'data:audio/wav;base64,AAAA',
  dtype: 'f16',
  settings: {},
  revision: 'x',
  source: NOWHERE,
  destination: 'a/b',
  from: NOWHERE
}
/** Operations whose body need not name an existing model. */
const NO_MODEL =
  /^(ollama)?(importModel|showCard|pullModel|pausePull|resumePull|cancelPull|pushModel|me|signout|llamaLookUpStreams|llamaDownload|lmStudioDownload)$|createBatch$|Runtime$|Key$|Session(Link)?$|staySignedIn$|Conversation$|LogLevel$|describeModels|^mcp$|^callTool$|^getPrompt$|drainMember|Rollout$|claimMember|exchangeRevision|redeemTicket|copyFromMember|pullAtMember|fetchFromMember|Link$|^changeLinkedMachine|^greetMachine|^pairMachines/i

t.test('bodies that are not JSON, not objects, missing or too large are refused as documented', async t => {
  for (const { operationId: id, requestBody, path } of sample(operations.filter(takesJson), 4)) {
    const params = path.includes('{id}') ? { params: { id: 'none' } } : {}
    await caller.call(t, id, 400, { ...params, body: '{"model": ' })
    await caller.call(t, id, 400, { ...params, body: '[]' })
    await caller.call(t, id, 413, { ...params, body: JSON.stringify({ model: 'x'.repeat(70_000) }) })
    if (requestBody?.required) await caller.call(t, id, 400, { ...params, body: '' })
  }
})

t.test('unknown models and invalid names are refused as documented', async t => {
  for (const { operationId: id } of sample(operations.filter(takesJson), 4)) {
    if (NO_MODEL.test(id)) continue
    for (const [model, status] of [
      [NOWHERE, 404],
      ['../../etc/passwd', 400],
      [7, 400]
    ] as const) {
      const named = { ...BESIDE, model, instance_id: model, ...(/copyModel$/i.test(id) ? { source: model } : {}) }
      // A model is created from a missing model. Its own name may be new.
      const made = /createModel$/i.test(id) && typeof model === 'string' ? { model: 'a/b', from: model } : {}
      // The prompt has another meaning there.
      const { prompt: _, ...unprompted } = named
      await caller.call(t, id, status, { body: { ...(/Response/.test(id) ? unprompted : named), ...made } })
    }
  }
})

t.test('options and fields of a wrong type are refused as documented', async t => {
  const chat = { model: DEMO, messages: [{ role: 'user', content: 'x' }] }
  for (const id of ['chat', 'ollamaChat', 'generate', 'loadModel', 'createChatCompletion']) {
    await caller.call(t, id, 400, { body: { ...chat, prompt: 'x', options: { num_ctx: -1 } } })
    await caller.call(t, id, 400, { body: { ...chat, prompt: 'x', options: [] } })
  }
  const long = { role: 'user', content: 'word '.repeat(9000) }
  const refused = await caller.call(t, 'chat', 400, { body: { ...chat, messages: [long] } })
  t.match(refused, { code: 'context_exceeded' })
  const unrefused = await caller.call(t, 'createChatCompletion', 400, { body: { ...chat, messages: [long] } })
  t.match(unrefused, { error: { code: 'context_length_exceeded' } })
  await caller.call(t, 'anthropicCreateMessage', 400, { body: { ...chat, max_tokens: 1, messages: [long] } })
  await caller.call(t, 'createResponse', 400, { body: { model: DEMO, input: long.content } })
})

t.test('unknown ids are refused as documented', async t => {
  for (const { operationId: id, method, requestBody } of operations.filter(hasId)) {
    // Files of nodes are only for callers that have redeemed a ticket.
    if (requestBody || id === 'readModelFile') continue
    const params = { owner: 'nobody', name: 'nothing', model: NOWHERE, id: 'none', digest: `sha256:${'0'.repeat(64)}` }
    const { status } = caller.checker.operation(id).responses[404] ? { status: 404 } : { status: 400 }
    await caller.call(t, id, status, { params, ...(method === 'POST' ? { body: {} } : {}) })
  }
  await caller.call(t, 'getLogs', 400, { params: { model: DEMO }, query: '?lines=many' })
  await caller.call(t, 'getLogs', 400, { params: { model: 'no name' } })
  await caller.call(t, 'findImports', 400, { query: '?from=nowhere' })
  await caller.call(t, 'findImports', 400)
})

t.test('requests from another origin or to another host are refused as documented', async t => {
  for (const { operationId: id } of sample(operations, 4)) {
    await caller.call(t, id, 403, { headers: { origin: 'https://evil.example' } })
  }
})

t.test('a method that a path does not support is refused as documented', async t => {
  for (const path of sample([...new Set(operations.map(({ path }) => path))], 4)) {
    const methods = operations.filter(operation => operation.path === path).map(({ method }) => method)
    const response = await corral.send(path.replace(/\{\w+\}/g, 'x'), undefined, { method: 'PATCH' })
    const body: any = await response.json()
    t.equal(response.status, 405, path)
    t.equal(body.code ?? body.error.data?.code ?? body.error.code, 'method_not_allowed', path)
    const allow = response.headers.get('allow')!.split(', ')
    t.ok(
      methods.every(method => allow.includes(method)),
      `${path}: ${methods} in ${allow}`
    )
  }
})

t.test('requests without a key are refused as documented', async t => {
  // A key is accepted despite many wrong keys if it is too long to guess.
  const key = 'a-key-that-nobody-guesses'
  await corral.reload(`${CONFIG}security: { api_keys: [${key}] }\n`)
  let wrong = 0
  await until('the build is found', async () => (await corral.send('/readyz')).status === 200)
  for (const { operationId: id, 'x-corral-role': role } of operations) {
    // The bodies of these operations are checked for every caller.
    const isLookedAt = ['createSession', 'redeemTicket', 'pairMachines'].includes(id)
    const status = role !== 'anyone' || id === 'readModelFile' ? 401 : isLookedAt ? 400 : 200
    await caller.call(t, id, status, { local: false })
    // More wrong keys would count as guesses, which are refused with another error.
    if (wrong++ < 90) await caller.call(t, id, status, { headers: { 'x-api-key': 'wrong' }, local: false })
  }
  const page = await caller.ask('getDocs', { headers: { accept: 'text/html,*/*' } })
  t.equal(page.status, 200, 'the page itself contains no data')
  t.match(page.text, 'This server asks for an API key', 'the page asks for the key')
  t.match(page.headers.get('content-security-policy'), "default-src 'none'; script-src 'sha256-")
  const served = await caller.call(t, 'getApiDocument', 200, { headers: { authorization: `Bearer ${key}` } })
  t.same(served, document)
  const script = await corral.send('/docs/swagger-ui-bundle.js')
  t.equal(script.status, 200)
  t.equal(script.headers.get('content-type'), 'text/javascript; charset=utf-8')
})
