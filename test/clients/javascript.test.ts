import t from 'tap'
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
for (const client of [openai, anthropic, ollama, ai, langchainOpenai, langchainOllama, langchainAnthropic]) {
  await t.test(client.packages[0]!, async t => {
    const tried = await runClient(place, client)
    judge(t, tried)
    outcomes.push(...tried)
  })
}
checkTable(t, 'JavaScript', outcomes)
