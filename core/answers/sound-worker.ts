import { parentPort, workerData } from 'node:worker_threads'
import type { ReadFault, ReadJob } from './file-reader.ts'
import { decodeOpus } from './opus-sound.ts'

/* Decodes one recording in Opus to WAV, because engines cannot read Opus. */

const { bytes, memory } = workerData as ReadJob

let result: { wav: Uint8Array } | ReadFault
try {
  result = decodeOpus(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length), memory)
} catch {
  result = { fault: 'damaged' }
}
parentPort!.postMessage(result)
