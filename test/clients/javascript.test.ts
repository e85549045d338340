import t from 'tap'
import { thorough } from '../support/thorough.ts'
import { ai } from './javascript/ai.ts'
import { anthropic } from './javascript/anthropic.ts'
import { langchainAnthropic, langchainOllama, langchainOpenai } from './javascript/langchain.ts'
import { ollama } from './javascript/ollama.ts'
import { openai } from './javascript/openai.ts'
import { judge, openPlace, runClient } from './running.ts'
import { checkTable } from './table.ts'
import type { Outcome } from './trials.ts'

const place = await openPlace(t)
const outcomes: Outcome[] = []
const vendors = [openai, anthropic, ollama]
for (const client of [...vendors, ai, langchainOpenai, langchainOllama, langchainAnthropic]) {
  await t.test(client.packages[0]!, vendors.includes(client) ? {} : thorough, async t => {
    const tried = await runClient(place, client)
    judge(t, tried)
    outcomes.push(...tried)
  })
}
await t.test('the table has the outcomes', thorough, async t => checkTable(t, 'JavaScript', outcomes))
