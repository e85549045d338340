import { resolve } from 'node:path'
import type { SingleBar } from 'cli-progress'
import type { Command } from 'commander'
import { formatBytes } from '../../bytes.ts'
import type { CommandContext } from '../context.ts'
import { CommandFailure, EXIT } from '../failure.ts'
import { modelArgument } from '../model-argument.ts'
import { type ProgressLine, showProgress } from '../progress-line.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

export function defineImport(program: Command, context: CommandContext): void {
  program
    .command('import')
    .description('register a model that is already on disk')
    .argument('<path>', 'a GGUF file (its other parts and projector are found beside it) or a SafeTensors folder')
    .argument('<model>', 'owner/name to store it under, or owner/name:variant to set its label', modelArgument)
    .addHelpText(
      'after',
      `
The files are shared with the originals where the disk allows it (no space is taken twice), else copied. The originals
stay as they are.

Examples:
  corral import ./qwen2.5-0.5b-instruct-q4_k_m.gguf qwen/qwen2.5-0.5b-instruct
  corral import ~/models/my-finetune me/finetune`
    )
    .action(async (path: string, model: string) => {
      await withServer(context, 'aside', ({ client }) => importModel(client, resolve(context.cwd, path), model))
    })
}

async function importModel(client: ServerClient, path: string, model: string): Promise<void> {
  const display = transferDisplay(`reading ${path}`, await import('cli-progress'))
  let stored: { name?: string; size?: number } | undefined
  try {
    for await (const part of client.stream('/api/import', { path, model, stream: true })) {
      if ('status' in part) continue
      const { status, completed, total } = part.event
      if (status === 'success') stored = (part.event.model ?? {}) as { name?: string; size?: number }
      else display.update(String(status), Number(completed), Number(total))
    }
  } finally {
    display.clear()
  }
  if (!stored) {
    throw new CommandFailure(
      EXIT.failure,
      `The server ended the import of ${path} without a result. Its log says more.`
    )
  }
  const size = stored.size === undefined ? '' : ` (${formatBytes(stored.size)})`
  process.stderr.write(`imported ${stored.name ?? model}${size}. Try it with: corral run ${stored.name ?? model}\n`)
}

/** A spinner until there is something to count, then a bar; elsewhere than on a terminal a line now and then. */
function transferDisplay(first: string, { SingleBar: Bar }: typeof import('cli-progress')) {
  const line: ProgressLine = showProgress(first, 'plain lines')
  let bar: SingleBar | undefined
  return {
    update(status: string, completed: number, total: number): void {
      const counted = Number.isFinite(completed) && total > 0
      if (!process.stderr.isTTY || !counted) {
        line.update(counted ? `${status} ${formatBytes(completed)} of ${formatBytes(total)}` : status)
        return
      }
      if (!bar) {
        line.clear()
        bar = new Bar({
          stream: process.stderr,
          format: '{status} {bar} {percentage}% {amount}',
          barsize: 30,
          barCompleteChar: '█',
          barIncompleteChar: '░',
          hideCursor: true,
          clearOnComplete: true
        })
        bar.start(total, completed, { status, amount: '' })
      }
      bar.setTotal(total)
      bar.update(completed, { status, amount: `${formatBytes(completed)} of ${formatBytes(total)}` })
    },
    clear(): void {
      bar?.stop()
      line.clear()
    }
  }
}
