import { formatBytes } from '../bytes.ts'
import { formatDuration } from '../duration.ts'
import { CommandFailure, EXIT, Interrupted } from './failure.ts'
import { printable } from './output.ts'
import { showProgress } from './progress-line.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'
import { showTransfers, type TransferDisplay } from './transfer-display.ts'
import { percentOf } from './transfer-layout.ts'

/** What a pull's events carry. The first one tells what was chosen, those with a digest how far a file is. */
interface PullEvent {
  status?: string
  /** The file's path in the repository. */
  digest?: string
  completed?: number
  total?: number
  model?: string | { name: string }
  label?: string
  reason?: string
  size?: number
  warnings?: string[]
}

/** Failures after which nothing is kept. */
const FINAL_CODES = ['pull_cancelled', 'model_deleted']

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
  try {
    for await (const part of client.stream('/api/pull', { ...request, stream: true })) {
      if ('status' in part) continue
      const event: PullEvent = part.event
      name = modelOf(event) ?? name
      if (event.status === 'success') last = event
      else if (!display) {
        waiting.clear()
        process.stderr.write(`${printable(introduction(name, event))}\n`)
        display = await showTransfers({
          first: `starting the download of ${name}`,
          subject: name,
          unit: 'bytes',
          expected: event.size
        })
      } else if (event.digest === undefined) display.status(event.status)
      else display.update(event.digest, event.completed ?? 0, event.total ?? 0)
    }
  } catch (error) {
    throw display ? interrupted(error, display, reference) : error
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
  const total = display?.transfers.total ?? 0
  const done =
    total > 0
      ? `pulled ${name} (${formatBytes(total)}) in ${formatDuration(Date.now() - began)}`
      : `${name} is here already`
  process.stderr.write(`${printable(done)}. Try it with: corral run ${printable(name)}\n`)
}

/** What was chosen and why, and what people should know before. */
function introduction(name: string, { label, reason, size, warnings = [] }: PullEvent): string {
  const chosen = [label, size ? formatBytes(size) : undefined].filter(part => part !== undefined).join(', ')
  return [
    `pulling ${name}${chosen && `: ${chosen}`}`,
    ...(reason ? [`  ${reason}`] : []),
    ...warnings.map(warning => `warning: ${warning}`)
  ].join('\n')
}

function modelOf({ model }: PullEvent): string | undefined {
  return typeof model === 'object' ? model.name : model
}

/** A download that ended early, with what becomes of it. */
function interrupted(error: unknown, display: TransferDisplay, reference: string): unknown {
  const { completed, total, items } = display.transfers
  const again = `go on with: corral pull ${reference}`
  if (error instanceof Interrupted && error.exitCode !== 0) {
    const amount = items.length > 0 ? ` at ${percentOf(completed, total)} (${formatBytes(completed)})` : ''
    display.clear()
    process.stderr.write(`paused${amount}. What was fetched is kept; ${again}\n`)
    return error
  }
  if (!(error instanceof CommandFailure)) return error
  if (error instanceof ServerRefusal && FINAL_CODES.some(code => code === error.code)) return error
  return new CommandFailure(error.exitCode, `${error.message} What was fetched is kept; ${again}`, error)
}
