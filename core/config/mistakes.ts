import { CorralError } from '../errors.ts'
import { type ModelName, modelKey, parseModelName } from '../models/model-name.ts'
import { parseOptions } from '../models/options.ts'
import { isObject } from '../system/json-object.ts'
import { type ConfigSchema, isSecret, type SettingSchema, schemaAt, settingName } from './setting-schema.ts'
import { nearest } from './suggestion.ts'

/** What is wrong at one place of a configuration's values. */
export interface Mistake {
  path: string[]
  /** Whether the key is at fault rather than its value. */
  atKey: boolean
  message: string
}

function range(schema: SettingSchema): string {
  const { minimum, maximum } = schema
  if (minimum !== undefined && maximum !== undefined) return ` from ${minimum} to ${maximum}`
  if (minimum !== undefined) return `, at least ${minimum}`
  return maximum === undefined ? '' : `, at most ${maximum}`
}

const LENGTH_OF_TIME = 'a length of time such as 30s, 5m or 1h30m, or a number of seconds'

/** What a setting accepts, for people: `a whole number from 0 to 65535`. */
function allowedValues(schema: SettingSchema): string {
  if (schema.title) return schema.title
  if (schema.enum) return `one of ${schema.enum.join(', ')}`
  if (schema.const !== undefined) return JSON.stringify(schema.const)
  if (schema.anyOf) return schema.anyOf.map(allowedValues).join(', or ')
  if (schema.format === 'corral-timeout') return `${LENGTH_OF_TIME}, longer than 0 and at most 500h`
  if (schema.format === 'corral-duration') return `${LENGTH_OF_TIME}, from 0 to 500h`
  if (schema.format === 'corral-keep-alive') return `${LENGTH_OF_TIME}; negative is for ever`
  if (schema.format === 'corral-bytes') return 'an amount of bytes such as 64MiB or 1.5GB, or a number'
  if (schema.format === 'corral-path') return 'a path'
  if (schema.format === 'corral-program') return 'a path or the name of a program'
  if (Array.isArray(schema.type)) return schema.type.map(type => allowedValues({ ...schema, type })).join(' or ')
  switch (schema.type) {
    case 'boolean':
      return 'true or false'
    case 'integer':
      return `a whole number${range(schema)}`
    case 'number':
      return `a number${range(schema)}`
    case 'array':
      // A pattern helps only the one who wrote it; each entry that breaks it is told on its own.
      return schema.items && !schema.items.pattern ? `a list, each entry ${allowedValues(schema.items)}` : 'a list'
    case 'object':
      return 'a group of settings ("name: value" lines)'
    case 'null':
      return 'nothing'
    default:
      if (schema.pattern) return `a text that matches ${schema.pattern}`
      return schema.minLength ? 'a text that is not empty' : 'a text'
  }
}

function shown(value: unknown, secret: boolean): string {
  if (value === null || value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return value instanceof Date ? 'a date' : 'a group'
  if (secret) return `a ${typeof value === 'string' ? 'text' : typeof value}, which is not shown`
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value)
  return text.length > 80 ? `${text.slice(0, 80)}…` : text
}

/** The value at a path; undefined where there is none. */
export function valueAt(value: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((inner, key) => (inner as Record<string, unknown> | undefined)?.[key], value)
}

/** All names in the schema, as paths from its root, without the names that people choose. */
function knownPaths(schema: SettingSchema, path: string[] = []): string[][] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, inner]) => [
    [...path, key],
    ...knownPaths(inner, [...path, key])
  ])
}

function unknownKey(root: SettingSchema, path: string[]): string {
  const key = path.at(-1)!
  const parent = path.slice(0, -1)
  if (path.length === 1 && key === 'home') {
    return 'home cannot be set in the file, which may lie in it; use CORRAL_HOME or --home.'
  }
  const siblings = Object.keys(schemaAt(root, parent)?.properties ?? {})
  const near = nearest(key, siblings)
  // A name that many sections have tells nothing of the one that was meant.
  const elsewhere = knownPaths(root).filter(known => known.at(-1) === key.toLowerCase())
  const guess = near ? [...parent, near] : elsewhere.length === 1 ? elsewhere[0] : undefined
  const within = parent.length === 0 ? 'There is no setting' : `${settingName(parent)} has no setting`
  const called = JSON.stringify(key.length > 80 ? `${key.slice(0, 80)}…` : key)
  if (guess) return `${within} ${called}; did you mean ${settingName(guess)}?`
  return `${within} ${called}; ${siblings.length > 0 ? `known are ${siblings.join(', ')}` : 'none is allowed there'}.`
}

const pointerKeys = (pointer: string) =>
  pointer
    .split('/')
    .slice(1)
    .map(key => key.replaceAll('~1', '/').replaceAll('~0', '~'))

/** Keywords whose failure "must be <what is allowed>; got <value>" explains. */
const EXPLAINED = new Set(
  'type enum const format pattern minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength anyOf oneOf'.split(
    ' '
  )
)

function schemaMistakes(schema: ConfigSchema, values: unknown): Mistake[] {
  const mistakes = new Map<string, Mistake>()
  for (const error of schema.check(structuredClone(values))) {
    const path = pointerKeys(error.instancePath)
    const atKey = error.keyword === 'additionalProperties'
    if (atKey) path.push(String(error.params.additionalProperty))
    const name = settingName(path) || 'The configuration'
    const described = schemaAt(schema.root, path)
    let message: string
    if (atKey) message = unknownKey(schema.root, path)
    else if (described && EXPLAINED.has(error.keyword)) {
      const secret = isSecret(schema.root, path)
      message = `${name} must be ${allowedValues(described)}; got ${shown(valueAt(values, path), secret)}.`
    } else message = `${name} ${error.message}.`
    // One sentence a place: a value that breaks several rules of its schema is still one mistake.
    const place = path.join('\0')
    if (!mistakes.has(place)) mistakes.set(place, { path, atKey, message })
  }
  return [...mistakes.values()]
}

function modelNameMistakes(models: unknown): Mistake[] {
  const mistakes: Mistake[] = []
  const seen = new Map<string, string>()
  for (const spelled of Object.keys(isObject(models) ? models : {})) {
    const path = ['models', spelled]
    try {
      const name = parseModelName(spelled)
      const key = `${modelKey(name)}:${name.variant?.toLowerCase() ?? ''}`
      const other = seen.get(key)
      if (other) {
        const message = `${JSON.stringify(spelled)} and ${JSON.stringify(other)} are the same model; keep one of them.`
        mistakes.push({ path, atKey: true, message })
      }
      seen.set(key, spelled)
    } catch (error) {
      if (!(error instanceof CorralError)) throw error
      mistakes.push({ path, atKey: true, message: error.message })
    }
  }
  return mistakes
}

/** Names inside of models' settings: aliases, each of one model only, and draft models. */
function innerNameMistakes(models: unknown): Mistake[] {
  const mistakes: Mistake[] = []
  const seen = new Map<string, string>()
  for (const [model, settings] of Object.entries(isObject(models) ? models : {})) {
    if (!isObject(settings)) continue
    const { aliases, draft } = settings
    const check = (path: string[], name: unknown, use: (name: ModelName) => string | undefined) => {
      const full = ['models', model, ...path]
      try {
        const message = use(parseModelName(name))
        if (message) mistakes.push({ path: full, atKey: false, message: `${settingName(full)}: ${message}` })
      } catch (error) {
        if (!(error instanceof CorralError)) throw error
        mistakes.push({ path: full, atKey: false, message: error.message })
      }
    }
    if (isObject(draft) && 'model' in draft) check(['draft', 'model'], draft.model, () => undefined)
    for (const [index, alias] of (Array.isArray(aliases) ? aliases : []).entries()) {
      check(['aliases', String(index)], alias, name => {
        const shown = JSON.stringify(alias)
        if (name.variant !== undefined) return `${shown} names a variant; an alias is <owner>/<name>.`
        const other = seen.get(modelKey(name))
        seen.set(modelKey(name), model)
        return other && `${shown} is an alias of ${JSON.stringify(other)} already; keep one of them.`
      })
    }
  }
  return mistakes
}

/** Where options of requests are set: the server's defaults and those of models. */
export function optionGroups(values: unknown): string[][] {
  const models = valueAt(values, ['models'])
  return [
    ['defaults'],
    ...Object.keys(isObject(models) ? models : {}).map(model => ['models', model, 'options'])
  ].filter(path => isObject(valueAt(values, path)))
}

function optionMistakes(values: unknown): Mistake[] {
  return optionGroups(values).flatMap(group =>
    Object.entries(valueAt(values, group) as object).flatMap(([key, value]) => {
      try {
        parseOptions({ [key]: value })
        return []
      } catch (error) {
        if (!(error instanceof CorralError)) throw error
        return [{ path: [...group, key], atKey: false, message: error.message }]
      }
    })
  )
}

/** Everything that is wrong with a configuration's values, each place once. The values stay as they are. */
export function findMistakes(schema: ConfigSchema, values: unknown): Mistake[] {
  const mistakes = schemaMistakes(schema, values)
  const places = new Set(mistakes.map(({ path }) => path.join('\0')))
  const models = valueAt(values, ['models'])
  for (const mistake of [...modelNameMistakes(models), ...innerNameMistakes(models), ...optionMistakes(values)]) {
    if (!places.has(mistake.path.join('\0'))) mistakes.push(mistake)
  }
  return mistakes
}

/**
 * The values without settings that are there but empty (`port:`): these count as not set. Unknown keys and entries of
 * lists stay, so that they are told.
 */
export function withoutEmpty(schema: SettingSchema | undefined, value: unknown): unknown {
  if (!isObject(value)) return value
  const kept = Object.entries(value).flatMap(([key, inner]) => {
    const described = schema && schemaAt(schema, [key])
    const open = schema?.additionalProperties === true && !described
    if (inner === null && (described || open)) return []
    return [[key, withoutEmpty(described, inner)] as const]
  })
  return Object.fromEntries(kept)
}
