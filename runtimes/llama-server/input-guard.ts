import { hash } from 'node:crypto'
import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { untilAborted, withResolver } from '../../core/system/abort-signals.ts'
import { setNewest } from '../../core/system/collections.ts'
import { OpenSet } from '../../core/system/open-tables.ts'
import { isLarge } from './text-length.ts'

/*
 * Grammars, JSON schemas and chat templates are small programs from clients that llama-server runs without limits. One
 * that has blocked an engine or filled its memory must not do so to the next engine.
 */

type Kind = 'grammar' | 'schema' | 'template'

export interface Input {
  kind: Kind
  digest: string
}

/** Failures after which an input is refused, the milliseconds of the refusal, and the number of remembered inputs. */
const MAX_FAILURES = 2
const REFUSED_FOR = 10 * 60_000
const REMEMBERED = 1000

const NAMES: Record<Kind, string> = {
  grammar: 'grammar of this request',
  schema: 'JSON schema (or tools) of this request',
  template: 'chat template'
}
const ADVICE: Record<Kind, string> = {
  grammar: 'Simplify it: use fewer nested repetitions, and no repetition of a part that may be empty.',
  schema: 'Simplify it: use fewer nested repetitions, also in patterns, and fewer optional parts.',
  template: 'Create the model again with a simpler template, such as that of its base model.'
}

export function inputOf(kind: Kind, text: string): Input {
  return { kind, digest: hash('sha256', `${kind} ${text.replace(/\s+/g, ' ').trim()}`).slice(0, 16) }
}

export function listConstraints({ grammar, json_schema, response_format, tools }: EngineFields): Input[] {
  const { schema, json_schema: named } = (response_format ?? {}) as { schema?: unknown; json_schema?: unknown }
  const schemas = [json_schema, schema, named, Array.isArray(tools) && tools.length > 0 ? tools : undefined]
  return [
    ...(typeof grammar === 'string' && grammar !== '' ? [inputOf('grammar', grammar)] : []),
    ...schemas.flatMap(each => (each === undefined || each === null ? [] : [inputOf('schema', JSON.stringify(each))]))
  ]
}

export type InputRecords = ReturnType<typeof createInputRecords>

export function createInputRecords(now = () => performance.now()) {
  /** Oldest first. `until` is when the harm is forgotten. */
  const strikes = new Map<string, { count: number; until: number; cause: string }>()
  const suspects = new Map<string, number>()
  const completed = new Map<string, true>()
  const note = <Value>(map: Map<string, Value>, key: string, value: Value) => setNewest(map, key, value, REMEMBERED)

  return {
    /** @throws CorralError `input_blocked` for an input that has done harm too often */
    check(inputs: readonly Input[], model: string): void {
      for (const { kind, digest } of inputs) {
        const entry = strikes.get(digest)
        if (!entry || entry.until <= now() || entry.count < MAX_FAILURES) continue
        const until = new Date(entry.until).toISOString()
        const name = kind === 'template' ? `chat template of model "${model}"` : NAMES[kind]
        const what = entry.cause === 'over_memory' ? 'use far too much memory' : 'compute without progress'
        const message = `The ${name} (${digest}) has made the engine of "${model}" ${what} ${entry.count} times, and is refused until ${until}. ${ADVICE[kind]}`
        throw new CorralError('input_blocked', message, { details: { input: kind, digest, cause: entry.cause, until } })
      }
    },
    strike({ digest }: Input, cause: string): void {
      const entry = strikes.get(digest)
      const count = entry && entry.until > now() ? entry.count + 1 : 1
      note(strikes, digest, { count, until: now() + REFUSED_FOR, cause })
      suspects.delete(digest)
      completed.delete(digest)
    },
    /** Records that this input or another one did harm. */
    suspect: ({ digest }: Input) => note(suspects, digest, now() + REFUSED_FOR),
    isSuspect: ({ digest }: Input) => (suspects.get(digest) ?? 0) > now(),
    recordCompletion({ digest }: Input): void {
      suspects.delete(digest)
      if (!completed.has(digest)) note(completed, digest, true)
    },
    hasCompleted: ({ digest }: Input) => completed.has(digest)
  }
}

export interface Ticket {
  constraints: readonly Input[]
  /** The engine's template, if the request's conversation is formatted with it. */
  template?: Input | undefined
  /** Whether the length of its text explains the memory and time that the engine takes to read it. */
  large?: boolean
  /** Whether the engine reports when its main loop takes the request. Otherwise only the first token shows it. */
  reportsProgress: boolean
  /** The engine has started to answer, so template and schemas have been read. */
  answered: boolean
  generated: boolean
  left: boolean
  /** Whether the main loop continued after that. */
  wentOn: boolean
}

/** Where an engine was trapped: in its main loop, or outside it while reading a request. `memory`: it used too much. */
export type Trouble = 'loop' | 'beside' | 'memory'

/**
 * Finds the requests to blame, among all requests of an engine:
 * 1. The main loop reads no templates. Outside the loop, only requests without an answer so far are read. Requests
 *    whose clients left before the loop continued have ended there.
 * 2. If the main loop was trapped by a request that it had taken, requests that it had not yet taken are innocent. A
 *    template is blamed only if there are no grammars and schemas, or if it alone has never completed.
 * 3. An input that has never completed is suspected before an input that has, and a request that has generated nothing
 *    before a request that has. Most traps close at the first token.
 * 4. If one input is left, or there is only one request without any, it is to blame. If several are left, any of them
 *    may be. An input that has completed is not blamed for memory that other requests may use.
 */
export function findBlame(
  tickets: readonly Ticket[],
  trouble: Trouble,
  hasCompleted: (input: Input) => boolean
): { certain: boolean; tickets: Ticket[]; inputs: Input[] } {
  const reading = (ticket: Ticket) => !ticket.answered
  const running = (ticket: Ticket) => !(ticket.left && ticket.wentOn)
  const possible = tickets.filter(ticket =>
    trouble === 'beside' ? reading(ticket) : running(ticket) || (trouble === 'memory' && reading(ticket))
  )
  const inputsOf = (ticket: Ticket): Input[] => {
    const { constraints, template } = ticket
    if (trouble === 'loop' || !reading(ticket) || !template) return [...constraints]
    if (constraints.length > 0 && (hasCompleted(template) || !constraints.every(hasCompleted))) return [...constraints]
    return [template]
  }
  const narrowed = <Item>(items: readonly Item[], keep: (item: Item) => boolean) => {
    const kept = items.filter(keep)
    return kept.length > 0 ? kept : [...items]
  }
  // While the engine reads a very long text, an image or a sound, neither a template nor other requests are to blame.
  const large = possible.filter(ticket => ticket.large && ticket.constraints.length === 0 && reading(ticket))
  if (trouble !== 'loop' && large.length > 0) {
    return { certain: large.length === 1, tickets: large.length === 1 ? large : [], inputs: [] }
  }
  const withInputs = possible.filter(ticket => inputsOf(ticket).length > 0)
  if (withInputs.length === 0) {
    const certain = possible.length === 1
    return { certain, tickets: certain ? possible : [], inputs: [] }
  }
  const fresh = (ticket: Ticket) => ticket.answered && !ticket.generated
  const taken =
    trouble === 'loop' && withInputs.some(fresh)
      ? withInputs.filter(ticket => ticket.answered || !ticket.reportsProgress)
      : withInputs
  const notCompleted = narrowed(taken, ticket => inputsOf(ticket).some(input => !hasCompleted(input)))
  const first = narrowed(notCompleted, ticket => !ticket.generated)
  const all = new Map(first.flatMap(inputsOf).map(input => [input.digest, input]))
  const inputs = narrowed([...all.values()], input => !hasCompleted(input))
  const named = new Set(inputs.map(({ digest }) => digest))
  const blamed = withInputs.filter(ticket => inputsOf(ticket).some(({ digest }) => named.has(digest)))
  const isElsewhere = trouble === 'memory' && inputs.every(hasCompleted) && blamed.length < possible.length
  return { certain: inputs.length === 1 && !isElsewhere, tickets: blamed, inputs }
}

export type InputGuard = ReturnType<typeof createInputGuard>

export function createInputGuard(book: InputRecords, model: string, template?: Input) {
  const tickets = new OpenSet<Ticket>()
  const waiting = new Set<() => void>()
  /** The kind of input that each request is to blame for, if known. */
  const blamed = new Map<Ticket, Kind | undefined>()
  let failure: CorralError | undefined
  let gone = false

  /**
   * A suspect runs alone until it has generated something, which shows if it is harmful and protects other requests.
   */
  function mayBegin(constraints: readonly Input[]): boolean {
    const isSuspect = constraints.some(book.isSuspect)
    for (const ticket of tickets) {
      if (ticket.left) continue
      if (isSuspect || (!ticket.generated && ticket.constraints.some(book.isSuspect))) return false
    }
    return true
  }
  function retryWaiting(): void {
    for (const retry of waiting) retry()
  }

  /** Waits until the request may begin, and adds it in the same instant. */
  async function begin(ticket: Ticket, signal: AbortSignal): Promise<void> {
    // An engine that is being ended still has its slots. If a caller gave up now, it would get the same engine again.
    while (!gone && (failure || !mayBegin(ticket.constraints))) {
      const { promise: changed, resolve: retry } = withResolver()
      waiting.add(retry)
      try {
        await untilAborted(changed, signal)
      } finally {
        waiting.delete(retry)
      }
    }
    if (gone && failure)
      throw new CorralError(failure.code, failure.message, { details: { ...failure.details, sent: false } })
    tickets.add(ticket)
  }

  return {
    /** Runs a request. @throws CorralError `input_blocked`, or for a request to blame one that is not retried */
    async run<Result>(fields: EngineFields, signal: AbortSignal, ask: (ticket: Ticket) => Promise<Result>) {
      const constraints = listConstraints(fields)
      const own = fields.messages === undefined ? undefined : template
      book.check(own ? [own, ...constraints] : constraints, model)
      const ticket: Ticket = {
        constraints,
        ...(own && { template: own }),
        large: isLarge(fields),
        reportsProgress: fields.return_progress === true,
        answered: false,
        generated: false,
        left: false,
        wentOn: false
      }
      await begin(ticket, signal)
      try {
        const result = await ask(ticket)
        tickets.delete(ticket)
        for (const input of [...constraints, ...(own ? [own] : [])]) book.recordCompletion(input)
        return result
      } catch (error) {
        // The engine may not have dropped the request yet, see `look`.
        ticket.left = true
        if (blamed.has(ticket) && failure) throw blameFor(failure, blamed.get(ticket))
        throw error
      } finally {
        retryWaiting()
      }
    },
    progressed(ticket: Ticket): void {
      ticket.answered = true
      if (ticket.generated) return
      ticket.generated = true
      retryWaiting()
    },
    /** Updates requests whose clients have left, after a check of the engine. */
    look(wentOn: boolean, atRest: boolean): void {
      for (const ticket of tickets) {
        if (!ticket.left) continue
        if (wentOn) ticket.wentOn = true
        if (atRest || (ticket.wentOn && ticket.answered)) tickets.delete(ticket)
      }
    },
    /** Records which requests are to blame when the engine is ended. Waiting requests are not. */
    convict(trouble: Trouble, error: CorralError): ReturnType<typeof findBlame> {
      failure = error
      const cause = String(error.details?.cause)
      const blame = findBlame([...tickets], trouble, book.hasCompleted)
      const { certain, tickets: found, inputs } = blame
      for (const input of inputs) {
        if (certain) book.strike(input, cause)
        else book.suspect(input)
      }
      if (certain) for (const ticket of found) blamed.set(ticket, inputs[0]?.kind)
      return blame
    },
    close(error: CorralError): void {
      failure ??= error
      gone = true
      retryWaiting()
    }
  }
}

/** Makes the error for the request that an engine was ended for. Another engine would have to be ended too. */
function blameFor(failure: CorralError, kind: Kind | undefined): CorralError {
  const what =
    kind === undefined ? 'this request' : kind === 'template' ? `the model's ${NAMES.template}` : `the ${NAMES[kind]}`
  const advice = kind === undefined ? 'Send a different one.' : ADVICE[kind]
  return new CorralError(failure.code, `${failure.message} The cause is ${what}, which is not tried again. ${advice}`, {
    details: { ...failure.details, ...(kind !== undefined && { input: kind }) },
    retryable: false
  })
}
