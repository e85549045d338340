import { join } from 'node:path'

/** Name of the systemd service, and label of the launchd agent. */
export const SERVICE = 'corral'

/** First words of every file that `corral service install` writes. Files without them belong to someone else. */
export const MARK = 'Written by "corral service install"'

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

export const SYSTEM_HOME = '/var/lib/corral'

/** The sandbox of the service, which keeps GPUs usable. */
const SANDBOX = `
# The system is read-only, except the data directory and a private /tmp. Compilers work with that.
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
RemoveIPC=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Only GPUs and the usual pseudo-devices. MemoryDenyWriteExecute would break just-in-time compilers: JavaScript and GPU
# drivers.
DevicePolicy=closed
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
DeviceAllow=char-nvidia* rw
`

export function systemdUnit(service: ServiceDefinition): string {
  const { system, command, flags, environment, home, writable, groups } = service
  const line = (...words: string[]) => words.map(execWord).join(' ')
  const settings = Object.entries({
    ...(system && { CORRAL_HOME: home ?? SYSTEM_HOME, HOME: home ?? SYSTEM_HOME }),
    ...(!system && home !== undefined && { CORRAL_HOME: home }),
    ...environment
  }).map(([name, value]) => `Environment=${unitWord(`${name}=${value}`)}`)
  const places = [...(home === undefined ? [] : [home]), ...writable]
  const account = [
    `User=${SERVICE}`,
    `Group=${SERVICE}`,
    ...(groups.length === 0 ? [] : ['# The groups that may use GPUs.', `SupplementaryGroups=${groups.join(' ')}`]),
    ...(home === undefined ? [`StateDirectory=${SERVICE}`, 'StateDirectoryMode=0700'] : []),
    ...(places.length === 0 ? [] : [`ReadWritePaths=${places.map(unitWord).join(' ')}`])
  ]
  return `# ${MARK}, which overwrites it. For your own settings, use "systemctl ${system ? '' : '--user '}edit ${SERVICE}".
[Unit]
Description=corral, a local model server
${system ? 'After=network-online.target\nWants=network-online.target\n' : ''}
[Service]
${system ? `${account.join('\n')}\n` : ''}# Ignores a config.yaml in a home folder.
WorkingDirectory=/
ExecStart=${line(...command, ...flags, 'serve')}
# Fails and changes nothing if the settings have errors.
ExecReload=${line(...command, ...flags, 'reload')}
${settings.map(text => `${text}\n`).join('')}UMask=0077
# corral stops its engines itself. Remaining processes are killed.
KillMode=mixed
# Longer than shutdown_grace.
TimeoutStopSec=30
Restart=on-failure
RestartSec=2
# A restart does not fix configuration errors.
RestartPreventExitStatus=2
# An engine killed for its memory must not end the service.
OOMPolicy=continue
# Two files per connection, and some for engines and downloads.
LimitNOFILE=65536
${system ? SANDBOX : ''}
[Install]
WantedBy=${system ? 'multi-user.target' : 'default.target'}
`
}

/** Quotes a word of a setting: systemd splits at blanks and replaces `%x`. */
function unitWord(text: string): string {
  const escaped = text.replace(/[\\"]/g, '\\$&').replaceAll('%', '%%').replaceAll('\n', '\\n')
  return /^[\w./:=%@,+~-]+$/.test(text) ? escaped : `"${escaped}"`
}

/** Quotes a word of a command, where systemd also replaces `$NAME`. */
function execWord(text: string): string {
  return unitWord(text).replaceAll('$', '$$$$')
}

/** The launchd property list: an agent of the user, started at login. */
export function launchdAgent({ command, flags, environment, home }: ServiceDefinition, log: string): string {
  const settings = { ...(home !== undefined && { CORRAL_HOME: home }), ...environment }
  const string = (text: string) => `<string>${xml(text)}</string>`
  const pairs = Object.entries(settings).map(([name, value]) => `    <key>${xml(name)}</key>\n    ${string(value)}\n`)
  return `<?xml version="1.0" encoding="UTF-8"?>
<!-- ${MARK}, which overwrites it. -->
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  ${string(SERVICE)}
  <key>ProgramArguments</key>
  <array>
${[...command, ...flags, 'serve'].map(word => `    ${string(word)}\n`).join('')}  </array>
  <key>EnvironmentVariables</key>
  <dict>
${pairs.join('')}  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ThrottleInterval</key>
  <integer>30</integer>
  <key>ExitTimeOut</key>
  <integer>30</integer>
  <key>ProcessType</key>
  <string>Interactive</string>
  <key>Umask</key>
  <integer>63</integer>
  <key>SoftResourceLimits</key>
  <dict>
    <key>NumberOfFiles</key>
    <integer>65536</integer>
  </dict>
  <key>StandardOutPath</key>
  ${string(log)}
  <key>StandardErrorPath</key>
  ${string(log)}
</dict>
</plist>
`
}

function xml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
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

/** The `systemctl` command of the machine or of the user. */
export function systemctl(system: boolean, ...words: string[]): string[] {
  return ['systemctl', ...(system ? [] : ['--user']), ...words]
}

/** Steps of the installation. launchd appends output to `log`. */
export function installSteps(
  place: ServicePlace,
  service: ServiceDefinition,
  log: string,
  hasAccount: boolean
): ServiceStep[] {
  const path = serviceFile(place, service.system)
  if (place.platform === 'darwin') {
    const domain = `gui/${place.uid}`
    return [
      { do: 'write', path, text: launchdAgent(service, log) },
      { do: 'run', command: ['launchctl', 'bootout', `${domain}/${SERVICE}`], optional: true },
      { do: 'run', command: ['launchctl', 'bootstrap', domain, path] }
    ]
  }
  const home = service.home ?? SYSTEM_HOME
  const useradd = ['useradd', '--system', '--user-group', '--home-dir', home, '--shell', '/usr/sbin/nologin', SERVICE]
  return [
    ...(service.system && !hasAccount ? [{ do: 'run' as const, command: useradd }] : []),
    { do: 'write', path, text: systemdUnit(service) },
    { do: 'run', command: systemctl(service.system, 'daemon-reload') },
    { do: 'run', command: systemctl(service.system, 'enable', SERVICE) },
    // A running service continues with the new file.
    { do: 'run', command: systemctl(service.system, 'restart', SERVICE) }
  ]
}

/** Steps of the removal. Data directory and account stay. */
export function uninstallSteps(place: ServicePlace, system: boolean): ServiceStep[] {
  const path = serviceFile(place, system)
  if (place.platform === 'darwin') {
    return [
      { do: 'run', command: ['launchctl', 'bootout', `gui/${place.uid}/${SERVICE}`], optional: true },
      { do: 'remove', path }
    ]
  }
  return [
    { do: 'run', command: systemctl(system, 'disable', '--now', SERVICE) },
    { do: 'remove', path },
    { do: 'run', command: systemctl(system, 'daemon-reload') }
  ]
}
