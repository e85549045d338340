import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod'
import { countingFetch, failure, sameVectors } from '../asserting.ts'
import { leavesInTheMiddle } from '../leaving.ts'
import * as trials from '../trials.ts'
import { CityReport } from './city-report.ts'

type Messages = OpenAI.ChatCompletionMessageParam[]

const open = ({ address }: trials.Place) => new OpenAI({ baseURL: `${address}/v1`, apiKey: 'any' })
const greedy = { model: trials.MODEL, temperature: 0 }
const question: Messages = [{ role: 'user', content: trials.QUESTION }]
const tools = [{ type: 'function' as const, function: trials.WEATHER }]
const responseTool = { type: 'function' as const, ...trials.WEATHER, strict: true }

const TWO_CALLS = ['Paris', 'Rome'].map(city => ['get_weather', { city }])

const joinText = async (stream: AsyncIterable<OpenAI.ChatCompletionChunk>) => {
  const pieces: string[] = []
  for await (const chunk of stream) {
    const piece = chunk.choices[0]?.delta.content
    if (piece) pieces.push(piece)
  }
  return pieces
}

const parseCalls = (message: OpenAI.ChatCompletionMessage) =>
  (message.tool_calls ?? []).map(call => {
    assert.equal(call.type, 'function')
    return call.type === 'function' ? [call.function.name, JSON.parse(call.function.arguments)] : []
  })

async function fails(place: trials.Place, type: new (...args: never[]) => Error, fields: object): Promise<string> {
  const create = (stream: boolean) =>
    open(place).chat.completions.create({ ...greedy, messages: question, ...fields, stream } as never)
  const error = await failure(create(false), type)
  const streamed = await failure(create(true), type)
  assert.equal(streamed.code, error.code)
  return `${type.name}, ${error.code}`
}

export const openai: trials.Client = {
  packages: ['openai'],
  trials: {
    async models(place) {
      const client = open(place)
      const ids: string[] = []
      for await (const { id } of client.models.list()) ids.push(id)
      assert.ok(ids.includes(trials.MODEL), ids.join())
      assert.equal((await client.models.retrieve(trials.MODEL)).id, trials.MODEL)
      return 'and one by its id'
    },
    async chat(place) {
      const { choices } = await open(place).chat.completions.create({ ...greedy, messages: question })
      assert.equal(choices[0]!.message.content, trials.ANSWER)
      assert.equal(choices[0]!.finish_reason, 'stop')
    },
    async system(place) {
      const ask = async (messages: Messages) =>
        (await open(place).chat.completions.create({ ...greedy, messages })).choices[0]!.message.content
      const system = { role: 'system' as const, content: 'You are Leo.' }
      assert.equal(await ask([system, { role: 'user', content: 'Who are you?' }]), 'I am Leo.')
      const parts = [{ type: 'text' as const, text: 'What is my name?' }]
      assert.equal(await ask([...trials.ROSA.slice(0, 2), { role: 'user', content: parts }]), 'Your name is Rosa.')
    },
    async stream(place) {
      const client = open(place)
      const pieces = await joinText(
        await client.chat.completions.create({ ...greedy, messages: question, stream: true })
      )
      assert.equal(pieces.join(''), trials.ANSWER)
      assert.ok(pieces.length > 4)
      const helper = client.chat.completions.stream({ ...greedy, messages: question })
      assert.equal(await helper.finalContent(), trials.ANSWER)
      return `${pieces.length} chunks; the helper too`
    },
    async usage(place) {
      const client = open(place)
      const { usage } = await client.chat.completions.create({ ...greedy, messages: question })
      const stream = await client.chat.completions.create({
        ...greedy,
        messages: question,
        stream: true,
        stream_options: { include_usage: true }
      })
      const seen = []
      for await (const chunk of stream) if (chunk.usage) seen.push(chunk.usage)
      assert.equal(seen.length, 1)
      for (const { prompt_tokens, completion_tokens, total_tokens } of [usage!, seen[0]!]) {
        assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [19, 9, 28])
      }
      return 'whole and streamed: 19 + 9 tokens'
    },
    async stop(place) {
      const create = async (fields: object) => {
        const reply = await open(place).chat.completions.create({ ...greedy, messages: question, ...fields })
        return [reply.choices[0]!.message.content, reply.choices[0]!.finish_reason]
      }
      assert.deepEqual(await create({ stop: [' of France'] }), ['The capital', 'stop'])
      assert.deepEqual(await create({ max_completion_tokens: 4 }), ['The capital of Fra', 'length'])
    },
    async seed(place) {
      const ask = async (seed: number) => {
        const messages: Messages = [{ role: 'user', content: 'Tell me a story.' }]
        const reply = await open(place).chat.completions.create({ ...greedy, messages, temperature: 1.5, seed })
        return reply.choices[0]!.message.content
      }
      const [one, again, other] = [await ask(7), await ask(7), await ask(8)]
      assert.equal(one, again)
      assert.notEqual(one, other)
    },
    async choices(place) {
      const { choices } = await open(place).chat.completions.create({ ...greedy, messages: question, n: 2 })
      const texts = choices.map(({ index, message }) => `${index} ${message.content}`)
      assert.deepEqual(texts, [`0 ${trials.ANSWER}`, `1 ${trials.ANSWER}`])
      return 'n: 2'
    },
    async logprobs(place) {
      const ask = { ...greedy, messages: question, logprobs: true, top_logprobs: 2 }
      const { choices } = await open(place).chat.completions.create(ask)
      const tokens = choices[0]!.logprobs!.content!
      assert.equal(tokens.map(({ token }) => token).join(''), trials.ANSWER)
      assert.ok(tokens.every(({ logprob, top_logprobs }) => logprob <= 0 && top_logprobs.length === 2))
      return 'with two alternatives each'
    },
    async completions(place) {
      const client = open(place)
      const ask = { ...greedy, prompt: 'The capital of', max_tokens: 6 }
      const whole = await client.completions.create(ask)
      let text = ''
      for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
        text += chunk.choices[0]?.text ?? ''
      }
      assert.ok(text.length > 0)
      assert.equal(text, whole.choices[0]!.text)
      return 'whole and streamed'
    },
    async tools(place) {
      const client = open(place)
      const messages: Messages = [{ role: 'user', content: trials.ASK_WEATHER }]
      const { choices } = await client.chat.completions.create({ ...greedy, messages, tools })
      const { message, finish_reason } = choices[0]!
      assert.equal(finish_reason, 'tool_calls')
      assert.deepEqual(parseCalls(message), [['get_weather', { city: 'Paris' }]])
      const result = { role: 'tool' as const, tool_call_id: message.tool_calls![0]!.id, content: 'sunny' }
      const answered = [...messages, message, result]
      const second = await client.chat.completions.create({ ...greedy, messages: answered, tools })
      assert.equal(second.choices[0]!.message.content, trials.SAY_WEATHER)
      return trials.SAY_WEATHER
    },
    async two_tools(place) {
      const messages: Messages = [{ role: 'user', content: trials.ASK_TWO }]
      const { choices } = await open(place).chat.completions.create({ ...greedy, messages, tools })
      const { message } = choices[0]!
      assert.deepEqual(parseCalls(message), TWO_CALLS)
      assert.notEqual(message.tool_calls![0]!.id, message.tool_calls![1]!.id)
      return 'Paris and Rome, each with its own id'
    },
    async streamed_tools(place) {
      const messages: Messages = [{ role: 'user', content: trials.ASK_TWO }]
      const runner = open(place).chat.completions.stream({ ...greedy, messages, tools })
      const { choices } = await runner.finalChatCompletion()
      assert.equal(choices[0]!.finish_reason, 'tool_calls')
      assert.deepEqual(parseCalls(choices[0]!.message), TWO_CALLS)
      return 'two, assembled by the helper'
    },
    async forced_tool(place) {
      const messages: Messages = [{ role: 'user', content: trials.ASK_WEATHER }]
      const create = async (tool_choice: OpenAI.ChatCompletionToolChoiceOption) =>
        (await open(place).chat.completions.create({ ...greedy, messages, tools, tool_choice })).choices[0]!.message
      const named = await create({ type: 'function', function: { name: 'get_weather' } })
      assert.deepEqual(parseCalls(named), [['get_weather', { city: 'Paris' }]])
      assert.deepEqual(parseCalls(await create('none')), [])
      return 'by name; none if tool_choice is none'
    },
    async json(place) {
      const messages: Messages = [
        { role: 'system', content: trials.JSON_SYSTEM },
        { role: 'user', content: trials.ASK_WEATHER }
      ]
      const ask = { ...greedy, messages, response_format: { type: 'json_object' as const } }
      const { choices } = await open(place).chat.completions.create(ask)
      assert.deepEqual(JSON.parse(choices[0]!.message.content!), trials.JSON_ANSWER)
    },
    async schema(place) {
      const response_format = zodResponseFormat(CityReport, 'city_report')
      const { choices } = await open(place).chat.completions.parse({ ...greedy, messages: question, response_format })
      CityReport.parse(choices[0]!.message.parsed)
      return 'parsed by the helper for zod'
    },
    async embeddings(place) {
      const { embeddings } = open(place)
      const decoded = await embeddings.create({ model: trials.MODEL, input: ['red', 'blue', 'red'] })
      const plain = await embeddings.create({ model: trials.MODEL, input: 'red', encoding_format: 'float' })
      return sameVectors([...decoded.data, ...plain.data].map(({ embedding }) => embedding))
    },
    async responses(place) {
      const { responses } = open(place)
      const first = await responses.create({ ...greedy, input: trials.QUESTION })
      assert.equal(first.output_text, trials.ANSWER)
      assert.equal(first.status, 'completed')
      assert.deepEqual([first.usage!.input_tokens, first.usage!.output_tokens], [19, 9])
      const call = await responses.create({ ...greedy, input: trials.ASK_WEATHER, tools: [responseTool] })
      const item = call.output.find(({ type }) => type === 'function_call') as OpenAI.Responses.ResponseFunctionToolCall
      assert.deepEqual([item.name, JSON.parse(item.arguments)], ['get_weather', { city: 'Paris' }])
      const result = { type: 'function_call_output' as const, call_id: item.call_id, output: 'sunny' }
      const input = [{ role: 'user' as const, content: trials.ASK_WEATHER }, item, result]
      const said = await responses.create({ ...greedy, tools: [responseTool], input })
      assert.equal(said.output_text, trials.SAY_WEATHER)
      const text = { format: zodTextFormat(CityReport, 'city_report') }
      const parsed = await responses.parse({ ...greedy, input: trials.QUESTION, text })
      CityReport.parse(parsed.output_parsed)
      return 'text, tool call and its result, JSON schema'
    },
    async streamed_responses(place) {
      const { responses } = open(place)
      const pieces: string[] = []
      const numbers: number[] = []
      let last = ''
      for await (const event of await responses.create({ ...greedy, input: trials.QUESTION, stream: true })) {
        numbers.push(event.sequence_number)
        last = event.type
        if (event.type === 'response.output_text.delta') pieces.push(event.delta)
      }
      assert.equal(pieces.join(''), trials.ANSWER)
      assert.equal(last, 'response.completed')
      assert.deepEqual(numbers, [...numbers.keys()])
      const helper = responses.stream({ ...greedy, input: trials.QUESTION })
      assert.equal((await helper.finalResponse()).output_text, trials.ANSWER)
      return `${pieces.length} chunks; the helper too`
    },
    async images(place) {
      const content = [{ type: 'image_url', image_url: { url: `data:image/png;base64,${trials.PNG}` } }]
      return await fails(place, OpenAI.BadRequestError, { messages: [{ role: 'user', content }] })
    },
    not_found: place => fails(place, OpenAI.NotFoundError, { model: 'no/such' }),
    bad_request: place => fails(place, OpenAI.BadRequestError, { temperature: 'hot' }),
    context: place => fails(place, OpenAI.BadRequestError, { messages: [{ role: 'user', content: trials.LONG }] }),
    async wrong_key({ strict }) {
      const at = (apiKey: string) => new OpenAI({ baseURL: `${strict!.address}/v1`, apiKey })
      await failure(at('wrong').models.list(), OpenAI.AuthenticationError)
      await at(strict!.key).models.list()
      return 'AuthenticationError; the right key works'
    },
    async no_retries({ strict }) {
      const counting = countingFetch()
      const client = new OpenAI({ baseURL: `${strict!.address}/v1`, apiKey: strict!.key, fetch: counting.fetch })
      const asked = client.chat.completions.create({ ...greedy, messages: question })
      const error = await failure(asked, OpenAI.InternalServerError)
      assert.equal(counting.count(), 1)
      return `InternalServerError, ${error.code}: sent once`
    },
    cancel: place =>
      leavesInTheMiddle(place, async () => {
        const ask = { model: trials.ENDLESS, messages: question, stream: true as const }
        const pieces = await open(place).chat.completions.create(ask)
        return { pieces, leave: () => pieces.controller.abort() }
      })
  }
}
