/** Returns the header of WAV with one channel and samples of 16 bits. @param bytes of samples; streams do not know them */
export function wavHeader(rate: number, bytes?: number): Buffer {
  const header = Buffer.from(
    'RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0rateratebl\x10\0data\xff\xff\xff\xff',
    'latin1'
  )
  header.writeUInt32LE(rate, 24)
  header.writeUInt32LE(2 * rate, 28)
  header.writeUInt16LE(2, 32)
  if (bytes === undefined) return header
  header.writeUInt32LE(36 + bytes, 4)
  header.writeUInt32LE(bytes, 40)
  return header
}
