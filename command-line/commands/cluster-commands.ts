import { createSocket } from 'node:dgram'
import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Command } from 'commander'
import { expandPath } from '../../core/config/config-file.ts'
import type { LoadedConfig } from '../../core/config/load.ts'
import type { MemberRecord, ReplicasRecord } from '../../core/contracts/native-records.ts'
import { type Progress, progressText } from '../../core/contracts/progress.ts'
import { errorMessage } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-after.ts'
import { plural } from '../../core/system/plural.ts'
import type { DrainState } from '../../plugins/apis/native/readiness.ts'
import type { RayPlaces, RayRecord } from '../../plugins/machines/ray/ray-cluster.ts'
import type { RayCall } from '../../plugins/machines/ray/ray-python.ts'
import { CommandFailure, EXIT, interruption } from '../command-failure.ts'
import { type CommandContext, openConfig, usageFailure } from '../context.ts'
import { formatPairs, formatTable, printJson, printNote, printText } from '../output.ts'
import { createClient } from '../server-client.ts'
import { ask } from '../server-connection.ts'

/** Ray's own port for its head. */
const RAY_PORT = 6379
/** Where members listen. */
const MEMBER_PORT = 11500
/** Milliseconds that a command may wait for Ray: it starts processes on loaded machines. */
const RAY_LIMIT = 300_000
/** Milliseconds before a node is started again, the first time and at most. */
const FIRST_WAIT = 1000
const MAX_WAIT = 30_000
/** Milliseconds between two looks at what is still open. */
const LOOK_EVERY = 250

interface UpOptions {
  ray?: string
  bind?: string
  rayPort?: string
  memberPort?: string
  memberHome?: string
  withMember?: boolean
}

interface JoinOptions {
  bind?: string
  name?: string
  tokenFile?: string
}

/** What Ray knows of a node, and its supervisor of the member there. */
interface RayNode {
  name: string
  address: string
  host: string
  head: boolean
  /** Whether it has the resource that members need. */
  corral: boolean
  member?: { state?: string; reason?: string | null; starts?: number; version?: string; url?: string }
}

/** What Ray's head says of the cluster. */
interface RayStatus {
  address: string
  /** Ray's version here. */
  ray: string
  /** Whether it asks for a token; null where that cannot be found out. */
  authentication: boolean | null
  controller: 'up' | 'silent' | 'none'
  /** How many members fronts want at least. */
  wanted: number
  nodes: RayNode[]
}

export function defineCluster(program: Command, context: CommandContext): void {
  const cluster = program
    .command('cluster')
    .description('have Ray start a corral on each of several machines, which this one answers for')
    .addHelpText(
      'after',
      `
Ray starts and watches a corral on every node with the resource "corral", and tells this server of them: its members. Their
models are listed here beside its own. Ray is installed into the data directory the first time (about 100 MB to download).

From one machine to three:
  corral cluster up --ray local                        here; it prints what to run on the others
  corral cluster join 192.168.1.10:${RAY_PORT}                on each of the others, until it is stopped
  corral cluster status

With a cluster of Ray that is there already, whose nodes have corral installed and the resource "corral":
  corral cluster up --ray 10.0.0.5:${RAY_PORT}
  corral cluster down`
    )

  cluster
    .command('up')
    .description('start members on all nodes of a Ray cluster, and on those that join later')
    .requiredOption('--ray <address>', 'the head of a Ray cluster, or "local": one of its own, on this machine')
    .option('--bind <address>', 'with local: the address of this machine that others join at (its private one)')
    .option('--ray-port <port>', `with local: the head's port (${RAY_PORT})`)
    .option('--with-member', 'with local: start a member on this machine too')
    .option('--member-port <port>', `where members listen (${MEMBER_PORT})`)
    .option('--member-home <path>', 'data directory of members on nodes that name none (~/.corral there)')
    .addHelpText(
      'after',
      `
Again, it changes what is given, and starts what has died. The server of this data directory follows at once.
A head of its own asks everybody for the token in cluster/token in the data directory. Its ports are open to the network.
Exit codes: 0 the members are being started, 1 it failed.`
    )
    .action((options: UpOptions) => up(context, options))

  cluster
    .command('join')
    .description('let this machine be a node with a member, until the command is stopped')
    .argument('<address>', 'of Ray\'s head, as "corral cluster up" printed it')
    .option('--bind <address>', 'the address of this machine that the others reach (the one that leads to the head)')
    .option('--name <name>', "the member's name (that of the machine)")
    .option('--token-file <path>', 'a file with the token of the cluster (cluster/token in the data directory)')
    .addHelpText(
      'after',
      `
The member serves the models of this data directory, which no other corral may serve meanwhile. What dies is started again.
Ctrl-C or SIGTERM takes it out: its answers have "shutdown_grace" to end; a second signal ends it at once.
Instead of --token-file, RAY_AUTH_TOKEN may hold the token.`
    )
    .action((address: string, options: JoinOptions) => joinCluster(context, address, options))

  cluster
    .command('status')
    .description('show the nodes of the Ray cluster and their members')
    .option('--json', 'print it as JSON')
    .addHelpText('after', '\nExit codes: 0 shown, 3 there is no cluster, or its head does not answer.')
    .action(({ json }: { json?: boolean }) => showStatus(context, json === true))

  cluster
    .command('drain')
    .description('let a member get no new requests')
    .argument('<member>', 'its name')
    .option('--undo', 'let it get requests again')
    .action(async (member: string, { undo }: { undo?: boolean }) => {
      const method = undo ? 'DELETE' : 'POST'
      const drained = await ask<{ by: 'member' | 'front'; member: MemberRecord }>(
        context,
        method,
        '/api/cluster/drain',
        { member },
        { whenNone: 'fail' }
      )
      printNote(undo ? `${member} gets requests again.` : `${member} gets no new requests; what it answers goes on.`)
      if (!undo && drained.by === 'front') for (const note of drained.member.notes) printNote(note)
    })

  cluster
    .command('down')
    .description('end all members; a Ray of its own too')
    .addHelpText(
      'after',
      '\nAnswers have "shutdown_grace" to end. Models and keys stay. A Ray cluster that was there before goes on without members.'
    )
    .action(() => down(context))
}

/** What commands need that work with Ray. */
interface RayContext {
  config: LoadedConfig
  places: RayPlaces
  settings: { address: string; token_file: string; python: string; package_index: string }
  /** Installs Ray where that has not been done. */
  call(tokenFile: string | undefined, more?: Record<string, string>): Promise<RayCall>
}

async function openRay(context: CommandContext): Promise<RayContext> {
  const config = await openConfig(context)
  const [{ rayPlaces, makePlaces }, { prepareRay, rayVariables }, { createLogger }] = await Promise.all([
    import('../../plugins/machines/ray/ray-cluster.ts'),
    import('../../plugins/machines/ray/ray-python.ts'),
    import('../../core/system/log.ts')
  ])
  const { home, logs } = config.paths
  const settings = config.sections['cluster-ray'] as RayContext['settings']
  const places = rayPlaces(home)
  const log = createLogger(config.core.log_level, { file: join(logs, 'corral.log') })
  const signal = interruption()
  return {
    config,
    places,
    settings,
    async call(tokenFile, more = {}) {
      await makePlaces(places)
      await mkdir(logs, { recursive: true, mode: 0o700 })
      const { env } = context
      const options = { settings, directory: join(home, 'python'), env, log }
      const python = await prepareRay(options, { signal, onProgress: notedProgress() })
      const variables = { ...rayVariables(env, tokenFile), ...more }
      return { python, variables, cwd: places.folder, env, log, signal, timeout: RAY_LIMIT }
    }
  }
}

/** Says what is installed, one line for each step. */
function notedProgress(): (progress: Progress) => void {
  let last = ''
  return progress => {
    const text = progressText(progress)
    if (text !== last) printNote(`Ray: ${text}`)
    last = text
  }
}

/** @throws CommandFailure with what Ray, or the program that speaks with it, has said */
async function asked<Result>(work: () => Promise<Result>): Promise<Result> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'RayFailure') throw error
    const isAway = 'code' in error && error.code === 'no_head'
    throw new CommandFailure(isAway ? EXIT.noServer : EXIT.failure, error.message, error)
  }
}

function portOf(text: string, option: string): number {
  const port = Number(text)
  if (/^\d+$/.test(text) && port >= 1 && port <= 65535) return port
  throw usageFailure(`${option} must be a port from 1 to 65535; got "${text}".`)
}

function checkBind(address: string): string {
  // Ray would take another address of the machine in its place.
  if (address !== '127.0.0.1' && address !== 'localhost' && address !== '0.0.0.0') return address
  throw usageFailure(`Ray cannot use ${address}. Name an address of this machine; 127.0.0.2 is one for itself alone.`)
}

/** The address of this machine in a private network. */
async function privateAddress(): Promise<string> {
  const { isPrivateHost } = await import('../../core/system/private-address.ts')
  const all = Object.values(networkInterfaces()).flatMap(found => found ?? [])
  const found = all.find(({ family, address, internal }) => family === 'IPv4' && !internal && isPrivateHost(address))
  if (found) return found.address
  throw new CommandFailure(
    EXIT.usage,
    'This machine has no address in a private network. Name the one that the other machines reach with --bind; Ray is ' +
      'open to all who reach it and have the token.'
  )
}

async function up(context: CommandContext, options: UpOptions): Promise<void> {
  const isLocal = options.ray === 'local'
  if (!isLocal && !/^[^\s/]+:\d+$/.test(options.ray!)) {
    throw usageFailure(`--ray must be "local" or an address such as 10.0.0.5:${RAY_PORT}; got "${options.ray}".`)
  }
  for (const [name, value] of Object.entries({
    '--bind': options.bind,
    '--ray-port': options.rayPort,
    '--with-member': options.withMember
  })) {
    if (!isLocal && value !== undefined) throw usageFailure(`${name} needs --ray local.`)
  }
  const ray = await openRay(context)
  const { places, settings, config } = ray
  const cluster = await import('../../plugins/machines/ray/ray-cluster.ts')
  const { askRay } = await import('../../plugins/machines/ray/ray-python.ts')
  const before = await cluster.readRecord(places)
  const known = before?.own === isLocal && (isLocal || before.address === options.ray) ? before : undefined
  if (before && !known) {
    throw new CommandFailure(
      EXIT.failure,
      `There is another cluster, at ${before.address}. End it with "corral cluster down" before.`
    )
  }
  const [oldHost, oldPort] = known?.address.split(/:(?=\d+$)/) ?? []
  const bind = async () => checkBind(options.bind ?? oldHost ?? (await privateAddress()))
  const rayPort = options.rayPort === undefined ? Number(oldPort ?? RAY_PORT) : portOf(options.rayPort, '--ray-port')
  const address = isLocal ? `${await bind()}:${rayPort}` : options.ray!
  if (known && known.address !== address) {
    throw new CommandFailure(
      EXIT.failure,
      `The head is at ${known.address}. To have it elsewhere, end it with "corral cluster down" before.`
    )
  }
  const memberHome = options.memberHome ?? known?.members.home
  const record: RayRecord = {
    version: 1,
    address,
    own: isLocal,
    ...((options.withMember || known?.member !== undefined) && { member: join(places.folder, 'member') }),
    members: {
      port:
        options.memberPort === undefined
          ? (known?.members.port ?? MEMBER_PORT)
          : portOf(options.memberPort, '--member-port'),
      ...(memberHome !== undefined && { home: memberHome }),
      command: cluster.ownCommand()
    }
  }
  if (isLocal) await mkdir(places.folder, { recursive: true, mode: 0o700 })
  if (isLocal) await cluster.ensureToken(places)
  const token = isLocal ? places.token : cluster.findToken(places, settings.token_file, context.env)
  const more = record.member === undefined ? {} : cluster.memberVariable(record.member, context.env)
  const call = await ray.call(token, more)
  await asked(async () => {
    if (isLocal) {
      const { started } = await askRay<{ started: boolean }>('head', cluster.headOptions(places, record), call)
      printNote(started ? `Ray's head runs at ${address}.` : `Ray's head runs at ${address} already.`)
    }
    await askRay('up', cluster.upOptions(places, record), call)
    await cluster.writeRecord(places, record)
    const status = await askRay<RayStatus>('status', { address }, call)
    warnOf(status)
    const nodes = status.nodes.filter(node => node.corral).length
    const count = plural(nodes, 'node')
    printNote(`Members are started on ${count}, and on each that joins. "corral cluster status" shows them.`)
  })
  if (isLocal) {
    printNote(
      `To add a machine with corral: copy ${places.token} to it, and run there\n` +
        `  corral cluster join ${address} --token-file token`
    )
  }
  const { readOwner } = await import('../../core/system/data-directory.ts')
  if (!(await readOwner(config.paths))) printNote('The server that answers for them does not run yet: corral serve')
}

/** The address of this machine that leads to another one. */
async function addressTowards(address: string): Promise<string> {
  const [, host, port] = /^(.+):(\d+)$/.exec(address)!
  const socket = createSocket(host!.includes(':') ? 'udp6' : 'udp4')
  try {
    return await new Promise<string>((resolve, reject) => {
      socket.once('error', reject)
      // Nothing is sent by this.
      socket.connect(Number(port), host, () => resolve(socket.address().address))
    })
  } finally {
    socket.close()
  }
}

async function joinCluster(context: CommandContext, address: string, options: JoinOptions): Promise<void> {
  if (!/^[^\s/]+:\d+$/.test(address)) throw usageFailure(`"${address}" is not an address such as 10.0.0.5:${RAY_PORT}.`)
  const ray = await openRay(context)
  const { config, places } = ray
  const { home } = config.paths
  const { readOwner } = await import('../../core/system/data-directory.ts')
  const owner = await readOwner(config.paths)
  if (owner) {
    throw new CommandFailure(
      EXIT.failure,
      `A corral serves ${home} already (process ${owner.pid}), and the member is to do that. Stop it, or name another data ` +
        'directory with --home.'
    )
  }
  const cluster = await import('../../plugins/machines/ray/ray-cluster.ts')
  const { askRay } = await import('../../plugins/machines/ray/ray-python.ts')
  const found = await addressTowards(address).catch(error => {
    throw new CommandFailure(EXIT.failure, `${address} cannot be reached: ${errorMessage(error)}.`, error)
  })
  const host = checkBind(options.bind ?? found)
  const named = options.tokenFile === undefined ? '' : expandPath(options.tokenFile, context.cwd)
  if (named !== '' && !existsSync(named)) throw usageFailure(`There is no file ${named}.`)
  const token = cluster.findToken(places, named || ray.settings.token_file, context.env)
  const call = await ray.call(token, cluster.memberVariable(home, context.env))
  const { hostname } = await import('node:os')
  const node = { address, host, temp: places.temp, folder: places.folder, name: options.name ?? hostname() }

  const asked = interruption()
  const ending = new AbortController()
  const onStop = () => {
    printNote('Leaving the cluster: what is answered may end; a second signal ends it at once.')
    void untilIdle(config).finally(() => ending.abort())
  }
  asked.addEventListener('abort', onStop, { once: true })
  let wait = FIRST_WAIT
  let hasJoined = false
  while (!asked.aborted) {
    const began = performance.now()
    const failure = await askRay('join', node, { ...call, signal: ending.signal, timeout: undefined }, () => {
      printNote(`A node of the cluster at ${address}, as ${node.name} (${host}).`)
      hasJoined = true
    }).then(
      () => new Error('it ended'),
      (error: Error & { code?: string }) => error
    )
    if (asked.aborted) break
    const isLasting = 'code' in failure && ['refused', 'joined'].includes(failure.code as string)
    if (isLasting || !hasJoined) throw new CommandFailure(EXIT.failure, errorMessage(failure), failure)
    if (performance.now() - began > MAX_WAIT) wait = FIRST_WAIT
    printNote(`Ray's node has ended; it is started again. (${errorMessage(failure).slice(0, 300)})`)
    await sleep(wait, undefined, { signal: asked }).catch(() => undefined)
    wait = Math.min(MAX_WAIT, wait * 2)
  }
  if (!ending.signal.aborted) await new Promise(resolve => ending.signal.addEventListener('abort', resolve))
}

/** Lets the member of this machine end what it answers, as far as its settings allow. */
async function untilIdle(config: LoadedConfig): Promise<void> {
  const { readOwner } = await import('../../core/system/data-directory.ts')
  const owner = await readOwner(config.paths).catch(() => undefined)
  if (!owner?.socket) return
  const { shutdownLimit } = await import('../../core/http/server.ts')
  const limit = abortAfter(shutdownLimit(config))
  const client = createClient({ address: owner.address, socket: owner.socket, apiKey: undefined, signal: limit })
  try {
    for (let { open } = await client.json<DrainState>('POST', '/api/drain'); open > 0; ) {
      await sleep(LOOK_EVERY, undefined, { signal: limit })
      open = (await client.json<DrainState>('GET', '/api/drain')).open
    }
  } catch {
    // The time is over, or it has ended by itself: nothing is left to wait for.
  }
}

/** The cluster that the commands are about. @throws CommandFailure where there is none */
async function currentCluster({ places, settings }: RayContext): Promise<{ address: string; record?: RayRecord }> {
  const { readRecord } = await import('../../plugins/machines/ray/ray-cluster.ts')
  const record = await readRecord(places)
  const address = settings.address || record?.address
  if (address !== undefined) return { address, ...(record?.address === address && { record }) }
  throw new CommandFailure(
    EXIT.noServer,
    'There is no cluster on Ray here. Make one with: corral cluster up --ray local'
  )
}

async function showStatus(context: CommandContext, json: boolean): Promise<void> {
  const ray = await openRay(context)
  const { address } = await currentCluster(ray)
  const { findToken } = await import('../../plugins/machines/ray/ray-cluster.ts')
  const { askRay } = await import('../../plugins/machines/ray/ray-python.ts')
  const call = await ray.call(findToken(ray.places, ray.settings.token_file, context.env))
  const status = await asked(() => askRay<RayStatus>('status', { address }, call))
  const front = await frontOf(context)
  if (json) return printJson({ ...status, front: front ?? null })
  const head = status.nodes.find(node => node.head)
  printText(
    formatPairs(
      [
        ['Ray', `${address}, ${status.ray}${head ? `, its head on ${head.host}` : ''}`],
        ['Access', status.authentication === false ? 'anybody' : status.authentication ? 'by a token' : 'unknown'],
        ['Controller', status.controller],
        ['Wanted', status.wanted > 0 ? `at least ${status.wanted} members` : undefined]
      ],
      ''
    )
  )
  const rows = status.nodes.map(({ name, address, corral, member }) => [
    name,
    member?.url ?? address,
    member?.state ?? (corral ? 'not started yet' : 'no member'),
    member?.starts === undefined ? '' : String(member.starts),
    member?.version ?? '',
    ...fromFront(member && front?.members.find(each => each.source === 'ray' && each.url === member.url))
  ])
  const titles = ['NODE', 'ADDRESS', 'MEMBER', '>STARTS', 'VERSION', 'FRONT', '>RUNNING', 'LLAMA.CPP']
  printText(`\n${formatTable(titles, rows)}`)
  if (front?.replicas.length) {
    const models = front.replicas.map(({ model, mode, loaded, loading, wanted, reason, failures }) => [
      model,
      mode,
      String(loaded),
      String(loading),
      String(wanted),
      [reason, ...failures.map(({ member, message }) => `${member}: ${message}`)].join(' ')
    ])
    printText(`\n${formatTable(['MODEL', 'MODE', '>MEMBERS', '>LOADING', '>WANTED', 'WHY'], models)}`)
  }
  warnOf(status)
  if (!front) printNote('The server that answers for them does not run: corral serve')
  for (const { name, fault } of front?.sources ?? []) if (fault) printNote(`warning: ${name}: ${fault}`)
  for (const { name, reason, notes } of front?.members ?? []) {
    for (const text of [...(reason ? [reason] : []), ...notes]) printNote(`warning: ${name}: ${text}`)
  }
}

/** What the server here knows of its members. */
type Front = { members: MemberRecord[]; replicas: ReplicasRecord[]; sources: { name: string; fault?: string }[] }

/** Undefined where no server runs. */
async function frontOf(context: CommandContext): Promise<Front | undefined> {
  return await ask<Front>(context, 'GET', '/api/cluster', undefined, { whenNone: 'fail' }).catch(error => {
    if (error instanceof CommandFailure && error.exitCode === EXIT.noServer) return undefined
    throw error
  })
}

/** How a front sees a member: whether requests go there, how many, and with which build they are answered. */
function fromFront(member: MemberRecord | undefined): [state: string, running: string, build: string] {
  if (!member) return ['', '', '']
  return [member.state, String(member.running), member.build ?? '']
}

function warnOf({ address, authentication, controller, nodes }: RayStatus): void {
  if (authentication === false) {
    printNote(
      `warning: Ray at ${address} asks nobody who they are: whoever reaches it can run programs on all its nodes, and read ` +
        'the keys of the members. Start it with RAY_AUTH_MODE=token.'
    )
  }
  if (controller !== 'up') {
    printNote('warning: nothing watches over the members now. Start it again with: corral cluster up --ray …')
  }
  for (const { name, member } of nodes) {
    if (member?.reason) printNote(`warning: ${name}: ${member.reason}`)
  }
  const versions = new Set(nodes.flatMap(({ member }) => member?.version ?? []))
  if (versions.size > 1) {
    printNote(`warning: the members have different versions of corral: ${[...versions].sort().join(', ')}.`)
  }
}

async function down(context: CommandContext): Promise<void> {
  const ray = await openRay(context)
  const { config, places, settings } = ray
  const { address, record } = await currentCluster(ray)
  const { findToken, removeRecord } = await import('../../plugins/machines/ray/ray-cluster.ts')
  const { askRay } = await import('../../plugins/machines/ray/ray-python.ts')
  const { shutdownLimit } = await import('../../core/http/server.ts')
  const call = await ray.call(findToken(places, settings.token_file, context.env))
  // The server does not start the head again that ends now.
  await removeRecord(places)
  try {
    const grace = Math.ceil(shutdownLimit(config) / 1000)
    await asked(() => askRay('down', { address, temp: `${places.temp}-driver`, grace }, call))
    printNote('All members have ended.')
  } catch (error) {
    if (!record?.own || !(error instanceof CommandFailure)) throw error
    printNote(`${error.message} Members on other machines end with "corral cluster join" there.`)
  }
  if (!record?.own) return
  await asked(() => askRay('stop', { temp: places.temp, folder: places.folder }, call))
  printNote("Ray's head on this machine has ended.")
}
