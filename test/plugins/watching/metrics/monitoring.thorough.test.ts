import { spawnSync } from 'node:child_process'
import { copyFileSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { DEMO, startCorral, until } from '../../../support/corral.ts'
import { scrape } from './scrape.ts'

const FOLDER = join(packageRoot, 'docs', 'monitoring')
const RULES = join(FOLDER, 'alerts.yml')
const skip =
  spawnSync('promtool', ['--version']).status === 0 ? false : 'promtool (Debian: prometheus) is not installed'

function promtool(args: string[], cwd: string): { status: number | null; said: string } {
  const { status, stdout, stderr } = spawnSync('promtool', args, { cwd, encoding: 'utf8' })
  return { status, said: stdout + stderr }
}

t.test('promtool accepts the alert rules', { skip }, async t => {
  const { status, said } = promtool(['check', 'rules', RULES], packageRoot)
  t.equal(status, 0, said)
  t.match(said, '5 rules found')
})

t.test('each alert fires when it should, and not before', { skip }, async t => {
  const folder = t.testdir({})
  copyFileSync(RULES, join(folder, 'alerts.yml'))
  copyFileSync(join(packageRoot, 'test', 'plugins', 'watching', 'metrics', 'alerts.yml'), join(folder, 'tests.yml'))
  const { status, said } = promtool(['test', 'rules', 'tests.yml'], folder)
  t.equal(status, 0, said)
})

/** Names of metrics in an expression. */
const namesIn = (text: string) =>
  [...text.matchAll(/\b(?:corral|gen_ai|process|nodejs|vllm|llamacpp)[:_]\w+/g)].map(([name]) => name)

t.test('every metric in the dashboard, alerts and documentation is in a scrape', async t => {
  const corral = await startCorral(t)
  const chat = { model: DEMO, messages: [{ role: 'user', content: 'Hi' }], stream: false }
  t.equal((await corral.json('/api/chat', chat)).status, 200)
  const { types } = await until('the request is counted', async () => {
    const found = await scrape(corral)
    return found.sum('corral_requests_total', { model: DEMO }) === 1 ? found : undefined
  })
  const known = new Set(types.keys())
  for (const [name, type] of types) {
    if (type === 'histogram') for (const part of ['bucket', 'sum', 'count']) known.add(`${name}_${part}`)
  }
  const { panels, templating } = JSON.parse(readFileSync(join(FOLDER, 'dashboard.json'), 'utf8'))
  const asked = panels.flatMap(({ targets }: any) => targets.map(({ expr }: any) => expr as string))
  const variables = templating.list.map(({ query }: any) => query.query ?? '')
  t.ok(asked.length > 20)
  const labels = /\b(?:gen_ai_(?:request_model|operation_name|provider_name|token_type))\b/
  for (const text of [...asked, ...variables, readFileSync(RULES, 'utf8')]) {
    for (const name of namesIn(text)) if (!labels.test(name)) t.ok(known.has(name), name)
  }
  const document = readFileSync(join(packageRoot, 'docs', 'monitoring.md'), 'utf8')
  const described = [...document.matchAll(/`((?:corral|gen_ai|vllm|llamacpp)[:_]\w+)`/g)].map(([, name]) => name!)
  for (const name of described) t.ok(types.has(name), `${name}, which the documentation describes`)
  for (const name of types.keys()) {
    if (/^(corral|gen_ai|vllm|llamacpp)/.test(name)) t.ok(described.includes(name), `${name} is described`)
  }
})

t.test('Prometheus can evaluate the expressions of the dashboard', { skip }, async t => {
  const { panels } = JSON.parse(readFileSync(join(FOLDER, 'dashboard.json'), 'utf8'))
  const rules = panels.flatMap(({ targets }: any) =>
    targets.map(({ expr }: any, at: number) => {
      const filled = expr.replaceAll('$__rate_interval', '1m').replace(/\$(instance|model)/g, '.*')
      return { record: `dashboard:${at}`, expr: filled }
    })
  )
  const named = rules.map((rule: object, at: number) => ({ ...rule, record: `dashboard:target_${at}` }))
  const folder = t.testdir({ 'dashboard.yml': JSON.stringify({ groups: [{ name: 'dashboard', rules: named }] }) })
  const { status, said } = promtool(['check', 'rules', 'dashboard.yml'], folder)
  t.equal(status, 0, said)
})
