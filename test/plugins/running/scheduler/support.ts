import type { MemoryUse } from '../../../../core/contracts/engines.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { decide } from '../../../../plugins/running/scheduler/decide.ts'
import {
  createState,
  type Effect,
  type Event,
  type Limits
} from '../../../../plugins/running/scheduler/scheduler-state.ts'

export const LIMITS: Limits = {
  maxLoaded: 3,
  maxQueue: 512,
  keepAlive: 300_000,
  fairWait: 15_000,
  fairCount: 64,
  roomTimeout: 300_000,
  loadGrace: 10_000,
  queuePerKey: 512,
  reloads: 6
}

type Request = Extract<Event, { type: 'request' }>
/** An event without its `run`, which refers to the last run of its kind. */
type Sent = Event | WithoutRun<Extract<Event, { run: number }>>
type WithoutRun<E> = E extends { run: number } ? Omit<E, 'run' | 'loadTime'> & { loadTime?: number } : never

/**
 * The state machine with helpers for tests. Each `prepare` is answered immediately with the key's entry in `needs`,
 * unless the key is in `held`.
 */
export function machine(limits: Partial<Limits> = {}, needs: Record<string, MemoryUse | undefined> = {}) {
  const state = createState({ ...LIMITS, ...limits })
  const runs = new Map<string, number>()
  const asked = new Map<string, number>()
  const held = new Set<string>()
  const uncertain = new Set<string>()
  let now = 0

  function take(event: Event): Effect[] {
    const effects = decide(state, event, now)
    return effects.flatMap(effect => {
      if (effect.type === 'load') runs.set(effect.key, effect.run)
      if (effect.type !== 'prepare') return [effect]
      asked.set(effect.key, effect.run)
      return held.has(effect.key) ? [effect] : [effect, ...prepared(effect.key)]
    })
  }

  function prepared(key: string, need: MemoryUse = needs[key] ?? {}): Effect[] {
    return take({ type: 'prepared', key, run: asked.get(key)!, need, certain: !uncertain.has(key), advice: '' })
  }

  function send(event: Sent): Effect[] {
    if ('run' in event || !['prepare-failed', 'loaded', 'load-failed', 'gone'].includes(event.type)) {
      return take(event as Event)
    }
    const { key } = event as { key: string }
    const run = event.type === 'prepare-failed' ? asked.get(key)! : (runs.get(key) ?? 0)
    return take({ loadTime: 1000, ...event, run } as Event)
  }

  return {
    state,
    needs,
    /** Keys whose prepare waits for `prepared`. */
    held,
    /** Keys whose need is uncertain. */
    uncertain,
    at(time: number) {
      now = time
    },
    /** Advances the time, sending the alarms on the way. */
    until(time: number): Effect[] {
      const all: Effect[] = []
      for (;;) {
        const due = [...state.engines.values()]
          .filter(engine => engine.alarm !== undefined && engine.alarm <= time)
          .sort((a, b) => a.alarm! - b.alarm!)[0]
        if (!due) break
        now = Math.max(now, due.alarm!)
        all.push(...take({ type: 'alarm', key: due.key }))
      }
      now = time
      return all
    },
    send,
    prepared,
    request: (id: number, key = 'a', more: Partial<Request> = {}) =>
      take({
        type: 'request',
        id,
        key,
        clientId: 'one',
        name: key,
        options: {},
        loadOnly: false,
        slots: 1,
        background: false,
        defaults: DEFAULT_LOAD_OPTIONS,
        pinned: false,
        groups: [],
        elsewhere: false,
        maxConcurrent: undefined,
        ...more
      })
  }
}

/**
 * Formats effects in short: `load a`, `grant 1`, `refuse 2 queue_full`. Alarms, preparations and waits are left out.
 */
export function short(effects: Effect[]): string[] {
  return effects.flatMap(effect => {
    if (effect.type === 'alarm' || effect.type === 'prepare' || effect.type === 'waiting') return []
    if (effect.type === 'grant') return [`grant ${effect.id}`]
    if (effect.type === 'refuse' || effect.type === 'revoke') {
      return [`${effect.type} ${effect.id} ${effect.error.code}`]
    }
    return [`${effect.type} ${effect.key}`]
  })
}
