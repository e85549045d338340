import { join } from 'node:path'
import pino from 'pino'
import { parseModelName } from '../../core/models/model-name.ts'
import { ModelStore } from '../../plugins/models/storage/model-store.ts'

/** Imports and removes models below `argv[2]` from the files of `argv[3]` endlessly, for tests that kill it. */
const [, , models, sources] = process.argv as [string, string, string, string]
const store = await ModelStore.open(models, pino({ level: 'warn' }, pino.destination(2)))
const name = (index: number) => parseModelName(`o${index % 2}/m${index % 3}${index % 5 === 0 ? ':x' : ''}`)
const worker = async (start: number) => {
  for (let index = start; ; index += 3) {
    const path = join(sources, `s${index % 4}-F16.gguf`)
    await store.import({ path, name: name(index) })
    console.log('imported')
    if (index % 2) await store.remove(name(index + 2)).catch(() => {})
  }
}
await Promise.all([worker(0), worker(1), worker(2)])
