import type { PlanReply, PullEvent, PullReply, ShownModel } from '../../core/contracts/native-records.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { formatDuration } from '../../core/system/duration.ts'
import { CommandFailure, EXIT, failure, forEach, interruption } from '../command-failure.ts'
import { type CommandContext, newModelArgument, type Options } from '../context.ts'
import {
  formatPairs,
  formatTable,
  outputWidth,
  printable,
  printJson,
  printNote,
  printResult,
  wrapLines
} from '../output.ts'
import { formatPercent, formatTimeLeft, type Progress, showProgress } from '../progress-display.ts'
import { atTerminal, pickOne } from '../questions.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { ask, type ServerConnection, withServer } from '../server-connection.ts'
import { nextStep } from './stored-models.ts'

type PullOptions = Options<'dryRun' | 'detach' | 'json', 'as' | 'member' | 'from'>

export async function pull(context: CommandContext, reference: string, options: PullOptions): Promise<void> {
  const { as, member, from, dryRun, detach, json } = options
  if (as !== undefined) newModelArgument(as)
  await withChosenModel(reference, async model => {
    const request = {
      model,
      ...(as !== undefined && { as }),
      ...((member ?? from) !== undefined && { member: member ?? from })
    }
    if (dryRun) {
      const plan = await ask<PlanReply>(context, 'POST', '/api/pull', { ...request, dry_run: true })
      printResult(json, plan, () => formatPlan(plan, model))
      if (!plan.disk.fits && !plan.present) process.exitCode = EXIT.failure
    } else if (detach) await pullDetached(context, model, request)
    else
      await withServer(context, 'aside', ({ client }) =>
        pullWithProgress(client, model, request, true, from && '/api/cluster/fetch')
      )
  })
}

/**
 * Runs work on a hub's model, or on the one that the user picks if the name is ambiguous.
 * @throws errors of `work`; Interrupted if nothing is picked
 */
export async function withChosenModel<T>(model: string, work: (model: string) => Promise<T>): Promise<T> {
  try {
    return await work(model)
  } catch (error) {
    const choices =
      error instanceof ServerRefusal &&
      (error.details.choices as (PlanReply['choices'][number] & { model: string })[] | undefined)
    if (!choices || choices.length === 0 || !atTerminal()) throw error
    const options = choices.map(({ label, size, model: value }) => ({ value, label, size }))
    return await work(await pickOne(`Several models match ${printable(model)}. Which one?`, options, process.stderr))
  }
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
const EXPLAINS_DOWNLOAD = /\b(?:kept|removed|deleted|pull)\b/i

/**
 * Starts, joins or continues a download, and shows the chosen file and the progress on standard error.
 * @param reference the name as typed, for suggested commands
 */
export async function pullWithProgress(
  client: ServerClient,
  reference: string,
  request: object,
  suggests: boolean,
  path?: string
) {
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
    const usual = isAtMember ? '/api/cluster/pull' : '/api/pull'
    const events = calm.stream<PullEvent>(path ?? usual, { ...request, stream: true }, { signal: end.signal })
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
    const ended = `The server ended the download of ${name} without a result. See its log for the reason.`
    throw failure(`${ended} The downloaded part is kept; continue with: corral pull ${reference}`)
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

/** Pauses a download now, unless other clients need it. @returns a sentence about its state and size on disk */
async function leave(client: ServerClient, name: string, reference: string): Promise<string> {
  const again = `continue with: corral pull ${reference}`
  try {
    const { state, detached, completed, total } = await client.json<PullReply>(
      'POST',
      '/api/pulls/pause',
      { model: name, unless_shared: true },
      abortAfter(LEAVE_TIMEOUT_MS)
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
  }
}

function endedEarly(error: unknown, reference: string): unknown {
  if (!(error instanceof CommandFailure)) return error
  if (error instanceof ServerRefusal && EXPLAINS_DOWNLOAD.test(error.message)) return error
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

export async function pulls(context: CommandContext, { json }: Options): Promise<void> {
  await withServer(context, 'aside', async connection => {
    const reply = await connection.client.json<{ pulls: PullReply[] }>('GET', '/api/pulls')
    const { pulls } = reply
    if (!json && connection.own && pulls.some(({ state }) => state !== 'paused' && state !== 'failed')) {
      printNote('No server is running. Downloads continue when one starts: corral serve')
    }
    if (!json && process.stderr.isTTY && pulls.length === 0) {
      printNote('There are no downloads. Start one with: corral pull <owner>/<name>')
    }
    printResult(json, reply, () => formatPulls(pulls))
  })
}

const change =
  (action: 'pause' | 'resume' | 'cancel', done: string) =>
  async (context: CommandContext, names: string[], { json }: Options): Promise<void> => {
    const resume = action === 'resume'
    const without = {
      why: 'Only a running server can resume a download in the background.',
      or: () => `continue it here with "corral pull ${names[0]}"`
    }
    const replies: unknown[] = []
    const changeAll = async ({ client }: ServerConnection) =>
      await forEach(names, async name => {
        const body = name.includes('/') ? { model: name } : { id: name }
        replies.push(await client.json('POST', `/api/pulls/${action}`, body))
        printNote(`${done} ${name}`)
      })
    try {
      await withServer(context, resume ? 'fail' : 'aside', changeAll, resume ? without : undefined)
    } finally {
      if (json) printJson(replies)
    }
  }

export const pullsPause = change('pause', 'paused')
export const pullsResume = change('resume', 'resumed')
export const pullsCancel = change('cancel', 'cancelled')

export function formatPulls(pulls: PullReply[]): string {
  const rows = pulls.map(({ model, state, completed, total, speed, reason = '' }) => [
    model,
    state,
    formatPercent(completed, total),
    `${formatBytes(completed)} of ${formatBytes(total)}`,
    speed > 0 ? `${formatBytes(Math.round(speed))}/s` : '',
    formatTimeLeft(total - completed, speed) ?? '',
    reason
  ])
  return formatTable(['MODEL', 'STATE', '>DONE', 'AMOUNT', '>SPEED', '>LEFT', 'WHY'], rows)
}
