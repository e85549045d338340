import t from 'tap'
import { importModels, MODELS, writeModels } from '../plugins/apis/openai/media/support.ts'
import { quantizedModels } from '../plugins/models/download/support.ts'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { Caller } from './api-document.ts'

/*
 * "Try it out" on the page /docs sends a body as filled in. This test sends each of these bodies. Each must succeed, or
 * be refused for a reason that the example cannot know.
 */

const { Q8_0 } = quantizedModels()
const hub = await startHubEmulator(t, {
  repositories: { 'Qwen/Qwen3-0.6B-GGUF': { files: { 'Qwen3-0.6B-Q8_0.gguf': Q8_0 } } }
})
const corral = await startCorral(t, {
  config: 'link: { port: 0, discovery: false }\n',
  env: { HF_ENDPOINT: hub.url, HF_TOKEN: '', HF_HUB_OFFLINE: '' }
})

/** Statuses of examples that request something that is missing here, or that corral does not support. */
const REFUSED: Record<string, number[]> = {
  // There is no pull, unless another example has started one.
  pausePull: [404, 200],
  resumePull: [404, 200],
  cancelPull: [404, 200],
  // The file and the model to convert do not exist.
  importModel: [403, 404],
  convertModel: [404],
  deleteConversion: [404],
  // The caller has no key.
  staySignedIn: [400],
  // There are no nodes.
  drainMember: [404],
  undrainMember: [404],
  startRollout: [400],
  changeRollout: [404],
  // There is no other revision.
  exchangeRevision: [404],
  pullAtMember: [404],
  fetchFromMember: [404],
  // No machine shows this code, and none is linked.
  joinLink: [403, 502],
  changeLinkedMachine: [404],
  // These are not sent to the address of linked machines.
  pairMachines: [404],
  greetMachine: [404],
  copyFromMember: [502],
  // The ticket is not from this server.
  redeemTicket: [401],
  // The revision belongs to a model without settings, and the test's model has settings.
  setModelSettings: [409],
  // The tests name a build, which overrides choices, and releases are not reachable.
  installRuntime: [400, 409, 502, 503],
  upgradeRuntime: [400, 409, 502, 503],
  useRuntime: [400, 409],
  pushModel: [501],
  // The file does not exist.
  createBatch: [404],
  // Browsers store conversations by default.
  putConversation: [404],
  shareConversation: [404],
  // There are no servers of tools.
  callTool: [400],
  getPrompt: [400],
  // The link is not from this server.
  createSession: [410],
  // The model does not support infill. Whether it is loaded depends on earlier examples.
  llamaInfill: [400],
  llamaLoad: [400, 200],
  llamaUnload: [400, 404, 200],
  createSpeech: [400],
  createImage: [400],
  createImageEdit: [400],
  createImageVariation: [400]
}
/** These delete the model that other examples use, or make keys mandatory. */
const LAST = ['lmStudioDownload', 'deleteModel', 'ollamaDeleteModel', 'createKey']
const native = (id: string) => id.replace(/^ollama(.)/, (_, letter: string) => letter.toLowerCase())
const getExample = ({ requestBody }: any) => requestBody?.content['application/json']?.example

t.test('examples keep well-known names if no installed model fits', async t => {
  const { body: document } = await corral.json('/openapi.json')
  t.equal(getExample(document.paths['/api/chat'].post).model, DEMO)
  t.equal(getExample(document.paths['/v1/embeddings'].post).model, 'ggml-org/embeddinggemma-300M-GGUF')
  t.equal(document.tags[0].name, 'Answers', 'chat is in the first group')
})

t.test('every example can be sent as it is', async t => {
  await importModels(corral, await writeModels(t.testdir()))
  const { body: document } = await corral.json('/openapi.json')
  const named = getExample(document.paths['/v1/embeddings'].post).model
  t.ok([MODELS.embedding, MODELS.decoder].includes(named), `${named}: installed models are named`)
  const caller = new Caller(corral, document)
  await until('the build is found', async () => (await corral.send('/readyz')).status === 200)
  const operations = caller.checker.operations.filter(
    ({ requestBody }) => requestBody?.content['application/json'] !== undefined
  )
  t.ok(operations.length > 50, `${operations.length} operations have a body`)
  const rank = ({ operationId }: { operationId: string }) => LAST.indexOf(operationId)
  // Models are created before other examples use them.
  const making = ({ operationId }: { operationId: string }) => (/createModel$/i.test(operationId) ? 0 : 1)
  for (const operation of operations.toSorted((a, b) => rank(a) - rank(b) || making(a) - making(b))) {
    const { operationId: id } = operation
    const body = getExample(operation)
    if (!body) {
      t.fail(`${id} has no example: add one in plugins/apis/reference/examples.json`)
      continue
    }
    // Both routes delete the same model.
    if (id === 'ollamaDeleteModel')
      await caller.call(t, 'ollamaCreateModel', 200, { body: { model: 'me/leo', from: DEMO } })
    if (id === 'tryModel') {
      // It answers as long as its connection is open.
      const controller = new AbortController()
      const trial = await corral.send('/api/trials', body, { local: true, signal: controller.signal })
      t.equal(trial.status, 200, id)
      controller.abort()
      continue
    }
    // It would install gigabytes.
    if (native(id) === 'installConversionRuntime') continue
    const reply = await caller.ask(id, { body })
    const expected = REFUSED[native(id)] ?? [200]
    t.ok(expected.includes(reply.status), `${id}: ${reply.status} ${reply.text.slice(0, 300)}`)
    t.same(caller.checker.check(id, reply), [], `${id} answers as documented`)
    if (expected[0] === 200) t.notMatch(reply.text, /"error":[^n]/, `${id} answers without an error`)
  }
})
