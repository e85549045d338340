import { version } from '../../core/system/package-info.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { formatPairs, printJson, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'

export function defineVersion(program: CorralCommand, context: CommandContext): void {
  program
    .command('version')
    .description('print the versions of corral, Node.js and the running server')
    .option('--json', 'print them as JSON')
    .action(async ({ json }: { json?: boolean }) => {
      const server = await serverVersion(context)
      const versions = {
        corral: version,
        node: process.version,
        platform: `${process.platform}-${process.arch}`,
        server
      }
      if (json) return printJson(versions)
      printText(
        formatPairs(
          [
            ['corral', version],
            ['node', `${process.version} on ${versions.platform}`],
            ['server', server ? `${server.version} at ${server.address}` : 'none is running']
          ],
          ''
        )
      )
    })
}

async function serverVersion(context: CommandContext): Promise<{ version: string; address: string } | null> {
  try {
    return await withServer(context, 'fail', async ({ client }) => {
      const { version } = await client.json<{ version: string }>('GET', '/api/version')
      return { version, address: client.address }
    })
  } catch (error) {
    if (error instanceof CommandFailure && error.exitCode === EXIT.noServer) return null
    throw error
  }
}
