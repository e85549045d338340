import type { Command } from 'commander'
import type { PlanReply } from '../../core/contracts/native-records.ts'
import type { CommandContext } from '../context.ts'
import { CommandFailure, EXIT } from '../failure.ts'
import { modelArgument } from '../model-argument.ts'
import { printJson, printText } from '../output.ts'
import { formatPlan } from '../pull-plan.ts'
import { pullWithProgress } from '../pull-progress.ts'
import { withServer } from '../server-connection.ts'

interface PullOptions {
  as?: string
  dryRun?: boolean
  detach?: boolean
  json?: boolean
}

export function definePull(program: Command, context: CommandContext): void {
  program
    .command('pull')
    .description('download a model, or go on with a download')
    .argument('<reference>', '[hf:|csghub:|modelscope:]owner/name[:variant][@revision], or an address')
    .option('--as <model>', 'owner/name to store it under', modelArgument)
    .option('--dry-run', 'only tell what would be downloaded, and whether disk and memory suffice')
    .option('--detach', 'let the running server download it, without waiting for the end')
    .option('--json', 'with --dry-run: print the reply of POST /api/pull')
    .addHelpText(
      'after',
      `
Without a variant, the best one from Q4_K_M up that fits this machine's memory is taken. What is fetched is checked
against the hub's digests before the model exists. Ctrl-C pauses; the same command goes on where it stopped, also after
a crash. A model that is there already is only brought up to date.

Exit codes: 0 it is there (--dry-run: it would fit on the disk), 1 it failed (--dry-run: the disk is too small),
4 the hub has no such model.

Examples:
  corral pull Qwen/Qwen3-0.6B-GGUF
  corral pull Qwen/Qwen3-0.6B-GGUF:Q8_0
  corral pull modelscope:Qwen/Qwen3-0.6B-GGUF --dry-run
  corral pull https://example.com/files/model-q4_k_m.gguf --as me/model
  HF_TOKEN=hf_… corral pull meta-llama/Llama-3.2-1B-Instruct
  corral pull Qwen/Qwen3-32B-GGUF --detach && corral pulls`
    )
    .action((reference: string, options: PullOptions) => pull(context, reference, options))
}

async function pull(context: CommandContext, reference: string, options: PullOptions): Promise<void> {
  const { dryRun, detach, json } = options
  if (json && !dryRun) throw new CommandFailure(EXIT.usage, '--json goes with --dry-run.')
  if (detach && dryRun) throw new CommandFailure(EXIT.usage, '--detach and --dry-run do not go together.')
  const request = { model: reference, ...(options.as === undefined ? {} : { as: options.as }) }
  if (dryRun) {
    const plan = await withServer(context, 'aside', ({ client }) =>
      client.json<PlanReply>('POST', '/api/pull', { ...request, dry_run: true })
    )
    if (json) printJson(plan)
    else printText(formatPlan(plan, reference))
    if (!plan.disk.fits && !plan.present) process.exitCode = EXIT.failure
    return
  }
  if (detach) return await pullDetached(context, reference, request)
  await withServer(context, 'aside', ({ client }) => pullWithProgress(client, reference, request))
}

async function pullDetached(context: CommandContext, reference: string, request: object): Promise<void> {
  const body = { ...request, detach: true, stream: false }
  const reply = await withServer(
    context,
    'fail',
    ({ client }) => client.json<{ status?: string }>('POST', '/api/pull', body),
    { without: '--detach needs a running server: without one the download would stop when this command ends.' }
  )
  process.stderr.write(
    reply.status === 'success'
      ? `${reference} is here already\n`
      : `the server downloads ${reference}. Watch it with: corral pulls\n`
  )
}
