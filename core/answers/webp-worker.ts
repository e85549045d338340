import { readFileSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { crc32, deflateSync } from 'node:zlib'
import decode, { init } from '@jsquash/webp/decode.js'
import { packagedFile } from '../system/package-info.ts'
import type { ReadFault, ReadJob } from './file-reader.ts'
import { limitWasmMemory } from './wasm-memory.ts'

/* Converts one WebP to PNG, because engines cannot decode WebP without another program. */

interface Pixels {
  data: Uint8ClampedArray
  width: number
  height: number
}

const { bytes, memory } = workerData as ReadJob
const memoryLimit = limitWasmMemory(memory)

// The decoder returns its result as this class of browsers.
const ImageData = function (this: Pixels, data: Uint8ClampedArray, width: number, height: number) {
  Object.assign(this, { data, width, height })
}
Object.assign(globalThis, { ImageData })
const wasmBinary = readFileSync(packagedFile('@jsquash/webp/codec/dec/webp_dec.wasm'))
await init({ wasmBinary: new Uint8Array(wasmBinary).buffer, print() {}, printErr() {} })

const RGBA_BYTES = 4
/** Bit depth 8, RGBA, and the only methods that PNG has. */
const FORMAT = [8, 6, 0, 0, 0]

function encodePng({ data, width, height }: Pixels): Buffer {
  // Each row begins with its filter: 0 is none.
  const row = width * RGBA_BYTES
  const rows = Buffer.alloc((row + 1) * height)
  for (let y = 0; y < height; y++) rows.set(data.subarray(y * row, (y + 1) * row), y * (row + 1) + 1)
  return Buffer.concat([
    Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'),
    chunk('IHDR', Buffer.concat([uint32(width), uint32(height), Buffer.from(FORMAT)])),
    chunk('IDAT', deflateSync(rows, { level: 1 })),
    chunk('IEND', Buffer.alloc(0))
  ])
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

function chunk(type: string, data: Buffer): Buffer {
  const named = Buffer.concat([Buffer.from(type), data])
  return Buffer.concat([uint32(data.length), named, uint32(crc32(named))])
}

let result: { png: string } | ReadFault
try {
  result = { png: encodePng(await decode(new Uint8Array(bytes).buffer)).toString('base64') }
} catch {
  result = { fault: memoryLimit.reached ? 'memory' : 'damaged' }
}
parentPort!.postMessage(result)
