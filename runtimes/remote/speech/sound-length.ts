/* The length of recordings, so that a small file cannot make an engine decode days of silence. */

/** Kilobits per second of MPEG audio, layer III: of version 1, and of versions 2 and 2.5. */
const BIT_RATES = [
  [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
  [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160]
]
const SAMPLE_RATES = [44_100, 48_000, 32_000]

/** Returns the seconds of a WAV, MP3 or FLAC file, as its decoder would see them. Undefined if it cannot be read. */
export function soundLength(file: Buffer): number | undefined {
  const start = file.toString('latin1', 0, 4)
  return (start === 'RIFF' ? wavLength(file) : start === 'fLaC' ? flacLength(file) : mp3Length(file)) || undefined
}

function wavLength(file: Buffer): number {
  const [format, data] = [file.indexOf('fmt ', 12, 'latin1'), file.indexOf('data', 12, 'latin1')]
  if (format === -1 || data === -1 || format + 24 > file.length) return 0
  // Computed, because the rate of bytes in the file may be wrong.
  const [channels, bits] = [file.readUInt16LE(format + 10), file.readUInt16LE(format + 22)]
  const bytesPerSecond = (file.readUInt32LE(format + 12) * channels * bits) / 8
  return bytesPerSecond > 0 ? (file.length - data - 8) / bytesPerSecond : 0
}

/**
 * Writes the length into a FLAC file whose encoder did not know it, because decoders read as many samples as it says.
 * @returns whether the file was changed
 */
export function fillFlacLength(file: Buffer): boolean {
  if (file.length < 42 || file.toString('latin1', 0, 4) !== 'fLaC' || flacLength(file) !== 0) return false
  const samples = flacSamples(file)
  file[21] = (file[21]! & 0xf0) | (Math.floor(samples / 2 ** 32) & 15)
  file.writeUInt32BE(samples % 2 ** 32, 22)
  return samples > 0
}

/** Adds up the frames, which begin with 15 fixed bits and a header like that of the first one. */
function flacSamples(file: Buffer): number {
  let [samples, format] = [0, -1]
  for (let at = file.indexOf(0xff, 42); at !== -1 && at + 16 < file.length; at = file.indexOf(0xff, at + 1)) {
    const sizes = file[at + 2]!
    if ((file[at + 1]! & 0xfe) !== 0xf8 || (format !== -1 && file[at + 3] !== format)) continue
    const code = sizes >> 4
    // The number of the frame is written like a character in UTF-8.
    const after = at + 4 + Math.max(1, Math.clz32(~(file[at + 4]! << 24)))
    const wide = code === 6 ? 1 : code === 7 ? 2 : 0
    const end = after + wide + ([0, 1, 2, 2][Math.max(0, (sizes & 15) - 11)] ?? 0)
    let crc = 0
    for (let part = at; part < end; part++) {
      crc ^= file[part]!
      for (let bit = 0; bit < 8; bit++) crc = ((crc << 1) ^ (crc & 0x80 ? 0x07 : 0)) & 0xff
    }
    if (crc !== file[end]) continue
    format = file[at + 3]!
    if (wide > 0) samples += file.readUIntBE(after, wide) + 1
    else samples += code === 1 ? 192 : code < 6 ? 576 << (code - 2) : 256 << (code - 8)
    at = end
  }
  return samples
}

/** The first block, STREAMINFO, has the sample rate in 20 bits, and the number of samples in 36. */
function flacLength(file: Buffer): number {
  if (file.length < 26) return 0
  const rate = file.readUIntBE(18, 3) >>> 4
  return rate > 0 ? ((file[21]! & 15) * 2 ** 32 + file.readUInt32BE(22)) / rate : 0
}

/** Adds up the frames. Bytes between them are skipped, as decoders do. */
function mp3Length(file: Buffer): number {
  let seconds = 0
  for (let at = 0; at + 4 <= file.length; at++) {
    const [second, third] = [file[at + 1]!, file[at + 2]!]
    const version = (second >> 3) & 3
    // Synchronization, and layer III.
    if (file[at] !== 0xff || (second & 0xe6) !== 0xe2 || version === 1) continue
    const bits = BIT_RATES[version === 3 ? 0 : 1]![(third >> 4) - 1]
    const rate = SAMPLE_RATES[(third >> 2) & 3]! / (version === 3 ? 1 : version === 2 ? 2 : 4)
    if (!bits || !rate) continue
    const samples = version === 3 ? 1152 : 576
    seconds += samples / rate
    at += Math.floor((samples * bits * 125) / rate) + ((third >> 1) & 1) - 1
  }
  return seconds
}
