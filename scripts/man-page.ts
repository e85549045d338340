import type { EventEmitter } from 'node:events'
import type { Command } from 'commander'
import { wrapLines } from '../command-line/output.ts'
import { createProgram, MAX_HELP_COLUMNS } from '../command-line/program.ts'
import { version } from '../core/system/package-info.ts'

/** Escapes text for roff: a line must not start with a dot or a quote, and backslashes and hyphens have a meaning. */
function escaped(text: string): string {
  return text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replace(/^([.'])/gm, '\\&$1')
}

/** The help texts after a command's options: paragraphs and examples, without reformatting. */
function textAfter(command: Command): string {
  let text = ''
  const events = command as unknown as EventEmitter
  events.emit('afterHelp', { error: false, command, write: (piece: string) => (text += `${piece}\n`) })
  return wrapLines(text.replace(/^Options of all commands .*$/m, '').trim(), MAX_HELP_COLUMNS)
}

function literal(text: string): string {
  const lines = text.split('\n').map(line => (line.trim() === '' ? '.sp' : escaped(line)))
  return text === '' ? '' : `.PP\n.nf\n${lines.join('\n')}\n.fi\n`
}

const tagged = (pairs: { term: string; description: string }[]) =>
  pairs.map(({ term, description }) => `.TP\n.B ${escaped(term)}\n${escaped(description)}\n`).join('')

function formatSection(command: Command, parents: string): string {
  const help = command.createHelp()
  const name = `${parents} ${command.name()}`
  const options = help.visibleOptions(command).filter(option => option.long !== '--help')
  return [
    `.SS "${escaped(name)}"\n`,
    `${escaped(help.subcommandDescription(command))}.\n`,
    `.PP\n.B ${escaped(name)}\n${escaped(command.usage().split('\n')[0]!)}\n`,
    tagged(help.visibleArguments(command).map(each => ({ term: each.name(), description: each.description }))),
    tagged(options.map(each => ({ term: each.flags, description: help.optionDescription(each) }))),
    literal(textAfter(command)),
    ...help
      .visibleCommands(command)
      .filter(each => each.name() !== 'help')
      .map(each => formatSection(each, name))
  ].join('')
}

/** Generates the man page from the same definitions as `--help`. Returns it by its file name in docs. */
export async function renderManPage(): Promise<Record<string, string>> {
  const context = {
    flags: () => ({}),
    env: {},
    cwd: '/',
    readsFolder: () => false,
    definitions: async () => [],
    trustChanged() {}
  }
  const program = createProgram(context, [])
  const help = program.createHelp()
  const page = `.\\" Generated from the command definitions by "npm run docs:write". Do not edit.
.TH CORRAL 1 "" "corral ${version}" "corral"
.SH NAME
corral \\- runs language models on this machine and serves them over REST
.SH SYNOPSIS
.B corral
[options] [command]
.SH OPTIONS
${tagged(help.visibleOptions(program).map(each => ({ term: each.flags, description: help.optionDescription(each) })))}.SH COMMANDS
${help
  .visibleCommands(program)
  .map(each => formatSection(each, 'corral'))
  .join('')}.SH MORE
${literal(textAfter(program))}`
  return { 'corral.1': page }
}
