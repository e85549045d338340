import { resolve } from 'node:path'
import { type Command, Option } from 'commander'
import type { ImportedReply } from '../../core/contracts/native-records.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { CommandContext } from '../context.ts'
import { CommandFailure, EXIT } from '../failure.ts'
import { importFound, listFound } from '../import-found.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'
import { streamWork } from '../streamed-work.ts'

interface ImportOptions {
  from?: string
  list?: boolean
  all?: boolean
  json?: boolean
}

export function defineImport(program: Command, context: CommandContext): void {
  program
    .command('import')
    .description('register models that are already on disk')
    .usage('[options] <path> <model>\n       corral import --from <tool> [model...]')
    .argument('[path]', 'a GGUF file (its other parts and projector are found beside it) or a SafeTensors folder')
    .argument('[model]', 'owner/name to store it under, or owner/name:variant to set its label')
    .argument('[more...]', 'with --from, all arguments are models that the tool has')
    .addOption(
      new Option('--from <tool>', 'take models that another tool has downloaded').choices([
        'huggingface',
        'ollama',
        'lm-studio'
      ])
    )
    .option('--list', 'with --from: show what the tool has, and change nothing')
    .option('--all', 'with --from: take all that can be taken')
    .option('--json', 'with --list: print the reply of GET /api/import/found')
    .addHelpText(
      'after',
      `
The files are shared with the originals where the disk allows it (no space is taken twice), else copied. The originals
stay as they are.

Examples:
  corral import ./qwen2.5-0.5b-instruct-q4_k_m.gguf qwen/qwen2.5-0.5b-instruct
  corral import ~/models/my-finetune me/finetune
  corral import --from ollama
  corral import --from huggingface Qwen/Qwen3-0.6B-GGUF
  corral import --from lm-studio --all`
    )
    .action(async (path: string | undefined, model: string | undefined, more: string[], options: ImportOptions) => {
      const given = [path, model, ...more].filter(argument => argument !== undefined)
      const { from } = options
      checkUsage(given, options)
      await withServer(context, 'aside', async ({ client }) => {
        if (from === undefined) await importPath(client, resolve(context.cwd, given[0]!), given[1]!)
        else if (options.list || (given.length === 0 && !options.all)) await listFound(client, from, options)
        else await importFound(client, from, given)
      })
    })
}

/** Before a server is started for it. @throws CommandFailure, and CorralError `invalid_model_name` */
function checkUsage(given: string[], { from, list, all, json }: ImportOptions): void {
  const wrong = (message: string) => {
    throw new CommandFailure(EXIT.usage, `${message}\n(add --help to see how it is used)`)
  }
  if (from === undefined) {
    if (list || all || json) wrong('--list, --all and --json need --from, which names the tool whose models are meant.')
    if (given.length !== 2) wrong('Give a path and the name to store the model under, or a tool with --from.')
    parseModelName(given[1])
    return
  }
  if (list && all) wrong('--list changes nothing, --all takes everything: give one of them.')
  if (all && given.length > 0) wrong('Name models, or give --all, but not both.')
  if (list && given.length > 0) wrong('--list shows all that the tool has: leave the names out.')
  if (json && (all || given.length > 0)) wrong('--json goes with --list.')
}

async function importPath(client: ServerClient, path: string, model: string): Promise<void> {
  const { model: stored } = await streamWork<ImportedReply>(
    client,
    '/api/import',
    { path, model },
    { first: `reading ${path}`, what: `import of ${path}`, unit: 'bytes' }
  )
  const { name, size } = stored
  process.stderr.write(`imported ${name} (${formatBytes(size)}). Try it with: corral run ${name}\n`)
}
