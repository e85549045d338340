import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { findHome } from '../../core/config/config-file.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import { plural } from '../../core/system/plural.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { type CommandContext, configPlaces, openConfig, openTrusted } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { displayWidth } from '../display-width.ts'
import { formatTable, outputWidth, printJson, printNote, printText, wrapLines } from '../output.ts'

export function defineConfig(program: CorralCommand, context: CommandContext): void {
  const config = program
    .command('config')
    .description('check and show the configuration')
    .notes(`
Flags override the environment (CORRAL_*), which overrides the configuration file, which overrides the defaults. The file
is the one named by --config or CORRAL_CONFIG, otherwise config.yaml in the working directory, otherwise config.yaml in
the data directory. Only "serve", "config" and "doctor" read the one in the working directory. Its settings that can run
programs, admit clients or send data elsewhere apply only after you have trusted it.`)
  config
    .command('check')
    .description('check whether a server would start with the configuration, and show its warnings')
    .option('--strict', 'treat warnings, such as unknown settings, as errors')
    .notes(`
Does everything that "corral serve" does before it listens: reads all settings, certificates and keys, and sets up the
plugins in a temporary folder. Everything that would stop a server is an error, and everything that a server would log as
a warning is a warning. Ports in use are not checked.

Exit codes: 0 no errors, 2 errors (with line and column in the file), or warnings with --strict.`)
    .action(async ({ strict }: { strict?: boolean }) => {
      const [config, { checkStart }] = await Promise.all([openConfig(context), import('../check-start.ts')])
      const { file } = config
      const warnings = await checkStart(config, await context.definitions())
      for (const warning of warnings) printNote(`warning: ${warning}`)
      const count = warnings.length === 0 ? '' : `, ${plural(warnings.length, 'warning')}`
      if (strict && warnings.length > 0)
        throw new CommandFailure(
          EXIT.usage,
          `${file ?? 'The configuration'} has ${plural(warnings.length, 'warning')}. Fix ${warnings.length === 1 ? 'it' : 'them'}, or leave out --strict.`
        )
      const place = file ?? 'There is no configuration file, so the defaults apply'
      printText(wrapLines(`${place}: no errors${count}.`))
    })
  config
    .command('trust')
    .description('trust config.yaml in the working directory as it is now, so that all its settings apply')
    .option('--yes', 'do not ask')
    .option('--remove', 'stop trusting it')
    .option('--list', 'list the trusted files')
    .action(async ({ yes, remove, list }: { yes?: boolean; remove?: boolean; list?: boolean }) => {
      const { setTrust, trustedFiles } = await import('../../core/config/trust.ts')
      const { home } = dataPaths(findHome(configPlaces(context)).home, undefined)
      const path = join(context.cwd, 'config.yaml')
      if (list) return printText(Object.keys(await trustedFiles(home)).join('\n') || 'No file is trusted.')
      if (remove) {
        await setTrust(home, path, undefined)
        return printNote(`${path} is not trusted.`)
      }
      const before = await trustedFiles(home)
      const { file } = await openTrusted(context, yes)
      if (file !== path)
        throw new CommandFailure(
          EXIT.usage,
          `There is no ${path} to trust${file ? `. ${file} applies without trust` : ''}.`
        )
      if (isDeepStrictEqual(before, await trustedFiles(home))) printNote(`All settings of ${path} already apply.`)
    })
  config
    .command('show')
    .description('show every setting, its value and its origin')
    .option('--json', 'print them as JSON')
    .notes('\nAPI keys and tokens are not shown.')
    .action(async ({ json }: { json?: boolean }) => {
      const [loaded, definitions, { describeConfig }, { formatConfig, inlineYaml }] = await Promise.all([
        openConfig(context),
        context.definitions(),
        import('../../core/config/config-report.ts'),
        import('../../core/config/config-text.ts')
      ])
      const description = describeConfig(loaded, definitions)
      if (json) printJson(description)
      else {
        const text = formatConfig(description)
        const wide = text.split('\n').some(line => displayWidth(line) > outputWidth())
        const rows = description.settings.map(({ name, value, origin }) => [name, inlineYaml(value), origin])
        printText(wide ? formatTable(['SETTING', 'VALUE', 'FROM'], rows) : text)
      }
    })
}
