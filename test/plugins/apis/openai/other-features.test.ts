import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type OpenAI from 'openai'
import t from 'tap'
import type { Capability } from '../../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import {
  Completion,
  Embeddings,
  ModelList,
  Ranking,
  TextRanking,
  TokenList
} from '../../../../plugins/apis/openai/schemas.ts'
import { randomEncoder, writeRandomModel } from '../../../../scripts/random-models.ts'
import { each } from '../../../support/each.ts'
import { failure } from '../../../support/failure.ts'
import { thorough } from '../../../support/thorough.ts'
import { typeFaults } from './declared-types.ts'
import { conforms, MODEL, question, startRealEngine } from './real-engine.ts'
import { variantOf } from './support.ts'

// Features of OpenAI's other routes that llama-server lacks or handles differently.
const models = t.testdir()

function variantIn(name: string, capabilities: Capability[]): StoredVariant {
  const variant = variantOf('random', name, { capabilities })
  return { ...variant, directory: models, files: [{ ...variant.files[0]!, path: `${name}.gguf` }] }
}

writeFileSync(join(models, 'ranker.gguf'), randomEncoder('reranker', 1))
writeFileSync(join(models, 'vectors.gguf'), randomEncoder('embedding', 1))
const FILLER = { layers: 1, embedding: 64, feedForward: 64, heads: 1, kvHeads: 1 }
await writeRandomModel(join(models, 'filler.gguf'), FILLER, {
  // Arbitrary words serve as the fill-in tokens.
  metadata: {
    'tokenizer.ggml.fim_pre_token_id': 300,
    'tokenizer.ggml.fim_suf_token_id': 301,
    'tokenizer.ggml.fim_mid_token_id': 302
  }
})

const { client, service, asked, events, idle } = await startRealEngine(t, [
  variantOf('corral', 'tiny-chat'),
  variantIn('ranker', ['rerank']),
  variantIn('vectors', ['embedding']),
  variantIn('filler', ['completion', 'insert'])
])

t.test('completions support echo, logprobs, n, best_of and several prompts', async t => {
  const capital = { model: MODEL, prompt: 'The capital of', max_tokens: 4 }
  const create = async (fields: object) =>
    (await client.completions.create({ ...capital, ...fields } as never)) as OpenAI.Completion
  const plain = await create({})
  t.match(plain.id, /^cmpl-/)
  conforms(t, Completion, plain, 'Completion')
  t.match(plain, { object: 'text_completion', usage: { prompt_tokens: 4, completion_tokens: 4 } })
  const text = plain.choices[0]!.text
  t.equal((await create({ echo: true })).choices[0]!.text, `The capital of${text}`)
  const { body } = await service.json('/tokenize', { model: MODEL, content: 'The capital of', add_special: true })
  const tokens = await create({ prompt: body.tokens, echo: true })
  t.equal(tokens.choices[0]!.text, `<s>The capital of${text}`, 'the start token is among the tokens')
  t.equal(tokens.usage!.prompt_tokens, 4)
  const nothing = await create({ echo: true, max_tokens: 0 })
  t.match(nothing, {
    choices: [{ text: 'The capital of', finish_reason: 'length' }],
    usage: { prompt_tokens: 4, completion_tokens: 0, total_tokens: 4 }
  })

  const probable = (await create({ logprobs: 2 })).choices[0]!
  t.equal(probable.logprobs!.tokens!.join(''), probable.text)
  t.equal(probable.logprobs!.token_logprobs!.length, 4)
  t.strictSame(
    probable.logprobs!.text_offset,
    probable.logprobs!.tokens!.map((_, at, all) => all.slice(0, at).join('').length)
  )
  for (const [at, likeliest] of probable.logprobs!.top_logprobs!.entries()) {
    t.equal(Object.keys(likeliest).length, 2)
    t.equal(likeliest[probable.logprobs!.tokens![at]!], probable.logprobs!.token_logprobs![at])
  }
  conforms(t, Completion, await create({ logprobs: 2, n: 2 }), 'Completion')
  t.equal((await create({ logprobs: 0 })).choices[0]!.logprobs!.top_logprobs, null)
  const streamed = await events(t, '/completions', { ...capital, logprobs: 2 })
  t.strictSame(
    streamed.flatMap(({ choices }) => choices[0]?.logprobs?.text_offset ?? []),
    probable.logprobs!.text_offset
  )

  const several = await create({ prompt: ['The capital of', 'hi'], n: 2, max_tokens: 2 })
  t.strictSame(each(several.choices, 'index'), [0, 1, 2, 3])
  t.equal(several.choices[0]!.text, several.choices[1]!.text, 'choices of a prompt are adjacent')
  t.match(several.usage, { prompt_tokens: 7, completion_tokens: 8, total_tokens: 15 })
  const both = {
    model: MODEL,
    prompt: ['The capital of', 'hi'],
    max_tokens: 2,
    stream_options: { include_usage: true }
  }
  const stream = await events(t, '/completions', both)
  t.strictSame(
    stream.filter(event => event.usage).map(({ choices, usage }) => [choices, usage.total_tokens]),
    [[[], 11]]
  )
  t.ok(stream.every(({ id }) => id.startsWith('cmpl-')))
  const bytes = await events(t, '/completions', { model: MODEL, prompt: 'hi', max_tokens: 2 })
  t.ok(bytes.every(({ id }) => id.startsWith('cmpl-')))

  const wild = { temperature: 1.5, top_p: 1, seed: 3, max_tokens: 6 }
  const all = await create({ ...wild, n: 2, logprobs: 0 })
  const mean = ({ logprobs }: OpenAI.CompletionChoice) => {
    const values = logprobs!.token_logprobs!
    return values.reduce((sum, value) => sum + value, 0) / values.length
  }
  const best = await create({ ...wild, best_of: 2 })
  const wanted = [...all.choices].sort((a, b) => mean(b) - mean(a))[0]!
  t.match(best.choices, [{ index: 0, text: wanted.text, logprobs: null }])
  t.equal(best.choices.length, 1)
  t.equal(best.usage!.completion_tokens, all.usage!.completion_tokens, 'discarded choices are counted')
  t.match(await failure(create({ best_of: 5 })), { status: 400, param: 'best_of', message: /at most 2/ })
})

t.test('completions fill in text before a suffix', async t => {
  const text = { prompt: 'def add(', suffix: '  return a + b' }
  const request = { model: 'random/filler', ...text, max_tokens: 5, ignore_eos: true }
  const whole = (await client.completions.create({ ...request, logprobs: 1 } as never)) as OpenAI.Completion
  t.match(whole, {
    id: /^cmpl-/,
    object: 'text_completion',
    model: 'random/filler',
    choices: [{ index: 0, finish_reason: 'length' }],
    usage: { completion_tokens: 5 }
  })
  t.ok(whole.usage!.prompt_tokens > 10)
  t.equal(whole.choices[0]!.logprobs!.tokens!.join(''), whole.choices[0]!.text)
  const stream = await events(t, '/completions', { ...request, stream_options: { include_usage: true } })
  t.equal(stream.map(({ choices }) => choices[0]?.text ?? '').join(''), whole.choices[0]!.text)
  t.equal(stream.at(-1).usage.completion_tokens, 5)
  t.equal(stream.at(-2).choices[0].finish_reason, 'length')
  const two = (await client.completions.create({ ...request, n: 2 } as never)) as OpenAI.Completion
  t.equal(two.choices.length, 2)
  t.equal(two.usage!.completion_tokens, 10)
  const unable = await failure(client.completions.create({ ...request, model: MODEL } as never))
  t.match(unable, { status: 400, code: 'unsupported_capability', param: 'suffix' })
  const endless = await client.completions.create({ ...request, max_tokens: -1, stream: true } as never)
  for await (const _ of endless as unknown as AsyncIterable<unknown>) break
  await idle()
})

t.test('embeddings support base64, dimensions, lists and tokens', async t => {
  for (const model of [MODEL, 'random/vectors']) {
    const create = async (fields: object) =>
      await client.embeddings.create({ model, input: 'hello world', ...fields } as never)
    const decoded = await create({})
    const plain = await create({ encoding_format: 'float' })
    const vector = plain.data[0]!.embedding
    conforms(t, Embeddings, plain, 'CreateEmbeddingResponse')
    conforms(t, Embeddings, (await service.json('/embeddings', { model, input: 'x', encoding_format: 'base64' })).body)
    t.equal(decoded.data[0]!.embedding.length, vector.length)
    t.ok(
      decoded.data[0]!.embedding.every((value, at) => Math.abs(value - vector[at]!) < 1e-6),
      'base64 and numbers agree'
    )
    t.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-3, 'the length is 1')
    const cut = (await create({ encoding_format: 'float', dimensions: 16 })).data[0]!.embedding
    t.equal(cut.length, 16)
    const scale = Math.hypot(...vector.slice(0, 16))
    t.ok(cut.every((value, at) => Math.abs(value - vector[at]! / scale) < 1e-5))
    t.strictSame((await create({ dimensions: 16 })).data[0]!.embedding.length, 16)
    t.match(await failure(create({ dimensions: vector.length + 1 })), {
      status: 400,
      param: 'dimensions',
      message: new RegExp(`at most ${vector.length}`)
    })
    const several = await create({ input: ['hello world', 'x', 'hello world'] })
    t.strictSame(each(several.data, 'index'), [0, 1, 2])
    t.ok(
      vector.every((value, at) => Math.abs(value - several.data[0]!.embedding[at]!) < 1e-3),
      'the same as alone'
    )
    t.ok(several.data[2]!.embedding.every((value, at) => Math.abs(value - several.data[0]!.embedding[at]!) < 1e-3))
    t.ok(several.usage.prompt_tokens > 2 * plain.usage.prompt_tokens)
    const { tokens } = (await service.json('/tokenize', { model, content: 'hello world', add_special: true })).body
    const byTokens = await create({ input: [tokens, tokens], encoding_format: 'float' })
    t.ok(byTokens.data[1]!.embedding.every((value, at) => Math.abs(value - vector[at]!) < 1e-3))
    t.equal(byTokens.usage.prompt_tokens, 2 * tokens.length)
    for (const input of ['', ['x', ''], [], [[]]]) {
      t.match(await failure(create({ input })), { status: 400, code: 'invalid_request', param: /^input/ })
    }
    t.match(await failure(create({ input: 'hello '.repeat(3000) })), {
      status: 400,
      code: 'context_length_exceeded',
      error: { n_prompt_tokens: Number, n_ctx: Number },
      message: /\d+ tokens.*\d+/
    })
  }
  const unable = await failure(client.embeddings.create({ model: 'random/ranker', input: 'x' }))
  t.match(unable, { status: 400, code: 'unsupported_capability', param: 'model' })
  t.notOk(
    asked.some(engine => engine.startsWith('random/ranker')),
    'the request is refused before a model is loaded'
  )
})

t.test('the OpenAI API ranks documents and texts', async t => {
  const documents = ['Paris is the capital of France.', { text: 'Bananas are yellow.' }, 'The sky is blue.']
  const rank = (fields: object = {}, path = '/rerank') =>
    service.json(path, { model: 'Random/Ranker', query: 'What is the capital?', documents, ...fields })
  const { status, body } = await rank()
  t.equal(status, 200)
  t.match(body, { object: 'list', model: 'Random/Ranker', usage: { prompt_tokens: Number, total_tokens: Number } })
  t.strictSame(body.results.map(({ index }: { index: number }) => index).sort(), [0, 1, 2])
  const scores = body.results.map((result: { relevance_score: number }) => result.relevance_score)
  t.strictSame(
    scores,
    [...scores].sort((a, b) => b - a)
  )
  t.notOk('document' in body.results[0])
  const best = (await rank({ top_n: 2, return_documents: true }, '/reranking')).body.results
  t.equal(best.length, 2)
  conforms(t, Ranking, (await rank({ return_documents: true })).body)
  t.equal(best[0].index, body.results[0].index)
  t.equal(best[0].document.text, [documents[0], 'Bananas are yellow.', documents[2]][best[0].index])
  const refused = (error: object) => ({ status: 400, body: { error } })
  t.match(await rank({ model: MODEL }), refused({ code: 'unsupported_capability', param: 'model' }))
  const texts = ['Paris is the capital of France.', 'Bananas are yellow.', 'The sky is blue.']
  const listed = (await rank({ documents: undefined, texts, return_text: true })).body
  conforms(t, TextRanking, listed)
  t.strictSame(
    listed.map(({ index, text }: { index: number; text: string }) => [index, text]),
    body.results.map(({ index }: { index: number }) => [index, texts[index]]),
    'the reply to texts is a list'
  )
  for (const wrong of [{ texts }, { documents: undefined }, { documents: [] }]) {
    t.match(await rank(wrong), refused({ param: 'documents' }))
  }
  const full = { code: 'context_length_exceeded', n_prompt_tokens: Number, n_ctx: Number }
  t.match(await rank({ documents: ['x '.repeat(3000)] }), refused(full))
  const chat = { model: 'random/ranker', messages: [question] }
  t.match(await service.json('/chat/completions', chat), refused({ code: 'unsupported_capability' }))
})

t.test('the OpenAI API tokenizes with every kind of model', async t => {
  for (const model of [MODEL, 'random/vectors', 'random/ranker']) {
    const { body } = await service.json('/tokenize', { model, content: 'Hello there', with_pieces: true })
    t.match(body.tokens[0], { id: Number, piece: String }, model)
    conforms(t, TokenList, body)
  }
  conforms(t, ModelList, (await service.json('/models')).body)
})

t.test('replies have the types that the official client declares', thorough, async t => t.equal(typeFaults(), ''))
