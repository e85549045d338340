import { isDeepStrictEqual } from 'node:util'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import addFormats from 'ajv-formats'
import { errorMessage } from '../errors.ts'
import type { FoundPlugin, PluginDefinition } from '../plugins/plugin.ts'
import { PluginError } from '../plugins/plugin-error.ts'
import { isAllowedEntry } from '../system/allowed-address.ts'
import { parseBytes } from '../system/bytes.ts'
import { parseDuration } from '../system/duration.ts'
import { isObject } from '../system/json-object.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import { CoreConfigSchema, isDuration } from './core-schema.ts'

/** Names at the top of the file that no plugin may take. */
const RESERVED = new Set([...Object.keys(CoreConfigSchema.properties), 'home', 'config'])

/**
 * The schema with what the author may leave unsaid: unknown keys are mistakes, and a group that is left out holds its
 * members' defaults.
 * @param chosen whether people decide that there is such a group at all: then it may ask for settings outright
 */
function complete(schema: JsonSchema, path: string, chosen = false): JsonSchema {
  const { properties, patternProperties, items } = schema
  const completed = { ...schema }
  if (items) completed.items = complete(items, `${path}[]`, true)
  if (patternProperties) {
    completed.patternProperties = Object.fromEntries(
      Object.entries(patternProperties).map(([pattern, inner]) => [pattern, complete(inner, `${path}.*`, true)])
    )
  }
  if (properties) {
    completed.additionalProperties = schema.additionalProperties ?? false
    completed.properties = {}
    for (const [name, inner] of Object.entries(properties)) {
      const required = schema.required?.includes(name) ?? false
      const child = complete(inner, `${path}.${name}`, chosen || !required)
      if (required && !chosen && child.default === undefined) {
        if (!child.properties) throw new Error(`${path}.${name} has neither a default nor Type.Optional`)
        child.default = {}
      }
      completed.properties[name] = child
    }
  }
  return completed
}

function sectionSchema(definition: PluginDefinition): JsonSchema {
  const options = structuredClone(definition.options) as JsonSchema
  const enabled = {
    type: 'boolean',
    default: true,
    description: 'false switches it off',
    ...(!options.restart && { restart: true })
  }
  return {
    ...complete(
      { ...options, properties: { ...(definition.optional ? { enabled } : {}), ...options.properties } },
      definition.name
    ),
    default: {},
    description: definition.description
  }
}

/** @param proven whether the schemas are corral's own, at which a test has looked */
function newAjv(proven: boolean): Ajv {
  const ajv = new Ajv({
    allErrors: true,
    strictSchema: true,
    strictNumbers: true,
    strictTypes: false,
    strictTuples: false,
    strictRequired: false,
    addUsedSchema: false,
    // To make code shorter that runs once takes longer than it saves.
    code: { optimize: false },
    // The schema of schemas takes longer to compile than what a configuration usually has.
    ...(proven && { meta: false, validateSchema: false })
  })
  for (const keyword of ['restart', 'needsTrust']) ajv.addKeyword({ keyword, schemaType: 'boolean' })
  ajv.addFormat('corral-duration', isDuration)
  ajv.addFormat('corral-timeout', (text: string) => isDuration(text) && parseDuration(text)! > 0)
  ajv.addFormat('corral-keep-alive', (text: string) => parseDuration(text) !== undefined)
  ajv.addFormat('corral-private-address', isAllowedEntry)
  ajv.addFormat('corral-bytes', (text: string) => parseBytes(text) !== undefined)
  // Authors of plugins use the formats of JSON Schema; corral's settings have their own.
  if (!proven) addFormats.default(ajv)
  for (const format of ['corral-path', 'corral-program']) ajv.addFormat(format, (text: string) => !text.includes('\0'))
  return ajv
}

const unusableOptions = (name: string, error: unknown) =>
  new PluginError(
    'plugin_options_invalid',
    name,
    `The options schema of plugin "${name}" is unusable: ${errorMessage(error)}.`,
    error
  )

/** Gives the settings that are not there their defaults, in place. */
function fillDefaults(schema: JsonSchema, value: unknown): void {
  if (Array.isArray(value)) {
    if (schema.items) for (const entry of value) fillDefaults(schema.items, entry)
    return
  }
  if (!isObject(value)) return
  for (const [key, { default: given }] of Object.entries(schema.properties ?? {})) {
    if (value[key] === undefined && given !== undefined) value[key] = structuredClone(given)
  }
  for (const [key, inner] of Object.entries(value)) {
    const described = childSchema(schema, key)
    if (described) fillDefaults(described, inner)
  }
}

/** What is said of a group of settings beside its members, and does not limit them. */
const SAID = new Set([
  'type',
  'additionalProperties',
  'description',
  'title',
  'default',
  'examples',
  'restart',
  'needsTrust',
  'required'
])

/** Whether a group's members can be checked one by one: it demands nothing of them together. */
function isLoose({ properties, ...group }: JsonSchema): boolean {
  return (
    properties !== undefined &&
    group.additionalProperties === false &&
    Object.keys(group).every(keyword => SAID.has(keyword)) &&
    (group.required ?? []).every(name => properties[name]?.default !== undefined)
  )
}

/**
 * Checks the settings that are given, each by its part of the schema, which is compiled when it is first needed: all of it
 * would take a sixth of the whole start, and most configurations have a few.
 * @param unproven names of sections that may be unusable, which are compiled at once and checked as a whole
 */
function givenChecker(
  root: JsonSchema,
  unproven: ReadonlySet<string>
): (given: Record<string, unknown>, filled: Record<string, unknown>) => ErrorObject[] {
  const compiled = new Map<string, ValidateFunction>()
  let proven: Ajv | undefined
  const ajvFor = (place: string) => {
    if (unproven.has(place.slice(1))) return newAjv(false)
    proven ??= newAjv(true)
    return proven
  }
  function member(group: JsonSchema, name: string, place: string): ValidateFunction {
    const known = compiled.get(place)
    if (known) return known
    const properties = Object.hasOwn(group.properties!, name) ? { [name]: group.properties![name] } : {}
    const validate = ajvFor(place).compile({ type: 'object', additionalProperties: false, properties })
    compiled.set(place, validate)
    return validate
  }
  for (const name of unproven) {
    let validate: ValidateFunction
    try {
      validate = member(root, name, `/${name}`)
    } catch (error) {
      throw unusableOptions(name, error)
    }
    const defaults = { [name]: {} }
    fillDefaults(root.properties![name]!, defaults[name])
    if (validate(defaults)) continue
    const [{ instancePath, message }] = validate.errors as [ErrorObject]
    const setting = instancePath.slice(1).replaceAll('/', '.')
    throw unusableOptions(name, `the default of ${setting} is not valid, because it ${message}`)
  }
  function errorsIn(
    group: JsonSchema,
    given: Record<string, unknown>,
    filled: Record<string, unknown>,
    at: string
  ): ErrorObject[] {
    return Object.keys(given).flatMap(name => {
      const place = `${at}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`
      const [inner, value] = [given[name], filled[name]]
      const schema = Object.hasOwn(group.properties!, name) ? group.properties![name]! : {}
      const whole = at === '' && unproven.has(name)
      // A test holds that defaults are right, and config.yaml as it comes with corral has nothing else.
      if (!whole && value !== undefined && isDeepStrictEqual(value, schema.default)) return []
      if (!whole && isLoose(schema) && isObject(inner) && isObject(value)) return errorsIn(schema, inner, value, place)
      const validate = member(group, name, place)
      if (validate({ [name]: value })) return []
      return validate.errors!.map(error => ({ ...error, instancePath: at + error.instancePath }))
    })
  }
  return (given, filled) => errorsIn(root, given, filled, '')
}

export interface ConfigSchema {
  root: JsonSchema
  /** What engines know of the options that the configuration sets; empty where no plugin says anything. */
  engineOptions: ReadonlySet<string>
  /** Names of the models in these values whose engines may know other options; lower case. */
  openModels(values: unknown): ReadonlySet<string>
  /** Fills in defaults, in place, and gives what is wrong. */
  check(value: unknown): ErrorObject[]
}

/**
 * The schema of the whole configuration: what belongs to no plugin, and one section per plugin under its name.
 * @throws PluginError when a plugin's name is taken or its options schema is unusable.
 */
export function composeConfigSchema(definitions: readonly FoundPlugin[]): ConfigSchema {
  const sections: Record<string, JsonSchema> = {}
  for (const definition of definitions) {
    const { name, fault } = definition
    if (fault !== undefined) {
      // It takes no part: whatever stands in its section may stay there.
      if (/^[a-z][a-z0-9_-]*$/.test(name) && !RESERVED.has(name)) sections[name] ??= { type: 'object', default: {} }
      continue
    }
    if (RESERVED.has(name) || !/^[a-z][a-z0-9_-]*$/.test(name)) {
      throw new PluginError(
        'plugin_name_invalid',
        name,
        `A plugin cannot be called ${JSON.stringify(name)}: a name holds lower-case letters, digits, "-" and "_", starts with a letter, and is none of ${[...RESERVED].join(', ')}.`
      )
    }
    if (Object.hasOwn(sections, name)) {
      throw new PluginError('plugin_duplicate', name, `Two plugins are called "${name}"; rename one or leave one out.`)
    }
    try {
      sections[name] = sectionSchema(definition)
    } catch (error) {
      throw unusableOptions(name, error)
    }
  }
  const core = complete(structuredClone(CoreConfigSchema) as unknown as JsonSchema, 'core')
  const root: JsonSchema = { ...core, properties: { ...core.properties, ...sections } }
  const unproven = definitions.filter(({ builtIn, fault }) => !builtIn && fault === undefined).map(({ name }) => name)
  const errorsOf = givenChecker(root, new Set(unproven))
  return {
    root,
    check(values) {
      if (!isObject(values)) {
        const validate = newAjv(true).compile({ type: 'object' })
        validate(values)
        return [...(validate.errors ?? [])]
      }
      // Defaults of what comes with corral are right, as a test holds; those of others are looked at too.
      const given = structuredClone(values)
      fillDefaults(root, values)
      return errorsOf({ ...given, ...Object.fromEntries(unproven.map(name => [name, values[name]])) }, values)
    },
    engineOptions: new Set(definitions.flatMap(({ engineOptions = [] }) => engineOptions)),
    openModels(values) {
      const names = definitions.flatMap(definition => {
        const section = isObject(values) ? values[definition.name] : undefined
        return isObject(section) ? (definition.models?.(section) ?? []) : []
      })
      return new Set(names.map(name => name.toLowerCase()))
    }
  }
}

/** The schema of what lies under `key`, or undefined where the key is unknown or open. */
function childSchema(schema: JsonSchema | undefined, key: string): JsonSchema | undefined {
  if (!schema) return undefined
  if (schema.properties && Object.hasOwn(schema.properties, key)) return schema.properties[key]
  for (const [pattern, inner] of Object.entries(schema.patternProperties ?? {})) {
    if (new RegExp(pattern).test(key)) return inner
  }
  if (schema.items && /^\d+$/.test(key)) return schema.items
  return typeof schema.additionalProperties === 'object' ? schema.additionalProperties : undefined
}

/** The schema of a setting, or undefined where there is none. */
export function schemaAt(root: JsonSchema, path: readonly string[]): JsonSchema | undefined {
  return path.reduce<JsonSchema | undefined>(childSchema, root)
}

/** Whether the schema describes a group of settings rather than one. */
export function isGroup(schema: JsonSchema | undefined): boolean {
  return schema?.properties !== undefined || schema?.patternProperties !== undefined
}

function holdsSecret(schema: JsonSchema): boolean {
  const inner = [...Object.values(schema.properties ?? {}), ...Object.values(schema.patternProperties ?? {})]
  if (schema.items) inner.push(schema.items)
  return schema.writeOnly === true || inner.some(holdsSecret)
}

/** Whether the value at this path may not be shown: it, what it is part of, or a part of it is a secret. */
export function isSecret(root: JsonSchema, path: readonly string[]): boolean {
  let schema: JsonSchema | undefined = root
  for (const key of path) {
    schema = childSchema(schema, key)
    if (!schema) return false
    if (schema.writeOnly) return true
  }
  return holdsSecret(schema)
}

/**
 * Whether a setting, or a group that it is in, has a mark: `restart`, if a changed value counts from the next start on,
 * or `needsTrust`, if it counts only in a trusted file.
 */
export function hasMark(root: JsonSchema, path: readonly string[], mark: 'restart' | 'needsTrust'): boolean {
  return path.some((_, index) => schemaAt(root, path.slice(0, index + 1))?.[mark] === true)
}

/** How a setting is called in messages: `security.api_keys`, `models."corral/tiny-chat".pin`. */
export function settingName(path: readonly string[]): string {
  return path.map(key => (/^[\w-]+$/.test(key) ? key : JSON.stringify(key))).join('.')
}

export interface SettingValue {
  path: string[]
  value: unknown
  schema: JsonSchema | undefined
}

/** Every single setting of a configuration, in the schema's order. An empty group counts as one. */
export function listSettings(schema: JsonSchema | undefined, value: unknown, path: string[] = []): SettingValue[] {
  if (!isGroup(schema) || !isObject(value)) return [{ path, value, schema }]
  const known = Object.keys(schema!.properties ?? {}).filter(key => Object.hasOwn(value, key))
  const keys = [...known, ...Object.keys(value).filter(key => !known.includes(key))]
  // A group of fixed settings that happens to be empty states nothing; one that is free to fill states that it is empty.
  if (keys.length === 0) return schema!.patternProperties ? [{ path, value, schema }] : []
  return keys.flatMap(key => listSettings(childSchema(schema, key), value[key], [...path, key]))
}
