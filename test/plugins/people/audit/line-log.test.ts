import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { LineLog } from '../../../../plugins/people/audit/line-log.ts'

const LIMITS = { maxSize: 1e6, keep: 1, maxFiles: 1 }

t.test('close writes lines that arrive while it writes', async t => {
  const folder = t.testdir()
  const said: unknown[] = []
  const say = (line: unknown) => void said.push(line)
  const log = { info: say, warn: say, error: say }
  const lines = new LineLog({ folder, name: 'lines', limits: LIMITS, log, lossLine: lost => `lost ${lost}` })
  lines.push('first')
  const closed = lines.close()
  setImmediate(() => lines.push('second'))
  await closed
  lines.push('third')
  t.equal(readFileSync(join(folder, 'lines.jsonl'), 'utf8'), 'first\nsecond\nthird\n')
  t.same(said, [])
})

t.test('close reports how many lines were lost', async t => {
  for (const [count, text] of [
    [1, '1 line was lost: '],
    [2, '2 lines were lost: ']
  ] as const) {
    const said: string[] = []
    const say = (line: string) => void said.push(line)
    const log = { info: say, warn: say, error: say } as never
    const folder = join(t.testdir({ file: '' }), 'file')
    const lines = new LineLog({ folder, name: 'lines', limits: LIMITS, log, lossLine: lost => `lost ${lost}` })
    for (let index = 0; index < count; index++) lines.push('line')
    await lines.close()
    t.ok(said.at(-1)?.startsWith(text), String(said.at(-1)))
  }
})
