import { linkSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createClient } from './client.ts'
import { residentMemory } from './process-figures.ts'
import { withCorral } from './starts.ts'
import { median, percentile } from './statistics.ts'

export interface ManyModelsFigures {
  models: number
  /** Milliseconds from the start of the process until it listens. */
  listening: number
  /** Milliseconds of `GET /api/tags` and `GET /v1/models`, the whole reply read. */
  tags: { p50: number; p99: number }
  hostedModels: { p50: number; p99: number }
  /** Bytes of the reply of `/api/tags`. */
  tagsSize: number
  /** MiB in RAM after the requests. */
  memory: number
}

/** Copies the one model of a data directory under so many other names; its files are hard links. */
function multiplyModel(home: string, count: number): void {
  const models = join(home, 'models')
  const original = join(models, 'corral', 'tiny-chat')
  const manifest = JSON.parse(readFileSync(join(original, 'manifest.json'), 'utf8'))
  const [{ revision }] = manifest.variants
  const files = readdirSync(join(original, revision))
  for (let index = 1; index < count; index++) {
    const owner = `owner-${index % 100}`
    const name = `model-${index}`
    const folder = join(models, owner, name)
    mkdirSync(join(folder, revision), { recursive: true })
    for (const file of files) linkSync(join(original, revision, file), join(folder, revision, file))
    writeFileSync(join(folder, 'manifest.json'), JSON.stringify({ ...manifest, owner, name }))
  }
}

export async function measureManyModels(home: string, count: number, turns: number): Promise<ManyModelsFigures> {
  await withCorral(home, async () => {})
  multiplyModel(home, count)
  const listening: number[] = []
  const tags: number[] = []
  const hostedModels: number[] = []
  let tagsSize = 0
  let memory = 0
  for (let turn = 0; turn < turns; turn++) {
    await withCorral(home, async (corral, startedIn) => {
      listening.push(startedIn)
      const client = createClient({ origin: corral.url })
      for (let request = 0; request < 20; request++) {
        for (const [path, times] of [
          ['/api/tags', tags],
          ['/v1/models', hostedModels]
        ] as const) {
          const { total, text } = await client.ask({ method: 'GET', path, headers: {}, stream: false })
          times.push(total)
          if (path !== '/api/tags') continue
          tagsSize = Buffer.byteLength(text)
          const listed = JSON.parse(text).models.length
          if (listed !== count) throw new Error(`${path} lists ${listed} models instead of ${count}`)
        }
      }
      memory = residentMemory(corral.process.pid!)
      await client.close()
    })
  }
  rmSync(join(home, 'models'), { recursive: true, force: true })
  const spread = (times: number[]) => ({ p50: percentile(times, 0.5), p99: percentile(times, 0.99) })
  return {
    models: count,
    listening: median(listening),
    tags: spread(tags),
    hostedModels: spread(hostedModels),
    tagsSize,
    memory
  }
}
