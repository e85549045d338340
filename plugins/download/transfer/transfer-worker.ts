/** The engine in a thread of its own: what comes fast must not hold up what the gateway's own thread does. */
import { parentPort, workerData } from 'node:worker_threads'
import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { Engine } from './transfer-engine.ts'
import { type FromEngine, plainError, type ToEngine } from './transfers.ts'

const port = parentPort!
const tell = (message: FromEngine) => port.postMessage(message)
const engine = new Engine({ ...workerData, log: (message: string) => tell({ type: 'log', message }) })
const aborts = new Map<number, AbortController>()
const questions = new Map<number, { resolve(location: FileLocation): void; reject(error: Error): void }>()
let nextQuestion = 0

/** The question has failed where it was asked; the reason is known there. */
class NoLocation extends Error {}

function locate(id: number, index: number): Promise<FileLocation> {
  const question = nextQuestion++
  return new Promise((resolve, reject) => {
    questions.set(question, { resolve, reject })
    tell({ type: 'locate', id, question, index })
  })
}

async function run({ id, identity, files }: Extract<ToEngine, { type: 'run' }>): Promise<void> {
  const controller = new AbortController()
  aborts.set(id, controller)
  try {
    const done = await engine.run({
      identity,
      files,
      signal: controller.signal,
      locate: index => locate(id, index),
      onProgress: (index, completed, total) => tell({ type: 'progress', id, index, completed, total })
    })
    tell({ type: 'done', id, files: done })
  } catch (error) {
    tell({ type: 'failed', id, error: plainError(error) })
  } finally {
    aborts.delete(id)
  }
}

port.on('message', (message: ToEngine) => {
  if (message.type === 'run') void run(message)
  else if (message.type === 'abort') aborts.get(message.id)?.abort()
  else {
    const question = questions.get(message.question)
    questions.delete(message.question)
    if (message.location) question?.resolve(message.location)
    else question?.reject(new NoLocation('no location'))
  }
})
