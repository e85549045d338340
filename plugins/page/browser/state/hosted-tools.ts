import { effect, signal } from '@preact/signals'
import { ask } from './api.ts'
import type { HostedCall } from './chat-format.ts'
import { me } from './me.ts'
import { rememberedList } from './preferences.ts'

/* The servers of tools that the user may use, the tools that a chat uses, and the tools that may run without asking. */

export interface ToolServer {
  name: string
  transport: string
  state: 'running' | 'stopped' | 'failed'
  fault?: string
  roles: string[]
  ask: 'never' | 'writes' | 'always'
}

export interface Tool {
  name: string
  description: string
  asks: boolean
}

export const toolServers = signal<readonly ToolServer[]>([])

export async function loadToolServers(): Promise<void> {
  toolServers.value = (await ask<{ servers: ToolServer[] }>('GET', 'api/mcp')).servers
}

/** Loads the servers at the start and for each other user. */
export function watchTools(): void {
  effect(() => {
    if (me.value) loadToolServers().catch(() => (toolServers.value = []))
  })
}

/** The chosen names that can be requested. The others are of servers that the user may no longer use. */
export const usableTools = (chosen: readonly string[] = []): string[] =>
  chosen.filter(name => toolServers.value.some(server => server.name === name.split('.', 1)[0]))

export const isChosen = (chosen: readonly string[], server: string, tool: string) =>
  chosen.includes(server) || chosen.includes(`${server}.${tool}`)

/** Turns one tool of a server on or off, or all its tools. @param tools all tools of the server */
export function withTool(
  chosen: readonly string[],
  server: string,
  tools: readonly string[],
  isOn: boolean,
  tool?: string
): string[] {
  const others = chosen.filter(name => name.split('.', 1)[0] !== server)
  const own = tools.filter(name => (name === tool || tool === undefined ? isOn : isChosen(chosen, server, name)))
  return [...others, ...(own.length === tools.length ? [server] : own.map(name => `${server}.${name}`))]
}

const MAX_ALLOWED = 1000
const allowed = rememberedList<string>('allowed-tools')
/** Tools that may run without asking: `server.tool`, in one chat only if a space and its id follow. */
export const allowedTools = allowed.list

const nameOf = ({ server, tool }: HostedCall) => `${server}.${tool}`

export const isAllowed = (call: HostedCall, chat: string) =>
  allowedTools.peek().some(each => each === nameOf(call) || each === `${nameOf(call)} ${chat}`)

/** Lets a tool run without asking from now on. @param chat only in this one */
export function allowTool(call: HostedCall, chat?: string): void {
  const name = chat === undefined ? nameOf(call) : `${nameOf(call)} ${chat}`
  allowed.set([...allowedTools.peek().filter(other => other !== name), name].slice(-MAX_ALLOWED))
}

export function forgetTool(name: string): void {
  allowed.set(allowedTools.peek().filter(other => other !== name))
}
