import { setTimeout as sleep } from 'node:timers/promises'
import type { LinkedMachine, LinkReply } from '../../plugins/machines/link/link-routes.ts'
import { CommandFailure, EXIT, interruption } from '../command-failure.ts'
import type { CommandContext, Options } from '../context.ts'
import { formatTable, printNote, printResult, printText, relativeTime } from '../output.ts'
import { ask, withServer } from '../server-connection.ts'

const POLL_INTERVAL_MS = 1000
const NEEDS_SERVER = 'Linked machines answer while corral runs. Start it with: corral serve'
const server = { whenNone: 'fail', without: NEEDS_SERVER } as const

export async function link(context: CommandContext, code?: string, host?: string): Promise<void> {
  if (code === undefined) return await showCode(context)
  printNote(host === undefined ? 'Looking for the other machine in this network …' : `Linking with ${host} …`)
  const body = { code, ...(host !== undefined && { host }) }
  const { machine } = await ask<{ machine: LinkedMachine }>(context, 'POST', '/api/link/join', body, server)
  printLinked(machine)
}

async function showCode(context: CommandContext): Promise<void> {
  const signal = interruption()
  await withServer(
    context,
    'fail',
    async ({ client }) => {
      const look = async () => await client.json<LinkReply>('GET', '/api/link')
      const before = new Map((await look()).machines.map(({ id, linked_at }) => [id, linked_at]))
      const { code } = await client.json<{ code: string }>('POST', '/api/link/code')
      const { addresses, port } = await look()
      printText(code)
      const [address = 'this machine'] = addresses
      const place = `${address.includes(':') ? `[${address}]` : address}:${port}`
      printNote(`Enter this on the other machine, within ten minutes: corral link ${code}`)
      printNote(`If it does not find this one: corral link ${code} ${place}`)
      try {
        for (;;) {
          await sleep(POLL_INTERVAL_MS, undefined, { signal })
          const { machines, code: shown } = await look()
          const added = machines.find(({ id, linked_at }) => before.get(id) !== linked_at)
          if (added) return printLinked(added)
          if (!shown) throw new CommandFailure(EXIT.failure, NOT_USED)
        }
      } catch (error) {
        if (!signal.aborted) throw error
        await client.uninterrupted().json('DELETE', '/api/link/code')
        throw signal.reason
      }
    },
    NEEDS_SERVER
  )
}

const NOT_USED =
  'The code was not used: it has expired, or it was entered wrongly three times. Run "corral link" again for a new one.'

function printLinked({ name }: LinkedMachine): void {
  printNote(
    `"${name}" is linked. "corral list" shows its models. It may use the models of this machine; to change that: corral link allow ${name} <permission>`
  )
}

export async function linkList(context: CommandContext, { json }: Options): Promise<void> {
  const found = await ask<LinkReply>(context, 'GET', '/api/link', undefined, server)
  printResult(json, found.machines, machines => {
    if (machines.length === 0) return 'No machines are linked. Link one with: corral link'
    const now = new Date()
    return formatTable(
      ['NAME', 'STATE', 'SINCE', 'ADDRESS', 'MAY'],
      machines.map(({ name, state, since, address = '', may }) => [
        name,
        state === 'refused' ? 'not linked there' : state,
        since === undefined ? '' : relativeTime(since, now),
        address.replace('https://', ''),
        may
      ])
    )
  })
}

const machinePath = (name: string) => `/api/link/machines/${encodeURIComponent(name)}`

export async function linkAllow(context: CommandContext, name: string, may: string): Promise<void> {
  await ask(context, 'PUT', machinePath(name), { may }, server)
  printNote(`"${name}" now has the permission "${may}" on this machine.`)
}

export async function linkWake(context: CommandContext, name: string): Promise<void> {
  await ask(context, 'POST', `${machinePath(name)}/wake`, undefined, server)
  printNote(`"${name}" was sent a signal to wake up. "corral link list" shows when it is here.`)
}

export async function linkRemove(context: CommandContext, name: string): Promise<void> {
  await ask(context, 'DELETE', machinePath(name), undefined, server)
  printNote(`"${name}" was removed. Remove this machine there too, with: corral link remove <name>`)
}
