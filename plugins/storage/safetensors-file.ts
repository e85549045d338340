import { open } from 'node:fs/promises'
import { CorralError, messageOf } from '../../core/errors.ts'

/** What the header of a SafeTensors file says. */
export interface SafetensorsFile {
  parameters: number
  /** Type of most of the weights, such as `BF16`. */
  dtype: string | undefined
}

/** The format's own limit for its header. */
const MAX_HEADER = 100_000_000

/**
 * Reads a SafeTensors file's header and checks that the file is whole.
 * @throws CorralError `invalid_request` saying what is wrong with the file
 */
export async function readSafetensors(path: string): Promise<SafetensorsFile> {
  const damaged = (what: string, cause?: unknown) =>
    new CorralError('invalid_request', `${path} ${what}. Download it again, then repeat the import.`, {
      param: 'path',
      cause
    })
  const file = await open(path, 'r')
  try {
    const { size } = await file.stat()
    const start = Buffer.alloc(8)
    if ((await file.read(start, 0, 8, 0)).bytesRead < 8) throw damaged(`is cut off: it has only ${size} bytes`)
    const length = Number(start.readBigUInt64LE())
    if (length > MAX_HEADER) throw damaged('is not a SafeTensors file: the length of its header is impossible')
    if (8 + length > size) throw damaged(`is cut off: its header has ${length} bytes, the file ${size}`)
    const header = Buffer.alloc(length)
    await file.read(header, 0, length, 8)
    const { parameters, dtype, end } = summary(header.toString('utf8'), damaged)
    if (8 + length + end > size) {
      throw damaged(`is cut off: its tensors need ${8 + length + end} bytes, the file has ${size}`)
    }
    return { parameters, dtype }
  } finally {
    await file.close()
  }
}

function summary(header: string, damaged: (what: string, cause?: unknown) => CorralError) {
  let tensors: Record<string, { dtype?: unknown; shape?: unknown; data_offsets?: unknown }>
  try {
    tensors = JSON.parse(header)
  } catch (error) {
    throw damaged(`is not a SafeTensors file: its header is no JSON (${messageOf(error)})`, error)
  }
  const weights = new Map<string, number>()
  let end = 0
  for (const [name, tensor] of Object.entries(tensors)) {
    if (name === '__metadata__') continue
    const { dtype, shape, data_offsets: offsets } = tensor ?? {}
    if (typeof dtype !== 'string' || !Array.isArray(shape) || !Array.isArray(offsets)) {
      throw damaged(`is damaged: its header describes the tensor ${JSON.stringify(name)} wrongly`)
    }
    const count = shape.reduce((product: number, length) => product * Number(length), 1)
    weights.set(dtype, (weights.get(dtype) ?? 0) + count)
    end = Math.max(end, Number(offsets[1]) || 0)
  }
  const byCount = [...weights].sort((a, b) => b[1] - a[1])
  return { parameters: byCount.reduce((sum, [, count]) => sum + count, 0), dtype: byCount[0]?.[0], end }
}
