import { batch, computed, effect, signal } from '@preact/signals'
import type { StateChange, StateSnapshot, StateTopic, StateValue } from '../../../../core/contracts/state-events.ts'
import { ApiError, base, isKeyWanted, key, send, streamOf } from './api.ts'
import { newId, openChannel } from './browser-storage.ts'
import { lastModel } from './preferences.ts'

/*
 * The current state of the server from its event feed. One tab reads the feed and shares it with the others, because
 * browsers limit connections to a server to six.
 */

type Records = { readonly [T in StateTopic]?: ReadonlyMap<string, StateValue<T>> }

/** All records, by topic and key. */
export const records = signal<Records>({})
/** Whether the server can be reached. */
export const connection = signal<'connecting' | 'online' | 'offline'>('connecting')

/** The records of a topic. */
const all = <T extends StateTopic>(topic: T): StateValue<T>[] => [...(records.value[topic]?.values() ?? [])]

export const models = computed(() => all('model').sort((a, b) => (a.name < b.name ? -1 : 1)))
export const engines = computed(() => all('engine'))
export const pulls = computed(() => all('pull'))
export const conversions = computed(() => all('conversion'))
export const gpus = computed(() => all('gpu'))
export const pools = computed(() => all('memory'))
export const server = computed(() => all('server')[0])
export const build = computed(() => all('build')[0])

/** Models that can chat. */
export const chatModels = computed(() => models.value.filter(({ capabilities }) => capabilities.includes('completion')))

/** The model for new chats: the last used model, otherwise a model in memory, otherwise the first one. */
export const defaultModel = computed(() => {
  const names = chatModels.value.map(({ name }) => name)
  if (names.includes(lastModel.value)) return lastModel.value
  const loaded = engines.value.find(({ name, mode }) => mode === 'chat' && names.includes(name))
  return loaded?.name ?? names[0] ?? ''
})

/** The engine for chats with a model, loaded or loading. */
export const engineOf = (model: string) =>
  engines.value.find(({ name, mode }) => mode === 'chat' && name.toLowerCase() === model.toLowerCase())

/** Context size in tokens of a loaded model. */
export function contextOf(model: string): number | undefined {
  const engine = engineOf(model)
  return engine?.state === 'loaded' ? engine.context_length : undefined
}

type News = { kind: 'snapshot'; data: StateSnapshot } | { kind: 'change'; data: StateChange }

/** Applies an event of the feed to the records. */
function update({ kind, data }: News): void {
  const isWhole = kind === 'snapshot'
  const { removed, set } = isWhole ? { removed: [], set: data.records } : data
  const next = (isWhole ? {} : { ...records.value }) as Record<StateTopic, Map<string, unknown>>
  for (const topic of new Set([...removed, ...set].map(({ topic }) => topic))) next[topic] = new Map(next[topic])
  for (const { topic, key } of removed) next[topic].delete(key)
  for (const { topic, key, value } of set) {
    const merged = { ...(next[topic].get(key) as object), ...value }
    const known = Object.entries(merged).filter(([, field]) => field !== null)
    next[topic].set(key, Object.fromEntries(known))
  }
  records.value = next as Records
}

/** Heartbeat interval of the tab that reads the feed, in milliseconds. */
const SIGN = 1000
/** Missed heartbeats before a tab asks for one. Browsers slow down timers of hidden tabs, but not their replies. */
const ASK_AFTER = 2
/** Missed heartbeats before a tab takes over the feed. */
const READ_AFTER = 4
/** How long another tab may take to answer that it reads the feed, in milliseconds. */
const ANSWER_TIMEOUT_MS = 120
/** Delay before the feed is opened again, in milliseconds. */
const RETRY = 1000

type Sign = { from: string } & (
  | { kind: 'reading' | 'leaving' | 'offline' }
  | { kind: 'asking'; hasNothing: boolean }
  | News
)

/** Follows the feed, in this tab or through another one, until the key changes. */
function follow(usedKey: string): () => void {
  const ended = new AbortController()
  const from = newId()
  // Tabs with other keys may see different records.
  const { post, close } = openChannel<Sign>(`corral-state ${base} ${digest(usedKey)}`, take)
  /** Number of missed heartbeats. */
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
      // A random delay: the first tab announces itself before the others start.
      setTimeout(beat, Math.random() * 5 * ANSWER_TIMEOUT_MS)
      return
    }
    // If two tabs read the feed, one stops.
    if (reading && sign.from > from) return
    reading?.abort()
    reading = undefined
    missed = 0
    batch(() => {
      if (sign.kind === 'offline') connection.value = 'offline'
      else if (sign.kind === 'snapshot' || sign.kind === 'change') {
        update(sign)
        connection.value = 'online'
      }
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
  /** Another tab can take over immediately. */
  const leave = () => {
    if (!reading) return
    reading.abort()
    reading = undefined
    post({ from, kind: 'leaving' })
  }
  addEventListener('pagehide', leave)
  ask()
  const first = setTimeout(beat, ANSWER_TIMEOUT_MS)
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

/** Reads the feed and reopens it whenever it ends. */
async function read(signal: AbortSignal, post: (sign: Sign) => void, from: string): Promise<void> {
  let last: string | undefined
  while (!signal.aborted) {
    try {
      const response = await send('GET', 'api/events', { signal, ...(last && { headers: { 'last-event-id': last } }) })
      // There may be no changes since.
      connection.value = 'online'
      for await (const items of streamOf(response, signal)) {
        batch(() => {
          for (const item of items) {
            if ('comment' in item) continue
            last = item.id ?? last
            if (item.event !== 'snapshot' && item.event !== 'change') continue
            const news: News = { kind: item.event, data: JSON.parse(item.data) }
            update(news)
            post({ from, ...news })
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

/** Follows the server's state while the page is open. */
export function followServer(): void {
  effect(() => {
    if (isKeyWanted.value) return
    return follow(key.value)
  })
}
