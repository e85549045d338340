import { SseParser } from '../../../../core/answers/openai-events.ts'
import type { Corral } from '../../../support/corral.ts'
import { fetch } from '../../../support/quick-fetch.ts'

/** Reads `/models/sse` until `leave` is called or the stream ends (`read`). */
export async function follow({ url }: Pick<Corral, 'url'>, headers: Record<string, string> = {}) {
  const leaving = new AbortController()
  const reply = await fetch(`${url}/models/sse`, { signal: leaving.signal, headers })
  const events: any[] = []
  const lines = new SseParser()
  const read = (async () => {
    for await (const chunk of reply.body!) {
      for (const payload of lines.push(Buffer.from(chunk))) events.push(JSON.parse(payload))
    }
  })().catch(() => {})
  const statuses = () => events.filter(({ event }) => event === 'model_status').map(({ data }) => data.status)
  /** Returns the names of a model's events, without consecutive duplicates. */
  const kinds = (name: string) => {
    const own = events.filter(({ model }) => model === name).map(({ event }) => event as string)
    return own.filter((kind, at) => kind !== own[at - 1])
  }
  return { reply, events, statuses, kinds, read, leave: () => leaving.abort() }
}
