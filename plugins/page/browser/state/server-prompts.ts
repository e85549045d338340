import { signal } from '@preact/signals'
import { ask } from './api.ts'
import { filesOf } from './chat-files.ts'
import type { ResultFile } from './chat-format.ts'
import { toolServers } from './hosted-tools.ts'

/** A prompt of a server of tools. */
export interface ServerPrompt {
  server: string
  name: string
  description: string
  arguments: { name: string; description: string; required: boolean }[]
}

/** By server. */
export const serverPrompts = signal<Readonly<Record<string, readonly ServerPrompt[]>>>({})

/** Lists the prompts of each server, which may have to be started first. A server that fails has none. */
export function loadServerPrompts(): void {
  for (const { name: server } of toolServers.peek()) {
    const note = (prompts: Omit<ServerPrompt, 'server'>[]) => {
      serverPrompts.value = { ...serverPrompts.peek(), [server]: prompts.map(each => ({ ...each, server })) }
    }
    ask<{ prompts: Omit<ServerPrompt, 'server'>[] }>('GET', `api/mcp/${server}/prompts`).then(
      ({ prompts }) => note(prompts),
      () => note([])
    )
  }
}

/** Lets the server fill a prompt. Arguments without a text are left out. */
export async function fillServerPrompt({ server, name }: ServerPrompt, values: FormData) {
  const given = Object.fromEntries([...values].filter(([, value]) => value !== ''))
  const body = { prompt: name, arguments: given }
  type Reply = { messages: { text: string; files?: ResultFile[] }[] }
  const { messages } = await ask<Reply>('POST', `api/mcp/${server}/prompt`, { body })
  const texts = messages.flatMap(({ text }) => text || [])
  return { text: texts.join('\n\n'), files: messages.flatMap(({ files = [] }) => filesOf(files)) }
}
