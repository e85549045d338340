import type { Corral, SendOptions } from './corral.ts'

/** An event as it was sent. */
export interface SentEvent {
  event: string
  id: string
  data: any
}

/** Follows `GET /api/events` and applies the changes as a client does. */
export async function readState(corral: Corral, query = '', init: SendOptions = {}) {
  const leaving = new AbortController()
  const reply = await corral.send(`/api/events${query}`, undefined, { signal: leaving.signal, ...init })
  const events: SentEvent[] = []
  const records = new Map<string, any>()
  /** All values of `state` in the engine's record. */
  const states: string[] = []
  const apply = ({ event, data }: SentEvent) => {
    if (event === 'snapshot') {
      records.clear()
      for (const { topic, key, value } of data.records) records.set(`${topic}/${key}`, value)
      return
    }
    for (const { topic, key } of data.removed) records.delete(`${topic}/${key}`)
    for (const { topic, key, value } of data.set) {
      const merged = { ...records.get(`${topic}/${key}`), ...value }
      for (const [name, one] of Object.entries(merged)) if (one === null) delete merged[name]
      records.set(`${topic}/${key}`, merged)
      if (topic === 'engine' && merged.state !== states.at(-1)) states.push(merged.state)
    }
  }
  let bytes = 0
  const read = (async () => {
    let text = ''
    const decoder = new TextDecoder()
    for await (const chunk of reply.body!) {
      bytes += (chunk as Uint8Array).length
      text += decoder.decode(chunk as Uint8Array, { stream: true })
      const blocks = text.split('\n\n')
      text = blocks.pop()!
      for (const block of blocks) {
        if (block.startsWith(':')) continue
        const [, event, id, data] = /^event: (.*)\nid: (.*)\ndata: (.*)$/.exec(block)!
        const sent = { event: event!, id: id!, data: JSON.parse(data!) }
        events.push(sent)
        apply(sent)
      }
    }
  })().catch(() => {})
  const of = (topic: string) => [...records].filter(([name]) => name.startsWith(`${topic}/`)).map(([, value]) => value)
  return {
    reply,
    events,
    records,
    states,
    of,
    /** Settles when the stream has ended. */
    read,
    bytes: () => bytes,
    lastId: () => events.at(-1)!.id,
    async leave() {
      leaving.abort()
      await read
    }
  }
}
