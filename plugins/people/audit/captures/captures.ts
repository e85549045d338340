import { randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { appendFile, mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import type { CaptureRecord, HookedRequest, Hooks, PluginHooks } from '../../../../core/contracts/hooks.ts'
import { Time } from '../../../../core/contracts/native-records.ts'
import { CorralError, errorMessage, isSystemError } from '../../../../core/errors.ts'
import { Loose, Text, Titled } from '../../../../core/http/request-fields.ts'
import { within } from '../../../../core/plugins/plugin-error.ts'
import { readJsonFile, writeJsonFile } from '../../../../core/system/json-file.ts'
import { AnswerText, boundedCopy, type CopyBudget } from './bounded-copy.ts'

/*
 * An admin can have requests and answers recorded for a limited time. Captured answers carry a header, and the log says
 * when a capture starts and ends. Captures do not survive a restart, and their files are deleted after a few days.
 */

export const CAPTURED_HEADER = 'x-corral-captured'
const MAX_ACTIVE = 16
const MAX_LENGTH = 2 ** 20
/** Maximum characters that unfinished requests may hold in memory together. */
const MAX_HELD = 64 * 2 ** 20
/** How long plugins may take to filter a record, in milliseconds. */
const FILTER_TIME = 10_000
const DAY = 86_400_000
const SWEEP_INTERVAL = 3_600_000

export const CaptureSchema = Titled('Capture', {
  id: Type.String(),
  key: Type.Optional(Text('Name of the key whose requests are captured')),
  model: Type.Optional(Text('The model; all of its variants if it names none')),
  by: Text('Who started the capture'),
  startedAt: Time(),
  endsAt: Time('When the capture ends automatically'),
  endedAt: Type.Optional(Time()),
  endReason: Type.Optional(Text('time, stopped, size, restart (of the server) or key_revoked')),
  records: Type.Integer({ minimum: 0 }),
  bytes: Type.Integer({ minimum: 0 }),
  maxBytes: Type.Integer({ minimum: 0, description: 'Size in bytes at which the capture ends' }),
  dropped: Type.Integer({
    minimum: 0,
    description: 'Records that were not stored because a plugin left them out or failed, or because of a disk error'
  })
})
export type Capture = Static<typeof CaptureSchema>

const CaptureFileSchema = Type.Object({
  version: Type.Literal(1),
  /** Owner of the key. It stays the same when the key is replaced. */
  owner: Type.Optional(Type.String()),
  capture: CaptureSchema
})
type CaptureFile = Static<typeof CaptureFileSchema>

const Count = Type.Integer({ minimum: 0 })

/** A captured request, as returned by `GET /api/captures/:id`. */
export const CaptureRecordSchema = Titled('CaptureRecord', {
  time: Time('When the request ended'),
  requestId: Type.String(),
  key: Type.Optional(Type.String()),
  address: Type.String(),
  surface: Type.String(),
  operation: Type.String(),
  model: Type.String(),
  body: Type.Unknown({ description: 'The request in the OpenAI chat format, whichever API it came through' }),
  answer: Type.Array(
    Loose({
      content: Type.Optional(Type.String()),
      thinking: Type.Optional(Type.String()),
      toolCalls: Type.Optional(Type.Array(Loose({ name: Type.String(), arguments: Type.String() }))),
      toolResults: Type.Optional(
        Type.Array(Loose({ server: Type.String(), tool: Type.String(), output: Type.String() }))
      ),
      finish: Type.Optional(Type.String())
    }),
    { description: 'Text of each choice of the answer; empty for vectors and scores' }
  ),
  status: Type.Integer(),
  code: Type.Optional(Type.String()),
  tokens: Loose({ in: Count, cached: Count, out: Count }),
  cut: Type.Optional(Type.Literal(true, { description: 'Part of the record was too long, or a file' }))
})

interface ActiveCapture {
  capture: Capture
  owner: string | undefined
  timer: NodeJS.Timeout | undefined
}

interface CapturedRequest {
  by: ActiveCapture[]
  hooked: HookedRequest
  body: unknown
  answer: AnswerText
  budget: CopyBudget
  held: number
}

export interface CaptureOptions {
  folder: string
  log: FastifyBaseLogger
  hooks: Pick<Hooks, 'capture'>
  /** Writes the start and end of captures into the audit log. */
  note(event: { event: string; target: string; by: string }): void
}

export interface NewCapture {
  key?: string | undefined
  owner: string | undefined
  model?: string | undefined
  time: number
  maxBytes: number
  by: string
}

export class Captures {
  readonly #options: CaptureOptions
  readonly #all = new Map<string, ActiveCapture>()
  readonly #going = new Map<FastifyRequest, CapturedRequest>()
  #held = 0
  #working: Promise<unknown> = Promise.resolve()
  #sweeping: NodeJS.Timeout | undefined
  keep: number

  constructor(options: CaptureOptions, keep: number) {
    this.#options = options
    this.keep = keep
  }

  /** Loads the stored captures. Captures that were active when the server stopped are ended. */
  async open(): Promise<void> {
    const { folder, log } = this.#options
    const files = await readdir(folder).catch(() => [])
    for (const file of files.filter(name => name.endsWith('.json'))) {
      const read = await readJsonFile(join(folder, file), CaptureFileSchema).catch(() => undefined)
      if (!read?.value || `${read.value.capture.id}.json` !== file) {
        log.warn({ file }, 'The description of a capture cannot be read. It is left unchanged.')
        continue
      }
      const { capture, owner } = read.value
      const entry: ActiveCapture = { capture, owner, timer: undefined }
      this.#all.set(capture.id, entry)
      if (capture.endedAt !== undefined) continue
      Object.assign(capture, await countLines(this.#path(capture, 'jsonl')))
      await this.#end(entry, 'restart')
    }
    this.#sweeping = setInterval(() => void this.sweep(), SWEEP_INTERVAL).unref()
    await this.sweep()
  }

  /** @throws CorralError `invalid_option`, or a file system error */
  async start({ key, owner, model, time, maxBytes, by }: NewCapture): Promise<Capture> {
    if (this.#active().length >= MAX_ACTIVE) {
      throw new CorralError('invalid_option', `${MAX_ACTIVE} captures are already active. Stop one of them first.`)
    }
    const now = Date.now()
    const capture: Capture = {
      id: `c${randomBytes(6).toString('hex')}`,
      ...(key !== undefined && { key }),
      ...(model !== undefined && { model }),
      by,
      startedAt: new Date(now).toISOString(),
      endsAt: new Date(now + time).toISOString(),
      records: 0,
      bytes: 0,
      maxBytes,
      dropped: 0
    }
    const entry: ActiveCapture = { capture, owner, timer: undefined }
    await mkdir(this.#options.folder, { recursive: true, mode: 0o700 })
    await this.#save(entry)
    await appendFile(this.#path(capture, 'jsonl'), '', { mode: 0o600 })
    entry.timer = setTimeout(() => void this.#end(entry, 'time'), time).unref()
    this.#all.set(capture.id, entry)
    const what = `has started and runs until ${capture.endsAt}: requests and answers are recorded.`
    this.#tell(entry, 'capture_started', by, what)
    return capture
  }

  list(): Capture[] {
    const all = [...this.#all.values()].map(({ capture }) => capture)
    return all.sort((a, b) => (a.startedAt < b.startedAt ? 1 : -1))
  }

  async stop(id: string): Promise<Capture> {
    const entry = this.#find(id)
    await this.#end(entry, 'stopped')
    return entry.capture
  }

  async remove(id: string): Promise<void> {
    const entry = this.#find(id)
    await this.#end(entry, 'stopped')
    await this.#delete(entry)
  }

  /** Path of the records of a capture, after all finished requests have been written to it. */
  async recordsOf(id: string): Promise<string> {
    const { capture } = this.#find(id)
    await this.#working
    return this.#path(capture, 'jsonl')
  }

  /** Ends the captures of a revoked key, because a new key of that name may belong to somebody else. */
  keyRevoked(name: string): void {
    for (const entry of this.#active()) if (entry.capture.key === name) void this.#end(entry, 'key_revoked')
  }

  async sweep(): Promise<void> {
    for (const entry of [...this.#all.values()]) {
      const { endedAt } = entry.capture
      if (endedAt === undefined || Date.now() - Date.parse(endedAt) <= this.keep * DAY) continue
      await this.#delete(entry).catch(error =>
        this.#complain(entry, `An old capture cannot be deleted: ${errorMessage(error)}`)
      )
    }
  }

  async close(): Promise<void> {
    clearInterval(this.#sweeping)
    for (const { timer } of this.#active()) clearTimeout(timer)
    await this.#working
  }

  // ---- requests --------------------------------------------------------------------------------------------------

  /** The hooks that captures need. Without active captures there are none, so that requests are not delayed. */
  get hooks(): Pick<PluginHooks, 'request' | 'leased' | 'event' | 'eventsOf'> {
    const captures = this
    return {
      get request() {
        return captures.#active().length > 0 ? captures.#request : undefined
      },
      get leased() {
        return captures.#going.size > 0 ? captures.#leased : undefined
      },
      get event() {
        return captures.#going.size > 0 ? captures.#event : undefined
      },
      eventsOf: ({ reply }: HookedRequest) => reply !== undefined && captures.#going.has(reply.request)
    }
  }

  readonly #request = (hooked: HookedRequest): void => {
    const { caller, reply, body } = hooked
    if (!reply) return
    const { request } = reply
    const model = request.record.use?.model ?? hooked.model
    const by = this.#active().filter(
      ({ capture, owner }) =>
        (capture.key === undefined || owner === caller.owner) &&
        (capture.model === undefined || model === capture.model || model.startsWith(`${capture.model}:`))
    )
    if (by.length === 0) return
    reply.header(CAPTURED_HEADER, '1')
    const room = Math.min(MAX_LENGTH, (MAX_HELD - this.#held) / 2)
    const budget: CopyBudget = { left: room, cut: false }
    const copy = boundedCopy(body, budget)
    // Reserves the same amount for the answer, which must not depend on how much the request used.
    const held = 2 * room
    budget.left = room
    this.#held += held
    this.#going.set(request, { by, hooked, body: copy, answer: new AnswerText(budget), budget, held })
  }

  readonly #leased = ({ reply }: HookedRequest): void => reply && this.#going.get(reply.request)?.answer.reset()

  readonly #event: NonNullable<PluginHooks['event']> = (event, { reply }) => {
    if (reply) this.#going.get(reply.request)?.answer.add(event)
  }

  take(request: FastifyRequest): void {
    const going = this.#going.get(request)
    if (!going) return
    this.#going.delete(request)
    const work = async () => {
      await this.#keep(request, going)
      this.#held -= going.held
    }
    this.#working = this.#working.then(work, work)
  }

  async #keep(request: FastifyRequest, { by, hooked, body, answer, budget }: CapturedRequest): Promise<void> {
    const { caller, record, id } = request
    const { tokens, status, failure, use } = record
    const made: CaptureRecord = {
      time: new Date().toISOString(),
      requestId: id,
      ...(caller.name !== undefined && { key: caller.name }),
      address: caller.address,
      surface: hooked.surface,
      operation: hooked.operation,
      model: use?.model ?? hooked.model,
      body,
      answer: answer.choices(),
      status,
      ...(failure && { code: failure.code }),
      tokens: { in: tokens.prompt, cached: tokens.cached, out: tokens.completion },
      ...(budget.cut && { cut: true as const })
    }
    let line: string | undefined
    try {
      const kept = await within(FILTER_TIME, () => this.#options.hooks.capture(made))
      // Values that plugins added and JSON cannot represent are dropped.
      line = kept && `${JSON.stringify(kept)}\n`
    } catch (error) {
      const message = 'A captured request was not stored: a plugin took too long.'
      this.#options.log.error({ err: error, requestId: id }, message)
    }
    for (const entry of by) await this.#append(entry, line)
  }

  async #append(entry: ActiveCapture, line: string | undefined): Promise<void> {
    const { capture } = entry
    if (this.#all.get(capture.id) !== entry) return
    const size = line === undefined ? 0 : Buffer.byteLength(line)
    const isFull = capture.bytes + size > capture.maxBytes
    if (line === undefined || isFull) capture.dropped++
    else {
      try {
        await appendFile(this.#path(capture, 'jsonl'), line, { mode: 0o600 })
        capture.bytes += size
        capture.records++
      } catch (error) {
        capture.dropped++
        const message = `A captured request was not stored: ${errorMessage(error)}`
        if (capture.dropped === 1) this.#complain(entry, message)
      }
    }
    if (isFull) await this.#end(entry, 'size')
    else if (capture.endedAt !== undefined) await this.#save(entry).catch(() => undefined)
  }

  // ---- files -----------------------------------------------------------------------------------------------------

  async #end(entry: ActiveCapture, reason: string): Promise<void> {
    const { capture } = entry
    if (capture.endedAt !== undefined) return
    clearTimeout(entry.timer)
    capture.endedAt = new Date().toISOString()
    capture.endReason = reason
    const { records, dropped } = capture
    this.#tell(entry, 'capture_ended', reason, `has ended (${reason}): ${records} records, ${dropped} not stored.`)
    await this.#save(entry).catch(error =>
      this.#complain(entry, `The end of a capture cannot be written: ${errorMessage(error)}`)
    )
  }

  #complain({ capture }: ActiveCapture, message: string): void {
    this.#options.log.error({ capture: capture.id }, message)
  }

  #tell({ capture }: ActiveCapture, event: string, by: string, what: string): void {
    const { id, key, model } = capture
    const of = [key !== undefined && `key ${key}`, model !== undefined && `model ${model}`].filter(Boolean).join(', ')
    this.#options.log.warn({ capture: id }, `Capture ${id} of ${of} ${what}`)
    this.#options.note({ event, target: `${id}: ${of}`, by })
  }

  async #save({ capture, owner }: ActiveCapture): Promise<void> {
    const path = this.#path(capture, 'json')
    const file: CaptureFile = { version: 1, ...(owner !== undefined && { owner }), capture }
    await writeJsonFile(path, file, { mode: 0o600 })
  }

  async #delete({ capture }: ActiveCapture): Promise<void> {
    this.#all.delete(capture.id)
    for (const path of [this.#path(capture, 'jsonl'), this.#path(capture, 'json')]) await rm(path, { force: true })
  }

  #path({ id }: Capture, kind: 'json' | 'jsonl'): string {
    return join(this.#options.folder, `${id}.${kind}`)
  }

  #active(): ActiveCapture[] {
    return [...this.#all.values()].filter(({ capture }) => capture.endedAt === undefined)
  }

  #find(id: string): ActiveCapture {
    const found = this.#all.get(id)
    if (found) return found
    throw new CorralError('capture_not_found', 'There is no such capture. "corral capture list" shows the captures.')
  }
}

/** Counts the records that a killed server had written. */
async function countLines(path: string): Promise<Pick<Capture, 'records' | 'bytes'>> {
  let records = 0
  let bytes = 0
  try {
    for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
      bytes += chunk.length
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) records++
    }
  } catch (error) {
    if (!isSystemError(error, 'ENOENT')) throw error
  }
  return { records, bytes }
}
