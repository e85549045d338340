import { execFileSync } from 'node:child_process'
import { mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import {
  asNodes,
  clients,
  KEY,
  LIMIT,
  local,
  start,
  state,
  untilState
} from '../plugins/machines/cluster/rollout/rollout-trial.ts'
import { startReadyGateway, untilStates } from '../plugins/machines/cluster/support.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'

// Versions one release apart work together: nodes and gateways of the previous one, built from this repository.

t.setTimeout(1_800_000)

const git = (...args: string[]) =>
  execFileSync('git', args, { cwd: packageRoot, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()

/** The last release, or before the first one the version that could not update nodes. Undefined without a history. */
function previousVersion(): string | undefined {
  try {
    const [release] = git('tag', '--list', 'v*', '--sort=-version:refname', '--no-contains', 'HEAD').split('\n')
    if (release) return release
    const path = 'plugins/machines/cluster/rollout/rollouts.ts'
    const [added] = git('log', '--diff-filter=A', '--format=%H', '--', path).split('\n').slice(-1)
    return added ? git('rev-parse', '--verify', `${added}^`) : undefined
  } catch {
    return undefined
  }
}

const commit = previousVersion()
const options = { skip: commit === undefined ? 'this clone has no earlier version' : false }

/** Builds a version. @returns its program */
function build(version: string): string {
  const folder = join(packageRoot, '.cache', 'previous-version', version)
  const program = join(folder, 'dist', 'bundle', 'main.js')
  mkdirSync(folder, { recursive: true })
  const archive = execFileSync('git', ['archive', version], { cwd: packageRoot, maxBuffer: 2 ** 30 })
  execFileSync('tar', ['-x', '-C', folder], { input: archive })
  try {
    symlinkSync(join(packageRoot, 'node_modules'), join(folder, 'node_modules'))
  } catch {
    // It is there from the last time.
  }
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: folder, stdio: 'inherit' })
  return program
}

const env = { CORRAL_API_KEYS: KEY }
const restarted = async (t: Test, { url, home }: Corral, program?: string) =>
  await startCorral(t, { home, env, flags: ['--port', new URL(url).port], ...(program !== undefined && { program }) })

const asked = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0, max_tokens: 20 }
const answer = async (gateway: Corral, headers: Record<string, string> = {}) => {
  const { body } = await gateway.json('/v1/chat/completions', asked, { headers })
  return body.choices?.[0].message.content ?? JSON.stringify(body)
}

t.test('nodes of the previous version are updated while clients stream', options, async t => {
  const program = build(commit!)
  const nodes = await Promise.all([1, 2].map(() => startCorral(t, { env, program })))
  const gateway = await startReadyGateway(t, asNodes(nodes))
  t.equal(await answer(gateway), CAPITAL_ANSWER)
  t.match(await gateway.json('/api/generate', { model: DEMO, prompt: 'Hello', stream: false }), { status: 200 })
  t.match(await start(gateway, { kind: 'model', target: DEMO }), { status: 200 })
  t.match((await untilState(gateway, 'failed')).failure, /node-1 failed: It runs corral .* First update corral/)
  await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up' })
  const load = clients(t, () => gateway, DEMO)
  t.match(await start(gateway, { kind: 'corral' }), { status: 200 })
  for (const [index, node] of nodes.entries()) {
    await until(
      'it waits for the restart',
      async () => /^Waits for its restart/.test((await state(gateway)).nodes[index].note),
      LIMIT
    )
    t.match(await node.json('/api/drain', undefined, local), { body: { draining: true, open: 0 } })
    await node.end()
    nodes[index] = await restarted(t, node)
  }
  await untilState(gateway, 'done')
  t.same(await load.stop(), ['whole'])
  t.comment(`${load.total()} answers`)
})

t.test('a gateway of the previous version uses nodes of both versions', options, async t => {
  const program = build(commit!)
  const nodes = await Promise.all([startCorral(t, { env }), startCorral(t, { env, program })])
  const gateway = await startReadyGateway(t, asNodes(nodes), { program })
  for (const node of nodes) t.match(await node.json('/api/load', { model: DEMO }, local), { status: 200 })
  const load = clients(t, () => gateway, DEMO)
  await until(
    'both answer',
    async () => (await gateway.json('/api/cluster')).body.members.every(({ running }: any) => running > 0),
    LIMIT
  )
  t.match(await gateway.json('/api/cluster/drain', { member: 'node-2' }, local), { body: { by: 'member' } })
  await untilStates(gateway, { 'node-1': 'up', 'node-2': 'draining' })
  t.equal(await answer(gateway), CAPITAL_ANSWER)
  t.equal(await answer(gateway, { 'x-corral-resumable': 'true' }), CAPITAL_ANSWER)
  t.match(await gateway.json('/api/cluster/drain', { member: 'node-2' }, { ...local, method: 'DELETE' }), {
    status: 200
  })
  t.same(await load.stop(), ['whole'])
})
