import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { readAhead } from '../../../runtimes/llama-server/read-ahead.ts'

const MIB = 2 ** 20
const SIZES = [70 * MIB, 5 * MIB + 1]
const ALL = SIZES[0]! + SIZES[1]!
const NEVER = new AbortController().signal

t.test('the read-ahead loads what is not in memory, until the engine is ready', async t => {
  const folder = t.testdir()
  const paths = SIZES.map((size, index) => {
    const path = join(folder, `${index}.gguf`)
    writeFileSync(path, Buffer.alloc(size))
    return path
  })
  const free = ALL
  t.equal(await readAhead(paths, NEVER, { free, fromMemory: 0 }), ALL)
  t.equal(await readAhead(paths, NEVER, { free, fromMemory: Number.POSITIVE_INFINITY }), 4 * MIB, 'one for each part')
  t.equal(await readAhead(paths, NEVER, { free: ALL - 1, fromMemory: 0 }), 0, 'not what would displace other files')
  t.ok((await readAhead(paths, AbortSignal.abort(), { free, fromMemory: 0 })) <= MIB)
  t.equal(await readAhead([...paths, join(folder, 'missing.gguf')], NEVER, { free, fromMemory: 0 }), 0)
})
