import assert from 'node:assert/strict'
import { ChatAnthropic } from '@langchain/anthropic'
import type { BaseChatModel } from '@langchain/core/language_models/chat_models'
import { HumanMessage, SystemMessage, ToolMessage } from '@langchain/core/messages'
import { tool } from '@langchain/core/tools'
import { ChatOllama, OllamaEmbeddings } from '@langchain/ollama'
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai'
import { z } from 'zod'
import { failure, sameVectors } from '../asserting.ts'
import { leavesInTheMiddle } from '../leaving.ts'
import * as trials from '../trials.ts'
import { CityReport } from './city-report.ts'

const weather = tool(async () => 'sunny', {
  name: trials.WEATHER.name,
  description: trials.WEATHER.description,
  schema: z.object({ city: z.string() })
})

/** A chat model of one of LangChain's packages. Defaults to the demo model at temperature 0. */
type Make = (place: trials.Place, options?: { model?: string; maxTokens?: number }) => BaseChatModel

/** Trials that all chat models of LangChain share. */
function shared(make: Make, notFound: trials.Trial, structured: z.ZodType = CityReport) {
  const withTools = (place: trials.Place) => make(place).bindTools!([weather])
  const cities = (message: { tool_calls?: { args: unknown }[] }) => message.tool_calls?.map(({ args }) => args)
  return {
    async chat(place) {
      assert.equal((await make(place).invoke(trials.QUESTION)).text, trials.ANSWER)
    },
    async system(place) {
      const reply = await make(place).invoke([new SystemMessage('You are Leo.'), new HumanMessage('Who are you?')])
      assert.equal(reply.text, 'I am Leo.')
    },
    async stream(place) {
      const pieces: string[] = []
      for await (const { text } of await make(place).stream(trials.QUESTION)) if (text) pieces.push(text)
      assert.equal(pieces.join(''), trials.ANSWER)
      assert.ok(pieces.length > 4)
      return `${pieces.length} chunks`
    },
    async usage(place) {
      const { usage_metadata } = (await make(place).invoke(trials.QUESTION)) as {
        usage_metadata?: Record<string, number>
      }
      assert.deepEqual([usage_metadata?.input_tokens, usage_metadata?.output_tokens], [19, 9])
      return '19 + 9 tokens'
    },
    async stop(place) {
      const model = make(place, { maxTokens: 4 })
      assert.equal((await model.invoke(trials.QUESTION)).text, 'The capital of Fra')
      assert.equal((await make(place).invoke(trials.QUESTION, { stop: [' of France'] })).text, 'The capital')
    },
    async tools(place) {
      const model = withTools(place)
      const first = await model.invoke(trials.ASK_WEATHER)
      assert.deepEqual(cities(first), [{ city: 'Paris' }])
      const call = first.tool_calls![0]!
      const result = new ToolMessage({ content: 'sunny', tool_call_id: call.id ?? '', name: call.name })
      assert.equal((await model.invoke([new HumanMessage(trials.ASK_WEATHER), first, result])).text, trials.SAY_WEATHER)
      return trials.SAY_WEATHER
    },
    async two_tools(place) {
      assert.deepEqual(cities(await withTools(place).invoke(trials.ASK_TWO)), [{ city: 'Paris' }, { city: 'Rome' }])
      return 'Paris and Rome'
    },
    async schema(place) {
      const model = make(place).withStructuredOutput(structured, { name: 'city_report', method: 'jsonSchema' })
      structured.parse(await model.invoke(trials.QUESTION))
      return 'withStructuredOutput with zod'
    },
    not_found: notFound,
    cancel: place =>
      leavesInTheMiddle(place, async () => {
        const controller = new AbortController()
        const model = make(place, { model: trials.ENDLESS, maxTokens: 3_500 })
        const pieces = await model.stream(trials.QUESTION, { signal: controller.signal })
        return { pieces, leave: () => controller.abort() }
      })
  } satisfies trials.Client['trials']
}

const openaiAt: Make = ({ address }, { model = trials.MODEL, maxTokens } = {}) =>
  new ChatOpenAI({
    model,
    temperature: 0,
    apiKey: 'any',
    configuration: { baseURL: `${address}/v1` },
    ...(maxTokens === undefined ? {} : { maxTokens })
  })

const ollamaAt: Make = ({ address }, { model = trials.MODEL, maxTokens } = {}) =>
  new ChatOllama({
    model,
    temperature: 0,
    baseUrl: `${address}/ollama`,
    ...(maxTokens === undefined ? {} : { numPredict: maxTokens })
  })

const anthropicAt: Make = ({ address }, { model = trials.MODEL, maxTokens = 200 } = {}) =>
  new ChatAnthropic({ model, temperature: 0, apiKey: 'any', anthropicApiUrl: address, maxTokens })

/** The error for an unknown model, and how it shows its status. */
const unknown =
  (make: Make, statusOf: (error: any) => unknown): trials.Trial =>
  async place => {
    const error = await failure(make(place, { model: 'no/such' }).invoke(trials.QUESTION))
    assert.equal(statusOf(error), 404)
    return 'status 404, immediately'
  }

async function embeds(embedder: {
  embedDocuments(texts: string[]): Promise<number[][]>
  embedQuery(text: string): Promise<number[]>
}): Promise<string> {
  return sameVectors([...(await embedder.embedDocuments(['red', 'blue'])), await embedder.embedQuery('red')])
}

export const langchainOpenai: trials.Client = {
  packages: ['@langchain/openai', '@langchain/core'],
  trials: {
    ...shared(
      openaiAt,
      unknown(openaiAt, error => error.status)
    ),
    embeddings: ({ address }) =>
      embeds(new OpenAIEmbeddings({ model: trials.MODEL, apiKey: 'any', configuration: { baseURL: `${address}/v1` } }))
  }
}

export const langchainOllama: trials.Client = {
  packages: ['@langchain/ollama', '@langchain/core'],
  trials: {
    ...shared(
      ollamaAt,
      unknown(ollamaAt, error => error.status_code)
    ),
    embeddings: ({ address }) => embeds(new OllamaEmbeddings({ model: trials.MODEL, baseUrl: `${address}/ollama` })),
    cancel: place =>
      leavesInTheMiddle(place, async () => {
        const model = ollamaAt(place, { model: trials.ENDLESS }) as ChatOllama
        // If only the signal is aborted, the request continues.
        return { pieces: await model.stream(trials.QUESTION), leave: () => model.client.abort() }
      })
  }
}

export const langchainAnthropic: trials.Client = {
  packages: ['@langchain/anthropic', '@langchain/core'],
  trials: shared(
    anthropicAt,
    unknown(anthropicAt, error => error.status),
    // It describes choices only in descriptions, which a model of this size ignores.
    z.object({ warm: z.boolean(), dry: z.boolean() })
  )
}
