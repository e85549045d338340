import { open } from 'node:fs/promises'
import { CorralError, messageOf } from '../errors.ts'
import { tensorSize } from './tensor-size.ts'

/** What the header of a GGUF file says. */
export interface GgufFile {
  metadata: Record<string, unknown>
  tensorCount: number
  /** Weights in this file. */
  parameters: number
  /** It holds the layer that classifies texts, by which rerankers score. */
  classifies: boolean
}

/** llama.cpp's names of a classification head's layers; the second may be absent. */
const CLASSIFIER = /^cls(\.output)?\.weight$/

interface Tensor {
  name: string
  shape: bigint[]
  dtype: number
  offset: bigint
}

/**
 * Reads a GGUF file's header and checks that the file holds all the data that the header names.
 * @throws CorralError `invalid_request` saying what is wrong with the file
 */
export async function readGguf(path: string): Promise<GgufFile> {
  const damaged = (what: string, cause?: unknown) =>
    new CorralError('invalid_request', `${path} ${what}. Download or convert it again, then repeat the import.`, {
      param: 'path',
      cause
    })

  const { start, size } = await readStart(path)
  if (start.length < 4 || start.toString('latin1', 0, 4) !== 'GGUF') {
    throw new CorralError(
      'invalid_request',
      `${path} is not a GGUF file: it does not begin with the four letters "GGUF". ` +
        'Name a GGUF file, or the folder of a SafeTensors model.',
      { param: 'path' }
    )
  }
  if (start.length < 24) throw damaged(`is cut off: a GGUF header has 24 bytes or more, this file has ${size}`)
  if (!(start.readUInt32LE(4) & 0xffff)) {
    throw damaged('is a GGUF file for big-endian machines, which llama.cpp does not load here')
  }
  // Before the parser believes these counts: the least that a key (13 bytes) and a tensor (24 bytes) take.
  if (start.readUInt32LE(4) > 1 && start.readBigUInt64LE(16) * 13n + start.readBigUInt64LE(8) * 24n > BigInt(size)) {
    throw damaged(`is damaged or cut off: its header names more keys and tensors than fit into its ${size} bytes`)
  }

  // The parser is imported at the first use: the server should listen before it is needed.
  const { gguf } = await import('@huggingface/gguf')
  let parsed: Awaited<ReturnType<typeof gguf>> & { parameterCount: number }
  try {
    parsed = await gguf(path, { allowLocalFile: true, computeParametersCount: true })
  } catch (error) {
    throw damaged(`is damaged or cut off (${size} bytes): its header cannot be read: ${messageOf(error)}`, error)
  }
  // The parser reads zeros behind the file's end.
  if (parsed.tensorInfoByteRange[1] > size) throw damaged(`is cut off: its header goes on behind its ${size} bytes`)
  const end = dataEnd(parsed.tensorInfos, Number(parsed.tensorDataOffset))
  if (end > size) throw damaged(`is cut off: its tensors need ${end} bytes, the file has ${size}`)
  return {
    metadata: parsed.metadata as Record<string, unknown>,
    tensorCount: parsed.tensorInfos.length,
    parameters: parsed.parameterCount,
    classifies: parsed.tensorInfos.some(({ name }) => CLASSIFIER.test(name))
  }
}

async function readStart(path: string): Promise<{ start: Buffer; size: number }> {
  const file = await open(path, 'r')
  try {
    const { size } = await file.stat()
    const { buffer, bytesRead } = await file.read(Buffer.alloc(24), 0, 24, 0)
    return { start: buffer.subarray(0, bytesRead), size }
  } finally {
    await file.close()
  }
}

function dataEnd(tensors: Tensor[], dataOffset: number): number {
  let end = 0
  for (const { shape, dtype, offset } of tensors) {
    const weights = shape.reduce((product, length) => product * Number(length), 1)
    end = Math.max(end, dataOffset + Number(offset) + tensorSize(dtype, weights))
  }
  return end
}
