import type { RunningRecord } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import type { PsReply } from '../live-view.ts'
import { formatTable, printJson, printNote, printText, relativeTime } from '../output.ts'
import { formatHits } from '../progress-display.ts'
import { ask } from '../server-connection.ts'

const NOTHING_LOADED = { whenNone: 'fail', without: 'No models are loaded.' } as const

export async function ps(context: CommandContext, { json = false, watch }: { json?: boolean; watch?: boolean }) {
  if (watch) {
    const { showLive } = await import('../live-view.ts')
    return await showLive(context, { json, fullScreen: false })
  }
  let reply: PsReply = { models: [], loading: [] }
  try {
    reply = await ask<PsReply>(context, 'GET', '/api/ps', undefined, NOTHING_LOADED)
  } catch (error) {
    if (json && error instanceof CommandFailure && error.exitCode === EXIT.noServer) printJson(reply)
    throw error
  }
  if (json) printJson(reply)
  else printText(formatRunning(reply, new Date()))
}

export async function top(context: CommandContext, { json = false }: { json?: boolean }): Promise<void> {
  const { showLive } = await import('../live-view.ts')
  await showLive(context, { json, fullScreen: true })
}

export function formatRunning({ models, loading }: PsReply, now: Date): string {
  const hasMembers = [...models, ...loading].some(({ member }) => member !== undefined)
  const isMeasured = models.some(({ speculation }) => speculation)
  const speedCell = (cell: string) => (isMeasured ? [cell] : [])
  const memberCell = ({ member = 'here' }: { member?: string | undefined }) => (hasMembers ? [member] : [])
  return formatTable(
    [
      'NAME',
      ...(hasMembers ? ['MEMBER'] : []),
      'ID',
      '>MEMORY',
      'PROCESSOR',
      '>CONTEXT',
      '>CACHE HITS',
      ...speedCell('SPEED'),
      'UNTIL'
    ],
    [
      ...models.map(
        ({ name, member, digest, size, size_vram, context_length, prompt_cache, speculation, expires_at }) => [
          name,
          ...memberCell({ member }),
          digest.slice(0, 12),
          formatBytes(size),
          formatProcessor(size, size_vram),
          String(context_length),
          formatHits(prompt_cache),
          ...speedCell(formatSpeed(speculation)),
          relativeTime(expires_at, now)
        ]
      ),
      ...loading.map(({ name, member, state, status }) => [
        name,
        ...memberCell({ member }),
        '',
        '',
        '',
        '',
        '',
        ...speedCell(''),
        status ?? state
      ])
    ]
  )
}

/** Tokens per second with the method that guesses tokens ahead, and without: `38 tokens/s (mtp), 21 without`. */
function formatSpeed(speculation: RunningRecord['speculation']): string {
  if (!speculation) return ''
  const { method, tokens_per_second: rates } = speculation
  const rate = (of: string) => (rates[of] === undefined ? '?' : Math.round(rates[of]))
  return `${rate(method)} tokens/s${method === 'none' ? '' : ` (${method}), ${rate('none')} without`}`
}

/** Share of a model's memory on each device: `100% GPU`, `100% CPU` or `48%/52% CPU/GPU`. */
export function formatProcessor(size: number, vram: number): string {
  if (vram <= 0 || size <= 0) return '100% CPU'
  if (vram >= size) return '100% GPU'
  const cpu = Math.min(99, Math.max(1, Math.round((1 - vram / size) * 100)))
  return `${cpu}%/${100 - cpu}% CPU/GPU`
}

export async function stop(context: CommandContext, model: string): Promise<void> {
  await ask(context, 'POST', '/api/stop', { model: modelArgument(model) }, NOTHING_LOADED)
  printNote(`stopped ${model}`)
}
