import { setTimeout as sleep } from 'node:timers/promises'
import { parseDuration } from '../../core/system/duration.ts'
import { plural } from '../../core/system/plural.ts'
import type { DrainState } from '../../plugins/apis/native/readiness.ts'
import { failure, interruption } from '../command-failure.ts'
import { type CommandContext, usageFailure } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { printNote } from '../output.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

const POLL_INTERVAL_MS = 250

interface DrainOptions {
  wait?: boolean
  timeout?: string
  undo?: boolean
}

export function defineDrain(program: CorralCommand, context: CommandContext): void {
  program
    .command('drain')
    .description('stop accepting requests for models, so that the server can be stopped')
    .option('--wait', 'wait until all requests have finished')
    .option('--timeout <duration>', 'maximum time to wait, such as 5m')
    .option('--undo', 'accept requests again')
    .notes(`
Active and queued requests are finished. New requests get 503 "draining" with Retry-After, and /readyz reports that the
server is not ready. Lists, keys, metrics and pulls keep working. --undo or a restart of the server ends the drain.
Exit codes: 0 done, 1 requests were still active after --timeout (the drain continues), 3 no server is running.

Examples:
  corral drain --wait --timeout 10m
  corral drain --undo`)
    .action(async ({ wait, timeout, undo }: DrainOptions) => {
      const limit = timeout === undefined ? Number.POSITIVE_INFINITY : parseDuration(timeout)
      if (limit === undefined || limit < 0)
        throw usageFailure(`"${timeout}" is not a valid duration. Use one such as 5m.`)
      if (undo && (wait || timeout !== undefined))
        throw usageFailure('--undo cannot be combined with --wait or --timeout.')
      await withServer(context, 'fail', async ({ client }) => {
        if (undo) {
          await client.json<DrainState>('DELETE', '/api/drain')
          return printNote('The server accepts requests again.')
        }
        const { open } = await client.json<DrainState>('POST', '/api/drain')
        printNote(`The server accepts no new requests; ${openText(open)}.`)
        if (wait || timeout !== undefined) await untilEnded(client, limit)
      })
    })
}

async function untilEnded(client: ServerClient, limit: number): Promise<void> {
  const signal = interruption()
  const began = performance.now()
  for (;;) {
    const { draining, open } = await client.json<DrainState>('GET', '/api/drain')
    if (!draining)
      throw failure(
        'Someone ended the drain, and the server accepts requests again. Start over with: corral drain --wait'
      )
    if (open === 0) return printNote('All requests have finished. The server can be stopped.')
    if (performance.now() - began >= limit) {
      throw failure(
        `The drain timed out: ${openText(open)}. The server still accepts no new requests. Wait longer, or end the drain with: corral drain --undo`
      )
    }
    await sleep(POLL_INTERVAL_MS, undefined, { signal }).catch(() => signal.throwIfAborted())
  }
}

function openText(open: number): string {
  return `${plural(open, 'request')} ${open === 1 ? 'is' : 'are'} open`
}
