import { closeSync, openSync, readFileSync, writeSync } from 'node:fs'
import { readGgufHeader } from '../../../core/models/gguf-file.ts'
import { MODEL } from '../llama-server/support.ts'

/** Width of the wide layers: their matrices exceed 10 MiB, the size from which `ggml-rpc-server` stores one on disk. */
const WIDTH = 24_576
const ALIGNMENT = 32
const F16_BYTES = 2

const aligned = (length: number) => Math.ceil(length / ALIGNMENT) * ALIGNMENT
const count = (shape: number[]) => shape.reduce((product, length) => product * length, 1)

function number(value: number, size: 4 | 8): Buffer {
  const buffer = Buffer.alloc(size)
  buffer.writeUIntLE(value, 0, Math.min(size, 6))
  return buffer
}
const text = (value: string) => Buffer.concat([number(value.length, 8), Buffer.from(value)])

/** Writes the demo model with layers widened by zeros: it answers like the demo model, with weights of over 100 MB. */
export async function writeWideModel(path: string): Promise<void> {
  const bytes = readFileSync(MODEL)
  const { tensors } = await readGgufHeader(MODEL)
  const key = text('llama.feed_forward_length')
  // Between a key and its number is the type.
  bytes.writeUInt32LE(WIDTH, bytes.indexOf(key) + key.length + 4)
  const infoOf = ({ name }: { name: string }) => bytes.indexOf(text(name))
  const last = tensors.at(-1)!
  // A name is followed by the count of lengths, the lengths, the type and the offset.
  let at = aligned(infoOf(last) + text(last.name).length + 4 + 8 * last.shape.length + 4 + 8)
  const widened = tensors.map(({ name, shape, bytes: size }) => {
    const weights = bytes.subarray(at, at + size)
    at += aligned(size)
    const [length = 0, rows = 0] = shape
    const wide = name.includes('.ffn_down.') ? [WIDTH, rows] : /\.ffn_(up|gate)\./.test(name) ? [length, WIDTH] : shape
    if (wide === shape) return { name, shape, type: size === count(shape) * F16_BYTES ? 1 : 0, weights }
    const whole = Buffer.alloc(count(wide) * F16_BYTES)
    const [from, to] = [length * F16_BYTES, wide[0]! * F16_BYTES]
    for (let row = 0; row < rows; row++) weights.copy(whole, row * to, row * from, (row + 1) * from)
    return { name, shape: wide, type: 1, weights: whole }
  })
  const head: Buffer[] = [bytes.subarray(0, infoOf(tensors[0]!))]
  let offset = 0
  for (const { name, shape, type, weights } of widened) {
    head.push(text(name), number(shape.length, 4), ...shape.map(length => number(length, 8)))
    head.push(number(type, 4), number(offset, 8))
    offset += aligned(weights.length)
  }
  const file = openSync(path, 'w')
  for (const part of [Buffer.concat(head), ...widened.map(({ weights }) => weights)]) {
    writeSync(file, part)
    writeSync(file, Buffer.alloc(aligned(part.length) - part.length))
  }
  closeSync(file)
}
