import type { PullEvent, PullReply } from '../core/contracts/native-records.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { formatDuration } from '../core/system/duration.ts'
import { CommandFailure, EXIT, Interrupted } from './failure.ts'
import { printable } from './output.ts'
import { showProgress } from './progress-line.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'
import { showTransfers, type TransferDisplay } from './transfer-display.ts'
import { percentOf } from './transfer-layout.ts'

/** Failures whose own words say what becomes of the download. */
const FINAL_CODES = ['pull_cancelled', 'model_deleted', 'shutting_down']

/**
 * Downloads a model, joins its download or goes on with it; on standard error it says what was chosen and how far it is.
 * @param reference as it was typed: for what to type next
 */
export async function pullWithProgress(client: ServerClient, reference: string, request: object): Promise<void> {
  const began = Date.now()
  const waiting = showProgress(`looking for ${reference}`, 'nothing')
  let display: TransferDisplay | undefined
  let name = reference
  let last: PullEvent | undefined
  let goesOn: Promise<boolean> | undefined
  try {
    for await (const part of client.stream<PullEvent>('/api/pull', { ...request, stream: true })) {
      if ('status' in part) continue
      const { event } = part
      if (event.model) name = event.label ? `${event.model}:${event.label}` : event.model
      if (event.status === 'success') last = event
      else if (event.present) continue
      else if (!display) {
        waiting.clear()
        process.stderr.write(`${printable(introduction(name, event))}\n`)
        display = await showTransfers({
          first: `starting the download of ${name}`,
          subject: name,
          unit: 'bytes',
          expected: event.size
        })
        goesOn = isDetached(client, name)
      } else if (event.digest === undefined) display.status(event.status)
      else display.update(event.digest, event.completed ?? 0, event.total ?? 0)
    }
  } catch (error) {
    throw display ? await interrupted(error, display, reference, goesOn) : error
  } finally {
    waiting.clear()
    display?.clear()
  }
  if (!last) {
    throw new CommandFailure(
      EXIT.failure,
      `The server ended the download of ${name} without a result. Its log says more. What was fetched is kept; go on with: corral pull ${reference}`
    )
  }
  const fetched = display && display.transfers.items.length > 0 ? display.transfers.total : undefined
  const done =
    fetched === undefined
      ? `${name} is here already`
      : `pulled ${name} (${formatBytes(fetched)}) in ${formatDuration(Date.now() - began)}`
  process.stderr.write(`${printable(done)}. Try it with: corral run ${printable(name)}\n`)
}

/** What was chosen and why, and what people should know before. */
function introduction(name: string, { reason, size, warnings = [] }: PullEvent): string {
  return [
    `pulling ${name}${size ? ` (${formatBytes(size)})` : ''}`,
    ...(reason ? [`  ${reason}`] : []),
    ...warnings.map(warning => `warning: ${warning}`)
  ].join('\n')
}

/** Whether the server downloads this without anybody watching: it was joined, and leaving does not pause it. */
async function isDetached(client: ServerClient, name: string): Promise<boolean> {
  try {
    const { pulls } = await client.json<{ pulls: PullReply[] }>('GET', '/api/pulls')
    return pulls.some(({ model, detached }) => detached && model.toLowerCase() === name.toLowerCase())
  } catch {
    // It only decides on a word of farewell; a server in trouble is told of by the download itself.
    return false
  }
}

/** A download that ended early for this command, with what becomes of it. */
async function interrupted(
  error: unknown,
  display: TransferDisplay,
  reference: string,
  goesOn: Promise<boolean> | undefined
): Promise<unknown> {
  const { completed, total, items } = display.transfers
  const again = `go on with: corral pull ${reference}`
  if (error instanceof Interrupted && error.exitCode !== 0) {
    const amount = items.length > 0 ? ` at ${percentOf(completed, total)} (${formatBytes(completed)})` : ''
    display.clear()
    process.stderr.write(
      (await goesOn)
        ? `left${amount}. The server goes on with it; see "corral pulls", or ${again}\n`
        : `paused${amount}. What was fetched is kept; ${again}\n`
    )
    return error
  }
  if (!(error instanceof CommandFailure)) return error
  if (error instanceof ServerRefusal && FINAL_CODES.some(code => code === error.code)) return error
  return new CommandFailure(error.exitCode, `${error.message} What was fetched is kept; ${again}`, error)
}
