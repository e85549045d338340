import { createWriteStream, type WriteStream } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { StoredVariant } from '../../core/contracts/storage.ts'

/** Bytes after which a log takes no more lines. */
const LIMIT = 4e6

/** What the tools of one conversion print, kept in a file for people; the next conversion of the same kind replaces it. */
export interface ConversionLog {
  readonly path: string
  line(text: string): void
  close(): Promise<void>
}

export async function openConversionLog(logs: string, variant: StoredVariant, dtype: string): Promise<ConversionLog> {
  await mkdir(logs, { recursive: true })
  const { owner, name } = variant.model
  const path = join(logs, `conversion-${owner}-${name}-${variant.label}-${dtype}.log`)
  const stream = createWriteStream(path)
  let failed = false
  stream.on('error', () => {
    // A full disk must fail the conversion by its own words, not by those of its log.
    failed = true
  })
  let written = 0
  return {
    path,
    line(text) {
      if (failed || written > LIMIT) return
      written += text.length + 1
      stream.write(written > LIMIT ? '(The rest is left out.)\n' : `${text}\n`)
    },
    close: () => closeStream(stream)
  }
}

function closeStream(stream: WriteStream): Promise<void> {
  return new Promise(resolve => {
    stream.once('close', resolve)
    stream.once('error', () => resolve())
    if (stream.closed) resolve()
    else stream.end()
  })
}
