import { parentPort, workerData } from 'node:worker_threads'
import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { CorralError, messageOf } from '../../../core/errors.ts'
import { TransferEngine } from './transfer-engine.ts'
import type { FromWorker, ToWorker, WorkerError } from './transfers.ts'

/** The transfer engine in a thread of its own: a fast download must not delay the gateway's main thread. */
const port = parentPort!
const post = (message: FromWorker) => port.postMessage(message)
const engine = new TransferEngine({ ...workerData, log: (message: string) => post({ type: 'log', message }) })
const aborts = new Map<number, AbortController>()
const pendingLocations = new Map<number, { resolve(location: FileLocation): void; reject(error: Error): void }>()
let nextRequest = 0

function locate(id: number, index: number): Promise<FileLocation> {
  const request = nextRequest++
  return new Promise((resolve, reject) => {
    pendingLocations.set(request, { resolve, reject })
    post({ type: 'locate', id, request, index })
  })
}

async function run({ id, identity, files }: Extract<ToWorker, { type: 'run' }>): Promise<void> {
  const controller = new AbortController()
  aborts.set(id, controller)
  try {
    const done = await engine.run({
      identity,
      files,
      signal: controller.signal,
      locate: index => locate(id, index),
      onProgress: (index, completed, total) => post({ type: 'progress', id, index, completed, total })
    })
    post({ type: 'done', id, files: done })
  } catch (error) {
    post({ type: 'failed', id, error: workerError(error) })
  } finally {
    aborts.delete(id)
  }
}

function workerError(error: unknown): WorkerError {
  const stack = error instanceof Error ? error.stack : undefined
  if (!(error instanceof CorralError)) return { message: messageOf(error), stack }
  const { code, message, details, retryAfter } = error
  return { code, message, stack, details, retryAfter }
}

port.on('message', (message: ToWorker) => {
  if (message.type === 'run') void run(message)
  else if (message.type === 'abort') aborts.get(message.id)?.abort()
  else {
    const pending = pendingLocations.get(message.request)
    pendingLocations.delete(message.request)
    if (message.location) pending?.resolve(message.location)
    // The main thread knows why, and ends the run with that.
    else pending?.reject(new Error('no location'))
  }
})
