import type { ModelDefaults } from '../contracts/models.ts'

interface Message {
  role?: unknown
}

const isSystem = ({ role }: Message) => role === 'system' || role === 'developer'

/**
 * A conversation as the engine gets it: behind the system's message of the request, or else the one that the
 * model was made with, come the messages that every conversation with the model begins with, then those of the request.
 *
 * @param messages in the engine's words (roles `system`, `user`, …)
 */
export function withModelDefaults<T extends Message>(
  messages: readonly T[],
  defaults: ModelDefaults | undefined
): (T | { role: string; content: string })[] {
  if (!defaults?.system && !defaults?.messages?.length) return [...messages]
  const hasSystem = messages.some(isSystem)
  const begin = messages.findIndex(message => !isSystem(message))
  const head = messages.slice(0, begin === -1 ? messages.length : begin)
  // What the request says of the system goes before what the model was made with.
  const examples = (defaults.messages ?? []).filter(message => !hasSystem || !isSystem(message))
  const system = defaults.system && !hasSystem && !examples.some(isSystem)
  return [
    ...(system ? [{ role: 'system', content: defaults.system! }] : []),
    ...head,
    ...examples,
    ...messages.slice(head.length)
  ]
}
