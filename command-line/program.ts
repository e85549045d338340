import type { Command } from 'commander'
import { version } from '../core/system/package-info.ts'
import { defineServe } from './commands/serve.ts'
import { type CommandContext, unknownCommand } from './context.ts'
import { CorralCommand } from './corral-command.ts'
import { fitText, outputWidth, wrapLines } from './output.ts'

const EXAMPLES = `
Examples:
  corral serve                                   serve models on http://127.0.0.1:11435
  corral open                                    open the server's page in the browser, as its admin
  corral search qwen3 8b                         search the hubs for a model
  corral pull Qwen/Qwen3-0.6B-GGUF               download a model
  corral run corral/tiny-chat                    chat in the terminal
  corral run corral/tiny-chat "Who are you?"     get one answer
  cat notes.txt | corral run me/model "Sum up:"  use a pipe as the prompt
  corral import ./model.gguf me/model            register a model file on this disk
  corral import --from ollama                    list the models of another tool
  corral bench corral/tiny-chat --quick          measure the speed of a model
  corral top                                     watch models, their speed and memory
  corral doctor                                  check what works on this machine, and what is missing
  corral runtime list                            list the installed llama.cpp builds
  corral key create alice                        create an API key; requests then need one
  corral usage                                   show the usage of each key
  corral audit --since 1h                        show who did what
  corral drain --wait                            finish active requests before stopping the server
  corral service install                         run as a systemd or launchd service

How commands find a server:
  With --host or --port, commands use only that address. Otherwise they try the address in CORRAL_HOST or CORRAL_PORT,
  the server that uses the data directory, and the configured address. The server of the data directory is reached
  through a private socket, which needs no key and allows everything. If no server is running, list, show, rm, import,
  search, pull, pulls, convert, doctor, runtime and usage work without one, and run starts a server that stops with it.

Environment:
  CORRAL_HOME        the data directory (~/.corral): models, llama.cpp builds, logs
  CORRAL_CONFIG      the configuration file
  CORRAL_MODELS      where models are stored (default: in the data directory)
  CORRAL_HOST        address to listen on, and where commands look for the server (127.0.0.1)
  CORRAL_PORT        port of that address (11435)
  CORRAL_API_KEYS    keys that the server accepts, separated by commas; commands use the first one
  CORRAL_ORIGINS     origins of web pages that may use the server, separated by commas
  CORRAL_INSECURE    true allows a server without keys to listen beyond this machine
  CORRAL_HISTORY     off disables the prompt history of chats
  CORRAL_LLAMA_CPP   a folder with llama-server and its libraries
  CORRAL_LOG_LEVEL   minimum level of logged messages (info)
  HF_TOKEN           token for gated and private models on Hugging Face; HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE work too
  HTTPS_PROXY        proxy for downloads; HTTP_PROXY and NO_PROXY work too
  NODE_EXTRA_CA_CERTS
                     a file of additional certificates that commands trust
  CORRAL_DEBUG       1 prints the stack traces of errors
  NO_COLOR           disables colours

Files:
  Settings are in config.yaml in the data directory. "serve", "config" and "doctor" prefer a config.yaml in the working
  directory, whose plugins and programs apply only after "corral config trust". "corral config show" shows all values
  and their origins. "corral serve" logs to standard output. Servers started by other commands log to logs/corral.log in
  the data directory.

Exit codes:
  0 done   1 failed   2 wrong usage or configuration
  3 no server can be reached   4 no such model, or not loaded
  130 interrupted by Ctrl-C`

/**
 * Defines all commands. Parsing fails with a CommanderError after commander has printed the reason.
 * @param argv arguments to parse. A server starts faster without the definitions of the other commands
 */
export async function createProgram(context: CommandContext, argv: readonly string[]): Promise<CorralCommand> {
  const program = new CorralCommand('corral')
    .description('Runs language models on this machine and serves them over REST.')
    .helpOption('-h, --help', 'show help')
    .option('--config <file>', 'configuration file')
    .option('--home <folder>', 'data directory')
    .option('--models <folder>', 'where models are stored (default: in the data directory)')
    .option('--host <address>', 'address to listen on, or of the server to use (https://… for TLS)')
    .option('--port <number>', 'port to listen on, or of the server to use')
    .option('--log-level <level>', 'minimum level of logged messages: trace, debug, info, warn, error, fatal, silent')
    .option('--llama-cpp <folder>', 'a folder with llama-server and its libraries')
    .option('--insecure', 'let a server without keys listen beyond this machine')
    .configureHelp({ sortSubcommands: false })
    .configureOutput({
      getOutHelpWidth: () => (process.stdout.isTTY ? outputWidth() : 80),
      getErrHelpWidth: () => (process.stderr.isTTY ? outputWidth(process.stderr) : 80),
      writeOut: text => process.stdout.write(fitText(text, outputWidth())),
      writeErr: text => process.stderr.write(wrapLines(text, outputWidth(process.stderr)))
    })
    .showSuggestionAfterError(false)
    .showHelpAfterError('(add --help to see the usage)')
    .exitOverride()
    .notes(EXAMPLES)
  // Otherwise the program would consume the --version of "corral runtime install".
  if (!argv.includes('runtime')) program.version(version, '-v, --version', 'print the version')
  if (argv[2] === 'serve') defineServe(program, context)
  else {
    const { COMMAND_GROUPS } = await import('./command-groups.ts')
    for (const [heading, defines] of COMMAND_GROUPS) {
      program.commandsGroup(heading)
      for (const define of defines) define(program, context)
    }
  }
  defineHelp(program)
  pointToGlobalOptions(program)
  return program
}

/** Adds one line to each command's help instead of repeating the global options. */
function pointToGlobalOptions(parent: Command): void {
  for (const command of parent.commands) {
    pointToGlobalOptions(command)
    if (command.name() === 'serve') command.configureHelp({ showGlobalOptions: true })
    else command.addHelpText('after', '\nOptions of all commands (--host, --port, --home, --config, …): corral --help')
  }
}

/** Adds `help [command...]`, which reports unknown commands, unlike commander's own. */
function defineHelp(program: CorralCommand): void {
  program
    .helpCommand(false)
    .command('help')
    .helpGroup('This machine:')
    .argument('[command...]')
    .description('show help for a command')
    .action((names: string[]) => {
      let shown: Command = program
      for (const name of names) {
        const called = (command: Command) => command.name() === name || command.aliases().includes(name)
        shown = shown.commands.find(called) ?? unknownCommand(shown, name)
      }
      shown.help()
    })
}
