import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { judgeAll, runProgram } from './programs.ts'
import { clientsPython, PYTHON_SCRIPTS, PYTHON_VARIABLES, realPython } from './python-scripts.ts'
import { openPlace } from './running.ts'
import type { Outcome } from './trials.ts'

// Most of the time goes by in imports, which on a slow machine take many minutes.
t.setTimeout(2_400_000)

t.test('clients in Python', realPython(), async t => {
  const place = await openPlace(t)
  const scripts = readdirSync(PYTHON_SCRIPTS).filter(name => name.endsWith('_client.py'))
  const waiting = [...scripts].sort()
  const results = new Map<string, Outcome[]>()
  // Two at once: most of a script's time goes by in its imports.
  const runOne = async () => {
    for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
      const command = [clientsPython(script), join(PYTHON_SCRIPTS, script)]
      results.set(script, await runProgram(command, place, PYTHON_VARIABLES))
    }
  }
  await Promise.all([runOne(), runOne()])
  judgeAll(
    t,
    'Python',
    scripts.sort().flatMap(script => results.get(script)!)
  )
})
