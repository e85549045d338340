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
import * as trials from '../trials.ts'
import { CityReport } from './city-report.ts'

const open = ({ address }: trials.Place) =>
  createOpenAICompatible({
    name: 'corral',
    baseURL: `${address}/v1`,
    apiKey: 'any',
    includeUsage: true,
    supportsStructuredOutputs: true
  })
const greedy = (place: trials.Place) => ({ model: open(place)(trials.MODEL), temperature: 0 })
const schema = {
  description: trials.WEATHER.description,
  inputSchema: jsonSchema<{ city: string }>(trials.WEATHER.parameters)
}
/** A tool that only the client can run, and a tool that the SDK runs by itself. */
const asked = { get_weather: tool(schema) }
const run = { get_weather: tool({ ...schema, execute: async () => 'sunny' }) }

async function fails(
  place: trials.Place,
  status: number,
  fields: { model?: string; prompt?: string }
): Promise<string> {
  const model = open(place)(fields.model ?? trials.MODEL)
  const error = await failure(
    generateText({ model, temperature: 0, prompt: fields.prompt ?? trials.QUESTION }),
    APICallError
  )
  assert.deepEqual([error.statusCode, error.isRetryable], [status, false])
  return `APICallError, status ${status}`
}

export const ai: trials.Client = {
  packages: ['ai', '@ai-sdk/openai-compatible'],
  trials: {
    async chat(place) {
      const { text, finishReason } = await generateText({ ...greedy(place), prompt: trials.QUESTION })
      assert.deepEqual([text, finishReason], [trials.ANSWER, 'stop'])
    },
    async system(place) {
      const { text } = await generateText({ ...greedy(place), system: 'You are Leo.', prompt: 'Who are you?' })
      assert.equal(text, 'I am Leo.')
      const turns = await generateText({ ...greedy(place), messages: trials.ROSA })
      assert.equal(turns.text, 'Your name is Rosa.')
    },
    async stream(place) {
      const pieces: string[] = []
      const stream = streamText({ ...greedy(place), prompt: trials.QUESTION })
      for await (const piece of stream.textStream) pieces.push(piece)
      assert.equal(pieces.join(''), trials.ANSWER)
      assert.equal(await stream.finishReason, 'stop')
      assert.ok(pieces.length > 4)
      return `${pieces.length} chunks`
    },
    async usage(place) {
      const { usage } = await generateText({ ...greedy(place), prompt: trials.QUESTION })
      const streamed = await streamText({ ...greedy(place), prompt: trials.QUESTION }).usage
      for (const { inputTokens, outputTokens } of [usage, streamed]) {
        assert.deepEqual([inputTokens, outputTokens], [19, 9])
      }
      return 'whole and streamed: 19 + 9 tokens'
    },
    async stop(place) {
      const stopped = await generateText({ ...greedy(place), prompt: trials.QUESTION, stopSequences: [' of France'] })
      assert.deepEqual([stopped.text, stopped.finishReason], ['The capital', 'stop'])
      const short = await generateText({ ...greedy(place), prompt: trials.QUESTION, maxOutputTokens: 4 })
      assert.deepEqual([short.text, short.finishReason], ['The capital of Fra', 'length'])
    },
    async tools(place) {
      const reply = await generateText({
        ...greedy(place),
        tools: run,
        stopWhen: stepCountIs(3),
        prompt: trials.ASK_WEATHER
      })
      const inputs = reply.steps.flatMap(({ toolCalls }) => each(toolCalls, 'input'))
      assert.deepEqual(inputs, [{ city: 'Paris' }])
      assert.equal(reply.text, trials.SAY_WEATHER)
      return trials.SAY_WEATHER
    },
    async two_tools(place) {
      const { toolCalls } = await generateText({ ...greedy(place), tools: asked, prompt: trials.ASK_TWO })
      assert.deepEqual(each(toolCalls, 'input'), [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome'
    },
    async streamed_tools(place) {
      const toolCalls = await streamText({ ...greedy(place), tools: asked, prompt: trials.ASK_TWO }).toolCalls
      assert.deepEqual(each(toolCalls, 'input'), [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome'
    },
    async json(place) {
      const ask = { ...greedy(place), system: trials.JSON_SYSTEM, prompt: trials.ASK_WEATHER }
      assert.deepEqual((await generateText({ ...ask, output: Output.json() })).output, trials.JSON_ANSWER)
    },
    async schema(place) {
      const output = Output.object({ schema: CityReport })
      CityReport.parse((await generateText({ ...greedy(place), prompt: trials.QUESTION, output })).output)
      return 'Output.object with zod'
    },
    async streamed_schema(place) {
      const stream = streamText({
        ...greedy(place),
        prompt: trials.QUESTION,
        output: Output.object({ schema: CityReport })
      })
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
      const model = open(place).embeddingModel(trials.MODEL)
      const many = await embedMany({ model, values: ['red', 'blue', 'red'] })
      const one = await embed({ model, value: 'red' })
      return sameVectors([...many.embeddings, one.embedding])
    },
    async completions(place) {
      const model = open(place).completionModel(trials.MODEL)
      const { text } = await generateText({ model, temperature: 0, prompt: 'The capital of', maxOutputTokens: 6 })
      assert.ok(text.length > 0)
    },
    async images(place) {
      const content = [{ type: 'image' as const, image: `data:image/png;base64,${trials.PNG}` }]
      const messages = [{ role: 'user' as const, content }]
      const error = await failure(generateText({ ...greedy(place), messages }), APICallError)
      assert.equal(error.statusCode, 400)
      assert.match(error.message, /image/)
      return 'APICallError, status 400'
    },
    not_found: place => fails(place, 404, { model: 'no/such' }),
    bad_request: place => fails(place, 400, { model: '../such' }),
    context: place => fails(place, 400, { prompt: trials.LONG }),
    async wrong_key({ strict }) {
      const at = (apiKey: string) =>
        createOpenAICompatible({ name: 'corral', baseURL: `${strict!.address}/v1`, apiKey })
      const error = await failure(
        generateText({ model: at('wrong')(trials.MODEL), prompt: trials.QUESTION }),
        APICallError
      )
      assert.equal(error.statusCode, 401)
      return 'APICallError, status 401'
    },
    async no_retries({ strict }) {
      const { fetch, count } = countingFetch()
      const { address, key: apiKey } = strict!
      const provider = createOpenAICompatible({ name: 'corral', baseURL: `${address}/v1`, apiKey, fetch })
      const error = await failure(
        generateText({ model: provider(trials.MODEL), prompt: trials.QUESTION, maxRetries: 1 })
      )
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
          model: open(place)(trials.ENDLESS),
          prompt: trials.QUESTION,
          abortSignal: controller.signal
        })
        return { pieces: textStream, leave: () => controller.abort() }
      })
  }
}
