import type { FastifyBaseLogger } from 'fastify'
import { progressText } from '../contracts/progress.ts'
import type { Lease, LeaseRequest, Scheduler } from '../contracts/scheduler.ts'
import type { CorralError } from '../errors.ts'
import { logFailure } from '../http/application.ts'
import { ClientGone } from '../http/client-signal.ts'
import { toCorralError } from '../http/native-error.ts'
import type { ReplyStream } from '../http/reply-stream.ts'

/**
 * Streams an answer from a leased engine: heartbeats tell what the lease waits for, and an engine that dies before
 * anything was sent is replaced once. `use` writes to the stream and ends it.
 */
export function withLeaseInStream(
  scheduler: Scheduler,
  request: LeaseRequest,
  stream: ReplyStream,
  use: (lease: Lease) => Promise<void>
): Promise<void> {
  return scheduler.withLease(
    {
      ...request,
      onProgress: progress => {
        stream.status = progressText(progress)
      },
      mayRetry: () => !stream.written
    },
    lease => {
      stream.status = 'generating'
      return use(lease)
    }
  )
}

/**
 * Runs work that writes to a stream. Its failure is thrown, and so becomes a status code, while the status line is not
 * out; after that it is the last event of the stream.
 */
export async function endWithFailure(
  stream: ReplyStream,
  log: FastifyBaseLogger,
  lastEvent: (failure: CorralError) => string,
  work: () => Promise<void>
): Promise<void> {
  try {
    await work()
  } catch (error) {
    if (!stream.committed) throw error
    if (error instanceof ClientGone) return
    const failure = toCorralError(error)
    logFailure(failure, log)
    stream.end(lastEvent(failure))
  }
}
