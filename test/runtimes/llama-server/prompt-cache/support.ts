import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { Delta, EngineFields } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import { createLlamaServerEngine, type LlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import type { LaunchSpec } from '../../../../runtimes/llama-server/launch-spec.ts'
import { createPromptCache, type PromptCache } from '../../../../runtimes/llama-server/prompt-cache/prompt-cache.ts'
import { engineDeps, engineSpec, realBuild } from '../support.ts'

export const NEVER = new AbortController().signal

export interface Message {
  role: 'user' | 'assistant'
  content: string
}

/** Returns words for a prompt of about this many tokens, different for each seed. */
export function longText(words: number, seed = 1): string {
  const known = 'the sky is blue and grass green while a dog runs to the river near big old trees'.split(' ')
  return Array.from({ length: words }, (_, i) => known[(i * 7 + (i % (5 + seed)) + seed) % known.length]).join(' ')
}

/** Creates a prompt cache in a folder, with states in `memory` and on `disk`, and records its log messages. */
export function promptCacheIn(folder: string, budget = 2 ** 30): { cache: PromptCache; said: string[] } {
  const said: string[] = []
  const note = (_: object, message: string) => void said.push(message)
  const cache = createPromptCache({
    directory: join(folder, 'disk'),
    memoryDirectory: async () => join(folder, 'memory'),
    memoryBudget: async () => budget,
    budget,
    log: { debug: note, info: note, warn: note }
  })
  return { cache, said }
}

/** Starts an engine with this cache, of the demo model by default. */
export async function startWith(
  t: Pick<Test, 'teardown'>,
  cache: PromptCache | undefined,
  options: Partial<LoadOptions> = {},
  given: Partial<LaunchSpec> = {}
): Promise<LlamaServerEngine> {
  const run = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const spec = engineSpec({ ...given, options: { ...engineSpec().options, ...options } })
  const slotFolder = await cache?.folderFor(spec)
  const engine = await createLlamaServerEngine(
    realBuild(),
    { ...spec, ...(slotFolder === undefined ? {} : { slotFolder }) },
    engineDeps(run),
    {}
  )
  t.teardown(async () => {
    await engine.stop()
    rmSync(run, { recursive: true, force: true })
  })
  await cache?.attach(engine)
  return engine
}

export interface Said {
  message: Message
  /** Tokens of the prompt, and how many of them were not processed. */
  prompt: number
  cached: number
}

/** Sends a conversation to an engine, as one owner. */
export async function say(
  engine: Pick<LlamaServerEngine, 'chat'>,
  messages: readonly Message[],
  owner = 'keyless',
  fields: EngineFields = {}
): Promise<Said> {
  const said: Said = { message: { role: 'assistant', content: '' }, prompt: 0, cached: 0 }
  const take = (deltas: readonly Delta[]) => {
    for (const { content = '', usage } of deltas) {
      said.message.content += content
      if (usage) Object.assign(said, { prompt: usage.promptTokens, cached: usage.cachedTokens })
    }
    return undefined
  }
  await engine.chat!({ messages, max_tokens: 12, temperature: 0, ...fields }, { signal: NEVER, owner, take })
  return said
}

/**
 * Lets conversations take turns. Returns their messages, by conversation.
 * @param asked the first message of each
 */
export async function takeTurns(
  engine: Pick<LlamaServerEngine, 'chat'>,
  asked: readonly string[],
  turns: number,
  ownerOf: (conversation: number) => string = () => 'keyless'
): Promise<Said[][]> {
  const conversations = asked.map((content): Message[] => [{ role: 'user', content }])
  const said: Said[][] = asked.map(() => [])
  for (let turn = 0; turn < turns; turn++) {
    for (const [at, messages] of conversations.entries()) {
      if (turn > 0) messages.push({ role: 'user', content: `And number ${turn}?` })
      const reply = await say(engine, messages, ownerOf(at))
      messages.push(reply.message)
      said[at]!.push(reply)
    }
  }
  return said
}
