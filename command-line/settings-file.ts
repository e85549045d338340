import { copyFile, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { loadConfig } from '../core/config/load.ts'
import { renewTrust } from '../core/config/trust.ts'
import { whenMissing } from '../core/errors.ts'
import { type CommandContext, configPlaces, openConfig } from './context.ts'
import { printNote } from './output.ts'

/* Changes of the configuration file by commands. */

export interface SettingsFile {
  path: string
  /** The data directory. */
  home: string
  /** Undefined if there is no file yet. */
  before: string | undefined
}

export async function openSettings(context: CommandContext): Promise<SettingsFile> {
  const { file, paths } = await openConfig(context)
  const path = file ?? join(paths.home, 'config.yaml')
  return { path, home: paths.home, before: await readFile(path, 'utf8').catch(whenMissing) }
}

/** Checks a new text before anything is changed. @throws ConfigError */
export async function checkSettings(context: CommandContext, { path }: SettingsFile, text: string): Promise<void> {
  await loadConfig({ ...configPlaces(context), definitions: await context.definitions(), file: path, text })
}

export async function saveSettings({ path, home, before }: SettingsFile, text: string): Promise<void> {
  if (before !== undefined) await copyFile(path, `${path}.bak`)
  await writeFileAtomic(path, text, before === undefined ? { mode: 0o600 } : {})
  await renewTrust(home, path, before ?? '', text)
  const old = before === undefined ? '' : `, whose old text is in ${path}.bak`
  printNote(`Saved to ${path}${old}. Restart corral to apply it.`)
}
