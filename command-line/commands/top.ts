import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'

export function defineTop(program: CorralCommand, context: CommandContext): void {
  program
    .command('top')
    .description('watch models, slots, speed, memory and downloads')
    .option('--json', 'print one line per change: the reply of GET /api/ps')
    .notes(`
Refreshes every second, and waits for a server that is not running. Press q or Ctrl-C to quit. SLOTS shows active requests
and the maximum, QUEUE shows waiting requests, and TOKENS/S is an average over ten seconds. Only operators see memory pools
and downloads. The user who runs the server is one. If standard output is not a terminal, the output is that of --json.

Examples:
  corral top
  corral top --json | jq -c '[.models[] | {name, running, queued}]'`)
    .action(async ({ json = false }: { json?: boolean }) => {
      const { showLive } = await import('../live-view.ts')
      await showLive(context, { json, fullScreen: true })
    })
}
