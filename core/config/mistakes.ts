import { CorralError } from '../errors.ts'
import { modelKey, parseModelName, parseRequestedName } from '../models/model-name.ts'
import { isKnownOption, knownOptionNames, parseOptions } from '../models/options.ts'
import { isObject } from '../system/json-object.ts'
import { CORE_PARTS } from '../system/log-levels.ts'
import { allowedBy, type JsonSchema } from '../system/schema-check.ts'
import { CoreConfigSchema } from './core-schema.ts'
import { type ConfigSchema, isSecret, schemaAt, settingName } from './setting-schema.ts'
import { SETTING_FORMATS } from './setting-types.ts'
import { nearest } from './suggestion.ts'

interface Mistake {
  path: string[]
  atKey: boolean
  /** The setting, or the option of requests, is unknown. corral can ignore it. */
  unknown?: 'setting' | 'option'
  message: string
}

/** Describes what a setting accepts, if its schema says more than the schemas of requests do. */
function settingPhrase(schema: JsonSchema): string | undefined {
  if (schema.title) return schema.title
  if (schema.format) return SETTING_FORMATS[schema.format]?.[0] ?? `text in the format "${schema.format}"`
  if (schema.type === 'object') return 'a group of settings ("name: value" lines)'
  // A regular expression would not help users. Each invalid entry is reported separately.
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

export function valueAt(value: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((inner, key) => (inner as Record<string, unknown> | undefined)?.[key], value)
}

/** Sets the value at a path. Missing groups on the way are created. */
export function setAt(values: Record<string, unknown>, path: readonly string[], value: unknown): void {
  const [key, ...rest] = path as [string, ...string[]]
  if (rest.length === 0) values[key] = value
  else {
    if (!isObject(values[key])) values[key] = {}
    setAt(values[key] as Record<string, unknown>, rest, value)
  }
}

/** The paths of all names in the schema, except names that users choose. */
function knownPaths(schema: JsonSchema, path: string[] = []): string[][] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, inner]) => [
    [...path, key],
    ...knownPaths(inner, [...path, key])
  ])
}

const isHome = (path: readonly string[]) => path.join() === 'home'

const quoted = (key: string) => JSON.stringify(key.length > 80 ? `${key.slice(0, 80)}…` : key)

function unknownKey(root: JsonSchema, path: string[]): string {
  const key = path.at(-1)!
  const parent = path.slice(0, -1)
  if (isHome(path)) {
    return 'home cannot be set in the file, which may be inside it; use CORRAL_HOME or --home.'
  }
  const siblings = Object.keys(schemaAt(root, parent)?.properties ?? {})
  const near = nearest(key, siblings)
  // If many sections have this name, it is unclear which one was meant.
  const elsewhere = knownPaths(root).filter(known => known.at(-1) === key.toLowerCase())
  const guesses = near ? [[...parent, near]] : elsewhere.length <= 2 ? elsewhere : []
  const within = parent.length === 0 ? 'There is no setting' : `${settingName(parent)} has no setting`
  const called = quoted(key)
  if (guesses.length > 0) return `${within} ${called}; did you mean ${guesses.map(settingName).join(' or ')}?`
  return `${within} ${called}; ${siblings.length > 0 ? `known are ${siblings.join(', ')}` : 'none is allowed there'}.`
}

const pointerKeys = (pointer: string) =>
  pointer
    .split('/')
    .slice(1)
    .map(key => key.replaceAll('~1', '/').replaceAll('~0', '~'))

/** Keywords whose message is "must be <what is allowed>; got <value>". */
const EXPLAINED =
  /^(type|enum|const|format|pattern|(exclusive)?(Min|Max|min|max)imum|multipleOf|m(in|ax)Length|anyOf|oneOf)$/

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
    else if (described && EXPLAINED.test(error.keyword)) {
      const secret = isSecret(schema.root, path)
      message = `${name} must be ${allowedBy(described, settingPhrase)}; got ${shown(valueAt(values, path), secret)}.`
    } else if (error.keyword === 'required') {
      const missing = [...path, String(error.params.missingProperty)]
      const allowed = allowedBy(schemaAt(schema.root, missing) ?? {}, settingPhrase)
      message = `${settingName(missing)} is missing. It must be ${allowed}.`
    } else message = `${name} ${error.message}.`
    // One sentence per place: a value that breaks several rules is one mistake.
    const place = path.join('\0')
    const unknown = atKey && !isHome(path)
    if (!mistakes.has(place)) mistakes.set(place, { path, atKey, message, ...(unknown && { unknown: 'setting' }) })
  }
  return [...mistakes.values()]
}

/** The message that the check throws or returns, if any. */
function complaintOf(check: () => unknown): string | undefined {
  try {
    const complaint = check()
    return typeof complaint === 'string' ? complaint : undefined
  } catch (error) {
    if (error instanceof CorralError) return error.message
    throw error
  }
}

/** Mistakes in names of models: the default model, aliases (each for one model only) and draft models. */
function nameMistakes(values: unknown): Mistake[] {
  const models = valueAt(values, ['models'])
  const mistakes: Mistake[] = []
  const check = (path: string[], atKey: boolean, use: () => unknown) => {
    const message = complaintOf(use)
    if (message) mistakes.push({ path, atKey, message })
  }
  const fallback = valueAt(values, ['default_model'])
  if (fallback) check(['default_model'], false, () => parseRequestedName(fallback))
  const names = new Map<string, string>()
  const aliases = new Map<string, string>()
  for (const [model, settings] of Object.entries(isObject(models) ? models : {})) {
    const shown = JSON.stringify(model)
    check(['models', model], true, () => {
      const name = parseModelName(model)
      const key = `${modelKey(name)}:${name.variant?.toLowerCase() ?? ''}`
      const other = names.get(key)
      names.set(key, shown)
      return other && `${shown} and ${other} are the same model; keep one of them.`
    })
    if (!isObject(settings)) continue
    const { draft } = settings
    if (isObject(draft) && 'model' in draft) {
      check(['models', model, 'draft', 'model'], false, () => parseRequestedName(draft.model))
    }
    for (const [index, alias] of (Array.isArray(settings.aliases) ? settings.aliases : []).entries()) {
      const path = ['models', model, 'aliases', String(index)]
      const begin = `${settingName(path)}: ${JSON.stringify(alias)}`
      check(path, false, () => {
        const name = parseRequestedName(alias)
        if (name.variant !== undefined) return `${begin} names a variant; an alias is a name, or <owner>/<name>.`
        const other = aliases.get(modelKey(name))
        aliases.set(modelKey(name), shown)
        return other && `${begin} is already an alias of ${other}; keep one of them.`
      })
    }
  }
  return mistakes
}

/** Mistakes in settings that depend on each other, or on which plugins there are. */
function otherMistakes({ root }: ConfigSchema, values: unknown): Mistake[] {
  const { log_levels = {}, models = {} } = isObject(values) ? values : {}
  const plugins = Object.keys(root.properties ?? {}).filter(name => !Object.hasOwn(CoreConfigSchema.properties, name))
  const parts = [...CORE_PARTS, ...plugins].sort()
  const unknown = Object.keys(isObject(log_levels) ? log_levels : {}).filter(name => !parts.includes(name))
  return [
    ...unknown.map((name): Mistake => {
      const path = ['log_levels', name]
      const message = `${settingName(path)}: There is no part "${name}". Known are: ${parts.join(', ')}.`
      return { path, atKey: true, unknown: 'setting', message }
    }),
    ...Object.keys(isObject(models) ? models : {}).flatMap((name): Mistake[] => {
      const path = ['models', name, 'replicas', 'max']
      const { min, max } = (valueAt(models, [name, 'replicas']) ?? {}) as { min?: unknown; max?: unknown }
      if (!max || !min || min <= max) return []
      return [{ path, atKey: true, message: `${settingName(path)}: It is less than "min", which is ${min}.` }]
    })
  ]
}

/** The paths of groups with options of requests: the server's defaults and those of models. */
export function optionGroups(values: unknown): string[][] {
  const models = valueAt(values, ['models'])
  return [
    ['defaults'],
    ...Object.keys(isObject(models) ? models : {}).map(model => ['models', model, 'options'])
  ].filter(path => isObject(valueAt(values, path)))
}

const DEFAULTS = Object.keys(CoreConfigSchema.properties.defaults.properties)

function optionMistakes(schema: ConfigSchema, values: unknown): Mistake[] {
  const { engineOptions } = schema
  const open = schema.openModels(values)
  return optionGroups(values).flatMap(group => {
    const [, model = ''] = group
    // Not every setting of `defaults` is an option of requests.
    const known = new Set([...engineOptions, ...(group.length === 1 ? DEFAULTS : [])])
    const isOpen = engineOptions.size === 0 || open.has(model.toLowerCase())
    return Object.entries(valueAt(values, group) as object).flatMap(([key, value]): Mistake[] => {
      const path = [...group, key]
      const message = complaintOf(() => parseOptions({ [key]: value }))
      if (message) return [{ path, atKey: false, message }]
      if (isOpen || isKnownOption(key) || known.has(key)) return []
      return [{ path, atKey: true, unknown: 'option', message: unknownOption(group, key, known) }]
    })
  })
}

function unknownOption(group: string[], key: string, known: ReadonlySet<string>): string {
  const within = `${settingName(group)} has no option ${quoted(key)}`
  const near = nearest(key, [...knownOptionNames, ...known])
  if (near) return `${within}; did you mean ${settingName([...group, near])}?`
  return `${within}: neither corral nor its engines know it.`
}

/** Finds all mistakes in a configuration's values, one per place. Does not change the values. */
export function findMistakes(schema: ConfigSchema, values: unknown): Mistake[] {
  const mistakes = schemaMistakes(schema, values)
  const places = new Set(mistakes.map(({ path }) => path.join('\0')))
  for (const mistake of [
    ...nameMistakes(values),
    ...optionMistakes(schema, values),
    ...otherMistakes(schema, values)
  ]) {
    if (!places.has(mistake.path.join('\0'))) mistakes.push(mistake)
  }
  return mistakes
}

/** The values without empty settings (`port:`), which count as not set. Unknown keys and list entries stay. */
export function withoutEmpty(schema: JsonSchema | undefined, value: unknown): unknown {
  if (!isObject(value)) return value
  const kept = Object.entries(value).flatMap(([key, inner]) => {
    const described = schema && schemaAt(schema, [key])
    const open = schema?.additionalProperties === true && !described
    if (inner === null && (described || open)) return []
    return [[key, withoutEmpty(described, inner)] as const]
  })
  return Object.fromEntries(kept)
}
