import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { request } from 'undici'
import type { EngineExit } from '../../../core/contracts/engines.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { runTool, ToolError } from '../../../core/system/child-process.ts'
import { freePort, isListening } from '../../../core/system/free-port.ts'
import { LogTail } from '../../../core/system/log-tail.ts'
import { groupMemory } from '../../../core/system/processes.ts'
import { fillIn, type ProgramSettings } from './program-settings.ts'

const HOST = '127.0.0.1'
/** Milliseconds between questions whether a program is ready. */
const READY_STEP_MS = 100
/** Milliseconds that one such question may take. */
const READY_QUESTION_MS = 5000

export type ProgramProcess = Awaited<ReturnType<typeof startProgram>>

const failure = (message: string, cause: string) => new CorralError('load_failed', message, { details: { cause } })

/**
 * Starts a program. It and all processes that it starts end with corral.
 * @param model replaces `{model}`
 * @throws CorralError `load_failed` with `details.cause`
 */
export async function startProgram(settings: ProgramSettings, model: string) {
  const { name, stopTimeout, directory } = settings
  const port = settings.port === undefined ? await freePort() : await requireFree(settings.port, name)
  const key = randomBytes(24).toString('base64url')
  const fill = (text: string) => fillIn(text, { port: `${port}`, model, key })
  const [program, ...args] = settings.command.map(fill)
  const variables = Object.entries(settings.environment).map(([name, value]) => [name, fill(value)])
  const log = new LogTail()
  const stopping = new AbortController()
  let stopped: Promise<EngineExit> | undefined
  let group: number | undefined
  let ended: EngineExit | undefined
  const surroundings = {
    ...(directory !== undefined && { cwd: directory }),
    variables: Object.fromEntries(variables)
  }
  const exited = runTool(program!, args, {
    ...surroundings,
    signal: stopping.signal,
    grace: stopTimeout,
    onStart(id) {
      group = id
    },
    onLine: line => log.push(line)
  })
    .then(
      () => ({ code: 0, signal: null }),
      error => {
        const { exitCode = null, exitSignal = null } = error instanceof ToolError ? error : {}
        // It was never started. A stopped program has no reason.
        if (exitCode === null && exitSignal === null && !stopped) log.push(errorMessage(error))
        return { code: exitCode, signal: exitSignal }
      }
    )
    .then((exit): EngineExit => {
      const expected = stopped !== undefined
      ended = { ...exit, expected, ...(!expected && { failure: crashed(name, exit, log) }) }
      return ended
    })

  async function stop(): Promise<EngineExit> {
    const [program, ...args] = settings.stop?.map(fill) ?? []
    if (program !== undefined && !ended) {
      const options = { ...surroundings, timeout: stopTimeout, onLine: (line: string) => log.push(line) }
      await runTool(program, args, options).catch(error => log.push(`${errorMessage(error)} (the command "stop")`))
    }
    stopping.abort()
    return await exited
  }

  const address = `http://${HOST}:${port}`
  return {
    address,
    /** For the header `authorization`, if the program gets `{key}`. */
    key: [...settings.command, ...Object.values(settings.environment)].some(text => text.includes('{key}'))
      ? key
      : undefined,
    log,
    startedAt: new Date().toISOString(),
    /** Settles when it and all processes that it started have ended. Never rejects. */
    exited,
    hasEnded: () => ended !== undefined,
    /** The bytes of main memory that it uses; undefined if the system does not say. */
    memory: async () => (group === undefined ? undefined : await groupMemory(group)),
    async stop(): Promise<void> {
      stopped ??= stop()
      await stopped
    },
    /** Resolves once it answers at `ready`. @throws as `startProgram`, `load_timeout`, or the signal's reason */
    async untilReady({ signal, onProgress }: Waiting): Promise<void> {
      const limit = performance.now() + settings.startTimeout
      for (;;) {
        signal?.throwIfAborted()
        if (ended) throw notReady(settings, ended, log)
        if (await isReady(address + settings.ready)) return
        if (performance.now() > limit) {
          const what = `The program "${name}" did not answer at ${settings.ready} within ${settings.startTimeout / 1000} s.`
          throw new CorralError(
            'load_timeout',
            `${what}${lastLine(log)} Correct "ready", or raise "start_timeout" under engines.${name}.`
          )
        }
        onProgress?.({ phase: 'loading', subject: name })
        await sleep(READY_STEP_MS)
      }
    }
  }
}

async function isReady(url: string): Promise<boolean> {
  try {
    const { statusCode, body } = await request(url, { signal: abortAfter(READY_QUESTION_MS) })
    await body.dump()
    return statusCode < 300
  } catch {
    return false
  }
}

/** @throws CorralError if another program listens on the port, which would get the requests */
async function requireFree(port: number, name: string): Promise<number> {
  if (!(await isListening(port, HOST))) return port
  const what = `Another program already listens on port ${port}, the port of engines.${name}.`
  throw failure(`${what} End it, or write {port} in "command" and leave out "port".`, 'port_in_use')
}

const lastLine = (log: LogTail) => {
  const last = log.all().findLast(line => line.trim() !== '')
  return last === undefined ? '' : ` Its last line: ${last.slice(0, 400)}`
}

const describeExit = ({ code, signal }: Pick<EngineExit, 'code' | 'signal'>) =>
  signal !== null ? `was ended by ${signal}` : code === null ? 'could not be started' : `ended with exit code ${code}`

function notReady({ name, advice }: ProgramSettings, exit: EngineExit, log: LogTail): CorralError {
  const cause = exit.code === null && exit.signal === null ? 'not_started' : 'exited'
  return failure(`The program "${name}" ${describeExit(exit)} before it was ready.${lastLine(log)} ${advice}`, cause)
}

function crashed(name: string, exit: Pick<EngineExit, 'code' | 'signal'>, log: LogTail): CorralError {
  const message = `The program "${name}" ${describeExit(exit)}.${lastLine(log)} Send the request again to restart it.`
  return new CorralError('engine_crashed', message, { details: { cause: 'exited' } })
}

/** Sends a command such as "sleep". @throws CorralError if it fails */
export async function command({ address, key }: ProgramProcess, path: string, name: string): Promise<void> {
  try {
    const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
    const { statusCode, body } = await request(address + path, {
      method: 'POST',
      headers,
      signal: abortAfter(COMMAND_MS)
    })
    await body.dump()
    if (statusCode >= 300) throw new Error(`status ${statusCode}`)
  } catch (error) {
    const what = `The program "${name}" refused POST ${path} (${errorMessage(error)}).`
    throw failure(`${what} Correct "sleep" under engines.${name}.`, 'command_refused')
  }
}

/** Milliseconds that a program may take to fall asleep or wake up. */
const COMMAND_MS = 120_000
