import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { LoadingRecord, PoolRecord, PullReply, RunningRecord } from '../core/contracts/native-records.ts'
import type { StateChange, StateSnapshot } from '../core/contracts/state-events.ts'
import { StateRecords } from '../core/http/state-records.ts'
import { abortAfter } from '../core/system/abort-signals.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { dateAt } from '../core/system/clock.ts'
import { CommandFailure, EXIT, interruption } from './command-failure.ts'
import type { CommandContext } from './context.ts'
import { shorten } from './display-width.ts'
import { formatTable, printable, relativeTime, wrapLines } from './output.ts'
import {
  formatHits,
  formatPercent,
  formatPool,
  formatTimeLeft,
  measureSpeed,
  type ScreenSize
} from './progress-display.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'
import { withServer } from './server-connection.ts'

/** The reply of GET /api/ps. */
export interface PsReply {
  models: RunningRecord[]
  loading: LoadingRecord[]
  /** Only for operators. */
  memory?: PoolRecord[]
  pulls?: PullReply[]
}

/** The newest reply of the server at `address`, or the reason for waiting. */
export type LiveState = { address: string; reply: PsReply } | { waiting: string }

/** Subscribed topics. Only operators get `build`, which shows whether the client is one. */
const FEED = '/api/events?topics=engine,pull,memory,build'
/** Interval between reports without news, and between attempts to find a server that has gone. */
const REPORT_INTERVAL_MS = 1000
/** Time without events after which the server is checked, and time limit of that check. */
const MAX_SILENCE_MS = 15_000
const ANSWER_TIMEOUT_MS = 5000

/**
 * Reports changes, and the current state every second, until the command is interrupted or `ended`. Waits for a server
 * that goes away. @throws CommandFailure if the server refuses; Interrupted
 */
async function follow(context: CommandContext, ended: AbortSignal, report: (state: LiveState) => void): Promise<void> {
  const signal = AbortSignal.any([ended, interruption()])
  while (!ended.aborted) {
    try {
      await withServer(context, 'fail', ({ client }) => followServer(client, signal, report))
    } catch (error) {
      interruption().throwIfAborted()
      if (ended.aborted) return
      if (!(error instanceof CommandFailure)) throw error
      if (error instanceof ServerRefusal && error.code !== 'shutting_down') throw error
      report({ waiting: error.message })
    }
    await sleep(REPORT_INTERVAL_MS, undefined, { signal }).catch(() => undefined)
    interruption().throwIfAborted()
  }
}

/** @throws CommandFailure when the server ends its stream or no longer answers */
async function followServer(client: ServerClient, ended: AbortSignal, report: (state: LiveState) => void) {
  const silent = new AbortController()
  const signal = AbortSignal.any([ended, silent.signal])
  const records = new StateRecords()
  let hasState = false
  const tell = () => report({ address: client.address, reply: toReply(records) })
  let heardAt = performance.now()
  const heard = () => {
    heardAt = performance.now()
  }
  const asking = setInterval(async () => {
    if (hasState) tell()
    if (performance.now() - heardAt < MAX_SILENCE_MS) return
    heard()
    const tooLate = abortAfter(ANSWER_TIMEOUT_MS)
    // The stream reports all other failures.
    await client.json('GET', '/api/health', undefined, AbortSignal.any([signal, tooLate])).catch(() => undefined)
    if (tooLate.aborted) silent.abort(new CommandFailure(EXIT.noServer, 'It does not answer.'))
  }, REPORT_INTERVAL_MS)
  try {
    const events = client.stream<StateSnapshot | StateChange>(FEED, undefined, { signal, onStatus: heard })
    for await (const event of events) {
      heard()
      records.apply(event)
      hasState = true
      tell()
    }
  } finally {
    clearInterval(asking)
  }
  throw new CommandFailure(EXIT.noServer, 'It was stopped.')
}

/** The records in the format of `GET /api/ps`. */
function toReply(records: StateRecords): PsReply {
  const reply: PsReply = { models: [], loading: [] }
  for (const engine of records.all('engine')) {
    if (engine.state !== 'loaded') reply.loading.push(engine)
    else {
      const { state: _, ...model } = engine
      reply.models.push(model)
    }
  }
  const [memory, pulls] = [records.all('memory'), records.all('pull')]
  const isOperator = records.all('build').length > 0
  return {
    ...reply,
    ...((isOperator || memory.length > 0) && { memory }),
    ...((isOperator || pulls.length > 0) && { pulls })
  }
}

type ModelName = Pick<RunningRecord, 'name' | 'mode' | 'member'>
const toKey = ({ name, mode, member = '' }: ModelName) => `${name} ${mode} ${member}`

/** Tokens per second of each model, computed from its token count. */
export class Rates {
  #samples = new Map<string, { at: number; moved: number }[]>()

  /** @param now milliseconds of `performance.now()` */
  add(models: (ModelName & Pick<RunningRecord, 'generated_tokens'>)[], now: number): void {
    const next = models.map(({ generated_tokens: moved = 0, ...model }) => {
      const before = this.#samples.get(toKey(model)) ?? []
      // The count restarts when a model is reloaded.
      const kept = before.length > 0 && before.at(-1)!.moved > moved ? [] : before.slice(-60)
      return [toKey(model), [...kept, { at: now, moved }]] as [string, typeof kept]
    })
    this.#samples = new Map(next)
  }

  of(model: ModelName, now: number): number | undefined {
    return measureSpeed(this.#samples.get(toKey(model)) ?? [], now)
  }
}

/** Name of a model with its cluster node. */
const placed = ({ name, member }: { name: string; member?: string | undefined }) =>
  member === undefined ? name : `${name} @${member}`

/** Shorter names would not be recognized. */
const MIN_NAME = 12

/** Renders the state as lines that fit the terminal. */
export function liveLines(state: LiveState, rates: Rates, { columns, rows }: ScreenSize, now: number): string[] {
  const width = Math.max(1, columns - 1)
  const cut = (lines: string[]) =>
    lines.slice(0, Math.max(1, rows - 1)).map(line => shorten(printable(line), width).trimEnd())
  if ('waiting' in state) return cut(['waiting for the server', ...wrap(state.waiting, width)])
  const { models, loading, memory = [], pulls = [] } = state.reply
  const busy = models.reduce((sum, { running }) => sum + running, 0)
  const queued = [...models, ...loading].reduce((sum, { queued }) => sum + queued, 0)
  const speed = models.reduce((sum, model) => sum + (rates.of(model, now) ?? 0), 0)
  const sums = `${busy} running, ${queued} waiting, ${speed.toFixed(1)} tokens/s`
  const lines = wrap(`${state.address}  ${sums}`, width)
  for (const pool of memory) lines.push(...wrap(formatPool(pool), width))
  lines.push('')
  if (models.length + loading.length === 0) lines.push('No model is loaded.')
  else {
    const rows = [
      ...models.map(model => [
        placed(model),
        `${model.running}/${model.slots}`,
        String(model.queued),
        (rates.of(model, now) ?? 0).toFixed(1),
        formatHits(model.prompt_cache),
        formatBytes(model.size),
        relativeTime(model.expires_at, dateAt(now))
      ]),
      ...loading.map(({ name, member, queued, status, state }) => [
        ...[placed({ name, member }), '', String(queued), '', '', ''],
        status ?? state
      ])
    ]
    const titles = ['MODEL', '>SLOTS', '>QUEUE', '>TOKENS/S', '>CACHE HITS', '>MEMORY', 'UNTIL']
    // Long names give way to the other columns.
    const others = formatTable(
      titles,
      rows.map(cells => ['', ...cells.slice(1)]),
      Number.POSITIVE_INFINITY
    )
    const room = width - Math.max(...others.split('\n').map(line => line.length)) + titles[0]!.length
    const table = rows.map(([name, ...cells]) => [room < MIN_NAME ? name! : shorten(name!, room), ...cells])
    lines.push(...formatTable(titles, table, width).split('\n'))
  }
  if (pulls.length > 0) lines.push('')
  for (const { model, state, completed, total, speed } of pulls) {
    const left = formatTimeLeft(total - completed, speed)
    const pace = left === undefined ? [] : [`${formatBytes(Math.round(speed))}/s`, `${left} left`]
    lines.push(...wrap(`${model}  ${[`${state} ${formatPercent(completed, total)}`, ...pace].join(', ')}`, width))
  }
  return cut(lines)
}

const wrap = (text: string, width: number) => wrapLines(text, width).split('\n')

/** The terminal's second screen, without a cursor, and the shell's screen. */
const OWN_SCREEN = '\x1b[?1049h\x1b[?25l'
const BACK_TO_SHELL = '\x1b[?25h\x1b[?1049l'

/**
 * Shows the server's state until the command is interrupted: redrawn in place on a terminal, otherwise as lines of JSON.
 * @param fullScreen uses the whole terminal and restores its content afterwards; q quits
 */
export async function showLive(context: CommandContext, json: boolean, fullScreen: boolean): Promise<void> {
  const ended = new AbortController()
  if (json || !process.stdout.isTTY) return await follow(context, ended.signal, linesOfJson())
  const { createLogUpdate } = await import('log-update')
  const update = createLogUpdate(process.stdout)
  const below = { draw: (lines: string[]) => update(lines.join('\n')), close: () => update.done() }
  const screen = fullScreen ? takeScreen(() => ended.abort()) : below
  const rates = new Rates()
  let state: LiveState = { waiting: '' }
  const draw = () => {
    const { columns, rows } = process.stdout
    screen.draw(liveLines(state, rates, { columns: columns || 80, rows: rows || 24 }, performance.now()))
  }
  process.stdout.on('resize', draw)
  const following = follow(context, ended.signal, next => {
    if (ended.signal.aborted) return
    state = next
    rates.add('reply' in next ? next.reply.models : [], performance.now())
    draw()
  })
  try {
    // Quitting must not wait for the search for a server.
    await Promise.race([following, once(ended.signal, 'abort')])
  } finally {
    process.stdout.off('resize', draw)
    screen.close()
  }
}

function takeScreen(quit: () => void) {
  const { stdin, stdout } = process
  const giveBack = () => {
    stdout.write(BACK_TO_SHELL)
    if (stdin.isTTY) stdin.setRawMode(false)
  }
  const onKeys = (keys: Buffer) => {
    if (['q', 'Q', '\x1b', '\x04'].includes(keys.toString())) quit()
    if (keys.includes(3)) process.kill(process.pid, 'SIGINT')
  }
  stdout.write(OWN_SCREEN)
  // A second Ctrl-C ends the process immediately. The terminal must be usable after that too.
  process.once('exit', giveBack)
  if (stdin.isTTY) {
    stdin.setRawMode(true)
    stdin.on('data', onKeys)
    stdin.on('error', quit)
    stdin.on('end', quit)
  }
  return {
    draw: (lines: string[]) => void stdout.write(`\x1b[H${lines.map(line => `${line}\x1b[K`).join('\r\n')}\x1b[J`),
    close() {
      process.off('exit', giveBack)
      stdin.off('data', onKeys)
      stdin.pause()
      giveBack()
    }
  }
}

/** Prints one line per change. A slow reader gets only the newest state. */
function linesOfJson(): (state: LiveState) => void {
  const { stdout } = process
  // Node.js writes to pipes synchronously. A full pipe would block Ctrl-C.
  const { _handle: handle } = stdout as unknown as { _handle?: { setBlocking?: (blocking: boolean) => void } }
  if (!stdout.isTTY) handle?.setBlocking?.(false)
  let written = ''
  return state => {
    const line = JSON.stringify('reply' in state ? state.reply : { models: [], loading: [], ...state })
    if (line === written || stdout.writableNeedDrain) return
    written = line
    stdout.write(`${line}\n`)
  }
}
