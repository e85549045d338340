import { CorralError } from '../../core/errors.ts'

type Fields = Record<string, unknown>

interface Rule {
  /** What is allowed, as a sentence goes on after "must be". */
  allowed: string
  holds: (value: unknown) => boolean
}

const isObject = (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value)
const isText = (value: unknown) => typeof value === 'string'
const isTokens = (value: unknown) => Array.isArray(value) && value.every(item => Number.isInteger(item) && item >= 0)
const isListOf = (value: unknown, holds: (item: unknown) => boolean) => Array.isArray(value) && value.every(holds)

const OBJECT: Rule = { allowed: 'an object', holds: isObject }
const BOOLEAN: Rule = { allowed: 'true or false', holds: value => typeof value === 'boolean' }
const NUMBER: Rule = { allowed: 'a number', holds: value => typeof value === 'number' }
const TEXT_OR_TOKENS: Rule = {
  allowed: 'text, a list of texts, a list of token numbers, or a list of such lists',
  holds: value =>
    isText(value) || (isListOf(value, item => isText(item) || isTokens(item)) && isFilled(value)) || isTokenList(value)
}

function isFilled(value: unknown): boolean {
  return Array.isArray(value) && value.length > 0
}

function isTokenList(value: unknown): boolean {
  return isTokens(value) && isFilled(value)
}

/** Fields whose wrong types the engine answers with a failure of its own, or takes silently for something else. */
const RULES: Record<string, Rule> = {
  stream: BOOLEAN,
  stream_options: OBJECT,
  stop: { allowed: 'text or a list of texts', holds: value => isText(value) || isListOf(value, isText) },
  n: { allowed: 'a whole number from 1', holds: value => Number.isInteger(value) && (value as number) >= 1 },
  frequency_penalty: NUMBER,
  presence_penalty: NUMBER,
  logit_bias: { allowed: 'an object or a list', holds: value => isObject(value) || Array.isArray(value) },
  response_format: OBJECT,
  tools: { allowed: 'a list of objects', holds: value => isListOf(value, isObject) },
  tool_choice: { allowed: 'text or an object', holds: value => isText(value) || isObject(value) },
  messages: {
    allowed: 'a list of at least one message',
    holds: value => isFilled(value) && isListOf(value, isObject)
  },
  prompt: TEXT_OR_TOKENS,
  input: TEXT_OR_TOKENS,
  encoding_format: { allowed: '"float" or "base64"', holds: value => value === 'float' || value === 'base64' },
  content: {
    allowed: 'text or a list of texts and token numbers',
    holds: value => isText(value) || Array.isArray(value)
  },
  tokens: { allowed: 'a list of token numbers', holds: isTokens }
}

function invalid(param: string, allowed: string): CorralError {
  return new CorralError('invalid_request', `"${param}" must be ${allowed}.`, { param })
}

/**
 * Checks the fields of a body that corral knows.
 * @param required the field that this function cannot work without
 * @throws CorralError `invalid_request` with the field as `param`; values are not quoted, they may be prompts
 */
export function checkFields(body: Fields, required: string): void {
  if (body[required] === undefined || body[required] === null) {
    throw new CorralError('invalid_request', `"${required}" is missing. It must be ${RULES[required]!.allowed}.`, {
      param: required
    })
  }
  for (const [name, rule] of Object.entries(RULES)) {
    const value = body[name]
    if (value !== undefined && value !== null && !rule.holds(value)) throw invalid(name, rule.allowed)
  }
}

/**
 * Messages as the engine wants them: one without a role is the user's.
 * @throws CorralError `invalid_request` naming the place
 */
export function checkMessages(messages: Fields[]): Fields[] {
  return messages.map((message, index) => {
    const at = `messages[${index}]`
    const role = message.role ?? 'user'
    if (!isText(role) || role === '') throw invalid(`${at}.role`, '"system", "user", "assistant" or "tool"')
    const { content } = message
    if (content === undefined || content === null) {
      if (role !== 'assistant' || !(isFilled(message.tool_calls) || content === null)) {
        throw invalid(`${at}.content`, 'text or a list of parts')
      }
    } else if (!isText(content) && !isListOf(content, part => isObject(part) && isText((part as Fields).type))) {
      throw invalid(`${at}.content`, 'text or a list of parts, each with a "type"')
    }
    const calls = message.tool_calls
    if (calls !== undefined && calls !== null && !isListOf(calls, isObject)) {
      throw invalid(`${at}.tool_calls`, 'a list of objects')
    }
    return { ...message, role }
  })
}
