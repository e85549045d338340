import assert from 'node:assert/strict'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import {
  APICallError,
  embed,
  embedMany,
  generateText,
  jsonSchema,
  Output,
  RetryError,
  stepCountIs,
  streamText,
  tool
} from 'ai'
import { each } from '../../support/each.ts'
import { countingFetch, failure, sameVectors } from '../asserting.ts'
import { leavesInTheMiddle } from '../leaving.ts'
import {
  ANSWER,
  ASK_TWO,
  ASK_WEATHER,
  type Client,
  ENDLESS,
  JSON_ANSWER,
  JSON_SYSTEM,
  LONG,
  MODEL,
  type Place,
  PNG,
  QUESTION,
  SAY_WEATHER,
  WEATHER
} from '../trials.ts'
import { CityReport } from './city-report.ts'

const open = ({ address }: Place) =>
  createOpenAICompatible({
    name: 'corral',
    baseURL: `${address}/v1`,
    apiKey: 'any',
    includeUsage: true,
    supportsStructuredOutputs: true
  })
const greedy = (place: Place) => ({ model: open(place)(MODEL), temperature: 0 })
const schema = { description: WEATHER.description, inputSchema: jsonSchema<{ city: string }>(WEATHER.parameters) }
/** A tool that only the client can run, and a tool that the SDK runs by itself. */
const asked = { get_weather: tool(schema) }
const run = { get_weather: tool({ ...schema, execute: async () => 'sunny' }) }

async function fails(place: Place, status: number, fields: { model?: string; prompt?: string }): Promise<string> {
  const model = open(place)(fields.model ?? MODEL)
  const error = await failure(generateText({ model, temperature: 0, prompt: fields.prompt ?? QUESTION }), APICallError)
  assert.deepEqual([error.statusCode, error.isRetryable], [status, false])
  return `APICallError, status ${status}`
}

export const ai: Client = {
  packages: ['ai', '@ai-sdk/openai-compatible'],
  trials: {
    async chat(place) {
      const { text, finishReason } = await generateText({ ...greedy(place), prompt: QUESTION })
      assert.deepEqual([text, finishReason], [ANSWER, 'stop'])
      return ''
    },
    async system(place) {
      const { text } = await generateText({ ...greedy(place), system: 'You are Leo.', prompt: 'Who are you?' })
      assert.equal(text, 'I am Leo.')
      const turns = await generateText({
        ...greedy(place),
        messages: [
          { role: 'user', content: 'My name is Rosa.' },
          { role: 'assistant', content: 'Nice to meet you, Rosa!' },
          { role: 'user', content: 'What is my name?' }
        ]
      })
      assert.equal(turns.text, 'Your name is Rosa.')
      return ''
    },
    async stream(place) {
      const pieces: string[] = []
      const stream = streamText({ ...greedy(place), prompt: QUESTION })
      for await (const piece of stream.textStream) pieces.push(piece)
      assert.equal(pieces.join(''), ANSWER)
      assert.equal(await stream.finishReason, 'stop')
      assert.ok(pieces.length > 4)
      return `${pieces.length} chunks`
    },
    async usage(place) {
      const { usage } = await generateText({ ...greedy(place), prompt: QUESTION })
      const streamed = await streamText({ ...greedy(place), prompt: QUESTION }).usage
      for (const { inputTokens, outputTokens } of [usage, streamed]) {
        assert.deepEqual([inputTokens, outputTokens], [19, 9])
      }
      return 'whole and streamed: 19 + 9 tokens'
    },
    async stop(place) {
      const stopped = await generateText({ ...greedy(place), prompt: QUESTION, stopSequences: [' of France'] })
      assert.deepEqual([stopped.text, stopped.finishReason], ['The capital', 'stop'])
      const short = await generateText({ ...greedy(place), prompt: QUESTION, maxOutputTokens: 4 })
      assert.deepEqual([short.text, short.finishReason], ['The capital of Fra', 'length'])
      return ''
    },
    async tools(place) {
      const reply = await generateText({ ...greedy(place), tools: run, stopWhen: stepCountIs(3), prompt: ASK_WEATHER })
      assert.deepEqual(
        reply.steps.flatMap(({ toolCalls }) => each(toolCalls, 'input')),
        [{ city: 'Paris' }]
      )
      assert.equal(reply.text, SAY_WEATHER)
      return SAY_WEATHER
    },
    async two_tools(place) {
      const { toolCalls } = await generateText({ ...greedy(place), tools: asked, prompt: ASK_TWO })
      assert.deepEqual(each(toolCalls, 'input'), [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome'
    },
    async streamed_tools(place) {
      const toolCalls = await streamText({ ...greedy(place), tools: asked, prompt: ASK_TWO }).toolCalls
      assert.deepEqual(each(toolCalls, 'input'), [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome'
    },
    async json(place) {
      const ask = { ...greedy(place), system: JSON_SYSTEM, prompt: ASK_WEATHER }
      assert.deepEqual((await generateText({ ...ask, output: Output.json() })).output, JSON_ANSWER)
      return ''
    },
    async schema(place) {
      const output = Output.object({ schema: CityReport })
      CityReport.parse((await generateText({ ...greedy(place), prompt: QUESTION, output })).output)
      return 'Output.object with zod'
    },
    async streamed_schema(place) {
      const stream = streamText({ ...greedy(place), prompt: QUESTION, output: Output.object({ schema: CityReport }) })
      let last: unknown
      let parts = 0
      for await (const part of stream.partialOutputStream) {
        last = part
        parts++
      }
      CityReport.parse(last)
      assert.ok(parts > 2)
      return 'growing objects'
    },
    async embeddings(place) {
      const model = open(place).embeddingModel(MODEL)
      const many = await embedMany({ model, values: ['red', 'blue', 'red'] })
      const one = await embed({ model, value: 'red' })
      return sameVectors([...many.embeddings, one.embedding])
    },
    async completions(place) {
      const model = open(place).completionModel(MODEL)
      const { text } = await generateText({ model, temperature: 0, prompt: 'The capital of', maxOutputTokens: 6 })
      assert.ok(text.length > 0)
      return ''
    },
    async images(place) {
      const content = [{ type: 'image' as const, image: `data:image/png;base64,${PNG}` }]
      const error = await failure(
        generateText({ ...greedy(place), messages: [{ role: 'user', content }] }),
        APICallError
      )
      assert.equal(error.statusCode, 400)
      assert.match(error.message, /image/)
      return 'APICallError, status 400'
    },
    not_found: place => fails(place, 404, { model: 'no/such' }),
    bad_request: place => fails(place, 400, { model: '../such' }),
    context: place => fails(place, 400, { prompt: LONG }),
    async wrong_key({ strict }) {
      const at = (apiKey: string) =>
        createOpenAICompatible({ name: 'corral', baseURL: `${strict!.address}/v1`, apiKey })
      const error = await failure(generateText({ model: at('wrong')(MODEL), prompt: QUESTION }), APICallError)
      assert.equal(error.statusCode, 401)
      return 'APICallError, status 401'
    },
    async no_retries({ strict }) {
      const { fetch, count } = countingFetch()
      const { address, key: apiKey } = strict!
      const provider = createOpenAICompatible({ name: 'corral', baseURL: `${address}/v1`, apiKey, fetch })
      const error = await failure(generateText({ model: provider(MODEL), prompt: QUESTION, maxRetries: 1 }))
      // This SDK looks only at the status: it retries every 5xx.
      assert.ok(RetryError.isInstance(error))
      assert.equal(count(), 2)
      assert.equal((error.lastError as APICallError).responseHeaders?.['x-should-retry'], 'false')
      return 'RetryError: the SDK retries every 5xx and ignores x-should-retry'
    },
    cancel: place =>
      leavesInTheMiddle(place, async () => {
        const controller = new AbortController()
        const { textStream } = streamText({
          model: open(place)(ENDLESS),
          prompt: QUESTION,
          abortSignal: controller.signal
        })
        return { pieces: textStream, leave: () => controller.abort() }
      })
  }
}
