import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { type Static, type TSchema, Type } from 'typebox'
import { Agent, request } from 'undici'
import type { Cluster } from '../../../core/contracts/services.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { checkJson, parseJson } from '../../../core/system/json-file.ts'
import { CERTIFICATE_NAME, machineId } from './link-certificate.ts'
import { type Announced, type Discovery, openDiscovery } from './link-discovery.ts'
import { type LinkDoor, openLinkDoor } from './link-door.ts'
import { type Introduction, IntroductionSchema, type Machine, PAIR_PATH, type Permission } from './link-records.ts'
import { openLinkStore } from './link-store.ts'
import { describeMachine, LinkedMachines, originOf } from './linked-machines.ts'
import {
  CODE_TTL_MS,
  codeHint,
  enterCode,
  formatCode,
  parseCode,
  type SharedSecret,
  type ShownCode,
  showCode
} from './pairing.ts'

export interface LinkOptions {
  name: string
  port: number
  discovery: boolean
}

interface LinkDependencies {
  app: FastifyInstance
  home: string
  options: LinkOptions
  cluster: Cluster
  /** Aborted when no answer is in progress. */
  ended: AbortSignal
  log: FastifyBaseLogger
}

/** Milliseconds to look for a machine that shows a code. */
const SEARCH_MS = 8000
const PAIR_TIMEOUT_MS = 15_000
const WAKE_PORT = 9

const BegunSchema = Type.Object({ attempt: Type.String(), response: Type.String() })
const SealedSchema = Type.Object({ sealed: Type.String() })

export type Links = Awaited<ReturnType<typeof openLinks>>

/** This machine's links. It listens and announces itself only if machines are linked, or while it shows a code. */
export async function openLinks({ app, home, options, cluster, ended, log }: LinkDependencies) {
  const store = await openLinkStore(home)
  let door: LinkDoor | undefined
  let discovery: Discovery | undefined
  let shown: (ShownCode & { expiresAt: Date; timer: NodeJS.Timeout }) | undefined
  let announcedAs = ''

  const about = () => describeMachine(options.name, door?.port ?? options.port)
  const introduction = (): Introduction => ({ ...about(), certificate: store.identity.certificate })
  const machines = new LinkedMachines({ store, about, log })
  const removeSource = cluster.addSource(machines)
  // Networks change while laptops move.
  const watch = setInterval(() => announce(), 10_000).unref()

  function announce(): void {
    if (!discovery || !door || store.all().length === 0) return
    const { addresses, port } = about()
    const now = [...addresses, port].join()
    if (now === announcedAs) return
    announcedAs = now
    discovery.announceLinked(store.id, port)
  }

  /** @throws CorralError `machine_unreachable` if the port is taken */
  async function open(): Promise<LinkDoor> {
    try {
      door ??= await openLinkDoor(app, store, { port: options.port, ended })
    } catch (error) {
      const message = `Linked machines cannot connect: port ${options.port} is not available (${errorMessage(error)}). Choose another one with link.port in config.yaml.`
      throw new CorralError('machine_unreachable', message)
    }
    if (options.discovery && !discovery) {
      discovery = openDiscovery(log)
      discovery.follow((id, { addresses, port }) => {
        machines
          .seen(id, addresses, port)
          .catch(error => log.warn({ reason: errorMessage(error) }, 'addresses were not saved'))
      })
    }
    announce()
    return door
  }

  function endCode(): void {
    if (!shown) return
    clearTimeout(shown.timer)
    shown.close()
    shown = undefined
    discovery?.endCode()
    if (store.all().length === 0) void close()
  }

  async function close(): Promise<void> {
    const [openDoor, openedDiscovery] = [door, discovery]
    door = undefined
    discovery = undefined
    announcedAs = ''
    await Promise.all([openDoor?.close(), openedDiscovery?.close()])
  }

  /** @throws CorralError `pairing_code_wrong` if it cannot be read or is this machine itself */
  async function take(secret: SharedSecret, sealed: string): Promise<Machine> {
    const introduced = readSealed(secret, sealed)
    if (machineId(introduced.certificate) === store.id) {
      const message =
        'This is the same machine, or a copy of its data directory. Delete link.json in one of them, and link them again.'
      throw new CorralError('invalid_request', message)
    }
    const machine = await store.add(introduced)
    machines.refresh()
    announce()
    log.info({ machine: machine.name }, 'a machine was linked')
    return machine
  }

  async function pairAt({ addresses, port }: Announced, code: string): Promise<Machine> {
    const { identity } = store
    const agent = new Agent({
      connect: {
        ...{ cert: identity.certificate, key: identity.key, servername: CERTIFICATE_NAME },
        // Nobody can know its certificate yet. The code proves who answers.
        rejectUnauthorized: false
      }
    })
    try {
      const { origin, entered, begun } = await firstToAnswer(addresses, async address => {
        const origin = originOf(address, port)
        const entered = await enterCode(code)
        return { origin, entered, begun: await post(agent, origin, { begin: entered.request }, BegunSchema) }
      })
      const done = entered.finish(begun.response)
      if (!done)
        throw new CorralError(
          'pairing_code_wrong',
          `The other machine shows another code. Check it, and try again. After three wrong codes, "corral link" on that machine shows a new one.`
        )
      const { attempt } = begun
      const sealed = done.secret.seal(introduction())
      const answer = await post(agent, origin, { attempt, finish: done.request, sealed }, SealedSchema)
      return await take(done.secret, answer.sealed)
    } finally {
      await agent.destroy()
    }
  }

  if (store.all().length > 0) await open().catch(error => log.error(errorMessage(error)))

  return {
    about,
    store,
    machines,
    code: () => (shown?.isOpen() ? { expiresAt: shown.expiresAt } : undefined),
    /** Shows a code for ten minutes, in place of the last one. */
    async showCode() {
      endCode()
      const { port } = await open()
      const code = await showCode()
      const timer = setTimeout(endCode, CODE_TTL_MS).unref()
      shown = { ...code, timer, expiresAt: new Date(Date.now() + CODE_TTL_MS) }
      discovery?.announceCode(store.id, port, codeHint(code.code))
      return { code: formatCode(code.code), expiresAt: shown.expiresAt }
    },
    endCode,
    /** Answers a machine on which a code was entered. @throws CorralError `pairing_code_wrong` */
    async answerPair(step: { begin: string } | { attempt: string; finish: string; sealed: string }) {
      if (!shown) throw new CorralError('pairing_code_wrong', 'This machine shows no code. Run "corral link" on it.')
      if ('begin' in step) return shown.begin(step.begin)
      const secret = shown.finish(step.attempt, step.finish)
      await take(secret, step.sealed)
      const sealed = secret.seal(introduction())
      endCode()
      return { sealed }
    },
    /** Links this machine to the one that shows a code. @throws CorralError */
    async join(text: string, at: Announced | undefined): Promise<Machine> {
      const code = parseCode(text)
      await open()
      try {
        const found = at ? [at] : ((await discovery?.findCode(codeHint(code), AbortSignal.timeout(SEARCH_MS))) ?? [])
        const [target] = found
        if (target) return await pairAt(target, code)
        const message =
          'No machine in this network shows this code. Check the code and that both machines are in the same network, or name the other machine: corral link <code> <host>'
        throw new CorralError('machine_unreachable', message)
      } finally {
        if (store.all().length === 0 && !shown) await close()
      }
    },
    async remove(name: string): Promise<Machine> {
      const machine = store.require(name)
      await store.remove(machine.id)
      door?.disconnect(machine.id)
      machines.refresh()
      if (store.all().length === 0 && !shown) await close()
      return machine
    },
    async allow(name: string, may: Permission): Promise<Machine> {
      const { id } = store.require(name)
      await store.update(id, { may })
      return store.withId(id)!
    },
    /** Sends Wake-on-LAN packets to a machine. @throws CorralError `machine_unreachable` */
    async wake(name: string): Promise<void> {
      const { macs } = store.require(name)
      if (macs.length === 0) {
        throw new CorralError(
          'machine_unreachable',
          `The network address (MAC) of "${name}" is unknown. It can be woken once it has been reached.`
        )
      }
      const socket = createSocket('udp4')
      try {
        socket.bind(0)
        await once(socket, 'listening')
        socket.setBroadcast(true)
        for (const mac of macs) {
          const address = Buffer.from(mac.replaceAll(':', ''), 'hex')
          const packet = Buffer.concat([Buffer.alloc(6, 0xff), ...Array.from({ length: 16 }, () => address)])
          await new Promise<void>((resolve, reject) => {
            socket.send(packet, WAKE_PORT, '255.255.255.255', error => (error ? reject(error) : resolve()))
          })
        }
      } catch (error) {
        throw new CorralError('machine_unreachable', `"${name}" was not woken: ${errorMessage(error)}.`)
      } finally {
        socket.close()
      }
    },
    async close(): Promise<void> {
      clearInterval(watch)
      if (shown) clearTimeout(shown.timer)
      shown = undefined
      removeSource()
      await close()
    }
  }
}

/** Tries all addresses of a machine until one answers. @throws CorralError of an answer, or `machine_unreachable` */
async function firstToAnswer<Result>(addresses: readonly string[], attempt: (address: string) => Promise<Result>) {
  let reason = 'it has no address'
  for (const address of addresses) {
    try {
      return await attempt(address)
    } catch (error) {
      if (error instanceof CorralError) throw error
      reason = errorMessage(error)
    }
  }
  throw new CorralError(
    'machine_unreachable',
    `The other machine cannot be reached: ${reason}. Check that its firewall allows corral.`
  )
}

async function post<Schema extends TSchema>(
  agent: Agent,
  origin: string,
  body: object,
  schema: Schema
): Promise<Static<Schema>> {
  const reply = await request(origin + PAIR_PATH, {
    method: 'POST',
    dispatcher: agent,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(PAIR_TIMEOUT_MS)
  })
  const text = await reply.body.text()
  if (reply.statusCode === 403)
    throw new CorralError(
      'pairing_code_wrong',
      parseJson(text, Type.Object({ error: Type.String() })).value?.error ?? 'The other machine refused the code.'
    )
  const { value, fault } = parseJson(text, schema)
  if (reply.statusCode === 200 && value) return value
  throw new Error(`what answers at ${origin} is not a corral${fault ? ` (${fault})` : ''}`)
}

function readSealed(secret: SharedSecret, sealed: string): Introduction {
  try {
    const { value, fault } = checkJson(secret.open(sealed), IntroductionSchema)
    if (!value) throw new Error(fault)
    machineId(value.certificate)
    return value
  } catch (error) {
    throw new CorralError(
      'pairing_code_wrong',
      `The other machine sent what cannot be used (${errorMessage(error)}). Upgrade both to the same version, and link them again.`
    )
  }
}
