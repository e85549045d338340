import { setTimeout as sleep } from 'node:timers/promises'
import type { RuntimesReport } from '../../../../core/contracts/builds.ts'
import type { Delta } from '../../../../core/contracts/engines.ts'
import type { Origin } from '../../../../core/contracts/models.ts'
import type { Progress } from '../../../../core/contracts/progress.ts'
import { CorralError } from '../../../../core/errors.ts'
import { abortAfter } from '../../../../core/system/abort-signals.ts'
import { runTool } from '../../../../core/system/child-process.ts'
import { ASK_PATH, type DescribedModel } from '../asking/ask-protocol.ts'
import { sourceAt } from '../copying/copies.ts'
import { COPY_PATH } from '../copying/source-files.ts'
import type { ClusterNode } from '../nodes/node.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import { judgeAnswer } from './next-step.ts'
import { isOtherRevision, otherRevision } from './revision-names.ts'
import type { Rollout, RolloutNode } from './rollout-record.ts'

/** Milliseconds until the model list of a node must show what it has just stored. */
const LISTED_MS = 15_000
/** Milliseconds that the answer to the question may take once the model is loaded. */
const ANSWER_MS = 5 * 60_000
const POLL_MS = 500
const QUESTION = 'What is the capital of France?'

/** One node, what is stored about it, and how a step reports what it does. */
export interface Place {
  node: RolloutNode
  member: ClusterNode
  signal: AbortSignal
  note(text: string): void
  /** Resolves when the state is on disk. */
  save(): Promise<void>
}

/** What a kind of rollout does at a node. Each step may be repeated after an interruption. */
export interface Change {
  /** Fetches what the node needs while it is in service. @returns false if it has been updated already */
  prepare(place: Place): Promise<boolean>
  apply(place: Place): Promise<void>
  restore(place: Place): Promise<void>
  /** Removes what was kept for `restore`. */
  clean?(place: Pick<Place, 'node' | 'member' | 'signal'>): Promise<void>
  /** Names at the node of the models that are asked. */
  tested(place: Place): string[]
  /** Checks after the questions that the change has lasted. @throws CorralError */
  check?(place: Place): Promise<void>
}

export function changeFor(rollout: Rollout, members: ClusterNodes, command: readonly string[]): Change {
  if (rollout.kind === 'model') return newRevision(rollout, members)
  return rollout.kind === 'llama' ? newBuild(rollout) : newVersion(rollout, command)
}

async function stop(member: ClusterNode, model: string, signal: AbortSignal): Promise<void> {
  await member.tell('/api/stop', { body: { model }, signal }).catch(error => {
    if (!(error instanceof CorralError) || error.code !== 'model_not_loaded') throw error
  })
}

/** The other revision is stored as another variant of the same model, and then exchanged with the one in use. */
function newRevision(rollout: Rollout, members: ClusterNodes): Change {
  const key = rollout.key!
  const otherKey = otherRevision(key)
  const nameOf = ({ owner, name, label }: DescribedModel) => `${owner}/${name}:${label}`
  const inUse = (member: ClusterNode): DescribedModel => {
    const model = member.models.get(key)
    if (model) return model
    throw new CorralError('model_not_found', `It no longer has the model "${rollout.target}".`)
  }
  const remove = (member: ClusterNode, signal: AbortSignal) =>
    member.tell('/api/delete', {
      method: 'DELETE',
      body: { model: otherRevision(nameOf(inUse(member))) },
      signal
    })
  const use = async ({ member, signal }: Place, digest: string) => {
    const model = nameOf(inUse(member))
    await member.tell('/api/cluster/exchange', { body: { model, digest }, signal })
    await stop(member, model, signal)
  }

  /** Copies the new revision from another node. @returns whether one had it */
  async function copy({ member, signal, note }: Place, digest: string): Promise<boolean> {
    for (const from of members.all()) {
      const found = [from.models.get(key), from.models.get(otherKey)].find(model => model?.digest === digest)
      if (!found || from === member || from.view.state === 'away') continue
      try {
        const { name: source, tlsName, url, ticket } = await sourceAt(from, nameOf(found), signal)
        const label = otherRevision(inUse(member).label)
        const body = { source, url, ticket, digest, label, ...(tlsName !== undefined && { tls_name: tlsName }) }
        const lines = member.lines<{ progress?: Progress; model?: DescribedModel }>(COPY_PATH, { body, signal })
        for await (const { model } of lines) if (model) member.learn(model)
        return true
      } catch (error) {
        signal.throwIfAborted()
        if (rollout.from !== undefined) throw error
        note(`The copy from ${from.name} failed: ${from.explain(error)}`)
      }
    }
    return false
  }

  return {
    async prepare(place) {
      const { member, node, signal, note } = place
      const current = inUse(member)
      if (current.digest === rollout.digest) return false
      node.was = current.digest
      const other = member.models.get(otherKey)
      if (other && other.digest !== rollout.digest) await remove(member, signal)
      if (!other || other.digest !== rollout.digest) {
        if (rollout.digest === undefined) await requireHub(place, nameOf(current))
        note('Fetches the new revision')
        const isCopied = rollout.digest !== undefined && (await copy(place, rollout.digest))
        if (!isCopied) {
          const model = nameOf(current)
          const body = { model, update: true, as: otherRevision(model), stream: false }
          await member.tell('/api/pull', { body, signal })
        }
      }
      const stored = await untilTrue(() => {
        const found = member.models.get(otherKey)
        return found?.digest === current.digest ? undefined : found
      }, signal)
      rollout.digest ??= (stored ?? current).digest
      if (rollout.digest === current.digest) return false
      if (stored?.digest !== rollout.digest) {
        throw new CorralError('copy_failed', 'Its hub does not have the revision of the members that were updated.')
      }
      node.now = stored.digest
      return true
    },
    apply: place => use(place, rollout.digest!),
    restore: place => use(place, place.node.was!),
    async clean({ member, signal }) {
      if (member.models.has(otherKey)) await remove(member, signal)
    },
    tested: ({ member }) => [nameOf(inUse(member))]
  }
}

/** @throws CorralError `invalid_request` if no hub can have a newer revision */
async function requireHub({ member, signal }: Place, model: string): Promise<void> {
  const { origin } = await member.ask<{ origin: Origin }>('/api/show', { body: { model }, signal })
  if (origin.kind === 'hub') return
  throw new CorralError(
    'invalid_request',
    `"${model}" is not from a hub. Store its new files at one member under the same name, and name that member with --from.`,
    { param: 'from' }
  )
}

const buildId = ({ chosen }: RuntimesReport) => chosen?.id

function newBuild({ target }: Rollout): Change {
  const use = async ({ member, node, signal }: Place, runtime: string) => {
    await member.tell('/api/runtimes/use', { body: { runtime }, signal })
    for (const name of node.loaded ?? []) await stop(member, name, signal)
  }
  return {
    async prepare({ member, node, signal, note }) {
      const report = await member.ask<RuntimesReport>('/api/runtimes', { method: 'GET', signal })
      const before = buildId(report)
      const installed = report.installed.find(({ build }) => build.id.toLowerCase() === target.toLowerCase())
      node.now = installed?.build.id
      if (!installed) {
        note('Installs the build')
        const runtime = report.chosen?.runtime
        const body = { version: target, stream: false, ...(runtime !== undefined && { runtime }) }
        const { build } = await member.ask<{ build: { id: string } }>('/api/runtimes/install', { body, signal })
        node.now = build.id
      }
      if (node.now === before) return false
      node.was = before ?? 'auto'
      node.loaded = loadedAt(member)
      return true
    },
    apply: place => use(place, place.node.now!),
    restore: place => use(place, place.node.was!),
    tested: ({ member, node }) => (node.loaded?.length ? node.loaded : smallestAt(member)),
    async check({ member, node, signal }) {
      // If an engine does not start on a build, the node uses another one.
      const { chosen } = await member.ask<RuntimesReport>('/api/runtimes', { method: 'GET', signal })
      if (chosen?.id === node.now) return
      const message = `It does not use ${node.now}, because that does not work with its models. Its log says why.`
      throw new CorralError('runtime_missing', message)
    }
  }
}

/** Nobody but its supervisor can replace the program of a node, so this waits for a restart. */
function newVersion({ target }: Rollout, command: readonly string[]): Change {
  async function restart(place: Place, version: string, isDone: () => boolean): Promise<void> {
    const { member, node, signal, note } = place
    if (isDone()) return
    const [program, ...args] = command
    if (program !== undefined) {
      note('Runs cluster.rollout.restart_command')
      const variables = { CORRAL_MEMBER: node.name, CORRAL_MEMBER_URL: member.connection.url, CORRAL_VERSION: version }
      await runTool(program, args, { signal, variables, env: process.env })
    }
    note(`Waits for its restart with corral ${version}`)
    while (!isDone()) await sleep(POLL_MS, undefined, { signal })
  }
  const isUp = ({ member }: Place, version: string) => member.view.state !== 'away' && member.version === version
  return {
    async prepare({ member, node }) {
      node.was = member.version!
      node.now = target
      delete node.server
      node.loaded = loadedAt(member)
      return true
    },
    async apply(place) {
      const { member, node, save } = place
      if (node.server === undefined) {
        node.server = member.id!
        await save()
      }
      await restart(place, target, () => isUp(place, target) && member.id !== undefined && member.id !== node.server)
    },
    restore: place => restart(place, place.node.was!, () => isUp(place, place.node.was!)),
    tested: ({ member, node }) => (node.loaded?.length ? node.loaded : smallestAt(member))
  }
}

function loadedAt({ view, models }: ClusterNode): string[] {
  const loaded = [...view.models].flatMap(([id, { state }]) =>
    state === 'loaded' ? id.slice(0, id.lastIndexOf('#')) : []
  )
  return [...new Set(loaded)].flatMap(key => models.get(key)?.publicName ?? [])
}

function smallestAt({ models }: ClusterNode): string[] {
  const chat = [...models.values()].filter(({ key, modes }) => modes.includes('chat') && !isOtherRevision(key))
  return chat
    .sort((a, b) => a.size - b.size)
    .slice(0, 1)
    .map(({ publicName }) => publicName)
}

async function untilTrue<Value>(look: () => Value | undefined, signal: AbortSignal): Promise<Value | undefined> {
  for (const end = performance.now() + LISTED_MS; performance.now() < end; ) {
    const found = look()
    if (found) return found
    await sleep(POLL_MS / 5, undefined, { signal })
  }
  return undefined
}

/** Loads models at a drained node and asks them. @throws CorralError that says what is wrong */
export async function verify({ ask = QUESTION, expect }: Rollout, names: string[], place: Place): Promise<void> {
  const { member, signal, note } = place
  for (const name of names) {
    note(`Loads ${name}`)
    await member.tell('/api/load', { body: { model: name }, signal })
    const model = [...member.models.values()].find(({ publicName, owner, name: bare, label }) =>
      [publicName, `${owner}/${bare}:${label}`].includes(name)
    )
    if (!model?.modes.includes('chat')) continue
    note(`Asks ${name}`)
    const isBase = model.metadata.capabilities.includes('base')
    const prompt = isBase ? { prompt: ask } : { messages: [{ role: 'user', content: ask }] }
    const body = {
      ...{ model: name, call: isBase ? 'completion' : 'chat', trial: true },
      request: { ...prompt, temperature: 0, seed: 1, max_tokens: 256 }
    }
    const until = AbortSignal.any([signal, abortAfter(ANSWER_MS)])
    let text = ''
    for await (const deltas of member.lines<readonly Delta[]>(ASK_PATH, { body, signal: until })) {
      text += deltas.map(({ content = '', thinking = '' }) => thinking + content).join('')
    }
    const fault = judgeAnswer(text, expect)
    if (fault !== undefined)
      throw new CorralError('engine_crashed', `"${name}" was asked ${JSON.stringify(ask)}. ${fault}`)
  }
}
