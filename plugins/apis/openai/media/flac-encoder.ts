import { Blocks, type SampleEncoder } from './sample-encoder.ts'

/* FLAC (RFC 9639) with fixed predictors, because the libraries for it are larger than corral. */

const BLOCK = 4096
const MAX_ORDER = 4
/** Whole blocks have 16 partitions, and the last block has one. */
const PARTITION_BITS = 4
const MAX_RICE_BITS = 14

const crcTable = (bits: number, polynomial: number) =>
  Uint16Array.from({ length: 256 }, (_, byte) => {
    let crc = byte << (bits - 8)
    for (let bit = 0; bit < 8; bit++) crc = (crc << 1) ^ (crc & (1 << (bits - 1)) ? polynomial : 0)
    return crc
  })
const [CRC8, CRC16] = [crcTable(8, 0x07), crcTable(16, 0x8005)]

class BitWriter {
  #bytes: number[] = []
  #bits = 0
  #held = 0

  /** Adds up to 24 bits. */
  put(value: number, bits: number): void {
    this.#held = (this.#held << bits) | (value & (2 ** bits - 1))
    for (this.#bits += bits; this.#bits >= 8; this.#bits -= 8) this.#bytes.push((this.#held >>> (this.#bits - 8)) & 255)
    this.#held &= 2 ** this.#bits - 1
  }

  zeros(count: number): void {
    for (let left = count; left > 0; left -= 16) this.put(0, Math.min(left, 16))
  }

  /** Returns all bytes, the last one filled with zeros. */
  finish(): number[] {
    if (this.#bits > 0) this.zeros(8 - this.#bits)
    return this.#bytes
  }
}

export function flacEncoder(): SampleEncoder {
  const blocks = new Blocks()
  let frames = 0
  return {
    begin(rate) {
      // STREAMINFO is the only block of metadata. The sizes of frames, the length and the digest are unknown.
      const header = Buffer.alloc(42)
      header.write('fLaC\x80\0\0\x22', 'latin1')
      header.writeUInt16BE(BLOCK, 8)
      header.writeUInt16BE(BLOCK, 10)
      header.writeUIntBE(rate << 4, 18, 3)
      header[21] = 0xf0
      return header
    },
    encode: samples => Buffer.concat(blocks.cut(samples, BLOCK).map(block => frame(block, frames++))),
    end: () => (blocks.rest.length > 0 ? frame(blocks.rest, frames++) : new Uint8Array())
  }
}

function frame(block: Int16Array, number: number): Uint8Array {
  const length = block.length === BLOCK ? [] : [(block.length - 1) >> 8, (block.length - 1) & 255]
  // Numbers are written like characters in UTF-8. The longest speech has fewer than U+D800, which is none.
  const counted = Buffer.from(String.fromCodePoint(number))
  const header = [0xff, 0xf8, block.length === BLOCK ? 0xc0 : 0x70, 0x08, ...counted, ...length]
  const crc8 = header.reduce((crc, byte) => CRC8[crc ^ byte]! & 255, 0)
  const bytes = [...header, crc8, ...subframe(block)]
  const crc = bytes.reduce((sum, byte) => ((sum << 8) ^ CRC16[(sum >> 8) ^ byte]!) & 0xffff, 0)
  return Uint8Array.from([...bytes, crc >> 8, crc & 255])
}

/** Writes the differences of the samples, taken as often as makes them smallest. */
function subframe(block: Int16Array): number[] {
  const bits = new BitWriter()
  let [order, best] = [0, Int32Array.from(block)]
  let differences = best
  for (let next = 1; next <= Math.min(MAX_ORDER, block.length - 1); next++) {
    differences = differences.map((value, at) => (at < next ? 0 : value - differences[at - 1]!))
    if (size(differences, next) < size(best, next)) [order, best] = [next, differences]
  }
  bits.put((8 + order) << 1, 8)
  for (const sample of block.subarray(0, order)) bits.put(sample, 16)
  const partitions = block.length === BLOCK ? PARTITION_BITS : 0
  bits.put(partitions, 6)
  const length = block.length >> partitions
  for (let at = 0; at < block.length; at += length) {
    rice(best.subarray(Math.max(at, order), at + length), bits)
  }
  return bits.finish()
}

const size = (values: Int32Array, from = 0) => values.subarray(from).reduce((sum, value) => sum + Math.abs(value), 0)

function rice(values: Int32Array, bits: BitWriter): void {
  const mean = (2 * size(values)) / Math.max(1, values.length)
  const low = Math.min(MAX_RICE_BITS, Math.max(0, Math.floor(Math.log2(mean + 1))))
  bits.put(low, 4)
  for (const value of values) {
    const folded = value < 0 ? -2 * value - 1 : 2 * value
    bits.zeros(folded >> low)
    bits.put((1 << low) | (folded & ((1 << low) - 1)), low + 1)
  }
}
