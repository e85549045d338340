import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { nearest } from '../core/config/suggestion.ts'
import { errorMessage, isSystemError } from '../core/errors.ts'
import { LoadOptionsSchema } from '../core/models/load-options.ts'
import { OverflowPolicySchema, optionName, SamplingOptionsSchema } from '../core/models/options.ts'
import { parseDuration } from '../core/system/duration.ts'
import { isObject, parseAnyJson } from '../core/system/json-object.ts'
import { allowedBy, fits, fromText, type JsonSchema } from '../core/system/schema-check.ts'
import { type CommandFailure, misuse } from './command-failure.ts'
import { shippedText } from './shipped-text.ts'

/** Settings of a chat. All except the last three are sent with every request. */
export interface ChatSettings {
  model: string
  system?: string | undefined
  /** The `options` field of the API. */
  options: Record<string, unknown>
  /** `json`, or a JSON schema. */
  format?: unknown
  think?: boolean | undefined
  keepAlive?: string | undefined
  /** Whether token counts and speed are printed after each answer. */
  verbose: boolean
  /** Whether answers are printed as the model writes them, without rendering Markdown. */
  raw: boolean
  /** Whether prompts are stored for later chats. */
  history: boolean
}

/** Engine options that corral itself does not know. */
const ENGINE_OPTIONS: Record<string, JsonSchema> = JSON.parse(shippedText('engine-options.json'))

const OPTIONS: Record<string, JsonSchema> = {
  ...(SamplingOptionsSchema.properties as Record<string, JsonSchema>),
  ...ENGINE_OPTIONS,
  ...(LoadOptionsSchema.properties as Record<string, JsonSchema>),
  context_overflow: OverflowPolicySchema as JsonSchema
}

/** Whether the engine must restart to apply this option. */
export const isLoadOption = (name: string) => Object.hasOwn(LoadOptionsSchema.properties, name)

interface Setting {
  /** Allowed values, as the end of a sentence: "must be …". */
  allowed: string
  description: string
  /** Completions for the value. */
  values?: string[]
  /** The field that stores the value, unless it is an option of requests. */
  key?: Exclude<keyof ChatSettings, 'model' | 'options'>
  /** The value after a reset (default: none). */
  usual?: boolean
  parse(text: string): unknown
}

function refused(name: string, allowed: string, text: string): CommandFailure {
  const quoted = text.length > 60 ? `${text.slice(0, 60)}…` : text
  return misuse(`${name} must be ${allowed}; got ${quoted === '' ? 'nothing' : quoted}.`)
}

/** Parses JSON escapes such as `\n`. Other text is returned unchanged. */
function unescaped(text: string): string {
  return String(parseAnyJson(text.startsWith('"') ? text : `"${text}"`) ?? text)
}

function optionSetting(name: string, schema: JsonSchema): Setting {
  const { description = '', type, enum: choices } = schema
  const isSwitch = type === 'boolean'
  const isWord = choices || name === 'dtype'
  const others = name === 'dtype' ? 'a type such as f32, f16, bf16, q8_0 or q4_k_m' : allowedBy(schema)
  const allowed = isSwitch ? 'on or off' : others.replaceAll('"', '')
  return {
    allowed,
    description,
    values: isSwitch ? ['on', 'off'] : (choices ?? []).map(String),
    parse(text) {
      const value = name === 'stop' ? unescaped(text) : fromText(schema, isWord ? text.toLowerCase() : text)
      if (!fits(schema as never, value)) throw refused(name, allowed, text)
      return value
    }
  }
}

const switchSetting = (
  key: 'verbose' | 'raw' | 'history' | 'think',
  description: string,
  usual?: boolean
): Setting => ({
  ...optionSetting(key, { type: 'boolean', description }),
  key,
  ...(usual !== undefined && { usual })
})

const SETTINGS: Record<string, Setting> = {
  system: { allowed: 'a text', description: 'Instructions for the model', key: 'system', parse: text => text },
  format: {
    allowed: 'json, a JSON schema, or @ and the path of a schema',
    description: 'Format of answers',
    values: ['json', 'off'],
    key: 'format',
    parse: parseFormat
  },
  think: switchSetting('think', 'Whether the model thinks before it answers, if it can'),
  keep_alive: {
    allowed: 'seconds, or a duration such as 10m; -1 is no limit',
    description: 'How long the model stays loaded after an answer',
    key: 'keepAlive',
    parse(text) {
      if (parseDuration(text) !== undefined) return text
      throw refused('keep_alive', 'seconds, or a duration such as 10m or 1h30m', text)
    }
  },
  verbose: switchSetting('verbose', 'Print token counts and speed after each answer', false),
  raw: switchSetting('raw', 'Print answers as the model writes them, without rendering Markdown', false),
  history: switchSetting('history', 'Remember prompts for later chats', true),
  ...Object.fromEntries(Object.entries(OPTIONS).map(([name, schema]) => [name, optionSetting(name, schema)]))
}

export const SETTING_NAMES = Object.keys(SETTINGS)

export function findSetting(spelled: string): (Setting & { name: string }) | undefined {
  const name = optionName(spelled.toLowerCase().replaceAll('-', '_'))
  return Object.hasOwn(SETTINGS, name) ? { ...SETTINGS[name]!, name } : undefined
}

/** Changes a setting, or resets it to `default`. @returns its canonical name @throws CommandFailure */
export function applySetting(settings: ChatSettings, spelled: string, text: string): string {
  const setting = findSetting(spelled)
  if (!setting) {
    const near = nearest(spelled, SETTING_NAMES)
    const hint = near ? `Did you mean ${near}?` : '/set lists all settings.'
    throw misuse(`There is no setting ${spelled}. ${hint}`)
  }
  const { name, key, usual, parse } = setting
  const word = text.trim().toLowerCase()
  const isReset = word === 'default' || (word === 'off' && (key === 'system' || key === 'format'))
  const value = isReset ? usual : parse(key === 'system' ? text : text.trim())
  if (key !== undefined) Object.assign(settings, { [key]: value })
  else if (isReset) delete settings.options[name]
  else settings.options[name] = value
  return name
}

/** The value of a setting as the user would type it. Undefined if it has its default. */
export function shownSetting(settings: ChatSettings, spelled: string): string | undefined {
  const { name, key } = findSetting(spelled)!
  const value = key === undefined ? settings.options[name] : settings[key]
  if (value === undefined || typeof value === 'string') return value
  return typeof value === 'boolean' ? (value ? 'on' : 'off') : JSON.stringify(value)
}

export function shownSettings(settings: ChatSettings): [name: string, value: string][] {
  return SETTING_NAMES.flatMap((name): [string, string][] => {
    const value = shownSetting(settings, name)
    return value === undefined ? [] : [[name, value]]
  })
}

/** Every setting: its name, allowed values and purpose. */
export function describeSettings(): [name: string, text: string][] {
  return Object.entries(SETTINGS).map(([name, { allowed, description }]) => [
    name,
    [description, allowed].filter(part => part !== '').join('; ')
  ])
}

/** Parses `json`, a JSON schema, or the path of one (`@schema.json`). @throws CommandFailure */
export function parseFormat(text: string): unknown {
  if (text === 'json') return text
  let source = text
  if (text.startsWith('@')) {
    try {
      source = readFileSync(resolve(text.slice(1)), 'utf8')
    } catch (error) {
      const isMissing = isSystemError(error, 'ENOENT', 'ENOTDIR')
      const fault = isMissing ? 'There is no file' : `${errorMessage(error)}: cannot read`
      throw misuse(`${fault} ${text.slice(1)} (--format @<file>).`)
    }
  }
  const schema = parseAnyJson(source)
  if (isObject(schema)) return schema
  throw misuse('format must be json, a JSON schema such as {"type":"object"}, or @ and the path of a schema.')
}
