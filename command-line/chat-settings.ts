import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { nearest } from '../core/config/suggestion.ts'
import { errorMessage, isSystemError } from '../core/errors.ts'
import { LoadOptionsSchema } from '../core/models/load-options.ts'
import { OverflowPolicySchema, optionName, SamplingOptionsSchema } from '../core/models/options.ts'
import { parseDuration } from '../core/system/duration.ts'
import { allowedBy, fits, type JsonSchema } from '../core/system/schema-check.ts'
import { CommandFailure, EXIT } from './command-failure.ts'

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

const share = { type: 'number', minimum: 0, maximum: 1 }
const fromZero = { type: 'number', minimum: 0 }

/** Engine options that corral itself does not know. */
const ENGINE_OPTIONS: Record<string, JsonSchema> = {
  min_p: { ...share, description: 'Keep tokens at least this likely, relative to the likeliest' },
  typical_p: { ...share, description: 'Locally typical sampling; 1 is off' },
  top_n_sigma: { type: 'number', minimum: -1, description: 'Keep tokens within this many deviations; -1 is off' },
  repeat_penalty: { ...fromZero, description: 'Penalty for repetition; 1 is off' },
  repeat_last_n: { type: 'integer', minimum: -1, description: 'Number of tokens checked for repetition; -1 is all' },
  presence_penalty: {
    type: 'number',
    minimum: -2,
    maximum: 2,
    description: 'Penalty for tokens that have already appeared'
  },
  frequency_penalty: {
    type: 'number',
    minimum: -2,
    maximum: 2,
    description: 'Penalty for tokens that have appeared often'
  },
  mirostat: { enum: [0, 1, 2], type: 'integer', description: 'Mirostat sampling; 0 is off' },
  mirostat_tau: { ...fromZero, description: 'Target surprise of Mirostat' },
  mirostat_eta: { ...fromZero, description: 'Learning rate of Mirostat' },
  dynatemp_range: { ...fromZero, description: 'Range of a dynamic temperature; 0 is off' },
  xtc_probability: { ...share, description: 'Chance of leaving out the likeliest tokens; 0 is off' },
  xtc_threshold: { ...share, description: 'Minimum probability of the tokens left out by XTC' },
  dry_multiplier: { ...fromZero, description: 'Penalty for repeated sequences; 0 is off' },
  ignore_eos: { type: 'boolean', description: 'Continue past the end-of-text token' },
  stop: { type: 'string', minLength: 1, description: 'Text that ends the answer' }
}

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
  values: string[]
  set(settings: ChatSettings, text: string): void
  unset(settings: ChatSettings): void
  /** The value as the user would type it. Undefined if unset. */
  shown(settings: ChatSettings): string | undefined
}

const ON = ['on', 'true', 'yes']
const OFF = ['off', 'false', 'no']

function onOrOff(name: string, text: string): boolean {
  if (ON.includes(text.toLowerCase())) return true
  if (OFF.includes(text.toLowerCase())) return false
  throw refused(name, 'on or off', text)
}

function refused(name: string, allowed: string, text: string): CommandFailure {
  const quoted = text.length > 60 ? `${text.slice(0, 60)}…` : text
  return new CommandFailure(EXIT.usage, `${name} must be ${allowed}; got ${quoted === '' ? 'nothing' : quoted}.`)
}

const onOff = (value: boolean | undefined) => (value === undefined ? undefined : value ? 'on' : 'off')

function optionValue(name: string, schema: JsonSchema, text: string): unknown {
  if (schema.type === 'boolean') return onOrOff(name, text)
  const isNumber = schema.type === 'integer' || schema.type === 'number'
  const lower = schema.enum || name === 'dtype' ? text.toLowerCase() : text
  const value = isNumber ? (text.trim() === '' ? undefined : Number(text)) : name === 'stop' ? unescaped(text) : lower
  if (!fits(schema as never, value)) throw refused(name, describeAllowed(name, schema), text)
  return value
}

/** Parses JSON escapes such as `\n`. Other text is returned unchanged. */
function unescaped(text: string): string {
  try {
    return String(JSON.parse(text.startsWith('"') ? text : `"${text}"`))
  } catch {
    return text
  }
}

function describeAllowed(name: string, schema: JsonSchema): string {
  if (name === 'dtype') return 'a type such as f32, f16, bf16, q8_0 or q4_k_m'
  if (schema.type === 'boolean') return 'on or off'
  return allowedBy(schema).replaceAll('"', '')
}

function optionSetting(name: string, schema: JsonSchema): Setting {
  return {
    allowed: describeAllowed(name, schema),
    description: schema.description ?? '',
    values: schema.type === 'boolean' ? ['on', 'off'] : (schema.enum ?? []).map(String),
    set: (settings, text) => {
      settings.options[name] = optionValue(name, schema, text)
    },
    unset: settings => {
      delete settings.options[name]
    },
    shown: ({ options }) => {
      const value = options[name]
      if (value === undefined) return undefined
      return typeof value === 'boolean' ? onOff(value) : typeof value === 'string' ? value : JSON.stringify(value)
    }
  }
}

function switchSetting(name: 'verbose' | 'raw' | 'history', usual: boolean, description: string): Setting {
  return {
    allowed: 'on or off',
    description,
    values: ['on', 'off'],
    set: (settings, text) => {
      settings[name] = onOrOff(name, text)
    },
    unset: settings => {
      settings[name] = usual
    },
    shown: settings => onOff(settings[name])
  }
}

const SETTINGS: Record<string, Setting> = {
  system: {
    allowed: 'a text',
    description: 'Instructions for the model',
    values: [],
    set: (settings, text) => {
      settings.system = text
    },
    unset: settings => {
      settings.system = undefined
    },
    shown: ({ system }) => system
  },
  format: {
    allowed: 'json, a JSON schema, or @ and the path of a schema',
    description: 'Format of answers',
    values: ['json', 'off'],
    set: (settings, text) => {
      settings.format = parseFormat(text)
    },
    unset: settings => {
      settings.format = undefined
    },
    shown: ({ format }) => (format === undefined || typeof format === 'string' ? format : JSON.stringify(format))
  },
  think: {
    allowed: 'on or off',
    description: 'Whether the model thinks before it answers, if it can',
    values: ['on', 'off'],
    set: (settings, text) => {
      settings.think = onOrOff('think', text)
    },
    unset: settings => {
      settings.think = undefined
    },
    shown: ({ think }) => onOff(think)
  },
  keep_alive: {
    allowed: 'seconds, or a duration such as 10m; -1 is no limit',
    description: 'How long the model stays loaded after an answer',
    values: [],
    set: (settings, text) => {
      if (parseDuration(text) === undefined)
        throw refused('keep_alive', 'seconds, or a duration such as 10m or 1h30m', text)
      settings.keepAlive = text
    },
    unset: settings => {
      settings.keepAlive = undefined
    },
    shown: ({ keepAlive }) => keepAlive
  },
  verbose: switchSetting('verbose', false, 'Print token counts and speed after each answer'),
  raw: switchSetting('raw', false, 'Print answers as the model writes them, without rendering Markdown'),
  history: switchSetting('history', true, 'Remember prompts for later chats'),
  ...Object.fromEntries(Object.entries(OPTIONS).map(([name, schema]) => [name, optionSetting(name, schema)]))
}

export const SETTING_NAMES = Object.keys(SETTINGS)

export function completeValue(name: string): string[] {
  const setting = findSetting(name)
  return setting ? [...setting.values, 'default'] : []
}

const findSetting = (name: string) => {
  const known = optionName(name.toLowerCase().replaceAll('-', '_'))
  return Object.hasOwn(SETTINGS, known) ? { ...SETTINGS[known]!, name: known } : undefined
}

/** Values that reset a setting. */
const UNSET: Record<string, string[]> = { system: ['off', 'default'], format: ['off', 'default'] }

/**
 * Changes a setting. `default` resets it.
 * @returns the canonical name of the setting
 * @throws CommandFailure if the setting does not exist or the value is invalid
 */
export function applySetting(settings: ChatSettings, spelled: string, text: string): string {
  const setting = findSetting(spelled)
  if (!setting) {
    const near = nearest(spelled, SETTING_NAMES)
    const hint = near ? `Did you mean ${near}?` : '/set lists all settings.'
    throw new CommandFailure(EXIT.usage, `There is no setting ${spelled}. ${hint}`)
  }
  const { name } = setting
  if ((UNSET[name] ?? ['default']).includes(text.trim().toLowerCase())) setting.unset(settings)
  else setting.set(settings, name === 'system' ? text : text.trim())
  return name
}

export function allowedFor(spelled: string): string | undefined {
  return findSetting(spelled)?.allowed
}

/** The value of a setting as the user would type it. Undefined if it has its default. */
export function shownSetting(settings: ChatSettings, spelled: string): string | undefined {
  return findSetting(spelled)?.shown(settings)
}

/** Names and values of all changed settings. */
export function shownSettings(settings: ChatSettings): [name: string, value: string][] {
  return Object.entries(SETTINGS).flatMap(([name, setting]): [string, string][] => {
    const value = setting.shown(settings)
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
      throw new CommandFailure(EXIT.usage, `${fault} ${text.slice(1)} (--format @<file>).`)
    }
  }
  try {
    const schema: unknown = JSON.parse(source)
    if (typeof schema === 'object' && schema !== null && !Array.isArray(schema)) return schema
  } catch {
    // Reported below, together with JSON that is not a schema.
  }
  throw new CommandFailure(
    EXIT.usage,
    'format must be json, a JSON schema such as {"type":"object"}, or @ and the path of a schema.'
  )
}
