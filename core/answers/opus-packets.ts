/* Opus as browsers and phones record it: in Ogg (RFC 3533), WebM (RFC 8794) or Matroska. */

export interface OpusSound {
  packets: Buffer[]
  /** Samples at the beginning, at 48 kHz, that are not played. */
  skip: number
  /** Samples at 48 kHz. */
  samples: number
}

/** Returns the packets of a recording with one or two channels. Undefined if it contains no such Opus. */
export function opusPackets(file: Buffer): OpusSound | undefined {
  const [head, ...rest] = file.toString('latin1', 0, 4) === 'OggS' ? oggPackets(file) : webmPackets(file)
  if (head?.toString('latin1', 0, 8) !== 'OpusHead' || head.length < 19 || head[18] !== 0) return undefined
  const packets = rest.filter(packet => packet.length > 0 && packet.toString('latin1', 0, 8) !== 'OpusTags')
  const samples = packets.reduce((sum, packet) => sum + packetLength(packet), 0)
  return { packets, skip: Math.min(head.readUInt16LE(10), samples), samples }
}

/** The samples of a packet at 48 kHz, by its first byte (RFC 6716, section 3.1). */
function packetLength(packet: Buffer): number {
  const [config, count] = [packet[0]! >> 3, packet[0]! & 3]
  const frames = count === 0 ? 1 : count < 3 ? 2 : (packet[1] ?? 0) & 63
  const lengths = config < 12 ? [480, 960, 1920, 2880] : config < 16 ? [480, 960, 480, 960] : [120, 240, 480, 960]
  return frames * lengths[config & 3]!
}

/** The packets of the first stream. A page has a table of lengths, and a length of 255 is continued by the next one. */
function* oggPackets(file: Buffer): Generator<Buffer> {
  const serial = file.length >= 27 && file.readUInt32LE(14)
  let parts: Buffer[] = []
  for (let at = 0; at + 27 <= file.length && file.toString('latin1', at, at + 4) === 'OggS'; ) {
    const isOurs = file.readUInt32LE(at + 14) === serial
    const table = file.subarray(at + 27, at + 27 + file[at + 26]!)
    at += 27 + table.length
    for (const length of table) {
      // The recording may be truncated.
      if (at + length > file.length) return
      if (isOurs) parts.push(file.subarray(at, at + length))
      at += length
      if (!isOurs || length === 255) continue
      yield Buffer.concat(parts)
      parts = []
    }
  }
}

/** Elements of EBML whose content is read like the rest of the file. */
const [SEGMENT, CLUSTER, TRACKS, TRACK, GROUP] = [0x18538067, 0x1f43b675, 0x1654ae6b, 0xae, 0xa0]
const [NUMBER, CODEC, PRIVATE, SIMPLE_BLOCK, BLOCK] = [0xd7, 0x86, 0x63a2, 0xa3, 0xa1]
const ENTERED = new Set([SEGMENT, CLUSTER, TRACKS, TRACK, GROUP])

/** The head and the packets of the first track with Opus. Browsers leave out the lengths of large elements. */
function* webmPackets(file: Buffer): Generator<Buffer> {
  let track: { number?: number; head?: Buffer; isOpus?: boolean } = {}
  let found: typeof track | undefined
  for (let at = 0; at < file.length; ) {
    const id = readVint(file, at, true)
    const size = id && readVint(file, id.end, false)
    if (!size) return
    at = size.end
    if (ENTERED.has(id.value)) {
      if (id.value === TRACK) track = {}
      continue
    }
    if (at + size.value > file.length) return
    const content = file.subarray(at, at + size.value)
    at += size.value
    if (id.value === NUMBER) track.number = content.at(-1) ?? 0
    else if (id.value === CODEC) track.isOpus = content.toString('latin1') === 'A_OPUS'
    else if (id.value === PRIVATE) track.head = content
    else if (id.value === SIMPLE_BLOCK || id.value === BLOCK) {
      if (!found && track.isOpus && track.head) {
        found = track
        yield track.head
      }
      const number = readVint(content, 0, false)
      // Packets follow the time and the flags. Several packets in a block are not read, which browsers do not write.
      if (number?.value !== found?.number || !number || content.length < number.end + 3) continue
      if ((content[number.end + 2]! & 6) !== 0) return
      yield content.subarray(number.end + 3)
    }
  }
}

/** Reads a number whose first bits say how long it is. @param whole whether these bits are part of it */
function readVint(bytes: Buffer, at: number, whole: boolean): { value: number; end: number } | undefined {
  const first = bytes[at]
  if (!first) return undefined
  const length = Math.clz32(first) - 23
  if (length > 6 && whole) return undefined
  if (at + length > bytes.length) return undefined
  let value = whole ? first : first & (2 ** (8 - length) - 1)
  for (let next = at + 1; next < at + length; next++) value = value * 256 + bytes[next]!
  return { value, end: at + length }
}
