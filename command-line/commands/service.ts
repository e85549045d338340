import { accessSync, constants, existsSync, realpathSync } from 'node:fs'
import { mkdir, readFile, rm } from 'node:fs/promises'
import { homedir, hostname, userInfo } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { expandPath } from '../../core/config/config-file.ts'
import { OVERRIDES } from '../../core/config/overrides.ts'
import { whenMissing } from '../../core/errors.ts'
import { runTool, ToolError } from '../../core/system/child-process.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { CommandFailure, EXIT, failure, interruption } from '../command-failure.ts'
import { type CommandContext, type Options, openConfig } from '../context.ts'
import { printJson, printNote, printPairs, printText } from '../output.ts'
import { fillTemplate } from '../shipped-text.ts'

/** Name of the systemd service, and label of the launchd agent. */
const SERVICE = 'corral'
/** First words of every file that `corral service install` writes. Files without them belong to someone else. */
const MARK = 'Written by "corral service install"'
const SYSTEM_HOME = '/var/lib/corral'

export interface ServiceDefinition {
  /** True for a service of the whole machine with its own account, false for a service of the current user. */
  system: boolean
  /** Everything before `serve`: Node.js and corral's script, or one program that starts both. */
  command: string[]
  /** Flags for `serve` and `reload`, such as `--port 8080`. */
  flags: string[]
  environment: Record<string, string>
  /** Undefined means the default: ~/.corral, or /var/lib/corral for a system service. */
  home: string | undefined
  /** Folders that it writes to, apart from the data directory. */
  writable: string[]
  /** GPU groups that exist on this machine. */
  groups: string[]
}

export function systemdUnit(service: ServiceDefinition): string {
  const { system, command, flags, environment, home = system ? SYSTEM_HOME : undefined, writable, groups } = service
  const isDefaultHome = service.home === undefined
  const places = isDefaultHome ? writable : [service.home!, ...writable]
  const settings = {
    ...(home !== undefined && { CORRAL_HOME: home }),
    ...(system && home !== undefined && { HOME: home }),
    ...environment
  }
  return fillTemplate('systemd.service', {
    mark: MARK,
    user: system ? '' : '--user ',
    system: system ? '' : [],
    groups: system && groups.length > 0 ? groups.join(' ') : [],
    stateDirectory: system && isDefaultHome ? '' : [],
    writable: system && places.length > 0 ? places.map(unitWord).join(' ') : [],
    // In commands, systemd also replaces `$NAME`.
    command: [...command, ...flags].map(word => unitWord(word).replaceAll('$', '$$$$')).join(' '),
    variables: Object.entries(settings).map(([name, value]) => unitWord(`${name}=${value}`)),
    target: system ? 'multi-user.target' : 'default.target'
  })
}

/** Quotes a word of a setting: systemd splits at blanks and replaces `%x`. */
function unitWord(text: string): string {
  const escaped = text.replace(/[\\"]/g, '\\$&').replaceAll('%', '%%').replaceAll('\n', '\\n')
  return /^[\w./:=%@,+~-]+$/.test(text) ? escaped : `"${escaped}"`
}

/** The launchd property list: an agent of the user, started at login. */
export function launchdAgent({ command, flags, environment, home }: ServiceDefinition, log: string): string {
  const xml = (text: string) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
  const settings = { ...(home !== undefined && { CORRAL_HOME: home }), ...environment }
  return fillTemplate('launchd.plist', {
    mark: MARK,
    word: [...command, ...flags, 'serve'].map(xml),
    variable: Object.entries(settings).map(([name, value]) => `<key>${xml(name)}</key><string>${xml(value)}</string>`),
    log: xml(log)
  })
}

/** A Windows task that starts at logon, without a window. `cmd` sets variables and writes the log, which tasks cannot. */
export function scheduledTask(
  { command, flags, environment, home }: ServiceDefinition,
  log: string,
  user: string
): string {
  const settings = { ...(home !== undefined && { CORRAL_HOME: home }), ...environment }
  const quoted = (word: string) => {
    if (!/["%\r\n]/.test(word)) return `"${word}"`
    throw failure(
      `A task of Windows cannot contain the characters " and %, which are in ${word}. Choose another value.`
    )
  }
  const set = Object.entries(settings).map(([name, value]) => `set ${quoted(`${name}=${value}`)}&& `)
  const words = [...command, ...flags, 'serve'].map(quoted).join(' ')
  // Other letters must be references: schtasks reads files in the system's code page.
  const xml = (text: string) => text.replace(/[&<>"]|[^ -~]/gu, letter => `&#${letter.codePointAt(0)};`)
  return fillTemplate('scheduled-task.xml', {
    mark: MARK,
    user: xml(user),
    arguments: xml(`--headless cmd.exe /d /s /c "${set.join('')}${words} >> ${quoted(log)} 2>&1"`)
  })
}

type ServiceStep =
  | { do: 'run'; command: string[] /** It may fail, because there may be nothing to undo. */; optional?: boolean }
  | { do: 'write'; path: string; text: string }
  | { do: 'remove'; path: string }

/** The parts of the machine that matter for services. */
interface ServicePlace {
  platform: 'linux' | 'darwin' | 'win32'
  /** -1 on Windows. */
  uid: number
  /** With the domain, on Windows. */
  user?: string
  userHome: string
  /** XDG_CONFIG_HOME, if set. */
  configHome: string | undefined
}

export function serviceFile({ platform, userHome, configHome }: ServicePlace, system: boolean): string {
  if (platform === 'darwin') return join(userHome, 'Library', 'LaunchAgents', `${SERVICE}.plist`)
  if (platform === 'win32') return join(userHome, 'AppData', 'Local', SERVICE, 'task.xml')
  if (system) return `/etc/systemd/system/${SERVICE}.service`
  return join(configHome || join(userHome, '.config'), 'systemd', 'user', `${SERVICE}.service`)
}

const systemctl = (system: boolean, ...words: string[]) => ['systemctl', ...(system ? [] : ['--user']), ...words]
const runs = (command: string[], optional = false): ServiceStep => ({ do: 'run', command, optional })
const bootout = (uid: number) => runs(['launchctl', 'bootout', `gui/${uid}/${SERVICE}`], true)

const schtasks = (...words: string[]) => ['schtasks.exe', ...words, '/TN', SERVICE]

/** Steps of the installation. launchd appends output to `log`. */
export function installSteps(
  place: ServicePlace,
  service: ServiceDefinition,
  log: string,
  hasAccount: boolean
): ServiceStep[] {
  const { system, home = SYSTEM_HOME } = service
  const path = serviceFile(place, system)
  if (place.platform === 'darwin') {
    return [
      { do: 'write', path, text: launchdAgent(service, log) },
      bootout(place.uid),
      runs(['launchctl', 'bootstrap', `gui/${place.uid}`, path])
    ]
  }
  if (place.platform === 'win32') {
    return [
      { do: 'write', path, text: scheduledTask(service, log, place.user!) },
      runs([...schtasks('/Create', '/F'), '/XML', path]),
      // The task's next instance waits for the end of this one.
      runs(schtasks('/End'), true),
      runs(schtasks('/Run'))
    ]
  }
  const useradd = ['useradd', '--system', '--user-group', '--home-dir', home, '--shell', '/usr/sbin/nologin', SERVICE]
  return [
    ...(system && !hasAccount ? [runs(useradd)] : []),
    { do: 'write', path, text: systemdUnit(service) },
    runs(systemctl(system, 'daemon-reload')),
    runs(systemctl(system, 'enable', SERVICE)),
    // A running service continues with the new file.
    runs(systemctl(system, 'restart', SERVICE))
  ]
}

/** Steps of the removal. Data directory and account stay. */
export function uninstallSteps(place: ServicePlace, system: boolean): ServiceStep[] {
  const remove: ServiceStep = { do: 'remove', path: serviceFile(place, system) }
  if (place.platform === 'darwin') return [bootout(place.uid), remove]
  if (place.platform === 'win32') return [runs(schtasks('/End'), true), runs(schtasks('/Delete', '/F')), remove]
  return [runs(systemctl(system, 'disable', '--now', SERVICE)), remove, runs(systemctl(system, 'daemon-reload'))]
}

type Flags = Options<'system' | 'user' | 'dryRun' | 'json'>

export async function serviceUninstall(context: CommandContext, flags: Flags): Promise<void> {
  const { place, system, file } = openService(context, flags)
  const written = await readText(file)
  if (written === undefined) return printNote(`There is no service to remove: ${file} does not exist.`)
  refuseOther(file, written)
  const steps = uninstallSteps(place, system)
  if (flags.dryRun) return await perform(steps, true)
  await requireManager(place, system)
  await perform(steps, false)
  printNote(`The service was removed. Its data is kept in ${dataOf(written).home}`)
}

/** The service that the flags refer to. */
function openService({ env }: CommandContext, flags: Flags) {
  const { platform } = process
  if (platform !== 'linux' && platform !== 'darwin' && platform !== 'win32') {
    throw failure(
      `corral supports systemd, launchd and the Task Scheduler, not the services of ${platform}. ` +
        `Configure yours to run: ${process.execPath} ${scriptPath()} serve`
    )
  }
  if (flags.system && platform !== 'linux') {
    throw failure('On macOS and Windows, corral can only be a service of a user. Leave out --system.')
  }
  const uid = process.getuid?.() ?? -1
  const user = `${env.USERDOMAIN ?? hostname()}\\${userInfo().username}`
  const place: ServicePlace = { platform, uid, user, userHome: homedir(), configHome: env.XDG_CONFIG_HOME }
  const system = platform === 'linux' && !flags.user && (flags.system === true || uid === 0)
  return { place, system, file: serviceFile(place, system) }
}

const scriptPath = () => join(packageRoot, 'scripts', 'corral.mjs')

/**
 * A path that still finds the program after an update: the link on the PATH, which package managers keep. Folders that
 * only exist for one shell do not qualify.
 */
function lastingPath(name: string, file: string, env: NodeJS.ProcessEnv): string {
  const real = realpathSync(file)
  for (const folder of (env.PATH ?? '').split(delimiter)) {
    if (!folder.startsWith('/') || /^\/(tmp|run)\/|fnm_multishells/.test(folder)) continue
    const path = join(folder, name)
    try {
      accessSync(path, constants.X_OK)
      if (realpathSync(path) === real) return path
    } catch {
      // The program is not in this folder.
    }
  }
  return real
}

/** The service's PATH: npm is beside Node.js, and compilers and GPU tools are in the usual folders. */
function servicePath({ platform }: ServicePlace, node: string): string {
  const usual = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']
  const folders = [node, ...(platform === 'darwin' ? ['/opt/homebrew/bin'] : []), ...usual]
  return [...new Set(folders)].join(delimiter)
}

/** Secrets must not be in a file that everyone can read. */
const SECRETS = ['CORRAL_API_KEYS', 'HF_TOKEN']
/** Other variables that the server reads, stored in the unit. */
const MORE_VARIABLES = ['CORRAL_CONFIG', 'HF_ENDPOINT', 'HF_HOME', 'HF_HUB_OFFLINE', 'NODE_EXTRA_CA_CERTS']

/** Settings that are paths. They are made absolute, because the service has another working directory. */
const PATHS = /^(CORRAL_(CONFIG|MODELS|LLAMA_CPP)|NODE_EXTRA_CA_CERTS|HF_HOME|config|models|llamaCpp|home)$/

export async function serviceInstall(context: CommandContext, flags: Flags): Promise<void> {
  const { env, cwd } = context
  const { place, system, file } = openService(context, flags)
  const absolute = (name: string, value: string) => (PATHS.test(name) ? expandPath(value, cwd) : value)
  const given: Record<string, string | boolean | undefined> = Object.fromEntries(
    Object.entries(context.flags()).map(([name, value]) => [name, value === true ? value : absolute(name, value)])
  )
  const words = ['config', ...OVERRIDES.flatMap(({ flag }) => flag ?? [])].flatMap(flag => {
    const value = given[flag.replace(/-./g, dashed => dashed[1]!.toUpperCase())]
    return value === undefined || value === false ? [] : [`--${flag}`, ...(value === true ? [] : [value])]
  })
  const command = [lastingPath('node', process.execPath, env), lastingPath('corral', scriptPath(), env)]
  // A task of Windows has the user's own PATH.
  const environment: Record<string, string> =
    place.platform === 'win32' ? {} : { PATH: servicePath(place, dirname(command[0]!)) }
  for (const name of [...OVERRIDES.map(override => override.env), ...MORE_VARIABLES]) {
    const value = env[name]?.trim()
    if (value && !SECRETS.includes(name)) environment[name] = absolute(name, value)
  }
  const named = env.CORRAL_HOME?.trim()
  const home = (given.home as string | undefined) ?? (named ? expandPath(named, cwd) : undefined)
  const models = given.models ?? environment.CORRAL_MODELS
  const groups: string[] = []
  for (const group of system ? ['video', 'render'] : []) {
    if (await isNamedIn('/etc/group', group)) groups.push(group)
  }
  const service: ServiceDefinition = {
    system,
    command,
    flags: words,
    environment,
    home: home === SYSTEM_HOME && system ? undefined : home,
    writable: models ? [String(models)] : [],
    groups
  }
  refuseShortLived(service)
  // Rejects now what would otherwise fail at each start of the server.
  const effective = home ?? (system ? SYSTEM_HOME : undefined)
  const variables = { ...env, ...environment, CORRAL_HOME: effective ?? '' }
  await openConfig({ ...context, cwd: '/', env: variables, flags: () => given })

  const before = await readText(file)
  if (before !== undefined) refuseOther(file, before)
  const log = join(dataPaths(home, undefined).logs, 'service.log')
  const steps = installSteps(place, service, log, await isNamedIn('/etc/passwd', SERVICE))
  const left = SECRETS.filter(name => env[name])
  if (left.length > 0) printNote(`Not stored in the service, because others can read its file: ${left.join(', ')}.`)
  if (command.some(path => /[/.](nvm|fnm|volta|asdf|mise|nodenv|n)\/|\/Cellar\//.test(path))) {
    printNote(
      'This Node.js belongs to a version manager. Run "corral service install" again after changing its version.'
    )
  }
  if (flags.dryRun) return await perform(steps, true)
  if (system && place.uid !== 0) {
    throw failure('Only root can install a service of the machine. Run: sudo corral service install --system')
  }
  await requireManager(place, system)
  if (place.platform !== 'linux') await mkdir(dirname(log), { recursive: true, mode: 0o700 })
  await perform(steps, false)
  printPairs([
    ['service', file],
    ['data', effective ?? dataPaths(undefined, undefined).home],
    ['log', logCommand(place, system, log)],
    ['state', 'corral service status']
  ])
  if (!system && place.platform === 'linux') {
    printNote('It runs while you are logged in. To run it from boot: loginctl enable-linger')
  }
}

/** @throws CommandFailure if the service's program is temporary or out of its reach */
function refuseShortLived({ system, command, home, writable }: ServiceDefinition): void {
  if (/[\\/]_npx[\\/]/.test(packageRoot)) {
    throw failure(
      `A service cannot run from npx's cache (${packageRoot}), which npm may delete at any time. ` +
        'Install corral with "npm install --global", then run "corral service install".'
    )
  }
  const paths = [...command.flatMap(path => [path, realpathSync(path)]), ...(home ? [home] : []), ...writable]
  const hidden = system ? paths.find(path => /^\/(home|root|run\/user)\//.test(path)) : undefined
  if (hidden !== undefined) {
    throw failure(
      `A service of the machine cannot read home folders, and ${hidden} is in one. Install Node.js and corral for all users ` +
        '(for example in /usr/local) and keep the data elsewhere, or install a service of your user: corral service install --user'
    )
  }
}

async function isNamedIn(file: string, name: string): Promise<boolean> {
  const lines = (await readText(file))?.split('\n') ?? []
  return lines.some(line => line.startsWith(`${name}:`))
}

const readText = async (file: string) => await readFile(file, 'utf8').catch(whenMissing)

function refuseOther(file: string, text: string): void {
  if (text.includes(MARK)) return
  throw failure(`${file} was not created by "corral service install". Move it away and try again.`)
}

async function run(command: readonly string[]) {
  const bus = process.env.DBUS_SESSION_BUS_ADDRESS
  const [program, ...words] = command as [string, ...string[]]
  return await runTool(program, words, {
    signal: interruption(),
    ...(bus !== undefined && { variables: { DBUS_SESSION_BUS_ADDRESS: bus } })
  })
}

async function requireManager({ platform }: ServicePlace, system: boolean): Promise<void> {
  if (platform !== 'linux') return
  try {
    await run(systemctl(system, 'show', '--property=Version'))
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    const why = error.tail[0] ?? error.message
    throw failure(
      system
        ? `systemd is not running here (${why}). Let this machine's supervisor run "corral serve". See docs/install.md.`
        : `Your user's systemd cannot be reached (${why}). Log in as this user without su or sudo and try again. In a ` +
            'container, let its supervisor run "corral serve".',
      error
    )
  }
}

async function perform(steps: readonly ServiceStep[], isDryRun: boolean): Promise<void> {
  for (const step of steps) {
    const what = step.do === 'run' ? step.command.join(' ') : step.path
    if (isDryRun) {
      printNote(`would ${step.do} ${what}${step.do === 'write' ? ':' : ''}`)
      if (step.do === 'write') printText(step.text)
      continue
    }
    printNote(`${step.do}s ${what}`)
    if (step.do === 'remove') await rm(step.path, { force: true })
    else if (step.do === 'write') {
      await mkdir(dirname(step.path), { recursive: true })
      await writeFileAtomic(step.path, step.text, { mode: 0o644 })
    } else {
      await run(step.command).catch(error => {
        if (!(error instanceof ToolError)) throw error
        if (!step.optional) throw failure([error.message, ...error.tail].join('\n'), error)
      })
    }
  }
}

function logCommand({ platform }: ServicePlace, system: boolean, log: string): string {
  return platform !== 'linux' ? log : `journalctl ${system ? '' : '--user '}-u ${SERVICE} -f`
}

export async function serviceStatus(context: CommandContext, flags: Flags): Promise<void> {
  const { place, system, file } = openService(context, flags)
  const text = await readText(file)
  if (text === undefined) {
    const advice = 'Create one with: corral service install'
    throw new CommandFailure(EXIT.notFound, `There is no service: ${file} does not exist. ${advice}`)
  }
  await requireManager(place, system)
  const state = await readState(place, system)
  const missing = parseCommand(text).filter(path => !existsSync(path))
  const log = logCommand(place, system, join(dataOf(text).logs, 'service.log'))
  const { enabled } = state
  if (flags.json) printJson({ file, ...state, missing, log })
  else printPairs(Object.entries({ service: file, enabled, state: state.state, log }))
  for (const path of missing) {
    printNote(`warning: ${path}, which the service starts, no longer exists. Run "corral service install" again.`)
  }
  process.exitCode = state.running ? EXIT.ok : EXIT.noServer
}

/** Replaces the references to letters in a task. */
const withLetters = (xml: string) => xml.replace(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)))

/** The data directory of a service. */
const dataOf = (text: string) =>
  dataPaths(/CORRAL_HOME(?:=|<\/key><string>)([^"<\n]*)/.exec(withLetters(text))?.[1], undefined)

function parseCommand(text: string): string[] {
  const task = / \/c "(?:.*&& )?"([^"]+)" "([^"]+)"/.exec(withLetters(text))
  if (task) return task.slice(1)
  const line = /^ExecStart=(.*)$/m.exec(text)?.[1]
  const words =
    line === undefined
      ? [...text.matchAll(/^ {4}<string>(.*)<\/string>$/gm)].map(([, word]) =>
          word!.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&')
        )
      : [...line.matchAll(/"((?:[^"\\]|\\.)*)"|(\S+)/g)].map(([, quoted, plain]) =>
          (quoted?.replace(/\\(.)/g, '$1') ?? plain!).replaceAll('%%', '%').replaceAll('$$', '$')
        )
  return words.slice(0, 2)
}

async function readState({ platform, uid }: ServicePlace, system: boolean) {
  if (platform === 'darwin') {
    const { stdout: lines } = await run(['launchctl', 'print', `gui/${uid}/${SERVICE}`]).catch(() => ({ stdout: [] }))
    const state = lines.map(line => /^\s*state = (.*)$/.exec(line)?.[1]).find(found => found !== undefined)
    return { enabled: lines.length > 0 ? 'yes' : 'no', state: state ?? 'not loaded', running: state === 'running' }
  }
  if (platform === 'win32') {
    // schtasks would answer in the user's language.
    const script = `(Get-ScheduledTask -TaskPath '\\' -TaskName ${SERVICE}).State`
    const command = ['powershell.exe', '-NoProfile', '-NonInteractive', '-Command', script]
    const { stdout } = await run(command).catch(() => ({ stdout: [] }))
    const state = stdout[0]?.trim() || 'not created'
    return {
      enabled: /Disabled|not/.test(state) ? 'no' : 'yes',
      state: state.toLowerCase(),
      running: state === 'Running'
    }
  }
  const properties = ['UnitFileState', 'ActiveState', 'SubState', 'Result']
  const { stdout } = await run(systemctl(system, 'show', SERVICE, `--property=${properties.join()}`))
  const { UnitFileState, ActiveState, SubState, Result } = Object.fromEntries(
    stdout.map(line => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)])
  )
  const why = Result && Result !== 'success' ? `, ${Result}` : ''
  const state = `${ActiveState} (${SubState}${why})`
  return { enabled: UnitFileState || 'no', state, running: ActiveState === 'active' }
}
