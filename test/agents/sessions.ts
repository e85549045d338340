import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { activeRequests, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import type { AgentName } from './packages.ts'
import { PROGRAMS, type Trial } from './programs.ts'
import { record } from './recorded.ts'
import { type Exchange, type RecordingProxy, startRecordingProxy } from './recording-proxy.ts'
import { CONTEXT, type Script, type ScriptedModel, SUMMARY, startScriptedModel } from './scripted-model.ts'
import { FINISHED, type Session, sessionFolders, startSession } from './session.ts'
import { checkRow } from './table.ts'

/** An agent may need this many milliseconds until its third request, on a busy machine. */
const START_LIMIT = 120_000

interface Stage {
  model: ScriptedModel
  corral: Corral
  proxy: RecordingProxy
}

/** Installs the agents unless they are there. The tests of an agent that cannot be installed fail. */
export function installAgents(agents: readonly AgentName[]): void {
  const setup = join(packageRoot, 'dist', 'scripts', 'setup-agents.js')
  const { status, stdout, stderr } = spawnSync(process.execPath, [setup, ...agents], { encoding: 'utf8' })
  if (status !== 0) throw new Error(`The agents cannot be installed: ${stderr}${stdout}`)
}

const modelName = (agent: AgentName) => `test/${agent}`

function configFor(agents: readonly AgentName[], url: string): string {
  const capabilities = ['completion', 'tools', 'thinking']
  const models = agents.map(agent => [
    modelName(agent),
    { model: agent, servers: [{ url }], context: CONTEXT, capabilities }
  ])
  return `remote: ${JSON.stringify({ models: Object.fromEntries(models) })}\n`
}

/** Tests sessions of agents with a scripted model behind one corral. */
export async function testSessions(t: Test, agents: readonly AgentName[]): Promise<void> {
  installAgents(agents)
  const model = await startScriptedModel(t)
  const corral = await startCorral(t, { config: configFor(agents, model.url) })
  const stage = { model, corral, proxy: await startRecordingProxy(t, corral.url) }
  const passed = new Map(agents.map(agent => [agent, new Map<Trial, boolean>()]))
  const tryAgent = async (t: Test, agent: AgentName, trial: Trial, title: string, run: (t: Test) => Promise<void>) => {
    if (PROGRAMS[agent].lacks?.includes(trial)) return
    await t.test(`${agent} ${title}`, async t => {
      passed.get(agent)!.set(trial, false)
      await run(t)
      passed.get(agent)!.set(trial, t.passing())
    })
  }
  for (const agent of agents) {
    const requests: Exchange[] = []
    const keep = async (kept: Promise<Exchange[]>) => {
      requests.push(...(await kept))
    }
    await tryAgent(t, agent, 'session', 'reads, edits, runs a command and answers', t =>
      keep(wholeSession(t, agent, stage))
    )
    await tryAgent(t, agent, 'interruption', 'frees its slot', t => interruptedSession(t, agent, stage))
    await tryAgent(t, agent, 'full context', 'shortens its history and continues', t =>
      keep(fullSession(t, agent, stage))
    )
    if (process.env.CORRAL_WRITE_DOCS) record(agent, requests)
  }
  await t.test('corral is killed in the middle of answers', async t => {
    const patient = agents.filter(agent => !PROGRAMS[agent].lacks?.includes('restart'))
    const sessions = await killedSessions(t, patient, model)
    for (const [agent, session] of sessions) {
      await tryAgent(t, agent, 'restart', 'continues after a restart', t => judge(t, session))
    }
  })
  for (const [agent, results] of passed) checkRow(t, agent, results)
}

async function begin(
  t: Test,
  agent: AgentName,
  { model, corral, proxy }: Stage,
  options: Pick<Script, 'pauseAt' | 'overflowAt'> = {}
) {
  const folders = sessionFolders()
  const script = model.script(agent, { folder: folders.folder, ...options })
  const models = (await corral.json('/v1/models')).body
  const place = { ...folders, url: proxy.url, model: modelName(agent), context: CONTEXT, models }
  const before = proxy.exchanges.length
  const session = startSession(t, agent, place)
  const exchanges = () => proxy.exchanges.slice(before).filter(({ body }) => body.model === modelName(agent))
  return { script, session, exchanges }
}

/** Waits for the end and checks the files, the statuses and that no tool disappeared silently. */
async function judge(
  t: Test,
  { session, script, exchanges }: { session: Session; script: Script; exchanges(): Exchange[] }
): Promise<void> {
  await session.ended
  const output = session.output().slice(-2000)
  t.strictSame(session.files(), FINISHED, 'the files are changed', { output })
  const asked = exchanges()
  const failed = asked.filter(({ status, reply }) => status >= 400 && !reply.includes('context_length_exceeded'))
  t.strictSame(
    failed.map(({ path, status, reply }) => `${path} ${status} ${reply.slice(0, 300)}`),
    [],
    'no request is refused'
  )
  const arrived = new Set(script.requests.flatMap(({ tools = [] }) => tools.map(tool => tool.function.name)))
  const answered = asked.filter(({ status }) => status === 200)
  const lost = answered.flatMap(({ body, replyHeaders }) => {
    const ignored = String(replyHeaders['x-corral-ignored-tools'] ?? '').split(/, ?/)
    return offeredTools(body.tools ?? []).filter(name => !arrived.has(name) && !ignored.includes(name))
  })
  t.strictSame([...new Set(lost)], [], 'each tool reaches the model or is named as ignored')
}

/** Names of tools in a request of any API, as the model gets them. */
function offeredTools(tools: any[], prefix = ''): string[] {
  return tools
    .filter(({ defer_loading }) => !defer_loading)
    .flatMap(({ type, name, function: nested, tools: group }) =>
      group ? offeredTools(group, `${name}__`) : [prefix + (nested?.name ?? name ?? type)]
    )
}

async function wholeSession(t: Test, agent: AgentName, stage: Stage): Promise<Exchange[]> {
  const started = await begin(t, agent, stage)
  await judge(t, started)
  t.equal(started.session.process.exitCode, 0, started.session.output().slice(-2000))
  const results = started.script.requests.map(({ messages }) => messages.filter(({ role }) => role === 'tool').length)
  if (PROGRAMS[agent].hasTools) t.ok(results.includes(2), `two parallel calls have their results: ${results}`)
  const asked = started.exchanges()
  const isAside = ({ body }: Exchange) => !body.tools?.length && PROGRAMS[agent].hasTools
  return [asked.findLast(exchange => !isAside(exchange))!, asked.find(isAside) ?? asked[0]!]
}

/** The round in which the model stops in the middle of its answer. */
const pauseRound = (agent: AgentName) => (PROGRAMS[agent].hasTools ? 2 : 0)

async function interruptedSession(t: Test, agent: AgentName, stage: Stage): Promise<void> {
  const { session, script } = await begin(t, agent, stage, { pauseAt: pauseRound(agent) })
  await until(`${agent} waits for an answer`, () => script.paused.length > 0, START_LIMIT)
  t.equal(await activeRequests(stage.corral), 1)
  process.kill(-session.process.pid!, 'SIGINT')
  await until('the slot is free', async () => (await activeRequests(stage.corral)) === 0)
  await until('the model is told', () => script.aborted === 1)
}

async function fullSession(t: Test, agent: AgentName, stage: Stage): Promise<Exchange[]> {
  const started = await begin(t, agent, stage, { overflowAt: 2 })
  await judge(t, started)
  const asked = started.exchanges()
  const summaries = asked.filter(({ reply }) => reply.includes(SUMMARY))
  const isUsed = started.script.requests.some(({ messages }) => JSON.stringify(messages).includes(SUMMARY))
  t.equal(isUsed, summaries.length > 0, 'the model gets its summary back')
  return summaries.slice(0, 1)
}

/** Starts a session with each agent, kills corral while all wait for answers, and starts it again. */
async function killedSessions(t: Test, agents: readonly AgentName[], model: ScriptedModel) {
  const options = { config: configFor(agents, model.url), home: newFolder(t) }
  const corral = await startCorral(t, options)
  const stage = { model, corral, proxy: await startRecordingProxy(t, corral.url) }
  const sessions: [AgentName, Awaited<ReturnType<typeof begin>>][] = []
  for (const agent of agents) sessions.push([agent, await begin(t, agent, stage, { pauseAt: pauseRound(agent) })])
  const waiting = () => sessions.every(([, { script }]) => script.paused.length > 0)
  await until('all agents wait for an answer', waiting, START_LIMIT)
  await corral.end('SIGKILL')
  stage.proxy.target = (await startCorral(t, options)).url
  return sessions
}

/** Tokens that even the shortest instructions of an agent have. */
const MIN_PROMPT = 1000

/**
 * Tests two turns of each agent with the real engine. The demo model answers nonsense, and that is enough to see what is
 * processed again. Nobody sets a context, so it grows.
 */
export async function testRealEngine(t: Test, agents: readonly AgentName[]): Promise<void> {
  installAgents(agents)
  const corral = await startCorral(t, { config: 'limits:\n  max_tokens: 40\n', threads: 2 })
  const proxy = await startRecordingProxy(t, corral.url)
  const models = (await corral.json('/v1/models')).body as object
  for (const agent of agents) {
    await t.test(`${agent} continues a conversation of the real engine, which processes only what is new`, async t => {
      const place = { ...sessionFolders(), url: proxy.url, model: DEMO, context: 32_768, models }
      const turns = [undefined, PROGRAMS[agent].next!]
      const prompts: { prompt: number; cached: number }[][] = []
      for (const next of turns) {
        const before = proxy.exchanges.length
        const session = startSession(t, agent, place, next)
        await session.ended
        const asked = proxy.exchanges.slice(before).filter(({ path }) => path.startsWith(PROGRAMS[agent].api))
        const output = session.output().slice(-2000)
        t.ok(
          asked.length > 0 && asked.every(({ status }) => status === 200),
          `${asked.map(({ reply }) => reply)}${output}`
        )
        prompts.push(asked.map(({ reply }) => getUsage(reply)).filter(({ prompt }) => prompt > MIN_PROMPT))
      }
      const [first, second] = prompts.map(usages => usages.at(-1))
      t.comment(`${agent}: ${JSON.stringify(prompts)}`)
      t.ok(first && second && second.cached > 0.9 * first.prompt, `${JSON.stringify(prompts)}`)
    })
  }
}

/** Token counts in the last usage of a reply of any API. */
function getUsage(reply: string): { prompt: number; cached: number } {
  const last = (name: string) =>
    Number(
      reply
        .match(new RegExp(`"${name}":\\d+`, 'g'))
        ?.at(-1)
        ?.split(':')[1] ?? 0
    )
  const read = last('cache_read_input_tokens')
  return { prompt: last('prompt_tokens') || last('input_tokens') + read, cached: last('cached_tokens') || read }
}
