import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { inlineYaml } from '../../core/config/config-text.ts'
import { settingsYaml, withModelSettings } from '../../core/config/yaml-edit.ts'
import { readYaml } from '../../core/config/yaml-file.ts'
import type { ImportedReply } from '../../core/contracts/native-records.ts'
import { errorMessage } from '../../core/errors.ts'
import { isObject } from '../../core/system/json-object.ts'
import { CommandFailure, failure, forEach, misuse } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import { printable, printNote, printText } from '../output.ts'
import { streamWork } from '../progress-display.ts'
import { withServer } from '../server-connection.ts'
import { checkSettings, openSettings, saveSettings } from '../settings-file.ts'
import { type Conversion, convertSwapConfig } from './swap-conversion.ts'

type Values = Record<string, unknown>

/** Adds the settings of a llama-swap configuration to corral's configuration file, and imports the models' files. */
export async function importSettings(context: CommandContext, given: string | undefined, dryRun = false) {
  const source = resolve(context.cwd, given ?? 'config.yaml')
  const conversion = await readSource(source, context.env)
  const file = await openSettings(context)
  const { path, before } = file
  const { added, kept, text } = merge(before ?? '', conversion)
  for (const each of [...kept, ...conversion.notes]) printNote(`- ${printable(each)}`)
  const isEmpty = Object.values(added).every(group => Object.keys(group).length === 0)
  if (isEmpty) printNote(`${path} already has all of these settings.`)
  else printText(printable(settingsYaml(added)).trimEnd())
  if (text === undefined) throw failure(`${path} cannot be changed without affecting others. Add these lines yourself.`)
  await checkSettings(context, file, text)
  if (dryRun) {
    for (const { path, model } of conversion.files) printNote(`would import ${path} as ${model}`)
    return printNote(`Nothing was changed. Without --dry-run, these settings are added to ${path}.`)
  }
  const failed = await importFiles(context, conversion.files).catch(error => {
    if (error instanceof CommandFailure) return error
    throw error
  })
  if (!isEmpty) await saveSettings(file, text)
  for (const name of conversion.pulls) printNote(`Download a model: corral pull ${printable(name)}`)
  if (failed) throw failed
}

async function readSource(source: string, env: NodeJS.ProcessEnv): Promise<Conversion> {
  try {
    const text = await readFile(source, 'utf8')
    return convertSwapConfig(text, { env, folder: dirname(source), exists: existsSync })
  } catch (error) {
    throw misuse(`${source} cannot be imported: ${errorMessage(error)}`, error)
  }
}

/** Adds settings that do not exist yet. Others are kept, and reported if they differ. */
function merge(before: string, { engines, models }: Conversion) {
  const { value } = readYaml(before)
  const added: Record<string, Record<string, Values>> = {}
  const kept: string[] = []
  let text: string | undefined = before
  for (const [group, sections] of Object.entries({ engines, models })) {
    const present = Object.entries(isObject(value) && isObject(value[group]) ? value[group] : {})
    for (const [wanted, settings] of Object.entries(sections)) {
      const [name, own] = present.find(([name]) => name.toLowerCase() === wanted.toLowerCase()) ?? [wanted, {}]
      const current = isObject(own) ? own : {}
      for (const [key, value] of Object.entries(settings)) {
        if (current[key] === undefined || isDeepStrictEqual(current[key], value)) continue
        kept.push(`${group}.${name}.${key} stays ${inlineYaml(current[key])}. llama-swap has ${inlineYaml(value)}.`)
      }
      const more = Object.fromEntries(Object.entries(settings).filter(([key]) => current[key] === undefined))
      if (Object.keys(more).length === 0) continue
      added[group] = { ...added[group], [name]: more }
      text = text === undefined ? undefined : withModelSettings(text, name, more, group)
    }
  }
  return { added, kept, text }
}

async function importFiles(context: CommandContext, files: Conversion['files']): Promise<void> {
  if (files.length === 0) return
  await withServer(context, 'aside', async ({ client }) => {
    await forEach(files, async ({ path, model }) => {
      const labels = { first: `reading ${path}`, what: `import of ${path}` }
      try {
        await streamWork<ImportedReply>(client, '/api/import', { path, model }, labels)
        printNote(`imported ${printable(path)} as ${model}`)
      } catch (error) {
        if (!(error instanceof CommandFailure)) throw error
        throw new CommandFailure(error.exitCode, `${printable(path)}: ${error.message}`, error)
      }
    })
  })
}
