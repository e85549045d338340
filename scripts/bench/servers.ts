import type { Corral } from '../../test/support/corral.ts'
import { type EngineKind, withEngineBuild } from './benched-engines.ts'
import { type Contender, corralItself, direct, type EngineSocket, startPipe } from './benched-servers.ts'
import { MODEL, withCorral, withFront } from './corral-server.ts'
import { readStart } from './measuring.ts'
import { PRODUCTS, startProduct } from './others.ts'

/** Enough slots for all concurrent requests, so that streams are compared and not queues. */
const SLOTS: Record<EngineKind, number> = { real: 16, burst: 256, paced: 256, fast: 256 }

export interface Servers {
  corral: Corral
  contenders: Contender[]
}

type Start = (engine: EngineSocket & { pid: number }, corral: Corral, front?: Corral) => Contender | Promise<Contender>

const starts: Record<string, Start> = {
  direct,
  pipe: startPipe,
  corral: (_, corral) => corralItself(corral),
  front: (_, __, front) => corralItself(front!, {}, 'front'),
  ...Object.fromEntries(
    Object.keys(PRODUCTS).map((name): [string, Start] => [name, engine => startProduct(name, engine)])
  )
}
export const CONTENDERS = Object.keys(starts)

/**
 * Runs `use` with a new corral that has the model loaded in an engine of this kind, and with the contenders in front of
 * that engine.
 * @param leaveOut called for each contender that cannot take part
 */
export async function withServers<T>(
  home: string,
  kind: EngineKind,
  names: readonly string[],
  use: (servers: Servers) => Promise<T>,
  leaveOut: (name: string, why: string) => void = () => {}
): Promise<T> {
  const slots = `limits:\n  num_parallel: ${SLOTS[kind]}\n`
  const config = `${slots}models:\n  ${MODEL}:\n    keep_alive: -1\n    options: { num_parallel: ${SLOTS[kind]}, num_ctx: 1024 }\n`
  const load = async (server: Corral) => {
    const { status, body } = await server.json('/v1/completions', { model: MODEL, prompt: 'I', max_tokens: 1 })
    if (status !== 200) throw new Error(`The model was not loaded: ${JSON.stringify(body)}`)
  }
  const withContenders = async (corral: Corral, front?: Corral) => {
    const pid = corral.enginePids()[0]!
    const { args, env } = readStart(pid)
    const engine = { socketPath: args[args.indexOf('--host') + 1]!, key: env.LLAMA_API_KEY!, pid }
    const contenders: Contender[] = []
    try {
      for (const name of names) {
        const missing = PRODUCTS[name]?.missing(kind)
        if (missing !== undefined) leaveOut(name, missing)
        else contenders.push(await starts[name]!(engine, corral, front))
      }
      return await use({ corral, contenders })
    } finally {
      for (const contender of contenders) await contender.close()
    }
  }
  return await withEngineBuild(kind, build =>
    withCorral(
      home,
      async corral => {
        await load(corral)
        if (!names.includes('front')) return await withContenders(corral)
        return await withFront(corral, slots, async front => {
          // A second client, whose prompts corral keeps separate: the engine is reloaded.
          await load(front)
          return await withContenders(corral, front)
        })
      },
      { env: { CORRAL_LLAMA_CPP: build }, config }
    )
  )
}
