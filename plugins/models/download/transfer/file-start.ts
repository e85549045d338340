import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { abortAfter } from '../../../../core/system/abort-signals.ts'
import { FileSource, followRedirect, requestTarget } from './file-source.ts'
import { ConnectionPool, fetchBytes } from './http/http-client.ts'
import { ConnectionFailure } from './http/http-socket.ts'

/** The keys that describe a model come before its vocabulary, within some kB. */
const MAX_START_BYTES = 256 * 1024
const TIMEOUT_MS = 15_000

/** Reads the first bytes of a file. Returns fewer, or none, if the server does not send them in time. */
export async function readFileStart(
  locate: () => Promise<FileLocation>,
  size: number | undefined,
  signal: AbortSignal
): Promise<Buffer> {
  const connections = new ConnectionPool()
  const bytes = Buffer.alloc(Math.min(MAX_START_BYTES, size ?? MAX_START_BYTES))
  let filled = 0
  const sink = {
    room: () => bytes.subarray(filled),
    filled: (length: number) => {
      filled += length
      return filled < bytes.length
    }
  }
  try {
    const location = await new FileSource(locate).current()
    for (let isRedirected = bytes.length > 0; isRedirected; ) {
      const { answer } = await fetchBytes(
        connections,
        requestTarget(location),
        {
          start: 0,
          end: bytes.length,
          size,
          onAnswer: ({ kind }) => (kind === 'range' || kind === 'whole' ? sink : undefined)
        },
        { signal: AbortSignal.any([signal, abortAfter(TIMEOUT_MS)]), stallTimeout: TIMEOUT_MS }
      )
      isRedirected = answer.kind === 'redirect' && followRedirect(location, answer.to) === undefined
    }
  } catch (error) {
    signal.throwIfAborted()
    const isRemote = error instanceof ConnectionFailure || error instanceof CorralError
    if (!isRemote && !(error instanceof DOMException)) throw error
  } finally {
    connections.close()
  }
  return bytes.subarray(0, filled)
}
