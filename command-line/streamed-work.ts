import type { WorkStep } from '../core/contracts/native-records.ts'
import { CommandFailure, EXIT } from './failure.ts'
import type { ServerClient } from './server-client.ts'
import { showTransfers } from './transfer-display.ts'
import type { Shown } from './transfer-layout.ts'

/**
 * Has the server do what takes a while, with its progress on standard error; gives the last event.
 * @param options.what names the work in messages: `import of me/model`
 */
export async function streamWork<Result extends { status: 'success' }>(
  client: ServerClient,
  path: string,
  body: object,
  { first, what, unit }: { first: string; what: string; unit: Shown['unit'] }
): Promise<Result> {
  const display = await showTransfers({ first, subject: what, unit })
  let counted = ''
  try {
    for await (const part of client.stream<Result | WorkStep>(path, { ...body, stream: true })) {
      if ('status' in part) continue
      if (isResult(part.event)) return part.event
      const { status, completed, total = 0, step, steps = 1 } = part.event
      const label = step === undefined || steps < 2 ? status : `${status} (step ${step} of ${steps})`
      if (completed === undefined || total <= 0) {
        display.status(label)
        continue
      }
      // Each kind of work and each step is counted in units of its own.
      const counting = `${step} ${status.split(' ')[0]}`
      if (counting !== counted) display.transfers.reset()
      counted = counting
      display.update('work', completed, total, label)
    }
  } finally {
    display.clear()
  }
  throw new CommandFailure(EXIT.failure, `The server ended the ${what} without a result. Its log says more.`)
}

function isResult<Result extends { status: 'success' }>(event: Result | WorkStep): event is Result {
  return event.status === 'success'
}
