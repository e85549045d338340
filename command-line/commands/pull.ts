import type { Command } from 'commander'
import type { PlanReply, PullEvent, PullReply, ShownModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { formatDuration } from '../../core/system/duration.ts'
import { CommandFailure, EXIT, failure, forEach, interruption } from '../command-failure.ts'
import { type CommandContext, newModelArgument, unknownCommand } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { nextStep } from '../next-step.ts'
import {
  formatPairs,
  formatTable,
  outputWidth,
  printable,
  printJson,
  printNote,
  printText,
  wrapLines
} from '../output.ts'
import { formatPercent, formatTimeLeft, type Progress, showProgress } from '../progress-display.ts'
import { withChosenModel } from '../pull-choice.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { ask, type ServerConnection, withServer } from '../server-connection.ts'

interface PullOptions {
  as?: string
  member?: string
  dryRun?: boolean
  detach?: boolean
  json?: boolean
}

export function definePull(program: CorralCommand, context: CommandContext): void {
  program
    .command('pull')
    .description('download a model, or continue a download')
    .argument('<reference>', '[hf:|csghub:|modelscope:]owner/name[:variant][@revision], or a URL')
    .option('--as <model>', 'name to store it as: owner/name', newModelArgument)
    .option('--member <name>', 'store it on this member of the cluster, copied from another member if one has it')
    .option('--dry-run', 'only show what would be downloaded, and whether it fits the disk and the memory')
    .option('--detach', 'download in the running server, without waiting for the end')
    .option('--json', 'with --dry-run: print the reply of POST /api/pull')
    .notes(`
Without a variant, the best one from Q4_K_M up that fits this machine's memory is chosen. If the repository contains
several models, you are asked to choose one. Without a terminal, the command lists them and fails. Every file is checked
against the hub's digests before the model is stored. Ctrl-C pauses the download, unless another client uses it too. Run
the same command again to continue, even after a crash. For a model that is already downloaded, only updates are fetched.

Exit codes: 0 downloaded (--dry-run: it fits on the disk), 1 failed (--dry-run: the disk is too small), 4 the hub has no
such model.

Examples:
  corral pull Qwen/Qwen3-0.6B-GGUF
  corral pull Qwen/Qwen3-0.6B-GGUF:Q8_0
  corral pull modelscope:Qwen/Qwen3-0.6B-GGUF --dry-run
  corral pull https://example.com/files/model-q4_k_m.gguf --as me/model
  HF_TOKEN=hf_… corral pull meta-llama/Llama-3.2-1B-Instruct
  corral pull Qwen/Qwen3-32B-GGUF --detach && corral pulls`)
    .action((reference: string, options: PullOptions) => pull(context, reference, options))
}

async function pull(context: CommandContext, reference: string, options: PullOptions): Promise<void> {
  const { dryRun, detach, json } = options
  if (json && !dryRun) throw new CommandFailure(EXIT.usage, '--json requires --dry-run.')
  if (detach && dryRun) throw new CommandFailure(EXIT.usage, '--detach and --dry-run cannot be combined.')
  if (options.member !== undefined && (dryRun || detach)) {
    throw new CommandFailure(EXIT.usage, '--member cannot be combined with --dry-run or --detach.')
  }
  const { as, member } = options
  const more = { ...(as !== undefined && { as }), ...(member !== undefined && { member }) }
  await withChosenModel(reference, async model => {
    const request = { model, ...more }
    if (dryRun) {
      const plan = await ask<PlanReply>(context, 'POST', '/api/pull', { ...request, dry_run: true })
      if (json) printJson(plan)
      else printText(formatPlan(plan, model))
      if (!plan.disk.fits && !plan.present) process.exitCode = EXIT.failure
    } else if (detach) await pullDetached(context, model, request)
    else await withServer(context, 'aside', ({ client }) => pullWithProgress(client, model, request, true))
  })
}

async function pullDetached(context: CommandContext, reference: string, request: object): Promise<void> {
  const body = { ...request, detach: true, stream: false }
  const reply = await ask<{ status?: string }>(context, 'POST', '/api/pull', body, {
    whenNone: 'fail',
    without: '--detach requires a running server. Without one, the download stops with this command.'
  })
  printNote(
    reply.status === 'success'
      ? `${reference} is already downloaded`
      : `The server is downloading ${reference}. Watch it with: corral pulls`
  )
}

/** Matches error messages that already explain what happens to the download. */
const SAYS_WHAT_BECOMES = /\b(?:kept|removed|deleted|pull)\b/i

/**
 * Starts, joins or continues a download, and shows the chosen file and the progress on standard error.
 * @param reference reference as typed, for suggested commands
 * @param suggests whether the final note suggests what to do with the model
 */
export async function pullWithProgress(
  client: ServerClient,
  reference: string,
  request: object,
  suggests: boolean
): Promise<void> {
  const began = performance.now()
  const isAtMember = 'member' in request
  const interrupted = interruption()
  // Ctrl-C ends the download before the connection. Otherwise the server would continue for some seconds.
  const calm = client.uninterrupted()
  const end = new AbortController()
  let left: Promise<string> | undefined
  const onInterrupt = () => {
    const whenTold = () => end.abort(interrupted.reason)
    // A member pauses the download on its own some seconds later.
    if (!progress || isAtMember) return whenTold()
    left = leave(calm, name, reference)
    void left.then(whenTold)
  }
  const waiting = await showProgress(`looking for ${reference}`, { plain: 'nothing' })
  let progress: Progress | undefined
  let name = reference
  let succeeded = false
  let warnings: string[] = []
  interrupted.addEventListener('abort', onInterrupt)
  try {
    interrupted.throwIfAborted()
    const path = isAtMember ? '/api/cluster/pull' : '/api/pull'
    const events = calm.stream<PullEvent>(path, { ...request, stream: true }, { signal: end.signal })
    for await (const event of events) {
      if (event.model) name = event.label ? `${event.model}:${event.label}` : event.model
      if (event.status === 'success') {
        succeeded = true
        warnings = event.warnings ?? []
      } else if (event.present) continue
      else if (!progress) {
        waiting.clear()
        printNote(printable(introduction(name, event)))
        const first = `starting the download of ${name}`
        progress = await showProgress(first, { subject: name, expected: event.size })
      } else if (event.digest === undefined) progress.status(event.status)
      else progress.update(event.digest, event.completed ?? 0, event.total ?? 0)
    }
  } catch (error) {
    if (!interrupted.aborted) throw progress ? endedEarly(error, reference) : error
  } finally {
    interrupted.removeEventListener('abort', onInterrupt)
    waiting.clear()
    progress?.clear()
  }
  if (interrupted.aborted && !succeeded) {
    if (left) printNote(printable(await left))
    throw interrupted.reason
  }
  if (!succeeded) {
    throw failure(
      `The server ended the download of ${name} without a result. See its log for the reason. The downloaded part is kept; continue with: corral pull ${reference}`
    )
  }
  const amount = progress?.transfers.items.length ? formatBytes(progress.transfers.total) : undefined
  const done = amount
    ? `pulled ${name} (${amount}) in ${formatDuration(performance.now() - began)}`
    : `${name} is already downloaded`
  for (const warning of warnings) printNote(printable(`warning: ${warning}`))
  printNote(printable(`${done}${suggests ? await suggestion(client, name) : ''}`))
}

/** Suggests what to do with a pulled model. The server does not have the model if another server pulled it. */
async function suggestion(client: ServerClient, model: string): Promise<string> {
  try {
    const { capabilities } = await client.json<ShownModel>('POST', '/api/show', { model })
    return nextStep(model, capabilities)
  } catch (error) {
    if (error instanceof ServerRefusal) return nextStep(model, ['completion'])
    throw error
  }
}

function introduction(name: string, { reason, size, warnings = [] }: PullEvent): string {
  return [
    `pulling ${name}${size ? ` (${formatBytes(size)})` : ''}`,
    ...(reason ? [`  ${reason}`] : []),
    ...warnings.map(warning => `warning: ${warning}`)
  ].join('\n')
}

/** Time limit for the server to report the state of an abandoned download. */
const LEAVE_TIMEOUT_MS = 5000

/**
 * Pauses a download immediately, unless other clients need it. Otherwise the server would pause it some seconds after
 * the client has gone.
 * @returns a sentence about its state and size on disk
 */
async function leave(client: ServerClient, name: string, reference: string): Promise<string> {
  const again = `continue with: corral pull ${reference}`
  const tooLate = new AbortController()
  const timer = setTimeout(() => tooLate.abort(), LEAVE_TIMEOUT_MS)
  try {
    const body = { model: name, unless_shared: true }
    const { state, detached, completed, total } = await client.json<PullReply>(
      'POST',
      '/api/pulls/pause',
      body,
      tooLate.signal
    )
    const amount = completed > 0 ? ` at ${formatPercent(completed, total)} (${formatBytes(completed)})` : ''
    if (state === 'paused' || state === 'failed') return `paused${amount}. The downloaded part is kept; ${again}`
    if (detached) return `left${amount}. The server continues the download. See "corral pulls", or ${again}`
    return `left${amount}. The server continues the download for another client. To pause it, run: corral pulls pause ${name}`
  } catch (error) {
    if (error instanceof ServerRefusal && error.code === 'model_not_found') {
      return `left. The download has already ended. See "corral list".`
    }
    return `left. The server did not report the state of the download. See "corral pulls", or ${again}`
  } finally {
    clearTimeout(timer)
  }
}

function endedEarly(error: unknown, reference: string): unknown {
  if (!(error instanceof CommandFailure)) return error
  if (error instanceof ServerRefusal && SAYS_WHAT_BECOMES.test(error.message)) return error
  const again = `continue with: corral pull ${reference}`
  return new CommandFailure(error.exitCode, `${error.message} The downloaded part is kept; ${again}`, error)
}

export function formatPlan(plan: PlanReply, reference: string): string {
  const { label, format, repository, files, size, reason, choices, memory, disk, warnings, present } = plan
  const variant = formatPairs([
    ['variant', label],
    ['chosen', reason],
    ['format', format],
    ['from', `${repository.address} (${repository.hub})`],
    ['revision', repository.revision],
    ['disk', roomText(disk, 'free')],
    ['memory', roomText(memory, 'available')]
  ])
  const fileRows = files.map(file => [
    file.size === undefined ? 'unknown' : formatBytes(file.size),
    file.role,
    file.path
  ])
  if (files.length > 1) fileRows.push([formatBytes(size), '', 'total'])
  const sections = [
    `${plan.model}\n${variant}`,
    `Files\n${indent(formatTable(['>SIZE', 'ROLE', 'FILE'], fileRows, outputWidth() - 2))}`
  ]
  const others = choices.filter(choice => choice.label !== label)
  if (others.length > 0) {
    const rows = others.map(choice => [formatBytes(choice.size), choice.label])
    sections.push(`Other choices\n${indent(formatTable(['>SIZE', 'VARIANT'], rows, outputWidth() - 2))}`)
  }
  if (warnings.length > 0) sections.push(`Warnings\n${indent(warnings.join('\n'))}`)
  sections.push(
    present
      ? 'Already downloaded, so nothing would be downloaded.'
      : `Nothing was downloaded. Get it with: corral pull ${reference}`
  )
  return wrapLines(printable(sections.join('\n\n')))
}

export function roomText({ required, available, fits }: PlanReply['disk'], what: string): string {
  return `${formatBytes(required)} needed, ${formatBytes(available)} ${what}${fits ? '' : ': not enough'}`
}

function indent(text: string): string {
  return text.replace(/^/gm, '  ')
}

const DONE = { pause: 'paused', resume: 'resumed', cancel: 'cancelled' } as const

export function definePulls(program: CorralCommand, context: CommandContext): void {
  const pulls = program
    .command('pulls')
    .description('list unfinished downloads; pause, resume or cancel them')
    .option('--json', 'print the records of GET /api/pulls')
    .notes(`
Refer to a download by its model or its id (see --json). "corral pull <model>" also resumes it and shows progress.

Examples:
  corral pulls
  corral pulls pause Qwen/Qwen3-32B-GGUF
  corral pulls cancel Qwen/Qwen3-32B-GGUF:Q8_0`)
    .allowExcessArguments()
    .action(async ({ json }: { json?: boolean }) => {
      if (pulls.args[0] !== undefined) unknownCommand(pulls, pulls.args[0])
      const { reply, own } = await withServer(context, 'aside', async connection => ({
        reply: await connection.client.json<{ pulls: PullReply[] }>('GET', '/api/pulls'),
        own: connection.own
      }))
      if (json) return printJson(reply)
      if (own && reply.pulls.some(({ state }) => state !== 'paused' && state !== 'failed')) {
        printNote('No server is running. Downloads continue when one starts: corral serve')
      }
      if (process.stderr.isTTY && reply.pulls.length === 0) {
        printNote('There are no downloads. Start one with: corral pull <owner>/<name>')
      }
      printText(formatPulls(reply.pulls))
    })
  for (const [action, description] of [
    ['pause', 'pause a download and keep the downloaded part'],
    ['resume', 'resume a download in the running server'],
    ['cancel', 'cancel a download and delete the downloaded part']
  ] as const) {
    pulls
      .command(action)
      .description(description)
      .argument('<download...>', 'models, or ids of downloads')
      .option('--json', "print the server's replies")
      .action((names: string[]) => changePulls(context, action, names, pulls))
  }
}

async function changePulls(context: CommandContext, action: keyof typeof DONE, names: string[], pulls: Command) {
  const resume = action === 'resume'
  const without = {
    why: 'Only a running server can resume a download in the background.',
    or: () => `continue it here with "corral pull ${names[0]}"`
  }
  const replies: unknown[] = []
  const change = async ({ client }: ServerConnection) =>
    await forEach(names, async name => {
      const body = name.includes('/') ? { model: name } : { id: name }
      replies.push(await client.json('POST', `/api/pulls/${action}`, body))
      printNote(`${DONE[action]} ${name}`)
    })
  try {
    await withServer(context, resume ? 'fail' : 'aside', change, resume ? without : undefined)
  } finally {
    if (pulls.opts().json) printJson(replies)
  }
}

export function formatPulls(pulls: PullReply[]): string {
  return printable(
    formatTable(
      ['MODEL', 'STATE', '>DONE', 'AMOUNT', '>SPEED', '>LEFT', 'WHY'],
      pulls.map(({ model, state, completed, total, speed, reason }) => [
        model,
        state,
        formatPercent(completed, total),
        `${formatBytes(completed)} of ${formatBytes(total)}`,
        speed > 0 ? `${formatBytes(Math.round(speed))}/s` : '',
        formatTimeLeft(total - completed, speed) ?? '',
        reason ?? ''
      ])
    )
  )
}
