import type { ServerResponse } from 'node:http'
import type { Test } from 'tap'
import { newHome } from './command.ts'
import { localModel, runningModel, shownModel } from './records.ts'
import { event, refuse, type ScriptedServer, scriptedServer } from './scripted-server.ts'
import { onTerminal, type Terminal } from './terminal.ts'

export interface Chat {
  model: string
  messages: { role: string; content: string; images?: string[] }[]
  options: Record<string, unknown>
  [field: string]: unknown
}

export type ChatServer = ScriptedServer & {
  /** Bodies of all chat requests. */
  readonly chats: Chat[]
}

/**
 * A server whose chat answers the test provides. Its models are `me/model`, `me/seeing` with vision, and `me/base`,
 * which repeats each prompt.
 */
export async function chatServer(t: Test, answer: (reply: ServerResponse, count: number) => void): Promise<ChatServer> {
  const more: Record<string, string> = { 'me/seeing': 'vision', 'me/base': 'base' }
  const capabilities = (name: unknown) => ['completion', more[String(name)] ?? []].flat()
  const models = ['me/model', 'me/seeing'].map(name => ({ ...localModel(name), capabilities: capabilities(name) }))
  const server = await scriptedServer(t, {
    'POST /api/show'(reply, { model }) {
      if (model === 'me/absent') return refuse(reply, 404, 'model_not_found', 'There is no model "me/absent" here.')
      reply.end(JSON.stringify({ ...shownModel(String(model)), capabilities: capabilities(model) }))
    },
    'GET /api/tags': reply => reply.end(JSON.stringify({ models })),
    'GET /api/ps': reply => reply.end(JSON.stringify({ models: [runningModel('me/model')], loading: [] })),
    'POST /api/load'(reply, { model }) {
      if (model === 'me/absent') return refuse(reply, 404, 'model_not_found', 'There is no model "me/absent" here.')
      reply.end('data: {"status":"ready"}\n\n')
    },
    'POST /api/generate': (reply, { prompt, system }) =>
      reply.end(event({ response: `<${[system, prompt].filter(Boolean).join(' ')}>`, done: false }) + DONE),
    'POST /api/chat': (reply, _body, count) => answer(reply, count)
  })
  return {
    ...server,
    get chats() {
      return server.bodies('POST /api/chat') as unknown as Chat[]
    }
  }
}

export const say = (content: string) => event({ message: { role: 'assistant', content }, done: false })
export const DONE = event({ done: true, done_reason: 'stop', eval_count: 2, eval_duration: 1e9 })

/** Opens a chat with `me/model` on a terminal. */
export async function openChat(
  t: Test,
  { flags }: ChatServer,
  { args = [], home, ...size }: { args?: string[]; home?: string; columns?: number; env?: Record<string, string> } = {}
): Promise<Terminal> {
  const terminal = onTerminal(t, ['run', 'me/model', ...args, ...flags], home ?? newHome(t), size)
  await terminal.sees('>>> ')
  return terminal
}
