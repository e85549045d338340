import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import { watchConfig } from '../../../core/config/config-watch.ts'
import { Path, Program } from '../../../core/config/core-schema.ts'
import type { KnownMember, MemberSource } from '../../../core/contracts/services.ts'
import { errorMessage } from '../../../core/errors.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { lineSplitter } from '../../../core/system/child-process.ts'
import { parseAnyJson } from '../../../core/system/json-object.ts'
import { PYTHON_VARIABLES } from '../../../core/system/python/python-packages.ts'
import { toolEnvironment } from '../../../core/system/tool-environment.ts'
import {
  askRay,
  findToken,
  gatewayName,
  headOptions,
  makePlaces,
  memberVariable,
  prepareRay,
  RAY_SCRIPT,
  type RayCall,
  type RayRecord,
  rayPlaces,
  rayVariables,
  readRecord,
  upOptions
} from './ray-cluster.ts'

/** Milliseconds between two checks for another cluster. A new cluster takes longer to start. */
const RECORD_CHECK_MS = 3000

const options = Type.Object(
  {
    address: Type.String({
      default: '',
      pattern: '^([^\\s/]+:\\d+)?$',
      title: 'an address such as 10.0.0.5:6379',
      description: 'Ray\'s head, whose nodes answer for this server; empty means that of "corral cluster up"'
    }),
    token_file: Path({
      default: '',
      description: 'File with the cluster\'s token; empty means that of "corral cluster up", or the one that Ray finds'
    }),
    python: Program({
      default: '',
      description: "Python with the cluster's version of Ray; if empty, corral makes its own environment"
    }),
    package_index: Type.String({
      default: '',
      pattern: '^(https?://\\S+)?$',
      title: 'an address such as https://pypi.org/simple',
      description: 'Package index to install from; if empty, the settings of pip and uv apply'
    })
  },
  { additionalProperties: false, restart: true, needsTrust: true }
)

export default definePlugin({
  name: 'cluster-ray',
  api: 1,
  description: 'Members that Ray starts on its nodes ("corral cluster up")',
  optional: true,
  needs: ['cluster'],
  options,
  setup(context, settings) {
    const { log, paths } = context
    const source = new RaySource({ settings, home: paths.home, log })
    context.service('cluster').addSource(source)
    const { record } = rayPlaces(paths.home)
    // The commands write which cluster it is.
    let unwatch = () => {}
    return {
      start() {
        if (settings.address !== '') return
        unwatch = watchConfig(record, () => void source.look(), RECORD_CHECK_MS)
      },
      stop: () => unwatch()
    }
  }
})

export interface RaySourceOptions {
  settings: { address: string; token_file: string; python: string; package_index: string }
  home: string
  log: FastifyBaseLogger
  env?: NodeJS.ProcessEnv
}

type Told = Parameters<MemberSource['follow']>[0]

/** A report of the program, one per line. */
type Report = { members: KnownMember[] } | { fault: string | null; code?: string | null }

/** Milliseconds until the program is restarted: first and maximum. */
const FIRST_WAIT_MS = 500
const MAX_WAIT_MS = 30_000
/** Milliseconds that this machine's head may be away before it is restarted. */
const HEAD_PATIENCE_MS = 3000
const START_TIMEOUT_MS = 180_000

/** Finds the nodes that Ray knows. A supervised program reads the table in Ray's head and is restarted when it ends. */
export class RaySource implements MemberSource {
  readonly name = 'ray'
  readonly #options: RaySourceOptions
  #told: Told | undefined
  #wanted: number | undefined
  #hasCluster = false
  #ending = new AbortController()
  #following: Promise<void> = Promise.resolve()
  /** The last call of `look`. Calls run one after the other. */
  #looking: Promise<void> = Promise.resolve()
  #child: ChildProcess | undefined
  #record: RayRecord | undefined

  constructor(options: RaySourceOptions) {
    this.#options = options
  }

  follow(told: Told): () => Promise<void> {
    this.#told = told
    void this.look()
    return async () => {
      this.#told = undefined
      this.#ending.abort()
      await this.#looking
      await this.#following
    }
  }

  /** Without a cluster, nobody can add machines. */
  get want(): ((members: number) => void) | undefined {
    if (!this.#hasCluster) return undefined
    return members => {
      if (members === this.#wanted) return
      this.#wanted = members
      this.#tellWanted()
    }
  }

  /** Follows the cluster that the settings or the commands now name. */
  look(): Promise<void> {
    this.#looking = this.#looking.then(() => this.#look())
    return this.#looking
  }

  async #look(): Promise<void> {
    const { settings, home } = this.#options
    let record: RayRecord | undefined
    try {
      record = await readRecord(rayPlaces(home))
    } catch (error) {
      return this.#told?.fault(errorMessage(error))
    }
    const address = settings.address || record?.address
    // This server manages only heads that it started.
    this.#record = record?.own && record.address === address ? record : undefined
    this.#hasCluster = address !== undefined
    this.#ending.abort()
    await this.#following
    if (!this.#told) return
    if (address === undefined) {
      this.#wanted = undefined
      this.#told.changed([])
      return this.#told.fault(undefined)
    }
    this.#ending = new AbortController()
    this.#following = this.#follow(address, this.#ending.signal)
  }

  #tellWanted(): void {
    if (this.#wanted === undefined) return
    this.#child?.stdin?.write(`${JSON.stringify({ want: this.#wanted })}\n`)
  }

  async #follow(address: string, signal: AbortSignal): Promise<void> {
    let wait = FIRST_WAIT_MS
    while (!signal.aborted) {
      const began = performance.now()
      const reason = await this.#watch(address, signal).catch(errorMessage)
      if (signal.aborted) return
      this.#told?.fault(`The program that watches Ray's members has ended (${reason}). It is being restarted.`)
      wait = performance.now() - began > MAX_WAIT_MS ? FIRST_WAIT_MS : Math.min(MAX_WAIT_MS, wait * 2)
      await sleep(wait, undefined, { signal }).catch(() => {})
    }
  }

  /** Returns what every run of the program needs. Installs Ray if necessary. */
  async #prepare(signal: AbortSignal): Promise<RayCall> {
    const { settings, home, log, env = process.env } = this.#options
    const places = rayPlaces(home)
    await makePlaces(places)
    const python = await prepareRay({ settings, directory: `${home}/python`, env, log }, { signal })
    const variables = rayVariables(env, findToken(places, settings.token_file, env))
    return { python, variables, cwd: places.folder, env, log, signal, timeout: START_TIMEOUT_MS }
  }

  /** Runs the program until it ends, and returns why it ended. */
  async #watch(address: string, signal: AbortSignal): Promise<string> {
    const { home, log } = this.#options
    const { python, variables, cwd, env } = await this.#prepare(signal)
    const watched = JSON.stringify({ address, front: gatewayName(home) })
    const child = spawn(python, ['-I', RAY_SCRIPT, 'watch', watched], {
      cwd,
      env: { ...toolEnvironment(env), ...PYTHON_VARIABLES, PYTHONDONTWRITEBYTECODE: '1', ...variables },
      // The program ends when its input closes, and therefore with this process.
      stdio: ['pipe', 'pipe', 'pipe', 'pipe']
    })
    this.#child = child
    child.stdin.on('error', () => {
      // The program has ended, which is detected below.
    })
    this.#tellWanted()
    let last = ''
    let headTimer: NodeJS.Timeout | undefined
    const restarts = new AbortController()
    const reports = lineSplitter(line => {
      const report = parseAnyJson(line) as Report | undefined
      if (report === undefined)
        return log.warn({ line: line.slice(0, 200) }, 'the program that watches Ray printed something unknown')
      if ('members' in report) return this.#told?.changed(report.members)
      this.#told?.fault(report.fault ?? undefined)
      clearTimeout(headTimer)
      headTimer = undefined
      const isLost = report.code === 'no_head' || report.code === 'no_controller'
      if (isLost && this.#record) {
        headTimer = setTimeout(() => void this.#restore(restarts.signal), HEAD_PATIENCE_MS).unref()
      }
    })
    const noise = lineSplitter(line => {
      last = line
      log.debug({ part: 'ray' }, line)
    })
    for (const [stream, splitter] of [
      [child.stdio[3] as Readable, reports],
      [child.stdout, noise],
      [child.stderr, noise]
    ] as const) {
      stream.setEncoding('utf8')
      stream.on('data', (text: string) => splitter.push(text))
    }
    const end = () => child.kill('SIGKILL')
    signal.addEventListener('abort', end, { once: true })
    if (signal.aborted) end()
    return await new Promise<string>(resolve => {
      child.once('error', error => resolve(error.message))
      child.once('close', (code, name) => resolve(`${name ?? `exit code ${code}`}${last && `: ${last.slice(0, 300)}`}`))
    }).finally(() => {
      signal.removeEventListener('abort', end)
      clearTimeout(headTimer)
      restarts.abort()
      this.#child = undefined
    })
  }

  async #restore(signal: AbortSignal): Promise<void> {
    const { home, log } = this.#options
    const places = rayPlaces(home)
    let wait = FIRST_WAIT_MS
    while (!signal.aborted && this.#record) {
      const record = this.#record
      try {
        log.warn({ address: record.address }, "Ray's head on this machine is gone and is being restarted")
        const prepared = await this.#prepare(signal)
        const member = record.member === undefined ? {} : memberVariable(record.member, prepared.env)
        const call = { ...prepared, variables: { ...prepared.variables, ...member } }
        await askRay('head', headOptions(places, record), call)
        await askRay('up', { ...upOptions(places, record), keep: true }, call)
        return
      } catch (error) {
        if (signal.aborted) return
        log.error({ reason: errorMessage(error) }, "Ray's head could not be restarted")
      }
      wait = Math.min(MAX_WAIT_MS, wait * 2)
      await sleep(wait, undefined, { signal }).catch(() => {})
    }
  }
}
