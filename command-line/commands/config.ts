import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { findHome } from '../../core/config/config-file.ts'
import { describeConfig, formatConfig, inlineYaml } from '../../core/config/config-text.ts'
import { setTrust, trustedFiles } from '../../core/config/trust.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import { plural } from '../../core/system/plural.ts'
import { checkStart } from '../check-start.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { type CommandContext, configPlaces, openConfig, openTrusted } from '../context.ts'
import { displayWidth } from '../display-width.ts'
import { formatTable, outputWidth, printJson, printNote, printText, wrapLines } from '../output.ts'

export async function configCheck(context: CommandContext, { strict }: { strict?: boolean }): Promise<void> {
  const config = await openConfig(context)
  const { file } = config
  const warnings = await checkStart(config, await context.definitions())
  for (const warning of warnings) printNote(`warning: ${warning}`)
  const count = plural(warnings.length, 'warning')
  if (strict && warnings.length > 0) {
    const advice = `Fix ${warnings.length === 1 ? 'it' : 'them'}, or leave out --strict.`
    throw new CommandFailure(EXIT.usage, `${file ?? 'The configuration'} has ${count}. ${advice}`)
  }
  const place = file ?? 'There is no configuration file, so the defaults apply'
  printText(wrapLines(`${place}: no errors${warnings.length === 0 ? '' : `, ${count}`}.`))
}

interface TrustOptions {
  yes?: boolean
  remove?: boolean
  list?: boolean
}

export async function configTrust(context: CommandContext, { yes, remove, list }: TrustOptions): Promise<void> {
  const { home } = dataPaths(findHome(configPlaces(context)).home, undefined)
  const path = join(context.cwd, 'config.yaml')
  if (list) return printText(Object.keys(await trustedFiles(home)).join('\n') || 'No file is trusted.')
  if (remove) {
    await setTrust(home, path, undefined)
    return printNote(`${path} is not trusted.`)
  }
  const before = await trustedFiles(home)
  const { file } = await openTrusted(context, yes)
  if (file !== path) {
    const other = file ? `. ${file} applies without trust` : ''
    throw new CommandFailure(EXIT.usage, `There is no ${path} to trust${other}.`)
  }
  if (isDeepStrictEqual(before, await trustedFiles(home))) printNote(`All settings of ${path} already apply.`)
}

export async function configShow(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const loaded = await openConfig(context)
  const description = describeConfig(loaded, await context.definitions())
  if (json) return printJson(description)
  const text = formatConfig(description)
  const wide = text.split('\n').some(line => displayWidth(line) > outputWidth())
  const rows = description.settings.map(({ name, value, origin }) => [name, inlineYaml(value), origin])
  printText(wide ? formatTable(['SETTING', 'VALUE', 'FROM'], rows) : text)
}
