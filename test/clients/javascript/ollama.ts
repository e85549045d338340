import assert from 'node:assert/strict'
import { Ollama } from 'ollama'
import { z } from 'zod'
import { failure, sameVectors } from '../asserting.ts'
import { leavesInTheMiddle } from '../leaving.ts'
import * as trials from '../trials.ts'
import { CityReport } from './city-report.ts'

const open = ({ address }: trials.Place) => new Ollama({ host: `${address}/ollama` })
const question = [{ role: 'user', content: trials.QUESTION }]
/** Ollama shows names with their tags. */
const TAGGED = `${trials.MODEL}:latest`
const greedy = { model: trials.MODEL, options: { temperature: 0 } }
const tools = [{ type: 'function', function: trials.WEATHER }]

async function answers(client: Ollama): Promise<string[]> {
  const pieces: string[] = []
  for await (const { message } of await client.chat({ ...greedy, messages: question, stream: true })) {
    if (message.content) pieces.push(message.content)
  }
  assert.equal(pieces.join(''), trials.ANSWER)
  assert.ok(pieces.length > 4)
  return pieces
}

async function callsFor(place: trials.Place, content: string) {
  const { message } = await open(place).chat({ ...greedy, messages: [{ role: 'user', content }], tools })
  return message
}

async function fails(place: trials.Place, status: number, fields: object): Promise<string> {
  const client = open(place)
  const whole = await failure(client.chat({ ...greedy, messages: question, ...fields }))
  const streamed = await failure(client.chat({ ...greedy, messages: question, ...fields, stream: true }))
  for (const error of [whole, streamed]) assert.deepEqual([error.name, error.status_code], ['ResponseError', status])
  return `ResponseError, status ${status}`
}

export const ollama: trials.Client = {
  packages: ['ollama'],
  trials: {
    async models(place) {
      const { models } = await open(place).list()
      const listed = models.find(({ model }) => model === TAGGED)!
      assert.match(listed.digest, /^[0-9a-f]{64}$/)
      assert.equal(listed.details.format, 'gguf')
    },
    async chat(place) {
      const reply = await open(place).chat({ ...greedy, messages: question })
      assert.deepEqual([reply.message.content, reply.done, reply.done_reason], [trials.ANSWER, true, 'stop'])
    },
    async system(place) {
      const ask = async (messages: { role: string; content: string }[]) =>
        (await open(place).chat({ ...greedy, messages })).message.content
      const system = { role: 'system', content: 'You are Leo.' }
      assert.equal(await ask([system, { role: 'user', content: 'Who are you?' }]), 'I am Leo.')
      assert.equal(await ask(trials.ROSA), 'Your name is Rosa.')
    },
    async stream(place) {
      return `${(await answers(open(place))).length} chunks`
    },
    async usage(place) {
      const reply = await open(place).chat({ ...greedy, messages: question })
      assert.deepEqual([reply.prompt_eval_count, reply.eval_count], [19, 9])
      assert.ok(reply.total_duration > reply.eval_duration && reply.eval_duration > 1000, 'nanoseconds')
      return '19 + 9 tokens, durations in nanoseconds'
    },
    async stop(place) {
      const chat = async (options: object) => {
        const limited = { ...greedy, options: { temperature: 0, ...options } }
        const reply = await open(place).chat({ ...limited, messages: question })
        return [reply.message.content, reply.done_reason]
      }
      assert.deepEqual(await chat({ stop: [' of France'] }), ['The capital', 'stop'])
      assert.deepEqual(await chat({ num_predict: 4 }), ['The capital of Fra', 'length'])
    },
    async seed(place) {
      const ask = async (seed: number) => {
        const options = { temperature: 1.5, seed }
        return (await open(place).generate({ model: trials.MODEL, prompt: 'Tell me a story.', options })).response
      }
      const [one, again, other] = [await ask(7), await ask(7), await ask(8)]
      assert.equal(one, again)
      assert.notEqual(one, other)
    },
    async completions(place) {
      const client = open(place)
      assert.equal((await client.generate({ ...greedy, prompt: trials.QUESTION })).response, trials.ANSWER)
      let text = ''
      let reason = ''
      for await (const part of await client.generate({ ...greedy, prompt: trials.QUESTION, stream: true })) {
        text += part.response
        reason = part.done_reason
      }
      assert.deepEqual([text, reason], [trials.ANSWER, 'stop'])
      const named = await client.generate({ ...greedy, system: 'You are Leo.', prompt: 'Who are you?' })
      assert.equal(named.response, 'I am Leo.')
      return 'generate, whole and streamed, with a system message'
    },
    async load(place) {
      const client = open(place)
      const loaded = await client.chat({ model: trials.MODEL, messages: [] })
      assert.equal(loaded.done_reason, 'load')
      const unloaded = await client.generate({ model: trials.MODEL, prompt: '', keep_alive: 0 })
      assert.equal(unloaded.done_reason, 'unload')
      assert.equal((await client.chat({ ...greedy, messages: question })).message.content, trials.ANSWER)
      return 'with empty messages and keep_alive: 0'
    },
    async tools(place) {
      const message = await callsFor(place, trials.ASK_WEATHER)
      const [call] = message.tool_calls!
      assert.deepEqual([call!.function.name, call!.function.arguments], ['get_weather', { city: 'Paris' }])
      const messages = [
        { role: 'user', content: trials.ASK_WEATHER },
        message,
        { role: 'tool', content: 'sunny', tool_name: 'get_weather' }
      ]
      assert.equal((await open(place).chat({ ...greedy, messages, tools })).message.content, trials.SAY_WEATHER)
      return trials.SAY_WEATHER
    },
    async two_tools(place) {
      const message = await callsFor(place, trials.ASK_TWO)
      const cities = message.tool_calls!.map(call => call.function.arguments)
      assert.deepEqual(cities, [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome'
    },
    async streamed_tools(place) {
      const messages = [{ role: 'user', content: trials.ASK_TWO }]
      const cities: unknown[] = []
      for await (const { message } of await open(place).chat({ ...greedy, messages, tools, stream: true })) {
        for (const call of message.tool_calls ?? []) cities.push(call.function.arguments)
      }
      assert.deepEqual(cities, [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome, each whole'
    },
    async json(place) {
      const messages = [
        { role: 'system', content: trials.JSON_SYSTEM },
        { role: 'user', content: trials.ASK_WEATHER }
      ]
      const { message } = await open(place).chat({ ...greedy, messages, format: 'json' })
      assert.deepEqual(JSON.parse(message.content), trials.JSON_ANSWER)
    },
    async schema(place) {
      const format = z.toJSONSchema(CityReport)
      const client = open(place)
      CityReport.parse(JSON.parse((await client.chat({ ...greedy, messages: question, format })).message.content))
      const { response } = await client.generate({ ...greedy, prompt: trials.QUESTION, format })
      CityReport.parse(JSON.parse(response ?? ''))
      return 'chat and generate'
    },
    async logprobs(place) {
      const reply = await open(place).chat({ ...greedy, messages: question, logprobs: true, top_logprobs: 2 })
      assert.equal(reply.logprobs!.map(({ token }) => token).join(''), trials.ANSWER)
      assert.ok(reply.logprobs!.every(({ logprob, top_logprobs }) => logprob <= 0 && top_logprobs!.length === 2))
      return 'with two alternatives each'
    },
    async embeddings(place) {
      const client = open(place)
      const { embeddings } = await client.embed({ model: trials.MODEL, input: ['red', 'blue', 'red'] })
      const one = await client.embed({ model: trials.MODEL, input: 'red' })
      const old = await client.embeddings({ model: trials.MODEL, prompt: 'red' })
      assert.equal(old.embedding.length, one.embeddings[0]!.length)
      return `embed: ${sameVectors([...embeddings, ...one.embeddings])}; embeddings too`
    },
    async show(place) {
      const shown = await open(place).show({ model: trials.MODEL })
      assert.ok(shown.capabilities.includes('completion') && shown.capabilities.includes('tools'))
      assert.equal((shown.model_info as unknown as Record<string, unknown>)['general.architecture'], 'llama')
      assert.match(shown.modelfile, /^FROM /m)
      return 'capabilities, model_info, modelfile'
    },
    async running(place) {
      const client = open(place)
      await client.chat({ ...greedy, messages: [] })
      const { models } = await client.ps()
      assert.ok(new Date(models.find(({ model }) => model === TAGGED)!.expires_at) > new Date())
    },
    async pull(place) {
      const client = open(place)
      assert.equal((await client.pull({ model: trials.MODEL })).status, 'success')
      let last = ''
      for await (const { status } of await client.pull({ model: trials.MODEL, stream: true })) last = status
      assert.equal(last, 'success')
      return 'of an installed model; whole and streamed'
    },
    async copy(place) {
      const client = open(place)
      const destination = 'clients/javascript-copy'
      await client.copy({ source: trials.MODEL, destination })
      const { message } = await client.chat({ ...greedy, model: destination, messages: question })
      assert.equal(message.content, trials.ANSWER)
      await client.delete({ model: destination })
      const { models } = await client.list()
      assert.ok(models.every(({ model }) => model !== `${destination}:latest`))
    },
    async create(place) {
      const client = open(place)
      const model = 'clients/javascript-leo'
      await client.create({ model, from: trials.MODEL, system: 'You are Leo.', parameters: { temperature: 0 } })
      const { message } = await client.chat({ model, messages: [{ role: 'user', content: 'Who are you?' }] })
      assert.equal(message.content, 'I am Leo.')
      assert.equal((await client.show({ model })).system, 'You are Leo.')
      await client.delete({ model })
      return 'with a system message and parameters'
    },
    async push(place) {
      const error = await failure(open(place).push({ model: trials.MODEL }))
      assert.equal(error.status_code, 501)
      return 'ResponseError, status 501: there is no registry to push to'
    },
    images: place =>
      fails(place, 400, { messages: [{ role: 'user', content: 'What is this?', images: [trials.PNG] }] }),
    not_found: place => fails(place, 404, { model: 'no/such' }),
    bad_request: place => fails(place, 400, { options: { temperature: 'hot' } }),
    context: place => fails(place, 400, { messages: [{ role: 'user', content: trials.LONG }] }),
    async wrong_key({ strict }) {
      const at = (key: string) =>
        new Ollama({ host: `${strict!.address}/ollama`, headers: { authorization: `Bearer ${key}` } })
      const error = await failure(at('wrong').list())
      assert.equal(error.status_code, 401)
      await at(strict!.key).list()
      return 'ResponseError, status 401; the right key works'
    },
    cancel: place =>
      leavesInTheMiddle(place, async () => {
        const pieces = await open(place).chat({ model: trials.ENDLESS, messages: question, stream: true })
        return { pieces, leave: () => pieces.abort() }
      }),
    async bare_name(place) {
      const reply = await open(place).chat({ ...greedy, model: 'tiny-chat', messages: question })
      assert.equal(reply.message.content, trials.ANSWER)
      return 'tiny-chat'
    },
    async root({ address }) {
      await answers(new Ollama({ host: address }))
      return 'streamed chat'
    },
    async listener({ listener }) {
      await answers(new Ollama({ host: listener! }))
      return 'streamed chat'
    }
  }
}
