import type { Test } from 'tap'
import type { Corral } from './corral.ts'
import { Agent, fetch } from './quick-fetch.ts'

/** A reply while it arrives. */
export interface ComingReply {
  status: number
  headers: Headers
  /** Resolves with the first bytes of the body. */
  first: Promise<string>
  /** Resolves with the whole body. */
  text: Promise<string>
}

/** A client that connects from its own address. On Linux all of 127.0.0.0/8 is on the loopback interface. */
export interface OtherClient {
  /** Resolves when the headers arrive. */
  ask(path: string, body: unknown, signal?: AbortSignal): Promise<ComingReply>
  /** Status and body of the complete reply. */
  json(path: string, body: unknown): Promise<{ status: number; headers: Headers; body: any }>
}

export function clientFrom(t: Pick<Test, 'teardown'>, { url }: Corral, localAddress: string): OtherClient {
  const dispatcher = new Agent({ localAddress, headersTimeout: 0, bodyTimeout: 0, pipelining: 0 })
  t.teardown(() => dispatcher.destroy())
  const client: OtherClient = {
    async ask(path, body, signal) {
      const response = await fetch(url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        ...(signal && { signal }),
        dispatcher
      })
      let begun!: (text: string) => void
      const first = new Promise<string>(resolve => {
        begun = resolve
      })
      const text = (async () => {
        const decoder = new TextDecoder()
        let all = ''
        for await (const chunk of response.body!) {
          all += decoder.decode(chunk, { stream: true })
          begun(all)
        }
        begun(all)
        return all
      })()
      // The client may disconnect.
      text.catch(error => begun(String(error)))
      return { status: response.status, headers: response.headers as unknown as Headers, first, text }
    },
    async json(path, body) {
      const { status, headers, text } = await client.ask(path, body)
      return { status, headers, body: JSON.parse(await text) }
    }
  }
  return client
}
