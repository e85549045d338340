import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { settingsYaml, withModelSettings } from '../../core/config/yaml-edit.ts'
import { readYaml } from '../../core/config/yaml-file.ts'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { isObject } from '../../core/system/json-object.ts'
import { failure, misuse } from '../command-failure.ts'
import type { CommandContext, Options } from '../context.ts'
import { printable, printNote, printText } from '../output.ts'
import { atTerminal, confirm } from '../questions.ts'
import { checkSettings, openSettings, saveSettings } from '../settings-file.ts'
import { type ConvertedServers, convertServers, parseServers } from '../tool-import.ts'

const MAX_FILE_BYTES = 4 * 2 ** 20

/** The settings of LM Studio, Claude Desktop and Cursor. */
export function usualFiles(platform: NodeJS.Platform, env: NodeJS.ProcessEnv, home = homedir()): string[] {
  const desktop =
    platform === 'darwin'
      ? join(home, 'Library', 'Application Support')
      : platform === 'win32'
        ? (env.APPDATA ?? join(home, 'AppData', 'Roaming'))
        : (env.XDG_CONFIG_HOME ?? join(home, '.config'))
  return [
    join(home, '.lmstudio', 'mcp.json'),
    join(desktop, 'Claude', 'claude_desktop_config.json'),
    join(home, '.cursor', 'mcp.json')
  ]
}

/** Adds the MCP servers of another program to the configuration. */
export async function mcpImport(
  context: CommandContext,
  file: string | undefined,
  { print, yes }: Options<'print' | 'yes'>
): Promise<void> {
  const settings = await openSettings(context)
  const { value } = readYaml(settings.before ?? '')
  const section = isObject(value) && isObject(value.mcp) ? value.mcp : {}
  const taken = Object.keys(isObject(section.servers) ? section.servers : {})
  const all: ConvertedServers = { servers: {}, variables: new Map(), notes: [] }
  for (const path of file === undefined ? await existing(context.env) : [resolve(context.cwd, file)]) {
    const found = await readServers(path, [...taken, ...Object.keys(all.servers)])
    printNote(`${path}:`)
    for (const note of found.notes) printNote(`- ${printable(note)}`)
    Object.assign(all.servers, found.servers)
    for (const [variable, place] of found.variables) all.variables.set(variable, place)
  }
  const names = Object.keys(all.servers)
  if (names.length === 0) return printNote('There is nothing to import.')
  printText(printable(settingsYaml({ mcp: { servers: all.servers } })).trimEnd())
  const unset = [...all.variables].filter(([variable]) => context.env[variable] === undefined)
  if (unset.length > 0) {
    printNote('These variables replace secrets. Set them for corral:')
    for (const [variable, place] of unset) printNote(`- ${variable}, with the value of ${printable(place)}`)
  }
  if (print) return
  const text = withModelSettings(settings.before ?? '', 'servers', all.servers, 'mcp')
  if (text === undefined)
    throw failure(`${settings.path} cannot be changed without affecting others. Add these lines yourself.`)
  await checkSettings(context, settings, text)
  if (!yes) {
    if (!atTerminal()) throw misuse('Nothing was changed. Add --yes to change the configuration, or --print.')
    if (!(await confirm(`Add ${names.join(', ')} to ${settings.path}?`, true))) return printNote('Nothing was changed.')
  }
  await saveSettings(settings, text)
}

async function existing(env: NodeJS.ProcessEnv): Promise<string[]> {
  const { existsSync } = await import('node:fs')
  const files = usualFiles(process.platform, env)
  const found = files.filter(path => existsSync(path))
  if (found.length > 0) return found
  throw misuse(`There is no file to import. Name one, or use one of these: ${files.join(', ')}.`)
}

async function readServers(path: string, taken: readonly string[]): Promise<ConvertedServers> {
  try {
    const bytes = await readFile(path)
    if (bytes.length > MAX_FILE_BYTES) throw new Error('it is too large')
    return convertServers(parseServers(bytes.toString()), taken)
  } catch (error) {
    const why = isSystemError(error, 'ENOENT') ? 'there is no such file' : errorMessage(error)
    throw misuse(`${path} cannot be imported: ${why}. Nothing was changed.`, error)
  }
}
