import { join } from 'node:path'
import { fillTemplate } from './shipped-text.ts'

/** Name of the systemd service, and label of the launchd agent. */
export const SERVICE = 'corral'

/** First words of every file that `corral service install` writes. Files without them belong to someone else. */
export const MARK = 'Written by "corral service install"'

export const SYSTEM_HOME = '/var/lib/corral'

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

export type ServiceStep =
  | { do: 'run'; command: string[] /** It may fail, because there may be nothing to undo. */; optional?: boolean }
  | { do: 'write'; path: string; text: string }
  | { do: 'remove'; path: string }

/** The parts of the machine that matter for services. */
export interface ServicePlace {
  platform: 'linux' | 'darwin'
  uid: number
  userHome: string
  /** XDG_CONFIG_HOME, if set. */
  configHome: string | undefined
}

export function serviceFile({ platform, userHome, configHome }: ServicePlace, system: boolean): string {
  if (platform === 'darwin') return join(userHome, 'Library', 'LaunchAgents', `${SERVICE}.plist`)
  if (system) return `/etc/systemd/system/${SERVICE}.service`
  return join(configHome || join(userHome, '.config'), 'systemd', 'user', `${SERVICE}.service`)
}

export function systemctl(system: boolean, ...words: string[]): string[] {
  return ['systemctl', ...(system ? [] : ['--user']), ...words]
}

const runs = (...command: string[]): ServiceStep => ({ do: 'run', command })
const bootout = (uid: number): ServiceStep => ({
  do: 'run',
  command: ['launchctl', 'bootout', `gui/${uid}/${SERVICE}`],
  optional: true
})

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
      runs('launchctl', 'bootstrap', `gui/${place.uid}`, path)
    ]
  }
  const useradd = ['useradd', '--system', '--user-group', '--home-dir', home, '--shell', '/usr/sbin/nologin', SERVICE]
  return [
    ...(system && !hasAccount ? [runs(...useradd)] : []),
    { do: 'write', path, text: systemdUnit(service) },
    runs(...systemctl(system, 'daemon-reload')),
    runs(...systemctl(system, 'enable', SERVICE)),
    // A running service continues with the new file.
    runs(...systemctl(system, 'restart', SERVICE))
  ]
}

/** Steps of the removal. Data directory and account stay. */
export function uninstallSteps(place: ServicePlace, system: boolean): ServiceStep[] {
  const remove: ServiceStep = { do: 'remove', path: serviceFile(place, system) }
  if (place.platform === 'darwin') return [bootout(place.uid), remove]
  return [runs(...systemctl(system, 'disable', '--now', SERVICE)), remove, runs(...systemctl(system, 'daemon-reload'))]
}
