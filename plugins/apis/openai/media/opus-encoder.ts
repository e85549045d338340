import { randomInt } from 'node:crypto'
import { Encoder } from '@evan/opus/wasm/index.js'
import { Blocks, type SampleEncoder } from './sample-encoder.ts'

/* Opus in Ogg (RFC 7845, RFC 3533). The library encodes packets, and this file puts them into pages. */

/** A packet has 20 ms. */
const PACKETS_PER_SECOND = 50
const BITS_PER_SECOND = 48_000
/** Positions in Opus streams have this rate, whatever the rate of the samples. */
const CLOCK = 48_000
const [SET_BITRATE, GET_LOOKAHEAD] = [4002, 4027]
const [FIRST_PAGE, LAST_PAGE] = [2, 4]
/** The table of a page has a byte for each 255 bytes of its packets, and at most 255. */
const MAX_PACKETS_PER_PAGE = 50

const CRC_TABLE = Int32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 24
  for (let bit = 0; bit < 8; bit++) crc = (crc << 1) ^ (crc < 0 ? 0x04c11db7 : 0)
  return crc
})

export function opusEncoder(): SampleEncoder {
  const serial = randomInt(2 ** 32)
  let [encoder, perPacket, scale, skip]: [Encoder | undefined, number, number, number] = [undefined, 0, 0, 0]
  let [pages, packets, samplesIn] = [0, 0, 0]
  const blocks = new Blocks()

  function page(content: readonly Uint8Array[], position: number, flags: number): Buffer {
    const lengths = content.flatMap(({ length }) => [...new Array(Math.floor(length / 255)).fill(255), length % 255])
    const header = Buffer.alloc(27)
    header.write('OggS')
    header[5] = flags
    header.writeBigUInt64LE(BigInt(position), 6)
    header.writeUInt32LE(serial, 14)
    header.writeUInt32LE(pages++, 18)
    header[26] = lengths.length
    const bytes = Buffer.concat([header, Buffer.from(lengths), ...content])
    let crc = 0
    for (const byte of bytes) crc = (crc << 8) ^ CRC_TABLE[(crc >>> 24) ^ byte]!
    bytes.writeInt32LE(crc, 22)
    return bytes
  }

  const packed = (samples: Int16Array) => blocks.cut(samples, perPacket).map(block => encoder!.encode(block))

  const paged = (made: readonly Uint8Array[]) =>
    Array.from({ length: Math.ceil(made.length / MAX_PACKETS_PER_PAGE) }, (_, at) => {
      const content = made.slice(at * MAX_PACKETS_PER_PAGE, (at + 1) * MAX_PACKETS_PER_PAGE)
      packets += content.length
      return page(content, packets * perPacket * scale, 0)
    })

  return {
    rates: [8000, 12_000, 16_000, 24_000, 48_000],
    begin(rate) {
      encoder = new Encoder({ channels: 1, sample_rate: rate, application: 'audio' })
      encoder.ctl(SET_BITRATE, BITS_PER_SECOND)
      perPacket = rate / PACKETS_PER_SECOND
      scale = CLOCK / rate
      skip = encoder.ctl(GET_LOOKAHEAD)
      const head = Buffer.from('OpusHead\x01\x01\0\0\0\0\0\0\0\0\0', 'latin1')
      head.writeUInt16LE(skip * scale, 10)
      head.writeUInt32LE(rate, 12)
      const tags = Buffer.from('OpusTags\x06\0\0\0corral\0\0\0\0', 'latin1')
      return Buffer.concat([page([head], 0, FIRST_PAGE), page([tags], 0, 0)])
    },
    encode(samples) {
      samplesIn += samples.length
      return Buffer.concat(paged(packed(samples)))
    },
    end() {
      // The decoder skips the encoder's look-ahead. The position of the last page marks the end of the sound.
      const filling = (perPacket - ((blocks.rest.length + skip) % perPacket)) % perPacket
      const last = packed(new Int16Array(skip + filling))
      encoder!.drop()
      return page(last, (samplesIn + skip) * scale, LAST_PAGE)
    }
  }
}
