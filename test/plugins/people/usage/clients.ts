import { DEMO } from '../../../support/corral.ts'

export const ADMIN = 'the-long-key-of-the-admin'

interface Server {
  url: string
}

/** @param limits lines of `limits`, `more` further sections */
export function config(limits: string, more = ''): string {
  return `security: { api_keys: [${ADMIN}] }\nlimits: { ${limits} }\n${more}`
}

const headers = (key: string) => ({ authorization: `Bearer ${key}`, 'content-type': 'application/json' })

export async function newKey({ url }: Server, name: string, limits: object = {}, more: object = {}): Promise<string> {
  const body = JSON.stringify({ name, limits, ...more })
  const reply = await fetch(`${url}/api/keys`, { method: 'POST', headers: headers(ADMIN), body })
  const made = (await reply.json()) as { key: string }
  if (reply.status !== 200) throw new Error(JSON.stringify(made))
  return made.key
}

export async function usageOf({ url }: Server, query = '', key = ADMIN): Promise<any> {
  return await (await fetch(`${url}/api/usage${query}`, { headers: headers(key) })).json()
}

const QUESTION = { model: DEMO, messages: [{ role: 'user', content: 'one two three' }], options: { max_tokens: 3 } }
const WAYS = [
  ['/api/chat', { ...QUESTION, stream: false }],
  ['/v1/chat/completions', { ...QUESTION, stream: true }],
  ['/v1/messages', { ...QUESTION, max_tokens: 3 }],
  ['/api/chat', { ...QUESTION, stream: true }]
] as const

/** Sends requests concurrently, through all APIs and to all servers in turn. @returns the statuses, sorted */
export async function sendMany(servers: readonly Server[], key: string, count: number): Promise<number[]> {
  const statuses = await Promise.all(
    Array.from({ length: count }, async (_, at) => {
      const [path, body] = WAYS[at % WAYS.length]!
      const { url } = servers[Math.floor(at / WAYS.length) % servers.length] ?? servers[0]!
      const reply = await fetch(url + path, { method: 'POST', headers: headers(key), body: JSON.stringify(body) })
      const text = await reply.text()
      // A stream may have started before it was refused.
      return /"rate_limit(ed|_error)"/.test(text) ? 429 : reply.status
    })
  )
  return statuses.sort()
}
