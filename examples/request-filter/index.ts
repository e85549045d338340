import { definePlugin, type HookedRequest } from 'corral/plugin'

interface Options {
  refuse: string[]
  replace: Record<string, string>
  system: string
}

/** The text of messages, prompts and inputs, without roles and the like. */
function textOf(value: unknown): string {
  if (typeof value === 'string') return value
  if (Array.isArray(value)) return value.map(textOf).join('\n')
  const { content, text } = (value ?? {}) as { content?: unknown; text?: unknown }
  return textOf(content ?? text ?? '')
}

/** Gets every request and every event of its answer: refuses some requests, adds a system message, replaces words. */
export default definePlugin<Options>({
  name: 'request-filter',
  api: 1,
  description: 'Refuses requests, adds a system message and replaces words in answers',
  optional: true,
  options: {
    type: 'object',
    properties: {
      refuse: {
        type: 'array',
        items: { type: 'string' },
        default: [],
        description: 'Words whose requests are refused'
      },
      replace: {
        type: 'object',
        additionalProperties: { type: 'string' },
        default: {},
        description: 'Words in answers, and their replacements'
      },
      system: { type: 'string', default: '', description: 'System message for conversations without one' }
    },
    additionalProperties: false
  },
  setup(context, { refuse, replace, system }) {
    const words = Object.keys(replace).filter(word => word !== '')
    words.sort((a, b) => b.length - a.length)
    // The pending text of each choice, which may be the beginning of a word whose end comes with a later event.
    const held = new WeakMap<HookedRequest, Map<number, string>>()

    /** Replaces words. @returns the text to send, and the rest, which later text may complete to a word */
    function replaced(text: string, isLast: boolean): [string, string] {
      let sent = ''
      let at = 0
      while (at < text.length) {
        const left = text.length - at
        if (!isLast && words.some(word => word.length > left && word.startsWith(text.slice(at)))) break
        const word = words.find(one => text.startsWith(one, at))
        sent += word === undefined ? text[at] : replace[word]
        at += word?.length ?? 1
      }
      return [sent, text.slice(at)]
    }

    return {
      on: {
        request({ operation, body, model }) {
          const { messages: conversation, prompt, input, query, documents, content } = body
          const text = textOf([conversation, prompt, input, query, documents, content]).toLowerCase()
          const word = refuse.find(one => text.includes(one.toLowerCase()))
          if (word !== undefined) {
            throw context.error('invalid_request', `Requests about "${word}" are not answered here.`)
          }
          context.log.debug({ operation, model }, 'a request passes')
          const messages = body.messages as { role: string; content: unknown }[] | undefined
          if (!messages || system === '' || messages.some(({ role }) => role === 'system')) return
          body.messages = [{ role: 'system', content: system }, ...messages]
        },
        event(event, request) {
          const { choice = 0, content, finish } = event
          const rests = held.get(request) ?? new Map<number, string>()
          held.set(request, rests)
          const text = (rests.get(choice) ?? '') + (content ?? '')
          const [sent, rest] = replaced(text, finish !== undefined)
          rests.set(choice, rest)
          if (text !== '') event.content = sent
        }
      }
    }
  }
})
