import t from 'tap'
import { DECODER_WIDTH, ENCODER_WIDTH } from '../../../../../scripts/random-models.ts'
import { DEMO, startCorral } from '../../../../support/corral.ts'
import { importModels, MODELS, writeModels } from './support.ts'

// Embedding and reranking models with random weights. Their output is meaningless: the tests check that they are
// recognized by their files and used correctly.
const corral = await startCorral(t)
const paths = await writeModels(t.testdir())
await importModels(corral, paths)

const cosine = (a: number[], b: number[]) => a.reduce((sum, value, index) => sum + value * b[index]!, 0)
const texts = ['the quick brown fox', 'a lazy dog', 'the quick brown fox']

t.test('the OpenAI API detects capabilities from the files', async t => {
  const { body } = await corral.json('/api/tags')
  const capabilities = Object.fromEntries(body.models.map((model: any) => [model.name, model.capabilities]))
  t.match(capabilities, {
    [MODELS.embedding]: ['embedding'],
    [MODELS.decoder]: ['embedding'],
    [MODELS.reranker]: ['rerank'],
    [MODELS.seeing]: ['completion', 'tools', 'vision'],
    [MODELS.hearing]: ['completion', 'tools', 'audio']
  })
  const shown = await corral.json('/api/show', { model: MODELS.reranker })
  t.match(shown.body, {
    modelfile: '',
    details: { name: MODELS.reranker, format: 'gguf', family: 'bert' },
    capabilities: ['rerank'],
    model_info: { 'general.architecture': 'bert', 'bert.pooling_type': 4 }
  })
  t.match((await corral.json('/api/show', { model: MODELS.seeing })).body.details, { format: 'gguf', family: 'llama' })
})

t.test('embeddings work with any number of slots', async t => {
  for (const [num_parallel, num_ctx] of [
    [3, 512],
    [7, 100],
    [30, 512]
  ] as const) {
    const ask = { model: MODELS.decoder, input: texts, options: { num_parallel, num_ctx } }
    const { status, body } = await corral.json('/v1/embeddings', ask)
    t.equal(status, 200, JSON.stringify(body).slice(0, 300))
    const mean = await corral.json('/v1/embeddings', { ...ask, model: DEMO })
    t.equal(mean.status, 200, JSON.stringify(mean.body).slice(0, 300))
    await corral.json('/api/stop', { model: DEMO })
  }
})

t.test('the OpenAI API creates embeddings', async t => {
  const kinds = [
    [MODELS.embedding, ENCODER_WIDTH],
    [MODELS.decoder, DECODER_WIDTH]
  ] as const
  for (const [model, width] of kinds) {
    const { status, body } = await corral.json('/v1/embeddings', { model, input: texts })
    t.equal(status, 200, JSON.stringify(body).slice(0, 300))
    const vectors: number[][] = body.data.map((entry: any) => entry.embedding)
    t.same(
      vectors.map(vector => vector.length),
      [width, width, width]
    )
    t.ok(Math.abs(cosine(vectors[0]!, vectors[2]!) - 1) < 1e-4, 'equal texts have equal embeddings')
    t.ok(cosine(vectors[0]!, vectors[1]!) < 0.9999, 'different texts have different embeddings')
    const alone = await corral.json('/v1/embeddings', { model, input: texts[1] })
    t.ok(Math.abs(cosine(alone.body.data[0].embedding, vectors[1]!) - 1) < 1e-4, 'the same as alone')
    t.ok(body.usage.prompt_tokens > 0)
    const encoded = await corral.json('/v1/embeddings', { model, input: texts[0], encoding_format: 'base64' })
    const bytes = Buffer.from(encoded.body.data[0].embedding, 'base64')
    t.ok(Math.abs(bytes.readFloatLE(0) - vectors[0]![0]!) < 1e-4)
    t.equal(bytes.length, width * 4)
    const native = await corral.json('/api/embed', { model, input: texts })
    t.ok(
      Math.abs(cosine(native.body.embeddings[1], vectors[1]!) - 1) < 1e-4,
      'the native API returns the same embedding'
    )
  }
  const running = (await corral.json('/api/ps')).body.models
  t.match(
    running.filter((model: any) => model.name === MODELS.embedding),
    [{ mode: 'embedding', context_length: 512 }],
    'the context is not larger than the trained one'
  )
  // Texts as long as the context are accepted, because the encoder's batch is as large as its context.
  const long = await corral.json('/v1/embeddings', { model: MODELS.embedding, input: 'ab '.repeat(200) })
  t.equal(long.status, 200, JSON.stringify(long.body).slice(0, 300))
  const tooLong = await corral.json('/v1/embeddings', { model: MODELS.embedding, input: 'ab '.repeat(2000) })
  t.match(tooLong, { status: 400, body: { error: { code: 'context_length_exceeded' } } })
  t.ok(tooLong.body.error.n_prompt_tokens > tooLong.body.error.n_ctx)
})

t.test('the OpenAI API ranks documents', async t => {
  const documents = ['Paris is the capital.', 'Bananas are yellow.', 'A dog sleeps.']
  const query = 'What is the capital of France?'
  const { status, body } = await corral.json('/v1/rerank', { model: MODELS.reranker, query, documents })
  t.equal(status, 200, JSON.stringify(body))
  t.same(body.results.map((result: any) => result.index).sort(), [0, 1, 2], 'each document has a score')
  const scores: number[] = body.results.map((result: any) => result.relevance_score)
  t.same(
    scores,
    [...scores].sort((a, b) => b - a)
  )
  t.equal(new Set(scores).size, 3, 'the scores differ')
  const two = await corral.json('/v1/rerank', { model: MODELS.reranker, query, documents, top_n: 2 })
  t.same(two.body.results, body.results.slice(0, 2))
  const alone = await corral.json('/v1/rerank', { model: MODELS.reranker, query, documents: [documents[1]] })
  const together = body.results.find((result: any) => result.index === 1).relevance_score
  // Some processors round differently for several texts, by about 1e-4. Real errors would be much larger.
  t.ok(Math.abs(alone.body.results[0].relevance_score - together) < 5e-3, 'the same as alone')
  const running = (await corral.json('/api/ps')).body.models
  t.equal(running.find((model: any) => model.name === MODELS.reranker)?.mode, 'rerank')
})

t.test('a chat model creates embeddings too', async t => {
  const { status, body } = await corral.json('/v1/embeddings', { model: DEMO, input: 'Hi' })
  t.equal(status, 200)
  t.equal(body.data[0].embedding.length, 256)
})

t.test('the OpenAI API refuses requests that a model is not made for', async t => {
  await corral.json('/api/stop', { model: MODELS.reranker })
  await corral.json('/api/stop', { model: MODELS.embedding })
  const hi = [{ role: 'user', content: 'Hi' }]
  const wrong: [string, object, RegExp][] = [
    ['/api/chat', { model: MODELS.embedding, messages: hi }, /cannot generate text: it makes embeddings/],
    ['/api/generate', { model: MODELS.reranker, prompt: 'Hi' }, /cannot generate text: it ranks documents/],
    ['/v1/chat/completions', { model: MODELS.decoder, messages: hi }, /cannot generate text/],
    ['/v1/completions', { model: MODELS.reranker, prompt: 'Hi' }, /cannot generate text/],
    ['/v1/embeddings', { model: MODELS.reranker, input: 'Hi' }, /embeddings/],
    ['/api/embed', { model: MODELS.reranker, input: 'Hi' }, /embeddings/],
    ['/v1/rerank', { model: MODELS.embedding, query: 'a', documents: ['b'] }, /rank documents/],
    ['/v1/rerank', { model: DEMO, query: 'a', documents: ['b'] }, /rank documents/],
    ['/v1/messages', { model: MODELS.embedding, messages: hi, max_tokens: 5 }, /cannot generate text/],
    ['/v1/responses', { model: MODELS.embedding, input: 'Hi' }, /cannot generate text/]
  ]
  for (const [path, request, words] of wrong) {
    const { status, body } = await corral.json(path, request)
    t.equal(status, 400, `${path}: ${JSON.stringify(body)}`)
    t.match(JSON.stringify(body), words, path)
    t.match(JSON.stringify(body), /unsupported_capability|invalid_request_error/, path)
  }
  const running = (await corral.json('/api/ps')).body
  const loaded = [...running.models, ...running.loading].map((model: any) => `${model.name} ${model.mode}`)
  t.notOk(
    loaded.includes(`${MODELS.embedding} chat`) || loaded.includes(`${MODELS.reranker} rerank`),
    'no model is loaded'
  )
})
