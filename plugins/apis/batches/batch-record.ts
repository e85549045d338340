import { randomBytes } from 'node:crypto'
import { type Static, Type } from 'typebox'
import { each } from '../../../core/http/request-fields.ts'
import { ENDPOINTS, LineErrorSchema } from './json-lines.ts'
import { newFileId } from './user-files.ts'

export const STATUSES = [
  'validating',
  'in_progress',
  'finalizing',
  'cancelling',
  'completed',
  'failed',
  'expired',
  'cancelled'
] as const
export type Status = (typeof STATUSES)[number]
export type Ending = 'completed' | 'failed' | 'expired' | 'cancelled'

const Seconds = Type.Optional(Type.Integer({ description: 'Seconds since the epoch' }))

export const BatchRecordSchema = Type.Object({
  version: Type.Literal(1),
  ...each(Type.String(), 'id', 'owner', 'turn', 'address'),
  endpoint: Type.Enum([...ENDPOINTS]),
  ...each(Type.String(), 'window', 'inputFile', 'outputFile', 'errorFile'),
  metadata: Type.Union([Type.Record(Type.String(), Type.String()), Type.Null()]),
  status: Type.Enum([...STATUSES]),
  /** The final state that the batch is going to, from the moment it is decided. */
  ending: Type.Optional(Type.Enum(['completed', 'failed', 'expired', 'cancelled'] as const)),
  faults: Type.Array(LineErrorSchema),
  counts: Type.Object({ total: Type.Integer(), completed: Type.Integer(), failed: Type.Integer() }),
  createdAt: Type.Integer(),
  expiresAt: Type.Integer(),
  ...each(
    Seconds,
    'inProgressAt',
    'finalizingAt',
    'cancellingAt',
    'completedAt',
    'failedAt',
    'expiredAt',
    'cancelledAt'
  )
})
export type BatchRecord = Static<typeof BatchRecordSchema>

export const BATCH_ID = /^batch_[0-9a-f]{32}$/

export function newBatch(
  given: Pick<BatchRecord, 'owner' | 'turn' | 'address' | 'endpoint' | 'window' | 'inputFile' | 'metadata'>,
  now: number,
  windowSeconds: number
): BatchRecord {
  return {
    version: 1,
    id: `batch_${randomBytes(16).toString('hex')}`,
    ...given,
    outputFile: newFileId(),
    errorFile: newFileId(),
    status: 'validating',
    faults: [],
    counts: { total: 0, completed: 0, failed: 0 },
    createdAt: now,
    expiresAt: now + windowSeconds
  }
}

export function hasEnded({ status }: Pick<BatchRecord, 'status'>): boolean {
  return status === 'completed' || status === 'failed' || status === 'expired' || status === 'cancelled'
}

/** Chooses the batches to start: the oldest first. One owner gets at most half, so it cannot block the others. */
export function batchesToRun<Batch extends Pick<BatchRecord, 'id' | 'owner' | 'createdAt' | 'status'>>(
  batches: readonly Batch[],
  running: ReadonlySet<string>,
  most: number
): Batch[] {
  const open = batches.filter(batch => !hasEnded(batch))
  const count = new Map<string, number>()
  for (const { id, owner } of open) if (running.has(id)) count.set(owner, (count.get(owner) ?? 0) + 1)
  let free = most - running.size
  const chosen: Batch[] = []
  for (const batch of open.filter(({ id }) => !running.has(id)).sort((a, b) => a.createdAt - b.createdAt)) {
    const own = count.get(batch.owner) ?? 0
    if (free < 1 || own >= Math.ceil(most / 2)) continue
    count.set(batch.owner, own + 1)
    free--
    chosen.push(batch)
  }
  return chosen
}

export function batchObject(batch: BatchRecord) {
  const { status, counts, faults } = batch
  const ended = hasEnded(batch)
  return {
    id: batch.id,
    object: 'batch',
    endpoint: batch.endpoint,
    errors: faults.length > 0 ? { object: 'list', data: faults } : null,
    input_file_id: batch.inputFile,
    completion_window: batch.window,
    status,
    output_file_id: ended && counts.completed > 0 ? batch.outputFile : null,
    error_file_id: ended && counts.failed > 0 ? batch.errorFile : null,
    created_at: batch.createdAt,
    in_progress_at: batch.inProgressAt ?? null,
    expires_at: batch.expiresAt,
    finalizing_at: batch.finalizingAt ?? null,
    completed_at: batch.completedAt ?? null,
    failed_at: batch.failedAt ?? null,
    expired_at: batch.expiredAt ?? null,
    cancelling_at: batch.cancellingAt ?? null,
    cancelled_at: batch.cancelledAt ?? null,
    request_counts: counts,
    metadata: batch.metadata
  }
}
