import type { Command } from 'commander'
import type { PullReply } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { type CommandFailure, throwTogether, tryEach } from '../command-failure.ts'
import { type CommandContext, unknownCommand } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'
import { formatTimeLeft, percentOf } from '../transfer-state.ts'

const DONE = { pause: 'paused', resume: 'resumed', cancel: 'cancelled' } as const

export function definePulls(program: Command, context: CommandContext): void {
  const pulls = program
    .command('pulls')
    .description('list unfinished downloads; pause, resume or cancel them')
    .option('--json', 'print the records of GET /api/pulls')
    .addHelpText(
      'after',
      `
A download is named by its model or its id (see --json). "corral pull <model>" also continues one, and shows its progress.

Examples:
  corral pulls
  corral pulls pause Qwen/Qwen3-32B-GGUF
  corral pulls cancel Qwen/Qwen3-32B-GGUF:Q8_0`
    )
    .allowExcessArguments()
    .action(async ({ json }: { json?: boolean }) => {
      if (pulls.args[0] !== undefined) unknownCommand(pulls, pulls.args[0])
      const { reply, own } = await withServer(context, 'aside', async ({ client, own }) => ({
        reply: await client.json<{ pulls: PullReply[] }>('GET', '/api/pulls'),
        own
      }))
      if (json) return printJson(reply)
      if (own && reply.pulls.some(({ state }) => state !== 'paused' && state !== 'failed')) {
        printNote('No server is running: downloads continue when one starts ("corral serve").')
      }
      if (process.stderr.isTTY && reply.pulls.length === 0) {
        printNote('There are no downloads. Start one with: corral pull <owner>/<name>')
      }
      printText(formatPulls(reply.pulls))
    })
  for (const [action, description] of [
    ['pause', 'stop a download for now; the downloaded part is kept'],
    ['resume', 'let the running server continue a download'],
    ['cancel', 'end a download and delete the downloaded part']
  ] as const) {
    pulls
      .command(action)
      .description(description)
      .argument('<download...>', 'models, or ids of downloads')
      .option('--json', 'print the replies of the server')
      .action((names: string[]) => changePulls(context, action, names, pulls))
  }
}

async function changePulls(context: CommandContext, action: keyof typeof DONE, names: string[], pulls: Command) {
  const { json } = pulls.opts<{ json?: boolean }>()
  let failures: CommandFailure[] = []
  const replies: unknown[] = []
  const resume = action === 'resume'
  await withServer(
    context,
    resume ? 'fail' : 'aside',
    async ({ client }) => {
      failures = await tryEach(names, async name => {
        const body = name.includes('/') ? { model: name } : { id: name }
        replies.push(await client.json('POST', `/api/pulls/${action}`, body))
        printNote(`${DONE[action]} ${name}`)
      })
    },
    {
      without: resume
        ? `Only a running server can resume a download in the background; "corral pull ${names[0]}" continues it here.`
        : undefined
    }
  )
  if (json) printJson(replies)
  throwTogether(failures)
}

/** Downloads as a table, the oldest first. */
export function formatPulls(pulls: PullReply[]): string {
  return printable(
    formatTable(
      ['MODEL', 'STATE', '>DONE', 'AMOUNT', '>SPEED', '>LEFT', 'WHY'],
      pulls.map(({ model, state, completed, total, speed, reason }) => [
        model,
        state,
        percentOf(completed, total),
        `${formatBytes(completed)} of ${formatBytes(total)}`,
        speed > 0 ? `${formatBytes(Math.round(speed))}/s` : '',
        formatTimeLeft(total - completed, speed) ?? '',
        reason ?? ''
      ])
    )
  )
}
