import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { LineLog } from '../../../../plugins/people/audit/line-log.ts'

/** A log in a folder, and what it says. */
function open(folder: string) {
  const said: string[] = []
  const say = (line: string) => void said.push(line)
  const limits = { maxSize: 1e6, keep: 1, maxFiles: 1 }
  return { lines: new LineLog(folder, limits, { info: say, error: say } as never, lost => `lost ${lost}`), said }
}

t.test('close writes lines that arrive while it writes', async t => {
  const folder = t.testdir()
  const { lines, said } = open(folder)
  lines.push('first')
  const closed = lines.close()
  setImmediate(() => lines.push('second'))
  await closed
  lines.push('third')
  t.equal(readFileSync(join(folder, 'audit.jsonl'), 'utf8'), 'first\nsecond\nthird\n')
  t.same(said, [])
})

t.test('close reports how many lines were lost', async t => {
  for (const [count, text] of [
    [1, '1 line was lost: '],
    [2, '2 lines were lost: ']
  ] as const) {
    const { lines, said } = open(join(t.testdir({ file: '' }), 'file'))
    for (let index = 0; index < count; index++) lines.push('line')
    await lines.close()
    t.ok(said.at(-1)?.startsWith(text), String(said.at(-1)))
  }
})
