import type { ModelDefaults } from '../contracts/models.ts'
import { CorralError, type ErrorCode } from '../errors.ts'
import { parseOptions } from './options.ts'

/** Maximum characters of each of a new model's defaults: all of them are in memory, and every start reads them. */
export const MAX_DEFAULT_CHARACTERS = 1_000_000

/** The parameters of a new model in Ollama's format. */
export interface NewDefaults {
  parameters?: object | null
  template?: string | null
  system?: string | null
  messages?: { role: string; content?: string | null }[] | null
  license?: string | string[] | null
}

const refusal = (param: string, message: string, code: ErrorCode = 'invalid_request') =>
  new CorralError(code, message, { param })

/** Checks a new model's parameters, and converts them to defaults. @throws CorralError with the field as `param` */
export function readDefaults({ parameters, template, system, messages, license }: NewDefaults): ModelDefaults {
  if (template) {
    requireLength('template', template.length, MAX_DEFAULT_CHARACTERS)
    requireJinja(template)
  }
  const fields = {
    ...(parameters && { parameters: optionsOf(parameters) }),
    ...(template && { template }),
    ...(system && { system }),
    ...(messages && { messages: messages.map(plainMessage) }),
    ...(license && { license: typeof license === 'string' ? license : license.join('\n') })
  }
  for (const [field, value] of Object.entries(fields)) {
    requireLength(field, JSON.stringify(value).length, MAX_DEFAULT_CHARACTERS)
  }
  const { parameters: options, ...defaults } = fields
  return { ...(options && { options }), ...defaults }
}

/** @throws CorralError `invalid_request` for a text of more than `most` characters */
export function requireLength(field: string, length: number, most: number): void {
  if (length <= most) return
  throw refusal(field, `"${field}" is too long for a model: it has ${length} characters, and the maximum is ${most}.`)
}

function optionsOf(parameters: object): Record<string, unknown> {
  const options: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(parameters)) {
    // For infill, llama-server accepts only lists of stop sequences.
    if (value !== null) options[name] = name === 'stop' && typeof value === 'string' ? [value] : value
  }
  parseOptions(options)
  return options
}

type Message = NonNullable<NewDefaults['messages']>[number]

function plainMessage({ role, content, ...more }: Message, index: number): { role: string; content: string } {
  // Ollama's command line saves a conversation with the model's reasoning, which templates leave out of earlier turns.
  const [extra] = Object.keys(withoutEmpty(more)).filter(field => field !== 'thinking')
  if (extra === undefined) return { role, content: content ?? '' }
  const message = `Messages of a model have a role and a content; "${extra}" cannot be stored with it. Send it with each request.`
  throw refusal(`messages.${index}.${extra}`, message)
}

/** The fields that are not empty: Ollama's clients also send empty ones. */
export function withoutEmpty<Fields extends object>(fields: Fields): Fields {
  const isEmpty = (value: unknown) =>
    value === null || value === '' || (typeof value === 'object' && Object.keys(value as object).length === 0)
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => !isEmpty(value))) as Fields
}

/** An action of Go's templates that is not a valid expression in Jinja: a field, a variable, or a statement. */
const GO_ACTION =
  /\{\{-?\s*(?:\.[A-Za-z\s}-]|\$|(?:if|range|with|else if)\s|(?:end|else)\s*-?\}\}|(?:block|define|template)\s+")/

/** Checks a chat template. @throws CorralError `unsupported_capability` for Go's language, `invalid_request` */
export function requireJinja(template: string): void {
  if (GO_ACTION.test(template)) {
    const message = `The template is written for Go, which llama.cpp does not understand. Leave it out, and the chat template in the model's own file is used, or send one in Jinja.`
    throw refusal('template', message, 'unsupported_capability')
  }
  // A single search between the first and the last brace. Searching from each brace would take hours for a malicious
  // text.
  const end = Math.max(template.lastIndexOf('%}'), template.lastIndexOf('}}'))
  if (/\bmessages\b/.test(template.slice(template.search(/\{[{%]/), end))) return
  const message = `The template is not a chat template in Jinja: it does not use "messages". Leave it out, and the template in the model's own file is used.`
  throw refusal('template', message)
}
