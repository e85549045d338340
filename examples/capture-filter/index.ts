import { type CaptureRecord, definePlugin } from 'corral/plugin'

interface Options {
  patterns: string[]
  omit: string[]
}

const EMAIL = /[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}/g
/** Keys of common services: a prefix, then a long sequence of letters and digits. */
const KEY = /\b(?:sk|pk|hf|ghp|gho|xox[abp]|corral|AKIA)[-_]?[A-Za-z0-9_-]{16,}/g

/**
 * Redacts captured requests and answers before they are recorded: e-mail addresses, keys, and the patterns that you
 * add.
 */
export default definePlugin<Options>({
  name: 'capture-filter',
  api: 1,
  description: 'Redacts e-mail addresses and keys in captured requests and answers',
  optional: true,
  options: {
    type: 'object',
    properties: {
      patterns: {
        type: 'array',
        items: { type: 'string' },
        default: [],
        description: 'Additional regular expressions to redact'
      },
      omit: {
        type: 'array',
        items: { type: 'string' },
        default: [],
        description: 'Names of keys whose requests are never recorded'
      }
    },
    additionalProperties: false
  },
  setup(_context, { patterns, omit }) {
    const more = patterns.map(pattern => new RegExp(pattern, 'g'))
    const redacted = (text: string) =>
      more.reduce(
        (left, pattern) => left.replace(pattern, '(redacted)'),
        text.replace(EMAIL, '(email)').replace(KEY, '(key)')
      )

    /** Redacts every text in a value. */
    function clean<Value>(value: Value): Value {
      if (typeof value === 'string') return redacted(value) as Value
      if (Array.isArray(value)) return value.map(clean) as Value
      if (typeof value !== 'object' || value === null) return value
      return Object.fromEntries(Object.entries(value).map(([name, inner]) => [redacted(name), clean(inner)])) as Value
    }

    return {
      on: {
        capture(record: CaptureRecord) {
          if (record.key !== undefined && omit.includes(record.key)) return false
          record.body = clean(record.body)
          record.answer = clean(record.answer)
          return true
        }
      }
    }
  }
})
