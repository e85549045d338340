import { copyFile } from 'node:fs/promises'
import { modelSettingsYaml } from '../../core/config/yaml-edit.ts'
import type { TrialRecord, TrialSettings } from '../../core/contracts/trials.ts'
import { errorMessage, whenMissing } from '../../core/errors.ts'
import { Interrupted } from '../command-failure.ts'
import type { Options } from '../context.ts'
import { atTerminal, confirm } from '../questions.ts'
import type { ServerClient } from '../server-client.ts'

interface Saving {
  client: ServerClient
  record: TrialRecord
  settings: TrialSettings
  tell: (text: string) => void
  options: Options<'yes' | 'dryRun' | 'json'>
}

/** The reply of `GET /api/models/settings`. */
interface WrittenSettings {
  section: string
  file: string
  settings: TrialSettings
  revision: string
}

const ROUTE = '/api/models/settings'

/**
 * Shows settings as lines of the configuration. If the user agrees, the server writes and applies them.
 * @returns the file, or false if nothing was written
 */
export async function saveSettings({ client, record, settings, tell, options }: Saving): Promise<string | false> {
  const { model } = record
  const lines = (section: string) => modelSettingsYaml(section, settings).trimEnd()
  try {
    const path = `${ROUTE}?model=${encodeURIComponent(model)}`
    const { section, file, settings: before, revision } = await client.json<WrittenSettings>('GET', path)
    tell(lines(section))
    if (options.dryRun) return false
    if (!options.yes && !atTerminal()) {
      tell(`Nothing was written. Add --yes to write this to ${file}.`)
      return false
    }
    if (!options.yes && !(await confirm(`Write this to ${file}?`, false))) return false
    const backup = `${file}.bak`
    const isKept = client.bySocket && (await copyFile(file, backup).then(() => true, whenMissing))
    const merged = {
      ...before,
      ...settings,
      ...(settings.options && { options: { ...before.options, ...settings.options } })
    }
    await client.json('PUT', ROUTE, { model, settings: merged, revision })
    tell(
      `Saved to ${file}${isKept ? `. The previous file is ${backup}` : ''}. The model uses these settings from now on.`
    )
    return file
  } catch (error) {
    if (error instanceof Interrupted) throw error
    tell(`${errorMessage(error)} Add these lines yourself:`)
    tell(lines(model))
    return false
  }
}
