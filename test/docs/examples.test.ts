import t from 'tap'
import { importModels, MODELS, writeModels } from '../plugins/apis/openai/media/support.ts'
import { quantizedModels } from '../plugins/models/download/support.ts'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { Caller } from './api-document.ts'

/*
 * "Try it out" of the page /docs sends a body as it is filled in. Here each is sent, and succeeds, or is refused for a
 * reason that the example cannot know.
 */

const { Q8_0 } = quantizedModels()
const hub = await startHubEmulator(t, {
  repositories: { 'Qwen/Qwen3-0.6B-GGUF': { files: { 'Qwen3-0.6B-Q8_0.gguf': Q8_0 } } }
})
const corral = await startCorral(t, { env: { HF_ENDPOINT: hub.url, HF_TOKEN: '', HF_HUB_OFFLINE: '' } })

/** Statuses of examples that ask for what is not here, or what corral does not do. */
const REFUSED: Record<string, number[]> = {
  // Nothing is being pulled, but for what another example may have begun a moment ago.
  pausePull: [404, 200],
  resumePull: [404, 200],
  cancelPull: [404, 200],
  // No such file, no such model to convert.
  importModel: [403, 404],
  convertModel: [404],
  deleteConversion: [404],
  // There are no members.
  drainMember: [404],
  undrainMember: [404],
  pullAtMember: [404],
  copyFromMember: [502],
  // Its ticket was not made here.
  redeemTicket: [401],
  // Its revision is that of a model without settings, and the tests' model has some.
  setModelSettings: [409],
  // The tests name a build, which goes before all choices; releases cannot be reached.
  installRuntime: [400, 409, 502, 503],
  upgradeRuntime: [400, 409, 502, 503],
  useRuntime: [400, 409],
  pushModel: [501],
  // Its file is nobody's.
  createBatch: [404],
  // They stay in browsers, where nothing else is set.
  putConversation: [404],
  // Its link is none of this server.
  createSession: [410],
  // The model cannot fill in; it is loaded, or not, by what came before.
  llamaInfill: [400],
  llamaLoad: [400, 200],
  llamaUnload: [400, 404, 200],
  createSpeech: [400],
  createImage: [400],
  createImageEdit: [400],
  createImageVariation: [400]
}
/** These take their model away from those before them, or shut everybody out. */
const LAST = ['deleteModel', 'ollamaDeleteModel', 'createKey']
const native = (id: string) => id.replace(/^ollama(.)/, (_, letter: string) => letter.toLowerCase())
const exampleOf = ({ requestBody }: any) => requestBody?.content['application/json']?.example

t.test('without a model that can do it, the examples keep the names of well-known ones', async t => {
  const { body: document } = await corral.json('/openapi.json')
  t.equal(exampleOf(document.paths['/api/chat'].post).model, DEMO)
  t.equal(exampleOf(document.paths['/v1/embeddings'].post).model, 'ggml-org/embeddinggemma-300M-GGUF')
  t.equal(document.tags[0].name, 'Answers', 'chat is in the first group')
})

t.test('every example can be sent as it is', async t => {
  await importModels(corral, await writeModels(t.testdir()))
  const { body: document } = await corral.json('/openapi.json')
  const named = exampleOf(document.paths['/v1/embeddings'].post).model
  t.ok([MODELS.embedding, MODELS.decoder].includes(named), `${named}: models that are here are named`)
  const caller = new Caller(corral, document)
  await until('the build is found', async () => (await corral.send('/readyz')).status === 200)
  const operations = caller.checker.operations.filter(
    ({ requestBody }) => requestBody?.content['application/json'] !== undefined
  )
  t.ok(operations.length > 50, `${operations.length} operations have a body`)
  const rank = ({ operationId }: { operationId: string }) => LAST.indexOf(operationId)
  // What is made of a model is made before it is used by others.
  const making = ({ operationId }: { operationId: string }) => (/createModel$/i.test(operationId) ? 0 : 1)
  for (const operation of operations.toSorted((a, b) => rank(a) - rank(b) || making(a) - making(b))) {
    const { operationId: id } = operation
    const body = exampleOf(operation)
    if (!body) {
      t.fail(`${id} has no example: add one in plugins/apis/reference/examples.ts`)
      continue
    }
    // Both mounts delete the same model.
    if (id === 'ollamaDeleteModel')
      await caller.call(t, 'ollamaCreateModel', 200, { body: { model: 'me/leo', from: DEMO } })
    if (id === 'tryModel') {
      // It answers for as long as its connection is open.
      const left = new AbortController()
      const trial = await corral.send('/api/trials', body, { local: true, signal: left.signal })
      t.equal(trial.status, 200, id)
      left.abort()
      continue
    }
    // It would install gigabytes.
    if (native(id) === 'installConversionRuntime') continue
    const reply = await caller.ask(id, { body })
    const expected = REFUSED[native(id)] ?? [200]
    t.ok(expected.includes(reply.status), `${id}: ${reply.status} ${reply.text.slice(0, 300)}`)
    t.same(caller.checker.check(id, reply), [], `${id} answers as the document says`)
    if (expected[0] === 200) t.notMatch(reply.text, /"error":[^n]/, `${id} has no error in its answer`)
  }
})
