import { copyFile, readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import type { ReloadReport } from '../../core/contracts/native-records.ts'
import type { TrialRecord, TrialSettings } from '../../core/contracts/trials.ts'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { atTerminal, confirm } from '../confirm.ts'
import { type CommandContext, openConfig } from '../context.ts'
import { recordedAddress } from '../server-address.ts'
import type { ServerClient } from '../server-client.ts'

interface Saving {
  client: ServerClient
  /** The server is part of this process. */
  isOwn: boolean
  record: TrialRecord
  settings: TrialSettings
  /** The file that the server reads its configuration from; null where there is none. */
  file: string | null
  tell: (text: string) => void
  options: { yes?: boolean; dryRun?: boolean; json?: boolean }
}

/**
 * Shows settings of a model as lines of the configuration, writes them there where that is wanted, and lets the server
 * read them.
 * @returns the file they were written to; false where they were not
 */
export async function saveSettings(context: CommandContext, saving: Saving): Promise<string | false> {
  const { client, isOwn, record, settings, tell, options } = saving
  const { modelSettingsYaml, sectionName, withModelSettings } = await import('../../core/config/yaml-edit.ts')
  const { readYaml } = await import('../../core/config/yaml-file.ts')
  const config = await openConfig(context)
  const { readOwner } = await import('../../core/system/data-directory.ts')
  const owner = await readOwner(config.paths)
  const isHere = isOwn || (owner !== undefined && recordedAddress(owner.address) === client.address)
  const path = saving.file ?? join(config.paths.home, 'config.yaml')
  const lines = (name: string) => modelSettingsYaml(name, settings).trimEnd()
  const paste = (why: string) => {
    tell(`${why} These are the lines:`)
    tell(lines(record.model))
    return false as const
  }
  if (!isHere)
    return paste(
      'The server is not the one of this data directory, so that its configuration is not changed from here.'
    )

  let before: string | undefined
  try {
    before = await readFile(path, 'utf8')
  } catch (error) {
    if (!isSystemError(error, 'ENOENT')) return paste(`${path} cannot be read (${errorMessage(error)}).`)
  }
  const name = sectionName(readYaml(before ?? '').value, record.model, record.label)
  const text = withModelSettings(before ?? '', name, settings)
  if (text === undefined) {
    return paste(`${path} is written so that this model's settings cannot be changed without those of others.`)
  }
  tell(lines(name))
  if (options.dryRun) return false
  if (!options.yes) {
    if (!atTerminal()) {
      tell(`Nothing is written: --yes writes this into ${path}.`)
      return false
    }
    if (!(await confirm(`Write this into ${path}?`, false))) return false
  }
  try {
    if (before !== undefined) await copyFile(path, `${path}.bak`)
    const { default: writeFileAtomic } = await import('write-file-atomic')
    // Somebody may have changed it while this was asked.
    if (before !== undefined && (await readFile(path, 'utf8')) !== before)
      return paste(`${path} has changed meanwhile.`)
    await writeFileAtomic(path, text, before === undefined ? { mode: 0o600 } : {})
    const { renewTrust } = await import('../../core/config/trust.ts')
    await renewTrust(config.paths.home, path, before ?? '', text)
  } catch (error) {
    return paste(`${path} cannot be written (${errorMessage(error)}).`)
  }
  tell(`Written to ${path}${before === undefined ? '' : `; the file as it was is ${path}.bak`}.`)
  if (isOwn) return path
  try {
    const report = await client.json<ReloadReport>('POST', '/api/reload')
    if (report.file === null || resolve(report.file) !== resolve(path)) {
      throw new CommandFailure(EXIT.failure, `The server reads ${report.file ?? 'no file'}, not ${path}.`)
    }
  } catch (error) {
    if (error instanceof CommandFailure)
      throw new CommandFailure(error.exitCode, `The server does not take it: ${error.message}`)
    throw error
  }
  tell('The server has read it: the model is loaded with it from now on.')
  return path
}
