import { closeSync, openSync, readFileSync, writeSync } from 'node:fs'
import { MODEL } from '../llama-server/support.ts'

/** Width of the wide layers: their matrices exceed 10 MiB, the size from which `ggml-rpc-server` stores one on disk. */
const WIDTH = 24_576
const ALIGNMENT = 32
const F16_BYTES = 2
const SCALARS: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }
const [STRING, ARRAY] = [8, 9]

/** Reads a GGUF file from its start. */
class Reader {
  at = 24
  readonly bytes: Buffer

  constructor(bytes: Buffer) {
    this.bytes = bytes
  }

  take(length: number): Buffer {
    const from = this.at
    this.at += length
    return this.bytes.subarray(from, this.at)
  }

  u32 = () => this.take(4).readUInt32LE()
  u64 = () => Number(this.take(8).readBigUInt64LE())
  text = () => this.take(this.u64()).toString()

  skip(type: number): void {
    if (type === STRING) this.text()
    else if (type === ARRAY) {
      const [of, length] = [this.u32(), this.u64()]
      for (let item = 0; item < length; item++) this.skip(of)
    } else this.at += SCALARS[type]!
  }
}

/** Writes the demo model with layers widened by zeros: it answers like the demo model, with weights of over 100 MB. */
export function writeWideModel(path: string): void {
  const bytes = Buffer.from(readFileSync(MODEL))
  const reader = new Reader(bytes)
  const [tensors, keys] = [Number(bytes.readBigUInt64LE(8)), Number(bytes.readBigUInt64LE(16))]
  for (let key = 0; key < keys; key++) {
    const name = reader.text()
    const type = reader.u32()
    if (name === 'llama.feed_forward_length') bytes.writeUInt32LE(WIDTH, reader.at)
    reader.skip(type)
  }
  const start = bytes.subarray(0, reader.at)
  const infos = Array.from({ length: tensors }, () => {
    const name = reader.text()
    const shape = Array.from({ length: reader.u32() }, reader.u64)
    return { name, shape, type: reader.u32(), offset: reader.u64() }
  })
  const data = Math.ceil(reader.at / ALIGNMENT) * ALIGNMENT
  const getSize = ({ shape, type }: { shape: number[]; type: number }) =>
    shape.reduce((product, length) => product * length, type === 0 ? 4 : F16_BYTES)
  const widened = infos.map(info => {
    const { name, shape } = info
    const wide = name.includes('.ffn_down.')
      ? [WIDTH, shape[1]!]
      : /\.ffn_(up|gate)\./.test(name)
        ? [shape[0]!, WIDTH]
        : shape
    const weights = bytes.subarray(data + info.offset, data + info.offset + getSize(info))
    if (wide === shape) return { ...info, weights }
    const whole = Buffer.alloc(getSize({ ...info, shape: wide }))
    // Rows are as long as the first length.
    const [from, to] = [shape[0]! * F16_BYTES, wide[0]! * F16_BYTES]
    for (let row = 0; row < shape[1]!; row++) weights.copy(whole, row * to, row * from, (row + 1) * from)
    return { ...info, shape: wide, weights: whole }
  })
  const head: Buffer[] = [start]
  const number = (value: number, size: 4 | 8) => {
    const buffer = Buffer.alloc(size)
    buffer.writeUIntLE(value, 0, Math.min(size, 6))
    return buffer
  }
  let offset = 0
  for (const { name, shape, type, weights } of widened) {
    head.push(number(name.length, 8), Buffer.from(name), number(shape.length, 4))
    head.push(...shape.map(length => number(length, 8)), number(type, 4), number(offset, 8))
    offset += Math.ceil(weights.length / ALIGNMENT) * ALIGNMENT
  }
  const file = openSync(path, 'w')
  const padded = (buffer: Buffer) => {
    writeSync(file, buffer)
    writeSync(file, Buffer.alloc((ALIGNMENT - (buffer.length % ALIGNMENT)) % ALIGNMENT))
  }
  padded(Buffer.concat(head))
  for (const { weights } of widened) padded(weights)
  closeSync(file)
}
