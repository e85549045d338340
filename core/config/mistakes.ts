import { CorralError } from '../errors.ts'
import { type ModelName, modelKey, parseModelName } from '../models/model-name.ts'
import { parseOptions } from '../models/options.ts'
import { isObject } from '../system/json-object.ts'
import { allowedBy } from '../system/schema-check.ts'
import { type ConfigSchema, isSecret, type SettingSchema, schemaAt, settingName } from './setting-schema.ts'
import { nearest } from './suggestion.ts'

/** What is wrong at one place of a configuration's values. */
export interface Mistake {
  path: string[]
  /** Whether the key is at fault rather than its value. */
  atKey: boolean
  /** There is no such setting; corral can do without it. */
  unknown?: boolean
  message: string
}

const LENGTH_OF_TIME = 'a length of time such as 30s, 5m or 1h30m, or a number of seconds'

/** What is allowed by the formats of settings. */
const FORMATS: Record<string, string> = {
  'corral-timeout': `${LENGTH_OF_TIME}, longer than 0 and at most 500h`,
  'corral-duration': `${LENGTH_OF_TIME}, from 0 to 500h`,
  'corral-keep-alive': `${LENGTH_OF_TIME}; negative means for ever`,
  'corral-bytes': 'an amount of bytes such as 64MiB or 1.5GB, or a number',
  'corral-path': 'a path',
  'corral-program': 'a path or the name of a program'
}

/** What a setting accepts, for people, where its schema says more than those of requests do. */
function settingPhrase(schema: SettingSchema): string | undefined {
  if (schema.title) return schema.title
  if (schema.format && FORMATS[schema.format]) return FORMATS[schema.format]
  if (schema.type === 'object') return 'a group of settings ("name: value" lines)'
  // A pattern helps only the one who wrote it; each entry that breaks it is reported on its own.
  if (schema.type !== 'array' || !schema.items || schema.items.pattern) return undefined
  return `a list, each entry ${allowedBy(schema.items, settingPhrase)}`
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

/** Names the data directory, which the file cannot: it may lie in it. */
const isHome = (path: readonly string[]) => path.length === 1 && path[0] === 'home'

function unknownKey(root: SettingSchema, path: string[]): string {
  const key = path.at(-1)!
  const parent = path.slice(0, -1)
  if (isHome(path)) {
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
      message = `${name} must be ${allowedBy(described, settingPhrase)}; got ${shown(valueAt(values, path), secret)}.`
    } else if (error.keyword === 'required') {
      const missing = [...path, String(error.params.missingProperty)]
      const allowed = allowedBy(schemaAt(schema.root, missing) ?? {}, settingPhrase)
      message = `${settingName(missing)} is missing. It must be ${allowed}.`
    } else message = `${name} ${error.message}.`
    // One sentence a place: a value that breaks several rules of its schema is still one mistake.
    const place = path.join('\0')
    const unknown = atKey && !isHome(path)
    if (!mistakes.has(place)) mistakes.set(place, { path, atKey, message, ...(unknown && { unknown }) })
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
