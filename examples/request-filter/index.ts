import { definePlugin } from 'corral/plugin'

interface Options {
  refuse: string[]
  replace: Record<string, string>
  system: string
}

/** Sees every request and every event of its answer: refuses some requests, adds a system message, changes words. */
export default definePlugin<Options>({
  name: 'request-filter',
  api: 1,
  description: 'Refuses requests, adds a system message and changes words of answers',
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
        description: 'Words of answers, and what is said in their place'
      },
      system: { type: 'string', default: '', description: 'System message of conversations that have none' }
    },
    additionalProperties: false
  },
  setup(context, { refuse, replace, system }) {
    return {
      on: {
        request({ operation, body, model }) {
          const text = JSON.stringify(body.messages ?? body.prompt ?? '').toLowerCase()
          const word = refuse.find(one => text.includes(one.toLowerCase()))
          if (word !== undefined) {
            throw context.error('invalid_request', `Requests about "${word}" are not answered here.`)
          }
          context.log.debug({ operation, model }, 'a request passes')
          const messages = body.messages as { role: string; content: unknown }[] | undefined
          if (!messages || system === '' || messages.some(({ role }) => role === 'system')) return
          body.messages = [{ role: 'system', content: system }, ...messages]
        },
        event(event) {
          for (const [word, other] of Object.entries(replace)) {
            event.content = event.content?.replaceAll(word, other)
          }
          return undefined
        }
      }
    }
  }
})
