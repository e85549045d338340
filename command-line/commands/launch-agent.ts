import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { constants, homedir } from 'node:os'
import { dirname, join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { findHome } from '../../core/config/config-file.ts'
import { nearest } from '../../core/config/suggestion.ts'
import type { LocalModel, ShownModel } from '../../core/contracts/native-records.ts'
import { whenMissing } from '../../core/errors.ts'
import { findExecutable } from '../../core/system/child-process.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { CommandFailure, EXIT, failure, interruption, startedOnTerminal } from '../command-failure.ts'
import { type CommandContext, configPlaces, modelArgument, type Options, openConfig, usageFailure } from '../context.ts'
import {
  AGENTS,
  type Agent,
  agentModels,
  chooseModel,
  contextProblem,
  formatCommand,
  type LaunchFacts,
  type ListedModel,
  planLaunch
} from '../launch/agents.ts'
import { makeChange, planChange, undoLaunch } from '../launch/changed-files.ts'
import { formatDiff } from '../launch/settings-edit.ts'
import { formatTable, printable, printNote, printText } from '../output.ts'
import { readServerSettings, toServerSettings } from '../server-address.ts'
import { createClient, type ServerClient, ServerRefusal } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

export async function launch(
  context: CommandContext,
  name: string | undefined,
  words: string[],
  options: Options<'print' | 'yes' | 'undo', 'model'>
): Promise<void> {
  const { print = false, yes = false, undo = false, model } = options
  if (name !== undefined && !(name in AGENTS)) {
    const near = nearest(name, Object.keys(AGENTS))
    const hint = near ? ` Did you mean ${near}?` : ''
    throw usageFailure(`corral cannot launch "${name}".${hint} It can launch: ${Object.keys(AGENTS).join(', ')}.`)
  }
  const { home } = dataPaths(findHome({ ...context, flags: context.flags() }).home, undefined)
  const folders = join(home, 'launch')
  if (undo) return await undoAll(folders, name)
  if (name === undefined) return listAgents(context)
  if (model !== undefined) modelArgument(model)
  const agent = AGENTS[name]!
  const program = findProgram(agent, context.env)
  if (program === undefined && !print) {
    throw failure(`${agent.title} is not installed. Install it with: ${agent.install}`)
  }
  const facts = await withServer(context, 'fail', ({ client }) =>
    findFacts(context, client, agent, join(folders, name), { model, yes })
  )
  const user = { env: context.env, platform: process.platform, read: readIfPresent }
  const plan = planLaunch(agent, facts, user)
  const { path, before = '', after } = plan.changes ? await planChange(facts.folder, plan.changes) : NO_CHANGE
  const change = before === after ? '' : formatDiff(before, after)
  const diff = facts.key === 'unused' ? change : change.replaceAll(facts.key, '<key>')
  if (print) {
    for (const [path, text] of Object.entries(plan.own)) printText(`# ${path}\n${text}`)
    if (diff !== '') printText(`# ${path}\n${diff}\n`)
    const shown = context.env.CORRAL_API_KEYS?.trim() === facts.key ? '"$CORRAL_API_KEYS"' : "'<key>'"
    const secret = facts.key === 'unused' ? undefined : { value: facts.key, shown }
    return printText(formatCommand(plan.env, [agent.programs[0]!, ...plan.args, ...words], secret))
  }
  if (diff !== '') {
    printNote(`${agent.title} takes its models from ${path}. This change is needed:`)
    process.stderr.write(`${printable(diff)}\n`)
    if (facts.key !== 'unused' && after.includes(facts.key))
      printNote('The file will contain the API key, and only you can read it if it is new.')
    if (!yes) await confirmChange(path)
    await makeChange(facts.folder, plan.changes!)
    printNote(`Changed ${path}. Undo this with: corral launch ${name} --undo`)
  }
  if (Object.keys(plan.own).length > 0) await mkdir(facts.folder, { recursive: true, mode: 0o700 })
  for (const [path, text] of Object.entries(plan.own)) await writeFileAtomic(path, text, { mode: 0o600 })
  printNote(`Starting ${agent.title} with ${facts.model}, with a context of ${facts.context} tokens.`)
  process.exitCode = await run(program!, [...plan.args, ...words], { ...context.env, ...plan.env })
}

const NO_CHANGE = { path: '', before: '', after: '' }

async function undoAll(folders: string, name: string | undefined): Promise<void> {
  const names = await namesIn(folders)
  const wanted = names.filter(each => each in AGENTS && (name === undefined || each === name))
  const lines = (await Promise.all(wanted.map(each => undoLaunch(join(folders, each))))).flat()
  for (const line of lines) printNote(line)
  if (lines.length === 0) printNote('There is nothing to undo: "corral launch" has changed no files.')
}

function listAgents({ env }: CommandContext): void {
  const rows = Object.entries(AGENTS).map(([name, agent]) => {
    const program = findProgram(agent, env)
    return [name, agent.title, program ?? 'no', program === undefined ? agent.install : '']
  })
  printText(formatTable(['AGENT', 'PROGRAM', 'INSTALLED', 'INSTALL IT WITH'], rows))
}

/** Finds a program on PATH and in the folders of npm, pipx, uv and installers, which may be missing from PATH. */
function findProgram({ programs }: Agent, env: NodeJS.ProcessEnv): string | undefined {
  const below =
    '.local/bin .npm-global/bin .bun/bin .volta/bin .opencode/bin .claude/local .local/share/pnpm Library/pnpm AppData/Roaming/npm'
  const others = [
    dirname(process.execPath),
    '/opt/homebrew/bin',
    '/usr/local/bin',
    '/Applications/Visual Studio Code.app/Contents/Resources/app/bin'
  ]
  const more = [...below.split(' ').map(folder => join(homedir(), folder)), ...others]
  return programs.map(program => findExecutable(program, env, more)).find(found => found !== undefined)
}

/** Asks the server about its models over TCP with the user's key, because that is what the agent can use. */
async function findFacts(
  context: CommandContext,
  client: ServerClient,
  agent: Agent,
  folder: string,
  { model: wanted, yes }: { model: string | undefined; yes: boolean }
): Promise<LaunchFacts> {
  const places = configPlaces(context)
  const { apiKey } = (await readServerSettings(places)) ?? toServerSettings(await openConfig(context))
  const own = createClient({ address: client.address, apiKey, signal: interruption() })
  const name = wanted === undefined ? undefined : await resolveName(own, client, wanted, yes)
  const [{ models: local }, { data, models: catalog = [] }] = await Promise.all([
    own.json<{ models: LocalModel[] }>('GET', '/api/tags'),
    own.json<{ data: ListedModel[]; models?: object[] }>('GET', '/v1/models')
  ])
  const choice = chooseModel(agentModels(local, data), agent, name)
  if ('problem' in choice) throw new CommandFailure(EXIT.notFound, choice.problem)
  if ('small' in choice) throw failure(contextProblem(choice.small, agent))
  const { atTerminal, pickOne } = await import('../questions.ts')
  const isAsked = choice.models.length > 1 && !yes && atTerminal() && process.stdout.isTTY
  const rows = choice.models.map(({ name, size }) => ({ value: name, label: name, size }))
  const picked = isAsked ? await pickOne('Which model?', rows) : rows[0]!.value
  const { context: tokens, answer, images, thinking } = choice.models.find(({ name }) => name === picked)!
  return {
    url: client.address,
    key: apiKey ?? 'unused',
    // The agents' files must not get anything else from a server.
    model: modelArgument(picked),
    context: tokens,
    answer,
    images,
    thinking,
    catalog,
    folder,
    home: homedir()
  }
}

function readIfPresent(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    return whenMissing(error)
  }
}

/** Returns the full name of the wanted model, and offers to pull it if it is missing. */
async function resolveName(own: ServerClient, client: ServerClient, wanted: string, yes: boolean): Promise<string> {
  const show = async (model: string) => (await own.json<ShownModel>('POST', '/api/show', { model })).details.name
  try {
    return await show(wanted)
  } catch (error) {
    if (!(error instanceof ServerRefusal) || error.code !== 'model_not_found') throw error
    const { offerPull } = await import('../model-choice.ts')
    return await show(await offerPull(client, wanted, error, yes))
  }
}

/** Asks before the user's file is changed. @throws CommandFailure or Interrupted unless the answer is yes */
async function confirmChange(path: string): Promise<void> {
  const { atTerminal, confirm } = await import('../questions.ts')
  if (!atTerminal()) {
    throw usageFailure(`Nothing was changed. Add --yes to change ${path}, or make the change yourself.`)
  }
  if (!(await confirm('Change the file?', true))) throw failure('Nothing was changed, and nothing was started.')
}

/**
 * Becomes the program on the terminal. A helper hangs it up if corral dies, even by `kill -9`: corral then has not
 * written the line that the helper waits for.
 */
const WATCHED = `
( trap '' INT TERM HUP QUIT; read -r _ <&3 || kill -s HUP $$ ) </dev/null >/dev/null 2>&1 &
exec 3<&-
exec "$@"
`

/** Runs a program on the terminal of this command. @returns its exit code */
async function run(program: string, args: string[], env: NodeJS.ProcessEnv): Promise<number> {
  const { execa } = await import('execa')
  interruption().throwIfAborted()
  for (const signal of ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP'] as const) {
    const others = process.listeners(signal)
    process.on(signal, () => {
      // A terminal sends these to the program, too.
      const isKey = signal === 'SIGINT' || signal === 'SIGQUIT'
      if (!(isKey && startedOnTerminal())) child.kill(signal)
    })
    // Not before, because a signal without any listener is lost.
    for (const other of others) process.off(signal, other)
  }
  const child =
    process.platform === 'win32'
      ? // Programs of npm are scripts on Windows.
        execa(program, args, { stdio: 'inherit', env, extendEnv: false, reject: false })
      : spawn('/bin/sh', ['-c', WATCHED, 'corral-launch', program, ...args], {
          stdio: ['inherit', 'inherit', 'inherit', 'pipe'],
          env
        })
  const [code, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null]
  const watched = child.stdio[3] as NodeJS.WritableStream | null | undefined
  watched?.end('\n')
  return code ?? 128 + constants.signals[signal!]
}
