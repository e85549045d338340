import type { Command } from 'commander'
import type { PullReply } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { CommandContext } from '../context.ts'
import { type CommandFailure, throwTogether, tryEach } from '../failure.ts'
import { printable, printJson, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'
import { formatTable } from '../table.ts'
import { percentOf } from '../transfer-layout.ts'
import { formatTimeLeft } from '../transfer-speed.ts'
import { unknownCommand } from '../unknown-command.ts'

const DONE = { pause: 'paused', resume: 'resumed', cancel: 'cancelled' } as const

export function definePulls(program: Command, context: CommandContext): void {
  const pulls = program
    .command('pulls')
    .description('list downloads that are not done; pause, resume or cancel them')
    .option('--json', 'print the records of GET /api/pulls')
    .addHelpText(
      'after',
      `
Downloads are named by their model or their id (of --json). "corral pull <model>" also goes on with one, and shows it.

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
        process.stderr.write('No server runs: downloads go on by themselves once one does ("corral serve").\n')
      }
      if (process.stderr.isTTY && reply.pulls.length === 0) {
        process.stderr.write('Nothing is being downloaded. Begin with: corral pull <owner>/<name>\n')
      }
      printText(formatPulls(reply.pulls))
    })
  for (const [action, description] of [
    ['pause', 'stop a download for now; what was fetched is kept'],
    ['resume', 'let the running server go on with a download'],
    ['cancel', 'end a download and delete what was fetched']
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
        process.stderr.write(`${DONE[action]} ${name}\n`)
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
      [
        { title: 'MODEL' },
        { title: 'STATE' },
        { title: 'DONE', align: 'right' },
        { title: 'AMOUNT' },
        { title: 'SPEED', align: 'right' },
        { title: 'LEFT', align: 'right' },
        { title: 'WHY' }
      ],
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
