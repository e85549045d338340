import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { hostname, networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { expandPath } from '../../core/config/config-file.ts'
import type { LoadedConfig } from '../../core/config/load.ts'
import type { MemberRecord, PlanStepRecord, ReplicasRecord } from '../../core/contracts/native-records.ts'
import { progressText } from '../../core/contracts/progress.ts'
import { errorMessage } from '../../core/errors.ts'
import { shutdownLimit } from '../../core/http/server.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import { readOwner } from '../../core/system/data-directory.ts'
import { createLogger } from '../../core/system/log.ts'
import { plural } from '../../core/system/plural.ts'
import { isPrivateHost } from '../../core/system/private-address.ts'
import type { DrainState } from '../../plugins/apis/native/readiness.ts'
import * as cluster from '../../plugins/machines/ray/ray-cluster.ts'
import { askRay, prepareRay, type RayCall, RayFailure, rayVariables } from '../../plugins/machines/ray/ray-cluster.ts'
import { CommandFailure, EXIT, failure, interruption, misuse } from '../command-failure.ts'
import { type CommandContext, type Options, openConfig, usageFailure } from '../context.ts'
import { formatTable, printJson, printNote, printPairs, printText } from '../output.ts'
import { createClient } from '../server-client.ts'
import { ask, unlessNoServer } from '../server-connection.ts'

const RAY_PORT = 6379
const MEMBER_PORT = 11500
/** Ray starts processes, which takes long on a loaded machine. */
const RAY_TIMEOUT_MS = 300_000
/** Delay before a failed node is restarted, the first time and at most. */
const MIN_RESTART_DELAY_MS = 1000
const MAX_RESTART_DELAY_MS = 30_000
const POLL_INTERVAL_MS = 250
const ADDRESS = /^[^\s/]+:\d+$/

/** The cluster as reported by Ray's head node. */
interface RayStatus {
  address: string
  /** Ray's version on this machine. */
  ray: string
  /** Whether Ray requires a token. Null if unknown. */
  authentication: boolean | null
  controller: 'up' | 'silent' | 'none'
  /** Minimum number of members requested by the corrals in front of the cluster. */
  wanted: number
  nodes: {
    name: string
    address: string
    host: string
    head: boolean
    /** Whether the node has the resource that members require. */
    corral: boolean
    member?: { state?: string; reason?: string | null; starts?: number; version?: string; url?: string }
  }[]
}

async function openRay({ env, ...context }: CommandContext) {
  const config = await openConfig({ env, ...context })
  const { home, logs } = config.paths
  const settings = config.sections['cluster-ray'] as Record<
    'address' | 'token_file' | 'python' | 'package_index',
    string
  >
  const places = cluster.rayPlaces(home)
  const log = createLogger(config.core.log_level, { file: join(logs, 'corral.log') })
  const signal = interruption()
  let noted = ''
  return {
    config,
    places,
    settings,
    /** Installs Ray if necessary. */
    async call(tokenFile = cluster.findToken(places, settings.token_file, env), more: Record<string, string> = {}) {
      await cluster.makePlaces(places)
      await mkdir(logs, { recursive: true, mode: 0o700 })
      const python = await prepareRay(
        { settings, directory: join(home, 'python'), env, log },
        {
          signal,
          onProgress(progress) {
            const text = progressText(progress)
            if (text !== noted) printNote(`Ray: ${text}`)
            noted = text
          }
        }
      )
      const variables = { ...rayVariables(env, tokenFile), ...more }
      return { python, variables, cwd: places.folder, env, log, signal, timeout: RAY_TIMEOUT_MS }
    },
    /** The cluster that the command applies to. */
    async current(): Promise<{ address: string; record?: cluster.RayRecord } | undefined> {
      const record = await cluster.readRecord(places)
      const address = settings.address || record?.address
      return address === undefined ? undefined : { address, ...(record?.address === address && { record }) }
    }
  }
}

/** @throws CommandFailure with the error of Ray or of the program that calls it */
async function tell<Reply>(command: string, options: object, call: RayCall): Promise<Reply> {
  try {
    return await askRay<Reply>(command, options, call)
  } catch (error) {
    if (!(error instanceof RayFailure)) throw error
    throw new CommandFailure(error.code === 'no_head' ? EXIT.noServer : EXIT.failure, error.message, error)
  }
}

function checkBind(address: string): string {
  // Ray would silently use another address of the machine.
  if (address !== '127.0.0.1' && address !== 'localhost' && address !== '0.0.0.0') return address
  throw usageFailure(
    `Ray cannot use ${address}. Use another address of this machine, such as 127.0.0.2 for this machine only.`
  )
}

function privateAddress(): string {
  const all = Object.values(networkInterfaces()).flatMap(found => found ?? [])
  const found = all.find(({ family, address, internal }) => family === 'IPv4' && !internal && isPrivateHost(address))
  if (found) return found.address
  throw misuse(
    'This machine has no address in a private network. With --bind, choose an address that the other machines can reach. Ray is ' +
      'open to everyone who can reach it and has the token.'
  )
}

type UpOptions = Options<'withMember', 'bind' | 'memberHome'> & {
  ray: string
  rayPort?: number
  memberPort?: number
}

export async function clusterUp(context: CommandContext, options: UpOptions): Promise<void> {
  const { bind, rayPort, memberPort, withMember } = options
  const isLocal = options.ray === 'local'
  if (!isLocal && !ADDRESS.test(options.ray)) {
    throw usageFailure(`--ray must be "local" or an address such as 10.0.0.5:${RAY_PORT}, but got "${options.ray}".`)
  }
  for (const [name, value] of Object.entries({ '--bind': bind, '--ray-port': rayPort, '--with-member': withMember })) {
    if (!isLocal && value !== undefined) throw usageFailure(`${name} needs --ray local.`)
  }
  const ray = await openRay(context)
  const { places, config } = ray
  const before = await cluster.readRecord(places)
  const known = before?.own === isLocal && (isLocal || before.address === options.ray) ? before : undefined
  if (before && !known) {
    throw failure(`Another cluster is in use, at ${before.address}. End it first with "corral cluster down".`)
  }
  const [oldHost, oldPort = RAY_PORT] = known?.address.split(/:(?=\d+$)/) ?? []
  const address = isLocal ? `${checkBind(bind ?? oldHost ?? privateAddress())}:${rayPort ?? oldPort}` : options.ray
  if (known && known.address !== address) {
    throw failure(`The head node is at ${known.address}. To move it, first end the cluster with "corral cluster down".`)
  }
  const home = options.memberHome ?? known?.members.home
  const record: cluster.RayRecord = {
    version: 1,
    address,
    own: isLocal,
    ...((withMember || known?.member !== undefined) && { member: join(places.folder, 'member') }),
    members: {
      port: memberPort ?? known?.members.port ?? MEMBER_PORT,
      ...(home !== undefined && { home }),
      command: cluster.ownCommand()
    }
  }
  if (isLocal) {
    await mkdir(places.folder, { recursive: true, mode: 0o700 })
    await cluster.ensureToken(places)
  }
  const variables = record.member === undefined ? {} : cluster.memberVariable(record.member, context.env)
  const call = await ray.call(isLocal ? places.token : undefined, variables)
  if (isLocal) {
    const { started } = await tell<{ started: boolean }>('head', cluster.headOptions(places, record), call)
    printNote(started ? `Ray's head node runs at ${address}.` : `Ray's head node already runs at ${address}.`)
  }
  await tell('up', cluster.upOptions(places, record), call)
  await cluster.writeRecord(places, record)
  const status = await tell<RayStatus>('status', { address }, call)
  warnAbout(status)
  const count = plural(status.nodes.filter(node => node.corral).length, 'node')
  printNote(`Members start on ${count}, and on every node that joins. Follow them with "corral cluster status".`)
  if (isLocal) {
    printNote(
      `To add a machine with corral, copy ${places.token} to it and run there:\n` +
        `  corral cluster join ${address} --token-file token`
    )
  }
  if (!(await readOwner(config.paths))) printNote(NO_FRONT)
}

/** This machine's address on the route to another machine. */
async function localAddressTo(address: string): Promise<string> {
  const [, host, port] = /^(.+):(\d+)$/.exec(address)!
  const socket = createSocket(host!.includes(':') ? 'udp6' : 'udp4')
  try {
    // Connecting a UDP socket sends nothing.
    socket.connect(Number(port), host)
    await once(socket, 'connect')
    return socket.address().address
  } catch (error) {
    throw failure(`${address} cannot be reached: ${errorMessage(error)}.`, error)
  } finally {
    socket.close()
  }
}

type JoinOptions = Options<never, 'bind' | 'name' | 'tokenFile'>

export async function clusterJoin(context: CommandContext, address: string, options: JoinOptions): Promise<void> {
  if (!ADDRESS.test(address)) {
    throw usageFailure(`"${address}" is not a valid address. Use one such as 10.0.0.5:${RAY_PORT}.`)
  }
  const ray = await openRay(context)
  const { config, places } = ray
  const { home } = config.paths
  const owner = await readOwner(config.paths)
  if (owner) {
    throw failure(
      `A corral server already uses ${home} (process ${owner.pid}), which the member needs. Stop it, or choose another data ` +
        'directory with --home.'
    )
  }
  const host = checkBind(options.bind ?? (await localAddressTo(address)))
  const tokenFile = options.tokenFile && expandPath(options.tokenFile, context.cwd)
  if (tokenFile && !existsSync(tokenFile)) {
    throw usageFailure(
      `${tokenFile} does not exist. Copy the token of the cluster there, or name its file with --token-file.`
    )
  }
  const call = await ray.call(tokenFile || undefined, cluster.memberVariable(home, context.env))
  const node = { address, host, temp: places.temp, folder: places.folder, name: options.name ?? hostname() }

  const asked = interruption()
  const ending = new AbortController()
  const onStop = () => {
    printNote('Leaving the cluster when all requests have finished. A second signal ends it immediately.')
    void untilIdle(config).finally(() => ending.abort())
  }
  asked.addEventListener('abort', onStop, { once: true })
  let wait = MIN_RESTART_DELAY_MS
  let hasJoined = false
  const { timeout: _, ...unlimited } = call
  while (!asked.aborted) {
    const began = performance.now()
    const fault = await askRay('join', node, { ...unlimited, signal: ending.signal }, () => {
      printNote(`Joined the cluster at ${address} as ${node.name} (${host}).`)
      hasJoined = true
    }).then(
      () => new Error('it ended'),
      (error: Error) => error
    )
    if (asked.aborted) break
    const isLasting = fault instanceof RayFailure && ['refused', 'joined'].includes(fault.code)
    if (isLasting || !hasJoined) throw failure(errorMessage(fault), fault)
    if (performance.now() - began > MAX_RESTART_DELAY_MS) wait = MIN_RESTART_DELAY_MS
    printNote(`The Ray node has ended and will be restarted. (${errorMessage(fault).slice(0, 300)})`)
    await sleep(wait, undefined, { signal: asked }).catch(() => undefined)
    wait = Math.min(MAX_RESTART_DELAY_MS, wait * 2)
  }
  if (!ending.signal.aborted) await once(ending.signal, 'abort')
}

/** Waits until this machine's member is idle, within its configured grace time. */
async function untilIdle(config: LoadedConfig): Promise<void> {
  const owner = await readOwner(config.paths).catch(() => undefined)
  if (!owner?.socket) return
  const signal = abortAfter(shutdownLimit(config))
  const client = createClient({ address: owner.address, socket: owner.socket, apiKey: undefined, signal })
  try {
    for (let { open } = await client.json<DrainState>('POST', '/api/drain'); open > 0; ) {
      await sleep(POLL_INTERVAL_MS, undefined, { signal })
      open = (await client.json<DrainState>('GET', '/api/drain')).open
    }
  } catch {
    // The time is up, or the member has already ended.
  }
}

/** The members as seen by the server in front of them. */
interface Front {
  members: MemberRecord[]
  replicas: ReplicasRecord[]
  plan: PlanStepRecord[]
  wanted?: number
  sources: { name: string; fault?: string }[]
}

const NO_FRONT = 'The server in front of the members is not running. Start it with: corral serve'

export async function clusterStatus(context: CommandContext, { json }: Options): Promise<void> {
  const ray = await openRay(context)
  const current = await ray.current()
  const status = current && (await tell<RayStatus>('status', { address: current.address }, await ray.call()))
  const front = await unlessNoServer(ask<Front>(context, 'GET', '/api/cluster', undefined, { whenNone: 'fail' }))
  if (!status && !front) throw noCluster(', and no server is running here')
  if (json) return printJson({ ...status, front: front ?? null })
  if (status) printRay(status, front)
  else if (front) printMembers(front)
  if (front?.replicas.length) printReplicas(front)
  if (status) warnAbout(status)
  if (!front) printNote(NO_FRONT)
  for (const { name, fault } of front?.sources ?? []) if (fault) printNote(`warning: ${name}: ${fault}`)
  for (const { name, reason, notes } of front?.members ?? []) {
    for (const text of [...(reason ? [reason] : []), ...notes]) printNote(`warning: ${name}: ${text}`)
  }
}

function noCluster(more = ''): CommandFailure {
  return new CommandFailure(
    EXIT.noServer,
    `No Ray cluster is in use${more}. Create one with: corral cluster up --ray local`
  )
}

function printRay(status: RayStatus, front: Front | undefined): void {
  const { address } = status
  const head = status.nodes.find(node => node.head)
  printPairs([
    ['Ray', `${address}, ${status.ray}${head ? `, head node on ${head.host}` : ''}`],
    ['Access', status.authentication === false ? 'anybody' : status.authentication ? 'by a token' : 'unknown'],
    ['Controller', status.controller],
    ['Wanted', status.wanted > 0 ? `at least ${plural(status.wanted, 'member')}` : undefined]
  ])
  const rows = status.nodes.map(({ name, address, corral, member }) => {
    const seen = member && front?.members.find(each => each.source === 'ray' && each.url === member.url)
    return [
      name,
      member?.url ?? address,
      member?.state ?? (corral ? 'not started yet' : 'no member'),
      String(member?.starts ?? ''),
      member?.version ?? '',
      seen?.state ?? '',
      String(seen?.running ?? ''),
      seen?.build ?? ''
    ]
  })
  const titles = ['NODE', 'ADDRESS', 'MEMBER', '>STARTS', 'VERSION', 'FRONT', '>RUNNING', 'LLAMA.CPP']
  printText(`\n${formatTable(titles, rows)}`)
}

const NO_MEMBERS = 'This server has no members. Add some in config.yaml (cluster.members).'

function printMembers({ members }: Front): void {
  if (members.length === 0) {
    printNote(NO_MEMBERS)
    return
  }
  const rows = members.map(({ name, url, state, version = '', loaded, slots, running, queued }) => [
    ...[name, url, state, version, `${running}/${slots}`, String(queued)],
    loaded.join(', ') || '-'
  ])
  printText(formatTable(['MEMBER', 'ADDRESS', 'STATE', 'VERSION', '>RUNNING', '>WAITING', 'LOADED'], rows))
}

function printReplicas({ replicas }: Front): void {
  const models = replicas.map(({ model, mode, loaded, loading, wanted, members, reason, failures }) => [
    model,
    mode,
    String(loaded),
    String(loading),
    String(wanted),
    (members ?? []).join(' '),
    [reason, ...failures.map(({ member, message }) => `${member}: ${message}`)].join(' ')
  ])
  printText(`\n${formatTable(['MODEL', 'MODE', '>MEMBERS', '>LOADING', '>WANTED', 'ON', 'WHY'], models)}`)
}

export async function clusterPlan(context: CommandContext, { json }: Options): Promise<void> {
  const front = await ask<Front>(context, 'GET', '/api/cluster', undefined, { whenNone: 'fail' })
  const { members, replicas, plan, wanted } = front
  if (json) return printJson({ wanted, replicas, plan })
  if (members.length === 0) return printNote(NO_MEMBERS)
  const up = members.filter(({ state }) => state === 'up').length
  printPairs([['Members', `${up} up${wanted === undefined ? '' : `, ${wanted} wanted`}`]])
  if (replicas.length > 0) printReplicas(front)
  const steps = plan.map(({ action, model, mode, member, from, reason }) => [
    action,
    model,
    mode,
    member,
    from ?? '',
    reason
  ])
  if (steps.length > 0) printText(`\n${formatTable(['NEXT', 'MODEL', 'MODE', 'MEMBER', 'FROM', 'WHY'], steps)}`)
  else printText('\nEverything is where it should be.')
}

function warnAbout({ address, authentication, controller, nodes }: RayStatus): void {
  const warn = (text: string) => printNote(`warning: ${text}`)
  if (authentication === false) {
    warn(
      `Ray at ${address} has no authentication. Everyone who can reach it can run programs on all nodes and read ` +
        "the members' keys. Start it with RAY_AUTH_MODE=token."
    )
  }
  if (controller !== 'up') {
    warn('the members are not supervised. Restart the supervisor with: corral cluster up --ray …')
  }
  for (const { name, member } of nodes) if (member?.reason) warn(`${name}: ${member.reason}`)
  const versions = new Set(nodes.flatMap(({ member }) => member?.version ?? []))
  if (versions.size > 1) warn(`the members have different versions of corral: ${[...versions].sort().join(', ')}.`)
}

export async function clusterDrain(context: CommandContext, member: string, { undo }: Options<'undo'>): Promise<void> {
  const drained = await ask<{ by: 'member' | 'front'; member: MemberRecord }>(
    context,
    undo ? 'DELETE' : 'POST',
    '/api/cluster/drain',
    { member },
    { whenNone: 'fail' }
  )
  printNote(undo ? `${member} gets requests again.` : `${member} gets no new requests. Its active requests continue.`)
  if (!undo && drained.by === 'front') for (const note of drained.member.notes) printNote(note)
}

export async function clusterDown(context: CommandContext): Promise<void> {
  const ray = await openRay(context)
  const { config, places } = ray
  const current = await ray.current()
  if (!current) throw noCluster()
  const { address, record } = current
  const call = await ray.call()
  // Removed first so that the server does not restart the head node.
  await cluster.removeRecord(places)
  try {
    const grace = Math.ceil(shutdownLimit(config) / 1000)
    await tell('down', { address, temp: `${places.temp}-driver`, grace }, call)
    printNote('All members have ended.')
  } catch (error) {
    if (!record?.own || !(error instanceof CommandFailure)) throw error
    printNote(`${error.message} To stop members on other machines, end "corral cluster join" there.`)
  }
  if (!record?.own) return
  await tell('stop', { temp: places.temp, folder: places.folder }, call)
  printNote("Ray's head node on this machine has ended.")
}
