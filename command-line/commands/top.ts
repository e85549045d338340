import type { Command } from 'commander'
import type { CommandContext } from '../context.ts'

export function defineTop(program: Command, context: CommandContext): void {
  program
    .command('top')
    .description('watch models, slots, speed, memory and downloads')
    .option('--json', 'print one line per change: the reply of GET /api/ps')
    .addHelpText(
      'after',
      `
Looks once a second, and waits for a server that is not there. q or Ctrl-C leaves. SLOTS are the requests that are
answered, of those that can be at once; QUEUE waits; TOKENS/S is an average over ten seconds. Memory by pool and downloads
are shown to operators, which the user who runs the server is. Where standard output is no terminal, it is as with --json.

Examples:
  corral top
  corral top --json | jq -c '[.models[] | {name, running, queued}]'`
    )
    .action(async ({ json = false }: { json?: boolean }) => {
      const { showLive } = await import('../live-view.ts')
      await showLive(context, { json, fullScreen: true })
    })
}
