import { parseDuration } from '../../core/system/duration.ts'
import type { Rollout } from '../../plugins/machines/cluster/rollout/rollout-record.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { type CommandContext, type Options, usageFailure } from '../context.ts'
import { formatTable, printJson, printNote, printPairs, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

const PATH = '/api/cluster/rollout'
const server = { whenNone: 'fail', without: 'The server in front of the members is not running.' } as const

type StartOptions = Options<'json', 'from' | 'canaryKey' | 'after' | 'ask' | 'expect'> & { canary?: number }

export async function rolloutStart(
  context: CommandContext,
  kind: string,
  target: string | undefined,
  { from, canary, canaryKey: key, after, ask: question, expect, json }: StartOptions
): Promise<void> {
  const wait = parseDuration(after)
  if (after !== undefined && !(wait! > 0))
    throw usageFailure(`--after must be a duration such as 30m, but got "${after}".`)
  if (wait !== undefined && canary === undefined && key === undefined) {
    throw usageFailure('--after needs --canary or --canary-key.')
  }
  const body = {
    ...{ kind, target, from, ask: question, expect },
    ...((canary !== undefined || key !== undefined) && {
      canary: { ...(canary !== undefined && { share: canary / 100 }), key, after: wait }
    })
  }
  const { rollout } = await ask<{ rollout: Rollout }>(context, 'POST', PATH, body, server)
  if (json) return printJson(rollout)
  printNote(`The rollout has begun at ${rollout.nodes.length} members. Follow it with "corral rollout status".`)
}

export async function rolloutStatus(context: CommandContext, { json }: Options): Promise<void> {
  const { rollout } = await ask<{ rollout?: Rollout }>(context, 'GET', PATH, undefined, server)
  if (json) printJson(rollout ?? null)
  else if (!rollout) printNote('There was no rollout. Start one with: corral rollout start')
  else print(rollout)
  if (rollout?.state === 'failed') throw new CommandFailure(EXIT.failure, rollout.failure ?? 'The rollout has failed.')
}

const change = async (context: CommandContext, action: string) =>
  printNote(
    `The rollout is ${(await ask<{ rollout: Rollout }>(context, 'PUT', PATH, { action }, server)).rollout.state}.`
  )

export const rolloutPause = (context: CommandContext) => change(context, 'pause')
export const rolloutContinue = (context: CommandContext) => change(context, 'continue')
export const rolloutUndo = (context: CommandContext) => change(context, 'undo')

function print({ kind, target, state, note, canary, started_at, nodes }: Rollout): void {
  const parts = canary && [
    ...(canary.share === undefined ? [] : [`${Math.round(canary.share * 100)} % of the conversations`]),
    ...(canary.key === undefined ? [] : [`the key ${canary.key}`]),
    ...(canary.over ? ['over'] : canary.until === undefined ? [] : [`until ${canary.until}`])
  ]
  printPairs([
    ['Rollout', `${kind} ${target}`],
    ['State', note === undefined ? state : `${state}: ${note}`],
    ['Canary', parts?.join(', ')],
    ['Started', started_at]
  ])
  const rows = nodes.map(({ name, phase, note = '' }) => [name, phase, note])
  printText(`\n${formatTable(['MEMBER', 'STATE', 'NOTE'], rows)}`)
}
