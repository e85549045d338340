import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { getMemoryPath } from '../../../../runtimes/llama-server/prompt-cache/memory-directory.ts'
import { computeChecksum } from '../../../../runtimes/llama-server/prompt-cache/state-file.ts'
import { type Continued, createConversation } from '../../../../scripts/bench/conversation.ts'
import { SHAPE_200M, writeRandomModel } from '../../../../scripts/random-models.ts'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'
import { longText, NEVER } from './support.ts'

const RANDOM = 'test/random'

async function importRandom(corral: Corral, path: string): Promise<void> {
  const { status, body } = await corral.json('/api/import', { model: RANDOM, path })
  if (status !== 200) throw new Error(JSON.stringify(body))
}

function best(turns: Continued[]): number {
  return Math.min(...turns.map(turn => turn.promptEvaluation))
}

t.test('a conversation of 2,000 tokens continues after an unload', async t => {
  const path = join(t.testdir(), 'random.gguf')
  const made = await writeRandomModel(path, { ...SHAPE_200M, layers: 1 })
  t.equal(statSync(path).size, made.bytes)
  const saving = await startCorral(t)
  const plain = await startCorral(t, { config: 'scheduler:\n  prompt_cache: 0\n' })
  for (const corral of [saving, plain]) await importRandom(corral, path)
  for (const model of [DEMO, RANDOM]) {
    const withCache = createConversation(saving, model, 4096)
    const without = createConversation(plain, model, 4096)
    t.ok((await withCache.grow(2000)) >= 2000)
    await without.grow(2000)
    const saved: Continued[] = []
    const read: Continued[] = []
    for (let round = 0; round < 2; round++) {
      saved.push(await withCache.unloadAndGoOn())
      read.push(await without.unloadAndGoOn())
    }
    const said = saved.map(turn => [turn.promptTokens, turn.answer])
    t.same(
      said,
      read.map(turn => [turn.promptTokens, turn.answer]),
      `${model}: the same prompts and answers`
    )
    const ratio = best(read) / best(saved)
    t.ok(ratio >= 5, `${model}: evaluated ${ratio.toFixed(1)} times sooner`)
  }
  t.notOk(existsSync(join(plain.home, 'cache', 'prompts')), 'nothing is saved without a budget')

  const models = async () => (await saving.json('/api/cache')).body.models.length
  t.equal(await models(), 2)
  await saving.json('/api/delete', { model: RANDOM }, { method: 'DELETE' })
  t.equal(await models(), 1, "a model's conversations are removed with it")
})

/** Chats with the demo model and returns the milliseconds of prefill. */
async function talk(corral: Corral, messages: object[]): Promise<{ ms: number; content: string }> {
  const options = { num_ctx: 4096, num_parallel: 2, temperature: 0, max_tokens: 8 }
  const { status, body } = await corral.json('/api/chat', { model: DEMO, messages, stream: false, options })
  if (status !== 200) throw new Error(JSON.stringify(body))
  return { ms: body.prompt_eval_duration / 1e6, content: body.message.content }
}

/** Lists states of a data directory that are damaged, and files without a record. */
async function strays(home: string): Promise<string[]> {
  const directory = join(home, 'cache', 'prompts')
  const roots = { disk: directory, memory: getMemoryPath(directory) }
  const found: string[] = []
  const known = new Set<string>()
  for (const path of list(roots.disk).filter(path => path.endsWith('.json'))) {
    // A state that the next turn has replaced in the meantime is neither damaged nor left over.
    if (!existsSync(join(roots.disk, path))) continue
    const { tier, bytes, crc32 } = JSON.parse(readFileSync(join(roots.disk, path), 'utf8'))
    const file = join(roots[tier as 'disk' | 'memory'], path.replace('.json', '.slot'))
    known.add(file)
    const sum = await computeChecksum(file, NEVER).catch(() => undefined)
    if (!sum) {
      if (existsSync(join(roots.disk, path))) found.push(`${file} is missing`)
    } else if (sum.size !== bytes || sum.crc32 !== crc32) found.push(`${file} is damaged`)
  }
  for (const root of Object.values(roots)) {
    for (const path of list(root)) if (path.endsWith('.slot') && !known.has(join(root, path))) found.push(path)
  }
  return found
}

const list = (folder: string) => (existsSync(folder) ? readdirSync(folder, { recursive: true, encoding: 'utf8' }) : [])

t.test('prompt caches survive kills of corral at any moment', async t => {
  const home = newFolder(t)
  const history: object[] = [{ role: 'user', content: longText(900) }]
  let corral = await startCorral(t, { home })
  history.push({ role: 'assistant', content: (await talk(corral, history)).content }, CAPITAL_QUESTION)
  const expected = (await talk(corral, history)).content
  await corral.end()
  t.same(await strays(home), [], 'a normal end saves too')

  let restored = 0
  for (const delay of [0, 15, 60]) {
    corral = await startCorral(t, { home, config: 'log_level: debug' })
    const answer = await talk(corral, history)
    t.equal(answer.content, expected, `after a kill the answer is the same (${delay} ms)`)
    if (/restored a prompt cache/.test(corral.log())) restored++
    t.notMatch(corral.log(), /useless saved prompt cache/)
    await until('leftovers of an interrupted save are gone', async () => (await strays(home)).length === 0)
    // Another conversation, so that there is something to save.
    await talk(corral, [{ role: 'user', content: longText(600, delay + 2) }])
    void corral.json('/api/stop', { model: DEMO }).catch(() => {
      // The server is killed in the meantime.
    })
    await sleep(delay)
    await corral.end('SIGKILL')
  }
  t.ok(restored === 3, `restored ${restored} times`)
})

t.test('stopping survives an engine that is killed during a save', async t => {
  const corral = await startCorral(t)
  for (let round = 0; round < 2; round++) {
    t.ok((await talk(corral, [{ role: 'user', content: longText(900, round) }])).content)
    const stopped = corral.json('/api/stop', { model: DEMO })
    // If the engine is dead, there is nothing to stop.
    await until('the stop has begun', () => corral.log().split(`unloading ${DEMO}`).length === round + 2)
    await sleep(round * 6)
    for (const pid of corral.enginePids()) process.kill(pid, 'SIGKILL')
    t.equal((await stopped).status, 200, 'the stop completes')
    await until('the engine is gone', () => corral.enginePids().length === 0)
  }
  await until('nothing is left of interrupted saves', async () => (await strays(corral.home)).length === 0, 10_000)
})
