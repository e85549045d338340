import { batch, computed, effect, signal } from '@preact/signals'
import type { StateChange, StateSnapshot, StateTopic, StateValue } from '../../../../core/contracts/state-events.ts'
import { ApiError, base, isKeyWanted, key, send, streamOf } from './api.ts'
import { openChannel } from './browser-storage.ts'
import { lastModel, speechModels } from './preferences.ts'

/*
 * The current state of the server from its event feed. One tab reads the feed and shares it with the others, because
 * browsers limit connections to a server to six. If it is closed or frozen, the next one continues.
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
export const members = computed(() => all('member'))
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

/** The models that transcribe or speak, and the one to use: the chosen model, otherwise the first one, or empty. */
export function speechModel(task: keyof typeof speechModels) {
  const chosen = speechModels[task].value
  const names = models.value.filter(({ capabilities }) => capabilities.includes(task)).map(({ name }) => name)
  const isChosen = names.includes(chosen)
  return { names, name: isChosen ? chosen : (names[0] ?? ''), isChosen }
}

/** What a model can do, or nothing if there is no such model. */
export const capabilitiesOf = (model: string): readonly string[] =>
  models.value.find(({ name }) => name === model)?.capabilities ?? []

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

/** Delay before the feed is opened again, in milliseconds. */
const RETRY = 1000

type Sign = { kind: 'asking' | 'offline' } | News

/** Follows the feed until the key changes. The tab that holds a lock reads it for all tabs. */
function follow(usedKey: string): () => void {
  const ended = new AbortController()
  const { signal } = ended
  let isReading = false
  const reading = (post: (sign: Sign) => void) => {
    isReading = true
    return read(signal, post)
  }
  const readAlone = () => void (signal.aborted || reading(() => undefined))
  if (!navigator.locks) {
    readAlone()
    return () => ended.abort()
  }
  // Tabs with other keys may see different records.
  const name = `corral-state ${base} ${digest(usedKey)}`
  const { post, close } = openChannel<Sign>(name, sign => {
    if (sign.kind === 'asking') {
      if (isReading && connection.peek() === 'online') post({ kind: 'snapshot', data: snapshot() })
      return
    }
    batch(() => {
      connection.value = 'data' in sign ? 'online' : 'offline'
      if ('data' in sign) update(sign)
    })
  })
  post({ kind: 'asking' })
  // Browsers that deny storage deny locks, too.
  navigator.locks.request(name, { signal }, () => reading(post)).catch(readAlone)
  return () => {
    ended.abort()
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
async function read(signal: AbortSignal, post: (sign: Sign) => void): Promise<void> {
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
            post(news)
          }
        })
      }
    } catch (error) {
      if (signal.aborted) return
      if (error instanceof ApiError && error.status === 401) return
    }
    connection.value = 'offline'
    post({ kind: 'offline' })
    await new Promise(resolve => setTimeout(resolve, RETRY))
  }
}

/** A short number that depends on a text. Different texts may have the same one. */
export function digest(text: string): string {
  let value = 5381
  for (let at = 0; at < text.length; at++) value = (Math.imul(value, 33) + text.charCodeAt(at)) >>> 0
  return value.toString(36)
}

/** Whether another tab has to read the feed: the browser has frozen this one. */
const isAsleep = signal(false)
const sleepOn = (event: string, asleep: () => boolean) =>
  document.addEventListener(event, () => (isAsleep.value = asleep()))

/** Follows the server's state while the page is open. */
export function followServer(): void {
  sleepOn('freeze', () => true)
  sleepOn('resume', () => false)
  // Over plain HTTP there are no locks. Browsers allow six connections, so hidden tabs must not hold one.
  if (!navigator.locks) sleepOn('visibilitychange', () => document.hidden)
  effect(() => {
    if (isKeyWanted.value || isAsleep.value) return
    return follow(key.value)
  })
}
