import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { CorralError, type ErrorCode, messageOf } from '../../../core/errors.ts'
import type { TransferFile, TransferredFile } from './transfer.ts'

/** What the engine's thread is told. */
export type ToEngine =
  | { type: 'run'; id: number; identity: string; files: readonly TransferFile[] }
  | { type: 'located'; question: number; location: FileLocation | undefined }
  | { type: 'abort'; id: number }

/** What it tells. */
export type FromEngine =
  | { type: 'locate'; id: number; question: number; index: number }
  | { type: 'progress'; id: number; index: number; completed: number; total: number }
  | { type: 'done'; id: number; files: TransferredFile[] }
  | { type: 'failed'; id: number; error: PlainError }
  | { type: 'log'; message: string }

/** An error as it crosses threads. */
export interface PlainError {
  code: ErrorCode | undefined
  message: string
  stack: string | undefined
  details: Record<string, unknown> | undefined
  retryAfter: number | undefined
}

export function plainError(error: unknown): PlainError {
  const known = error instanceof CorralError ? error : undefined
  return {
    code: known?.code,
    message: messageOf(error),
    stack: error instanceof Error ? error.stack : undefined,
    details: known?.details,
    retryAfter: known?.retryAfter
  }
}

export function errorFrom({ code, message, stack, details, retryAfter }: PlainError): Error {
  if (code !== undefined) {
    return new CorralError(code, message, {
      ...(details === undefined ? {} : { details }),
      ...(retryAfter === undefined ? {} : { retryAfter })
    })
  }
  const error = new Error(message)
  if (stack !== undefined) error.stack = stack
  return error
}
