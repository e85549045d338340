import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { Cluster } from '../../../core/contracts/services.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { introduceTo, readSealed } from './introduction.ts'
import { machineId } from './link-certificate.ts'
import { type Announced, type Discovery, openDiscovery } from './link-discovery.ts'
import { type LinkDoor, openLinkDoor } from './link-door.ts'
import type { Introduction, Machine, Permission } from './link-records.ts'
import { openLinkStore } from './link-store.ts'
import { describeMachine, LinkedMachines } from './linked-machines.ts'
import { CODE_TTL_MS, codeHint, formatCode, parseCode, type ShownCode, showCode } from './pairing.ts'
import { wakeMachine } from './wake-on-lan.ts'

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
/** Milliseconds that the last attempt may take until the code is cancelled. */
const LAST_ATTEMPT_MS = 10_000
export type Links = Awaited<ReturnType<typeof openLinks>>

/** This machine's links. It listens and announces itself only if machines are linked, or while it shows a code. */
export async function openLinks({ app, home, options, cluster, ended, log }: LinkDependencies) {
  const store = await openLinkStore(home)
  let door: LinkDoor | undefined
  let discovery: Discovery | undefined
  let shown: (ShownCode & { expiresAt: Date; timer: NodeJS.Timeout }) | undefined
  let announcedAs = ''
  let joining = 0
  let isClosed = false
  let settling: Promise<void> = Promise.resolve()

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

  /** Listens as long as somebody may connect. @throws CorralError `machine_unreachable` if the port is taken */
  function settle(): Promise<void> {
    const step = settling.then(async () => {
      if (isClosed) return
      if (store.all().length === 0 && !shown && joining === 0) return await close()
      try {
        door ??= await openLinkDoor(app, store, { port: options.port, ended })
      } catch (error) {
        const message = `Linked machines cannot connect: port ${options.port} is not available (${errorMessage(error)}). Choose another one with link.port in config.yaml.`
        throw new CorralError('machine_unreachable', message)
      }
      if (options.discovery && !discovery) {
        discovery = openDiscovery(log)
        discovery.follow((id, { addresses, port }) => machines.announced(id, addresses, port))
      }
      announce()
    })
    settling = step.catch(() => {
      // The caller is told. The next step tries again.
    })
    return step
  }

  async function close(): Promise<void> {
    const [openDoor, openedDiscovery] = [door, discovery]
    door = undefined
    discovery = undefined
    announcedAs = ''
    await Promise.all([openDoor?.close(), openedDiscovery?.close()])
  }

  async function endCode(): Promise<void> {
    if (!shown) return
    clearTimeout(shown.timer)
    shown.close()
    shown = undefined
    discovery?.endCode()
    await settle()
  }

  /** Cancels the code when its time is over. */
  const lapse = () => void endCode().catch(error => log.warn(errorMessage(error)))

  /** @throws CorralError `invalid_request` if it is this machine itself */
  async function take(introduced: Introduction): Promise<Machine> {
    if (machineId(introduced.certificate) === store.id) {
      const message =
        'This is the same machine, or a copy of its data directory. Delete link.json in one of them, and link them again.'
      throw new CorralError('invalid_request', message)
    }
    const machine = await store.add(introduced)
    machines.refresh()
    await settle()
    log.info({ machine: machine.name }, 'a machine was linked')
    return machine
  }

  await settle().catch(error => log.error(errorMessage(error)))

  return {
    about,
    store,
    machines,
    code: () => shown && { expiresAt: shown.expiresAt },
    /** Shows a code for ten minutes, in place of the last one. @throws CorralError `machine_unreachable` */
    async showCode() {
      const code = await showCode()
      if (shown) clearTimeout(shown.timer)
      const timer = setTimeout(lapse, CODE_TTL_MS).unref()
      shown = { ...code, timer, expiresAt: dateAt(performance.now() + CODE_TTL_MS) }
      try {
        await settle()
      } catch (error) {
        await endCode().catch(() => {})
        throw error
      }
      discovery?.announceCode(store.id, about().port, codeHint(code.code))
      return { code: formatCode(code.code), expiresAt: shown.expiresAt }
    },
    endCode,
    /** Answers a machine on which a code was entered. @throws CorralError `pairing_code_wrong` */
    async answerPair(step: { begin: string } | { attempt: string; finish: string; sealed: string }) {
      if (!shown) throw new CorralError('pairing_code_wrong', 'This machine shows no code. Run "corral link" on it.')
      const current = shown
      if ('begin' in step) {
        const begun = current.begin(step.begin)
        if (current.isUsedUp()) setTimeout(() => shown === current && lapse(), LAST_ATTEMPT_MS).unref()
        return begun
      }
      const secret = shown.finish(step.attempt, step.finish)
      await take(readSealed(secret, step.sealed))
      const sealed = secret.seal(introduction())
      await endCode()
      return { sealed }
    },
    /** Links this machine to the machine that shows the code. @throws CorralError */
    async join(text: string, at: Announced | undefined): Promise<Machine> {
      const code = parseCode(text)
      joining++
      try {
        await settle()
        const found = at ? [at] : ((await discovery?.findCode(codeHint(code), abortAfter(SEARCH_MS))) ?? [])
        const [target] = found
        if (target) return await take(await introduceTo(target, code, store.identity, introduction()))
        const message =
          'No machine in this network shows this code. Check the code and that both machines are in the same network, or name the other machine: corral link <code> <host>'
        throw new CorralError('machine_unreachable', message)
      } finally {
        joining--
        await settle()
      }
    },
    async remove(name: string): Promise<Machine> {
      const machine = store.require(name)
      await store.remove(machine.id)
      door?.disconnect(machine.id)
      machines.refresh()
      await settle()
      return machine
    },
    async allow(name: string, may: Permission): Promise<Machine> {
      const { id } = store.require(name)
      await store.update(id, { may })
      return store.withId(id)!
    },
    /** Sends Wake-on-LAN packets to a machine. @throws CorralError `machine_not_found`, `machine_unreachable` */
    wake: (name: string) => wakeMachine(store.require(name)),
    /** Ends everything but answers in progress. */
    stopAccepting() {
      clearInterval(watch)
      if (shown) clearTimeout(shown.timer)
      isClosed = true
      removeSource()
      door?.stopAccepting()
      const ended = discovery?.close()
      discovery = undefined
      return ended
    },
    /** Resolves when the last answer to a linked machine has ended. */
    closed: async () => await door?.closed()
  }
}
