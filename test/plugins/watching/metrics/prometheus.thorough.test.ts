import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { freePort } from '../../../../core/system/free-port.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../../../support/corral.ts'

const skip = spawnSync('prometheus', ['--version']).status === 0 ? false : 'prometheus (Debian) is not installed'
const OTHER = 'x/copy'

/** Starts a real Prometheus that scrapes every second, with shortened alert rules. */
async function startPrometheus(t: Test, target: string) {
  const rules = readFileSync(join(packageRoot, 'docs', 'monitoring', 'alerts.yml'), 'utf8')
    .replaceAll('for: 2m', 'for: 1s')
    .replace('(corral_queue_oldest_seconds) > 30', '(corral_queue_oldest_seconds) > 1')
    .replaceAll('> 20', '> 2')
  const scrapes = [{ job_name: 'corral', static_configs: [{ targets: [target] }] }]
  const global = { scrape_interval: '1s', evaluation_interval: '1s' }
  const folder = t.testdir({
    'alerts.yml': rules,
    'prometheus.yml': JSON.stringify({ global, rule_files: ['alerts.yml'], scrape_configs: scrapes })
  })
  const port = await freePort()
  const args = [
    `--config.file=${join(folder, 'prometheus.yml')}`,
    `--storage.tsdb.path=${join(folder, 'data')}`,
    `--web.listen-address=127.0.0.1:${port}`
  ]
  const prometheus: ChildProcess = spawn('prometheus', args, { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] })
  let log = ''
  prometheus.stderr!.setEncoding('utf8').on('data', text => {
    log += text
  })
  const exited = once(prometheus, 'exit')
  t.teardown(async () => {
    prometheus.kill('SIGKILL')
    await exited
  })
  const ask = async (path: string) => {
    const response = await fetch(`http://127.0.0.1:${port}/api/v1/${path}`)
    return ((await response.json()) as any).data
  }
  await until('Prometheus is ready', async () => {
    if (prometheus.exitCode !== null) throw new Error(`Prometheus ended:\n${log}`)
    return (await fetch(`http://127.0.0.1:${port}/-/ready`).catch(() => undefined))?.ok
  })
  return {
    /** Sum of the samples of an expression, or undefined without samples. */
    async value(expression: string): Promise<number | undefined> {
      const { result } = await ask(`query?query=${encodeURIComponent(expression)}`)
      if (result.length === 0) return undefined
      return result.reduce((sum: number, { value }: any) => sum + Number(value[1]), 0)
    },
    async firing(name: string): Promise<Record<string, string> | undefined> {
      const { alerts } = await ask('alerts')
      return alerts.find(({ labels, state }: any) => labels.alertname === name && state === 'firing')?.labels
    }
  }
}

t.test('Prometheus sees an eviction, a limit, a frozen model, and alerts', { skip }, async t => {
  const corral = await startCorral(t, {
    config: 'metrics: { listen: "127.0.0.1:0" }\nscheduler: { max_loaded_models: 1 }',
    runtimes: '  hang_timeout: 15s'
  })
  const [, target] = /Metrics are also served at http:\/\/([\d.]+:\d+)/.exec(corral.log()) ?? []
  const local = { local: true }
  const chat = (model = DEMO) => ({
    model,
    messages: [CAPITAL_QUESTION],
    stream: false,
    options: { temperature: 0, num_parallel: 1 }
  })
  const prometheus = await startPrometheus(t, target!)
  await until('it is scraped', async () => (await prometheus.value('up{job="corral"}')) === 1)

  t.equal((await corral.json('/api/copy', { source: DEMO, destination: OTHER }, local)).status, 200)
  t.equal((await corral.json('/api/chat', chat(), local)).status, 200)
  t.equal((await corral.json('/api/chat', chat(OTHER), local)).status, 200)
  const evictions = `corral_unloads_total{model="${DEMO}",reason="evicted"}`
  t.equal(await until('the eviction is seen', () => prometheus.value(evictions)), 1)
  await until('one model is loaded', async () => (await prometheus.value('sum(corral_model_loaded)')) === 1)

  const made = await corral.json('/api/keys', { name: 'team', limits: { requests_per_minute: 2 } }, local)
  const byTeam = { headers: { authorization: `Bearer ${made.body.key}` } }
  const statuses: number[] = []
  for (let count = 0; count < 6; count++) statuses.push((await corral.json('/api/chat', chat(OTHER), byTeam)).status)
  t.same(statuses, [200, 200, 429, 429, 429, 429])
  const limited = 'sum(corral_requests_total{key="team",code="rate_limited"})'
  await until('the limit is seen', async () => (await prometheus.value(limited)) === 4)
  t.match(await until('the alert for it', () => prometheus.firing('CorralBudgetExhausted')), { key: 'team' })
  t.equal(await prometheus.firing('CorralQueueTimeHigh'), undefined, 'nothing is queued yet')

  const [pid] = corral.enginePids()
  process.kill(pid!, 'SIGSTOP')
  const asked = [1, 2, 3].map(() => corral.json('/api/chat', chat(OTHER), local))
  const waiting = await until('the queue is seen', () =>
    prometheus.value(`vllm:num_requests_waiting{model_name="${OTHER}"} > 1`)
  )
  t.equal(waiting, 2)
  t.match(await until('the alert for the queue', () => prometheus.firing('CorralQueueTimeHigh')), { model: OTHER })
  const failed = await until('the alert for the engine', () => prometheus.firing('CorralEngineFailed'))
  t.match(failed, { model: OTHER, cause: 'hung' })
  t.ok(
    (await Promise.all(asked)).some(({ status }) => status === 200),
    'waiting requests are answered by the next engine'
  )
  await until('the alert for the queue ends', async () => !(await prometheus.firing('CorralQueueTimeHigh')), 120_000)
})
