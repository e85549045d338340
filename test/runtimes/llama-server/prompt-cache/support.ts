import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import { createLlamaServerEngine, type LlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import type { LaunchSpec } from '../../../../runtimes/llama-server/launch-spec.ts'
import { createPromptCache, type PromptCache } from '../../../../runtimes/llama-server/prompt-cache/prompt-cache.ts'
import { readJson } from '../../../../runtimes/llama-server/response-body.ts'
import { SlotOwners } from '../../../../runtimes/llama-server/slot-owners.ts'
import { engineDeps, engineSpec, realBuild } from '../support.ts'

export const NEVER = new AbortController().signal
/** Restores caches of all owners. */
export const all = () => true

/** Slots that one owner has used. */
export async function ownedByOne(): Promise<SlotOwners> {
  const owners = new SlotOwners(2, false)
  await owners.take('keyless', {}, NEVER)
  return owners
}

export interface Message {
  role: 'user' | 'assistant'
  content: string
}

/** Returns words for a prompt of about this many tokens, different for each seed. */
export function longText(words: number, seed = 1): string {
  const known = 'the sky is blue and grass green while a dog runs to the river near big old trees'.split(' ')
  return Array.from({ length: words }, (_, i) => known[(i * 7 + (i % (5 + seed)) + seed) % known.length]).join(' ')
}

/** Creates a prompt cache and records its log messages. */
export function promptCacheIn(directory: string, budget = 2 ** 30): { cache: PromptCache; said: string[] } {
  const said: string[] = []
  const note = (_: object, message: string) => {
    said.push(message)
  }
  return { cache: createPromptCache({ directory, budget, log: { debug: note, info: note, warn: note } }), said }
}

/** Starts an engine of the demo model with this cache, and restores saved slots. */
export async function startWith(
  t: Pick<Test, 'teardown'>,
  cache: PromptCache,
  options: Partial<LoadOptions> = {},
  given: Partial<LaunchSpec> = {}
): Promise<LlamaServerEngine> {
  const run = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const spec = engineSpec({ ...given, options: { ...engineSpec().options, ...options } })
  const slotFolder = await cache.folderFor(spec)
  const engine = await createLlamaServerEngine(
    realBuild(),
    { ...spec, ...(slotFolder === undefined ? {} : { slotFolder }) },
    engineDeps(run, { extraArguments: ['--threads', '1', '--threads-batch', '1'] }),
    {}
  )
  t.teardown(async () => {
    await engine.stop()
    rmSync(run, { recursive: true, force: true })
  })
  await cache.restore(engine, all, NEVER)
  await engine.slotOwners.take('keyless', {}, NEVER)
  return engine
}

export interface Said {
  message: Message
  /** Tokens of the prompt that were processed, and the milliseconds it took. */
  read: number
  ms: number
}

export async function say(engine: LlamaServerEngine, messages: Message[], tokens = 12): Promise<Said> {
  const { status, body } = await engine.request({
    method: 'POST',
    path: '/v1/chat/completions',
    body: JSON.stringify({ messages, max_tokens: tokens, temperature: 0 }),
    signal: NEVER
  })
  const reply = (await readJson(body)) as any
  if (status !== 200) throw new Error(JSON.stringify(reply))
  return { message: reply.choices[0].message, read: reply.timings.prompt_n, ms: reply.timings.prompt_ms }
}
