import { copyFile, readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { renewTrust } from '../../core/config/trust.ts'
import { modelSettingsYaml, sectionName, withModelSettings } from '../../core/config/yaml-edit.ts'
import { readYaml } from '../../core/config/yaml-file.ts'
import type { ReloadReport } from '../../core/contracts/native-records.ts'
import type { TrialRecord, TrialSettings } from '../../core/contracts/trials.ts'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { readOwner } from '../../core/system/data-directory.ts'
import { CommandFailure, failure } from '../command-failure.ts'
import { type CommandContext, type Options, openConfig } from '../context.ts'
import { atTerminal, confirm } from '../questions.ts'
import { recordedAddress } from '../server-address.ts'
import type { ServerClient } from '../server-client.ts'

interface Saving {
  client: ServerClient
  isOwn: boolean
  record: TrialRecord
  settings: TrialSettings
  /** The server's configuration file, or null if there is none. */
  file: string | null
  tell: (text: string) => void
  options: Options<'yes' | 'dryRun' | 'json'>
}

/**
 * Shows settings as lines of the configuration, writes them if the user agrees, and reloads the server.
 * @returns the file, or false if nothing was written
 */
export async function saveSettings(context: CommandContext, saving: Saving): Promise<string | false> {
  const { client, isOwn, record, settings, tell, options } = saving
  const config = await openConfig(context)
  const owner = await readOwner(config.paths)
  const isHere = isOwn || (owner !== undefined && recordedAddress(owner.address) === client.address)
  const path = saving.file ?? join(config.paths.home, 'config.yaml')
  const lines = (name: string) => modelSettingsYaml(name, settings).trimEnd()
  const paste = (why: string) => {
    tell(`${why} Add these lines yourself:`)
    tell(lines(record.model))
    return false as const
  }
  if (!isHere)
    return paste('This server uses another data directory, so its configuration cannot be changed from here.')

  let before: string | undefined
  try {
    before = await readFile(path, 'utf8')
  } catch (error) {
    if (!isSystemError(error, 'ENOENT')) return paste(`${path} cannot be read (${errorMessage(error)}).`)
  }
  const name = sectionName(readYaml(before ?? '').value, record.model, record.label)
  const text = withModelSettings(before ?? '', name, settings)
  if (text === undefined) {
    return paste(
      `The layout of ${path} does not allow changing this model's settings without changing those of others.`
    )
  }
  tell(lines(name))
  if (options.dryRun) return false
  if (!options.yes && !atTerminal()) {
    tell(`Nothing was written. Add --yes to write this to ${path}.`)
    return false
  }
  if (!options.yes && !(await confirm(`Write this to ${path}?`, false))) return false
  try {
    if (before !== undefined) {
      await copyFile(path, `${path}.bak`)
      // The file may have changed while the user was deciding.
      if ((await readFile(path, 'utf8')) !== before)
        return paste(`${path} was changed by someone else in the meantime.`)
    }
    await writeFileAtomic(path, text, before === undefined ? { mode: 0o600 } : {})
    await renewTrust(config.paths.home, path, before ?? '', text)
  } catch (error) {
    return paste(`${path} cannot be written (${errorMessage(error)}).`)
  }
  tell(`Saved to ${path}${before === undefined ? '' : `. The previous file is ${path}.bak`}.`)
  if (isOwn) return path
  try {
    const report = await client.json<ReloadReport>('POST', '/api/reload')
    if (report.file === null || resolve(report.file) !== resolve(path)) {
      throw failure(`The server reads ${report.file ?? 'no file'}, not ${path}.`)
    }
  } catch (error) {
    if (error instanceof CommandFailure)
      throw new CommandFailure(error.exitCode, `The server rejects the new settings: ${error.message}`)
    throw error
  }
  tell('The server has reloaded its configuration. The model uses these settings from now on.')
  return path
}
