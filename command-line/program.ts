import { Command } from 'commander'
import { version } from '../core/system/package-info.ts'
import { defineConfig } from './commands/config.ts'
import { defineConvert } from './commands/convert.ts'
import { defineDoctor } from './commands/doctor.ts'
import { defineImport } from './commands/import.ts'
import { defineList } from './commands/list.ts'
import { defineLogs } from './commands/logs.ts'
import { definePs } from './commands/ps.ts'
import { definePull } from './commands/pull.ts'
import { definePulls } from './commands/pulls.ts'
import { defineRm } from './commands/rm.ts'
import { defineRun } from './commands/run.ts'
import { defineRuntime } from './commands/runtime.ts'
import { defineServe } from './commands/serve.ts'
import { defineShow } from './commands/show.ts'
import { defineStop } from './commands/stop.ts'
import { defineVersion } from './commands/version.ts'
import type { CommandContext } from './context.ts'
import { defineHelp } from './unknown-command.ts'

const EXAMPLES = `
Examples:
  corral serve                                   serve models on http://127.0.0.1:11435
  corral pull Qwen/Qwen3-0.6B-GGUF               download a model
  corral run corral/tiny-chat                    chat in the terminal
  corral run corral/tiny-chat "Who are you?"     one answer
  cat notes.txt | corral run me/model "Sum up:"  a prompt from a pipe
  corral import ./model.gguf me/model            register a model file that is already here
  corral import --from ollama                    see what another tool has downloaded already
  corral doctor                                  see what works on this machine, and what is missing
  corral runtime list                            see the llama.cpp builds that are here

How commands find a server:
  At the address that --host or --port names, and nowhere else; without these at the one that CORRAL_HOST or CORRAL_PORT
  names, at that of the server that holds the data directory, or at the configured one. When none runs, list, show, rm,
  import, pull, pulls, convert, doctor and runtime do their work without one, and run starts one for as long as it lasts.

Environment:
  CORRAL_HOME        the data directory (~/.corral): models, llama.cpp builds, logs
  CORRAL_CONFIG      the configuration file
  CORRAL_MODELS      where models lie, when not in the data directory
  CORRAL_HOST        address to listen on, and where commands look for the server (127.0.0.1)
  CORRAL_PORT        its port (11435)
  CORRAL_API_KEYS    keys that the server wants, separated by commas; commands send the first
  CORRAL_ORIGINS     web pages that may call the server, separated by commas
  CORRAL_INSECURE    true lets a server without keys listen beyond this machine
  CORRAL_LLAMA_CPP   a folder with llama-server and its companions
  CORRAL_LOG_LEVEL   least severe messages that are logged (info)
  HF_TOKEN           token for gated and private models of Hugging Face; HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE are heeded
  HTTPS_PROXY        proxy for downloads; HTTP_PROXY, NO_PROXY are heeded too
  CORRAL_DEBUG       shows where in corral an error came from
  NO_COLOR           no colours

Files:
  config.yaml in the working directory, else in the data directory, holds settings; "corral config show" tells which
  are in force and where each came from. The log of servers that commands start is logs/corral.log in the data
  directory; "corral serve" logs to standard output.

Exit codes:
  0 done   1 it failed   2 wrong usage or configuration   3 no server can be reached   4 no such model, or not loaded
  130 stopped by Ctrl-C`

/** The whole command line. Parsing fails with a CommanderError, after commander has said why. */
export function createProgram(context: CommandContext): Command {
  const program = new Command('corral')
    .description('Runs language models on this machine and serves them over REST.')
    .helpOption('-h, --help', 'show help')
    .option('--config <file>', 'configuration file')
    .option('--home <folder>', 'data directory')
    .option('--models <folder>', 'where models lie, when not in the data directory')
    .option('--host <address>', 'address to listen on, or of the server to talk to')
    .option('--port <number>', 'its port')
    .option(
      '--log-level <level>',
      'least severe messages that are logged: trace, debug, info, warn, error, fatal, silent'
    )
    .option('--llama-cpp <folder>', 'a folder with llama-server and its companions')
    .option('--insecure', 'let a server without keys listen beyond this machine')
    .configureHelp({ sortSubcommands: false })
    .showHelpAfterError('(add --help to see how it is used)')
    .exitOverride()
    .addHelpText('after', EXAMPLES)
  // The program would take the one of "corral runtime install" for its own.
  if (!process.argv.includes('runtime')) program.version(version, '-v, --version', 'print the version')
  for (const define of [
    defineServe,
    defineRun,
    definePull,
    definePulls,
    defineList,
    definePs,
    defineShow,
    defineLogs,
    defineStop,
    defineRm,
    defineImport,
    defineConvert,
    defineDoctor,
    defineRuntime,
    defineConfig,
    defineVersion
  ]) {
    define(program, context)
  }
  defineHelp(program)
  pointToGlobalOptions(program)
  return program
}

/** One line in the help of each command, in the place of the program's options once more. */
function pointToGlobalOptions(parent: Command): void {
  for (const command of parent.commands) {
    pointToGlobalOptions(command)
    if (command.name() === 'serve') command.configureHelp({ showGlobalOptions: true })
    else command.addHelpText('after', '\nOptions of all commands (--host, --port, --home, --config, …): corral --help')
  }
}
