import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { clientsPython, PYTHON_SCRIPTS, realPython, runScript } from './python-scripts.ts'
import { judge, openPlace } from './running.ts'
import { checkTable } from './table.ts'
import { FEATURES, type Feature, type Outcome } from './trials.ts'

// Most of the time goes by in imports, which on a slow machine take many minutes.
t.setTimeout(1_200_000)

t.test('clients in Python', realPython(), async t => {
  const place = await openPlace(t)
  const scripts = readdirSync(PYTHON_SCRIPTS).filter(name => name.endsWith('_client.py'))
  const waiting = [...scripts].sort()
  const results = new Map<string, Outcome[]>()
  // Two at once: most of a script's time goes by in its imports.
  const runOne = async () => {
    for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
      results.set(script, await runScript(clientsPython(script), join(PYTHON_SCRIPTS, script), place))
    }
  }
  await Promise.all([runOne(), runOne()])
  const outcomes = scripts.sort().flatMap(script => inOrder(results.get(script)!))
  for (const client of new Set(outcomes.map(({ client }) => client))) {
    await t.test(client, async t =>
      judge(
        t,
        outcomes.filter(outcome => outcome.client === client)
      )
    )
  }
  checkTable(t, 'Python', outcomes)
})

/** The outcomes of each client in the order of the table. */
function inOrder(outcomes: Outcome[]): Outcome[] {
  const features = Object.keys(FEATURES) as Feature[]
  const clients = [...new Set(outcomes.map(({ client }) => client))]
  return outcomes.toSorted(
    (a, b) =>
      clients.indexOf(a.client) - clients.indexOf(b.client) || features.indexOf(a.feature) - features.indexOf(b.feature)
  )
}
