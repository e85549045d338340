import { once } from 'node:events'
import { networkInterfaces } from 'node:os'
import { progressText } from '../../core/contracts/progress.ts'
import type { WorkerFacts } from '../../core/contracts/workers.ts'
import { WORKER_PORT, type Worker, type WorkerOptions } from '../../core/contracts/workers.ts'
import { formatBytes, parseBytes } from '../../core/system/bytes.ts'
import { interruption } from '../command-failure.ts'
import { type CommandContext, type Options, openConfig, usageFailure } from '../context.ts'
import { withLocalService } from '../local-service.ts'
import { formatPairs, printJson, printNote, printText, wrapLines } from '../output.ts'
import { showProgress } from '../progress-display.ts'

type WorkerFlags = Options<'json', 'memory' | 'devices'> & { cache: string; threads?: number }

export async function worker(context: CommandContext, flags: WorkerFlags): Promise<void> {
  const options = workerOptions(context, flags)
  // The address belongs to the worker and must not be used to find or check a server.
  const { host: _, port: __, insecure: ___, ...others } = context.flags()
  const config = await openConfig({ ...context, flags: () => others })
  const progress = await showProgress('starting', { patient: true })
  const signal = interruption()
  await withLocalService(context, config, 'workerHost', async workers => {
    const onProgress = (step: Parameters<typeof progressText>[0]) => progress.status(progressText(step))
    const started = await workers.start(options, { signal, onProgress }).finally(() => progress.clear())
    try {
      const facts = await started.facts()
      if (flags.json) printJson({ address: started.address, ...facts })
      else printText(welcome(started, facts, options))
      const { isLoopback } = await import('../../core/system/private-address.ts')
      if (!isLoopback(options.host)) printNote(warning(options))
      if (!signal.aborted) await once(signal, 'abort')
    } finally {
      await started.stop()
    }
  })
  printNote('stopped')
}

function workerOptions(context: CommandContext, flags: WorkerFlags): WorkerOptions {
  const { host = '127.0.0.1', port: given = WORKER_PORT, insecure = false } = context.flags()
  const port = Number(given)
  if (!Number.isInteger(port) || port < 1 || port > 65534) {
    throw usageFailure(`"${given}" is not a port from 1 to 65534. (The next port is used too.)`)
  }
  const bytes = (text: string, flag: string) => {
    const parsed = parseBytes(text)
    if (parsed === undefined) throw usageFailure(`${flag} must be a size such as 24GiB, but got "${text}".`)
    return parsed
  }
  return {
    host,
    port,
    insecure,
    cache: bytes(flags.cache, '--cache'),
    memory: flags.memory === undefined ? undefined : bytes(flags.memory, '--memory'),
    devices: flags.devices?.split(',').filter(name => name !== ''),
    threads: flags.threads,
    notice: printNote
  }
}

function welcome({ address, cacheDirectory }: Worker, { build, devices }: WorkerFacts, options: WorkerOptions): string {
  const lent = devices.map(
    ({ name, description, usable, total }) => `${name} ${description}: ${formatBytes(usable)} of ${formatBytes(total)}`
  )
  const cache = cacheDirectory && `${cacheDirectory}, at most ${formatBytes(options.cache)}`
  const [first] = reachedAt(address)
  const pairs = formatPairs([
    ['Address', reachedAt(address).join(', ')],
    ['Lends', lent.join('\n')],
    ['llama.cpp', `${build.version} (${build.id})`],
    ['Cache', cache]
  ])
  return `\n${wrapLines(pairs)}\n\n  In config.yaml on the other machine, for a model:\n  rpc: [${first}]\n\n  Press Ctrl-C to stop the worker.\n`
}

/** Addresses that other machines can use. A wildcard address expands to all addresses of this machine. */
function reachedAt(address: string): string[] {
  if (!address.startsWith('0.0.0.0:')) return [address]
  const all = Object.values(networkInterfaces()).flatMap(list => list ?? [])
  const others = all.filter(({ family, internal }) => family === 'IPv4' && !internal)
  return others.length > 0 ? others.map(each => address.replace('0.0.0.0', each.address)) : [address]
}

const warning = ({ host, port }: WorkerOptions) =>
  `warning: anyone who can connect to ${host}:${port} can read the computed data and run programs as this user. ` +
  "llama.cpp's RPC has no authentication and no encryption. Allow only the other corral to reach it: use a firewall, a VPN, or an SSH tunnel to 127.0.0.1."
