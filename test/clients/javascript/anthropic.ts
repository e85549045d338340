import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod'
import { each } from '../../support/each.ts'
import { countingFetch, failure } from '../asserting.ts'
import { leavesInTheMiddle } from '../leaving.ts'
import * as trials from '../trials.ts'
import { CityReport } from './city-report.ts'

const open = ({ address }: trials.Place) => new Anthropic({ baseURL: address, apiKey: 'any' })
const greedy = { model: trials.MODEL, temperature: 0, max_tokens: 200 }
const question: Anthropic.MessageParam[] = [{ role: 'user', content: trials.QUESTION }]
const { parameters: input_schema, ...described } = trials.WEATHER
const tools = [{ ...described, input_schema }]

const joinText = (message: Anthropic.Message) =>
  message.content.map(block => (block.type === 'text' ? block.text : '')).join('')
const toolUses = ({ content }: Anthropic.Message) => content.filter(block => block.type === 'tool_use')
const weatherAsked = (content: string) => ({ ...greedy, tools, messages: [{ role: 'user' as const, content }] })

async function fails(place: trials.Place, type: new (...args: never[]) => Error, fields: object): Promise<string> {
  const create = (stream: boolean) => open(place).messages.create({ ...greedy, messages: question, ...fields, stream })
  const error = await failure(create(false), type)
  const streamed = await failure(create(true), type)
  assert.equal(error.error.type, 'error')
  assert.equal(streamed.error.error.type, error.error.error.type)
  return `${type.name}, ${error.error.error.type}`
}

export const anthropic: trials.Client = {
  packages: ['@anthropic-ai/sdk'],
  trials: {
    async models(place) {
      const client = open(place)
      const ids: string[] = []
      for await (const { id } of client.models.list()) ids.push(id)
      assert.ok(ids.includes(trials.MODEL), ids.join())
      assert.deepEqual((await client.models.retrieve(trials.MODEL)).type, 'model')
      return 'and one by its id'
    },
    async chat(place) {
      const message = await open(place).messages.create({ ...greedy, messages: question })
      assert.deepEqual([joinText(message), message.stop_reason, message.role], [trials.ANSWER, 'end_turn', 'assistant'])
    },
    async system(place) {
      const ask = async (fields: Pick<Anthropic.MessageCreateParamsNonStreaming, 'messages' | 'system'>) =>
        joinText(await open(place).messages.create({ ...greedy, ...fields }))
      const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'Who are you?' }]
      assert.equal(await ask({ system: 'You are Leo.', messages }), 'I am Leo.')
      assert.equal(await ask({ system: [{ type: 'text', text: 'You are Leo.' }], messages }), 'I am Leo.')
      const first = { role: 'user' as const, content: [{ type: 'text' as const, text: 'My name is Rosa.' }] }
      assert.equal(await ask({ messages: [first, ...trials.ROSA.slice(1)] }), 'Your name is Rosa.')
      return 'as text and as blocks'
    },
    async stream(place) {
      const stream = open(place).messages.stream({ ...greedy, messages: question })
      const events: string[] = []
      const pieces: string[] = []
      stream.on('text', piece => pieces.push(piece))
      stream.on('streamEvent', ({ type }) => {
        if (type !== 'content_block_delta' || events.at(-1) !== type) events.push(type)
      })
      assert.equal(await stream.finalText(), trials.ANSWER)
      assert.equal(pieces.join(''), trials.ANSWER)
      assert.ok(pieces.length > 4)
      const block = ['start', 'delta', 'stop'].map(event => `content_block_${event}`)
      assert.deepEqual(events, ['message_start', ...block, 'message_delta', 'message_stop'])
      return `${pieces.length} chunks, events in order`
    },
    async usage(place) {
      const client = open(place)
      const whole = await client.messages.create({ ...greedy, messages: question })
      const streamed = await client.messages.stream({ ...greedy, messages: question }).finalMessage()
      for (const { usage } of [whole, streamed]) {
        assert.deepEqual([usage.input_tokens + (usage.cache_read_input_tokens ?? 0), usage.output_tokens], [19, 9])
      }
      return 'whole and streamed: 19 + 9 tokens, including cached tokens'
    },
    async stop(place) {
      const create = async (fields: object) => {
        const message = await open(place).messages.create({ ...greedy, messages: question, ...fields })
        return [joinText(message), message.stop_reason, message.stop_sequence]
      }
      assert.deepEqual(await create({ stop_sequences: [' of France'] }), ['The capital', 'stop_sequence', ' of France'])
      assert.deepEqual(await create({ max_tokens: 4 }), ['The capital of Fra', 'max_tokens', null])
    },
    async tools(place) {
      const client = open(place)
      const first = await client.messages.create(weatherAsked(trials.ASK_WEATHER))
      assert.equal(first.stop_reason, 'tool_use')
      const [use, ...others] = toolUses(first)
      assert.deepEqual([use!.name, use!.input, others], ['get_weather', { city: 'Paris' }, []])
      const asked = weatherAsked(trials.ASK_WEATHER)
      const result = { type: 'tool_result' as const, tool_use_id: use!.id, content: 'sunny' }
      const messages: Anthropic.MessageParam[] = [{ role: 'assistant', content: first.content }]
      messages.push({ role: 'user', content: [result] })
      const second = await client.messages.create({ ...asked, messages: [...asked.messages, ...messages] })
      assert.equal(joinText(second), trials.SAY_WEATHER)
      return trials.SAY_WEATHER
    },
    async two_tools(place) {
      const uses = toolUses(await open(place).messages.create(weatherAsked(trials.ASK_TWO)))
      assert.deepEqual(each(uses, 'input'), [{ city: 'Paris' }, { city: 'Rome' }])
      assert.notEqual(uses[0]!.id, uses[1]!.id)
      return 'Paris and Rome, each with its own id'
    },
    async streamed_tools(place) {
      const message = await open(place).messages.stream(weatherAsked(trials.ASK_TWO)).finalMessage()
      assert.deepEqual(each(toolUses(message), 'input'), [{ city: 'Paris' }, { city: 'Rome' }])
      return 'two, assembled by the helper'
    },
    async forced_tool(place) {
      const { messages } = open(place)
      const asked = weatherAsked(trials.ASK_WEATHER)
      const named = await messages.create({ ...asked, tool_choice: { type: 'tool', name: 'get_weather' } })
      assert.deepEqual(each(toolUses(named), 'input'), [{ city: 'Paris' }])
      const none = await messages.create({ ...asked, tool_choice: { type: 'none' } })
      assert.equal(toolUses(none).length, 0)
      return 'by name; none if tool_choice is none'
    },
    async schema(place) {
      const output_config = { format: zodOutputFormat(CityReport) }
      const message = await open(place).messages.parse({ ...greedy, messages: question, output_config })
      CityReport.parse(message.parsed_output)
      return 'parsed by the helper for zod'
    },
    async count_tokens(place) {
      const { messages } = open(place)
      assert.equal((await messages.countTokens({ model: trials.MODEL, messages: question })).input_tokens, 19)
      return '19 tokens, as in the answer'
    },
    async images(place) {
      const source = { type: 'base64', media_type: 'image/png', data: trials.PNG }
      const messages = [{ role: 'user', content: [{ type: 'image', source }] }]
      return await fails(place, Anthropic.BadRequestError, { messages })
    },
    not_found: place => fails(place, Anthropic.NotFoundError, { model: 'no/such' }),
    bad_request: place => fails(place, Anthropic.BadRequestError, { max_tokens: 'many' }),
    context: place => fails(place, Anthropic.BadRequestError, { messages: [{ role: 'user', content: trials.LONG }] }),
    async wrong_key({ strict }) {
      const at = (apiKey: string) => new Anthropic({ baseURL: strict!.address, apiKey })
      await failure(at('wrong').models.list(), Anthropic.AuthenticationError)
      await at(strict!.key).models.list()
      return 'AuthenticationError; the right key works'
    },
    async no_retries({ strict }) {
      const counting = countingFetch()
      const client = new Anthropic({ baseURL: strict!.address, apiKey: strict!.key, fetch: counting.fetch })
      const asked = client.messages.create({ ...greedy, messages: question })
      const error = await failure(asked, Anthropic.InternalServerError)
      assert.equal(counting.count(), 1)
      return `InternalServerError, ${error.error.error.type}: sent once`
    },
    cancel: place =>
      leavesInTheMiddle(place, async () => {
        const ask = { model: trials.ENDLESS, max_tokens: 3_500, messages: question, stream: true as const }
        const pieces = await open(place).messages.create(ask)
        return { pieces, leave: () => pieces.controller.abort() }
      })
  }
}
