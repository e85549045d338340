import type { Readable } from 'node:stream'
import type { EngineRequest, EngineResponse } from '../contracts/engines.ts'
import type { Lease } from '../contracts/scheduler.ts'
import { CorralError } from '../errors.ts'
import { engineError } from './engine-error.ts'

/** Sends a request to a leased engine. @throws CorralError for a status of 400 and above */
export async function askEngine(lease: Lease, request: Pick<EngineRequest, 'path' | 'body'>): Promise<EngineResponse> {
  const response = await lease.engine.request({ method: 'POST', ...request, signal: lease.signal })
  if (response.status < 400) return response
  throw engineError(response.status, (await readAll(response.body)).toString('utf8'))
}

/** The whole of an answer. */
export async function readAll(body: Readable): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of body) chunks.push(chunk)
  return Buffer.concat(chunks)
}

/**
 * Calls `take` with each chunk as it comes, and waits for what it returns before the next one; a failure of it ends the
 * stream. An answer has hundreds of chunks, and iterating over them would cost a good part of all there is to do.
 */
export function forEachChunk(body: Readable, take: (chunk: Buffer) => Promise<void> | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    body.on('data', chunk => {
      try {
        const wait = take(chunk)
        if (!wait) return
        body.pause()
        void wait.then(() => body.resume())
      } catch (error) {
        reject(error)
        body.destroy()
      }
    })
    body.once('end', resolve)
    body.once('error', reject)
    body.once('close', () => reject(new Error('The answer was cut off.')))
  })
}

/** The error of an answer that stopped before it was complete. */
export function cutInTheMiddle(lease: Lease): CorralError {
  return new CorralError(
    'engine_crashed',
    `The engine of model "${lease.variant.publicName}" ended its answer in the middle. Send the request again.`
  )
}

/** Why an answer failed: what took the engine or the client away explains more than the broken connection. */
export function reasonOf(lease: Lease, error: unknown): unknown {
  return lease.signal.aborted ? lease.signal.reason : error
}
