import { batch, computed, effect, signal } from '@preact/signals'
import type { StateChange, StateSnapshot, StateTopic, StateValue } from '../../../../core/contracts/state-events.ts'
import { ApiError, base, isKeyWanted, key, send, streamOf } from './api.ts'
import { openChannel } from './browser-storage.ts'
import { newId } from './identifier.ts'
import { lastModel } from './preferences.ts'

/*
 * What the server is like now, as its feed tells it. One tab of the browser reads the feed and passes it on to the others,
 * since browsers open six connections to a server and then wait.
 */

type Records = { [T in StateTopic]: ReadonlyMap<string, StateValue<T>> }
const none = (): Records => ({
  server: new Map(),
  requests: new Map(),
  model: new Map(),
  engine: new Map(),
  pull: new Map(),
  conversion: new Map(),
  memory: new Map(),
  gpu: new Map(),
  build: new Map(),
  member: new Map(),
  replicas: new Map()
})

/** All records, by topic and key. */
export const records = signal<Records>(none())
/** Whether the server can be reached. */
export const connection = signal<'connecting' | 'online' | 'offline'>('connecting')

const only = <Value>(map: ReadonlyMap<string, Value>): Value | undefined => map.values().next().value

export const models = computed(() => [...records.value.model.values()].sort((a, b) => (a.name < b.name ? -1 : 1)))
export const engines = computed(() => [...records.value.engine.values()])
export const pulls = computed(() => [...records.value.pull.entries()].map(([, pull]) => pull))
export const conversions = computed(() => [...records.value.conversion.values()])
export const gpus = computed(() => [...records.value.gpu.entries()].map(([id, gpu]) => ({ id, ...gpu })))
export const pools = computed(() => [...records.value.memory.values()])
export const server = computed(() => only(records.value.server))
export const requests = computed(() => only(records.value.requests))
export const build = computed(() => only(records.value.build))

/** Models that answer chats. */
export const chatModels = computed(() => models.value.filter(({ capabilities }) => capabilities.includes('completion')))

/** The model that a new chat begins with: the one that was used last, else one in memory, else the first. */
export const defaultModel = computed(() => {
  const names = chatModels.value.map(({ name }) => name)
  if (names.includes(lastModel.value)) return lastModel.value
  const loaded = engines.value.find(({ name, mode }) => mode === 'chat' && names.includes(name))
  return loaded?.name ?? names[0] ?? ''
})

/** The engine that a model has for chats, loaded or on its way. */
export const engineOf = (model: string) =>
  engines.value.find(({ name, mode }) => mode === 'chat' && name.toLowerCase() === model.toLowerCase())

/** Tokens that a conversation with a model may have, where it is loaded. */
export function contextOf(model: string): number | undefined {
  const engine = engineOf(model)
  return engine?.state === 'loaded' ? engine.context_length : undefined
}

function takeSnapshot({ records: all }: StateSnapshot): void {
  const next = none() as Record<StateTopic, Map<string, unknown>>
  for (const { topic, key, value } of all) next[topic]?.set(key, value)
  records.value = next as Records
}

function takeChange({ removed, set }: StateChange): void {
  const next = { ...records.value } as Record<StateTopic, Map<string, unknown>>
  for (const topic of new Set([...removed, ...set].map(({ topic }) => topic))) next[topic] = new Map(next[topic])
  for (const { topic, key } of removed) next[topic]?.delete(key)
  for (const { topic, key, value } of set) {
    const merged = { ...(next[topic]?.get(key) as object), ...value }
    const known = Object.entries(merged).filter(([, field]) => field !== null)
    next[topic]?.set(key, Object.fromEntries(known))
  }
  records.value = next as Records
}

/** Milliseconds between two signs of the tab that reads the feed. */
const SIGN = 1000
/** Times without a sign until a tab asks for one; browsers slow the timers of tabs that are hidden, not their answers. */
const ASK_AFTER = 2
/** Times without a sign until a tab takes the feed over. */
const READ_AFTER = 4
/** Milliseconds for another tab to say that it reads the feed. */
const ANSWER = 120
/** Milliseconds until the feed is asked for again. */
const RETRY = 1000

type Sign = { from: string } & (
  | { kind: 'reading' | 'leaving' | 'offline' }
  | { kind: 'asking'; hasNothing: boolean }
  | { kind: 'snapshot'; data: StateSnapshot }
  | { kind: 'change'; data: StateChange }
)

/** Follows the feed, by this tab or by another one, until the key changes. */
function follow(usedKey: string): () => void {
  const ended = new AbortController()
  const from = newId()
  // Tabs with other keys may see other things.
  const { post, close } = openChannel<Sign>(`corral-state ${base} ${digest(usedKey)}`, take)
  /** How often a sign was missed. */
  let missed = READ_AFTER
  let reading: AbortController | undefined
  const ask = () => post({ from, kind: 'asking', hasNothing: connection.peek() !== 'online' })
  function take(sign: Sign): void {
    if (sign.kind === 'asking') {
      if (reading && sign.hasNothing && connection.peek() === 'online')
        post({ from, kind: 'snapshot', data: snapshot() })
      else if (reading) post({ from, kind: 'reading' })
      return
    }
    if (sign.kind === 'leaving') {
      if (reading) return
      missed = READ_AFTER
      // The first one says so before the others begin.
      setTimeout(beat, Math.random() * 5 * ANSWER)
      return
    }
    // Of two tabs that read, one stops.
    if (reading && sign.from > from) return
    reading?.abort()
    reading = undefined
    missed = 0
    batch(() => {
      if (sign.kind === 'offline') connection.value = 'offline'
      if (sign.kind === 'snapshot') takeSnapshot(sign.data)
      if (sign.kind === 'change') takeChange(sign.data)
      if (sign.kind === 'snapshot' || sign.kind === 'change') connection.value = 'online'
    })
  }
  const beat = () => {
    if (ended.signal.aborted) return
    if (!reading && missed >= READ_AFTER) {
      reading = new AbortController()
      void read(AbortSignal.any([ended.signal, reading.signal]), post, from)
    }
    if (reading) post({ from, kind: 'reading' })
    else {
      missed += 1
      if (missed > ASK_AFTER || connection.peek() !== 'online') ask()
    }
  }
  /** Another tab goes on at once. */
  const leave = () => {
    if (!reading) return
    reading.abort()
    reading = undefined
    post({ from, kind: 'leaving' })
  }
  addEventListener('pagehide', leave)
  ask()
  const first = setTimeout(beat, ANSWER)
  const timer = setInterval(beat, SIGN)
  return () => {
    leave()
    removeEventListener('pagehide', leave)
    ended.abort()
    clearTimeout(first)
    clearInterval(timer)
    close()
  }
}

function snapshot(): StateSnapshot {
  const all = Object.entries(records.peek()).flatMap(([topic, map]) =>
    [...map].map(([key, value]) => ({ topic, key, value }))
  )
  return { records: all as StateSnapshot['records'] }
}

/** Reads the feed, and asks for it again whenever it ends. */
async function read(signal: AbortSignal, post: (sign: Sign) => void, from: string): Promise<void> {
  let last: string | undefined
  while (!signal.aborted) {
    try {
      const response = await send('GET', 'api/events', { signal, ...(last && { headers: { 'last-event-id': last } }) })
      // Nothing may have changed since.
      connection.value = 'online'
      for await (const items of streamOf(response, signal)) {
        batch(() => {
          for (const item of items) {
            if ('comment' in item) continue
            last = item.id ?? last
            const data = JSON.parse(item.data)
            if (item.event === 'snapshot') {
              takeSnapshot(data)
              post({ from, kind: 'snapshot', data })
            } else if (item.event === 'change') {
              takeChange(data)
              post({ from, kind: 'change', data })
            }
          }
        })
      }
    } catch (error) {
      if (signal.aborted) return
      if (error instanceof ApiError && error.status === 401) return
    }
    connection.value = 'offline'
    post({ from, kind: 'offline' })
    await new Promise(resolve => setTimeout(resolve, RETRY))
  }
}

function digest(text: string): string {
  let value = 5381
  for (const character of text) value = (value * 33 + character.codePointAt(0)!) >>> 0
  return value.toString(36)
}

/** Follows the server's state for as long as the page is open. */
export function followServer(): void {
  effect(() => {
    if (isKeyWanted.value) return
    return follow(key.value)
  })
}
