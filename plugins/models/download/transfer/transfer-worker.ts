import { parentPort, workerData } from 'node:worker_threads'
import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { TransferEngine } from './transfer-engine.ts'
import type { FromRun, RunMessage, ToRun } from './transfers.ts'

/** Runs the transfer engine in a thread, so that a fast download does not delay the main thread. */
const engine = new TransferEngine({ ...workerData, log: (message: string) => parentPort!.postMessage(message) })

async function run({ identity, files, port }: RunMessage): Promise<void> {
  const post = (message: FromRun) => port.postMessage(message)
  const controller = new AbortController()
  // A file has one request for a location at a time.
  const locating = new Map<number, { resolve(location: FileLocation): void; reject(error: Error): void }>()
  port.on('message', (message: ToRun) => {
    if (message.type === 'abort') {
      // The main thread has the reason.
      controller.abort(new Error('aborted'))
      return
    }
    const waiting = locating.get(message.index)
    if (typeof message.location === 'object') waiting?.resolve(message.location)
    // The main thread knows the reason, and fails the run with it unless the file is optional.
    else waiting?.reject(new Error(message.location ?? 'no location'))
  })
  try {
    const done = await engine.run({
      identity,
      files,
      signal: controller.signal,
      locate: index =>
        new Promise((resolve, reject) => {
          locating.set(index, { resolve, reject })
          post({ type: 'locate', index })
        }),
      onProgress: (index, completed, total) => post({ type: 'progress', index, completed, total })
    })
    post({ type: 'done', files: done })
  } catch (error) {
    post({ type: 'failed', error: asData(error) })
  }
}

function asData(error: unknown): Extract<FromRun, { type: 'failed' }>['error'] {
  if (error instanceof CorralError) {
    const { code, message, details, retryAfter } = error
    return { code, message, details, retryAfter }
  }
  return error instanceof Error ? error : new Error(String(error))
}

parentPort!.on('message', (message: RunMessage) => void run(message))
