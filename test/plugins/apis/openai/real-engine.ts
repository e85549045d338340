import { join } from 'node:path'
import OpenAI from 'openai'
import type { Test } from 'tap'
import type { TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { createLlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import { buildOf, engineDeps } from '../../../runtimes/llama-server/support.ts'
import { until } from '../../../support/corral.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { newFolder } from '../../../support/folder.ts'
import { type Declared, mustBe } from './declared-types.ts'
import { startService } from './support.ts'

export const MODEL = 'corral/tiny-chat'
export const question = { role: 'user' as const, content: 'What is the capital of France?' }

/**
 * Starts a service with a real llama-server of two slots, and the official client. `asked` lists the engines that were
 * started.
 */
export async function startRealEngine(t: Test, variants: StoredVariant[]) {
  const runs = newFolder(t)
  const build = buildOf(join(engineBuildFolder(), process.platform === 'win32' ? 'llama-server.exe' : 'llama-server'))
  const asked: string[] = []
  const service = await startService(t, {
    variants,
    defaults: { num_parallel: 2, temperature: 0 },
    startEngine: (spec, waiting) => {
      asked.push(`${spec.alias} ${spec.mode}`)
      return createLlamaServerEngine(build, spec, engineDeps(runs), waiting)
    }
  })
  const client = new OpenAI({ baseURL: service.url, apiKey: 'any', maxRetries: 0 })
  const idle = () => until('the slots are free', () => service.scheduler.running().every(model => model.running === 0))

  /** Returns the events of a stream, after checking that the last is `[DONE]`. */
  async function events(t: Test, path: string, body: object): Promise<any[]> {
    const response = await service.send(path, { ...body, stream: true })
    const payloads = new SseParser().push(Buffer.from(await response.arrayBuffer()))
    t.equal(payloads.pop(), '[DONE]')
    const found = payloads.map(payload => JSON.parse(payload))
    if (path.startsWith('/chat')) for (const chunk of found) mustBe('ChatCompletionChunk', chunk)
    return found
  }

  return { service, client, asked, idle, events }
}

/** Checks a reply against the API schema. `typeFaults` checks it against the declarations of the official client. */
export function conforms(t: Test, schema: TSchema, reply: unknown, declared?: Declared) {
  t.strictSame(Compile(schema).Errors(reply), [])
  if (declared) mustBe(declared, reply)
}
