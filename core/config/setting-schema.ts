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

/** Names at the top of the file that no plugin may use. */
const RESERVED = new Set([...Object.keys(CoreConfigSchema.properties), 'home', 'config'])

/**
 * Completes a schema: unknown keys are mistakes, and a group that is left out gets its settings' defaults.
 * @param chosen whether people decide to create the group; it may then have required settings
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

/** @param proven whether the schemas are corral's own, which a test checks */
function newAjv(proven: boolean): Ajv {
  const ajv = new Ajv({
    allErrors: true,
    strictSchema: true,
    strictNumbers: true,
    strictTypes: false,
    strictTuples: false,
    strictRequired: false,
    addUsedSchema: false,
    // Optimizing code that runs once takes longer than it saves.
    code: { optimize: false },
    // Compiling the meta-schema takes longer than compiling a typical configuration.
    ...(proven && { meta: false, validateSchema: false })
  })
  for (const keyword of ['restart', 'needsTrust']) ajv.addKeyword({ keyword, schemaType: 'boolean' })
  ajv.addFormat('corral-duration', isDuration)
  ajv.addFormat('corral-timeout', (text: string) => isDuration(text) && parseDuration(text)! > 0)
  ajv.addFormat('corral-keep-alive', (text: string) => parseDuration(text) !== undefined)
  ajv.addFormat('corral-private-address', isAllowedEntry)
  ajv.addFormat('corral-bytes', (text: string) => parseBytes(text) !== undefined)
  // Plugins use the formats of JSON Schema; corral's settings have their own.
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

/** Fills in missing settings with their defaults, in place. */
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

/** Keywords that describe a group of settings without limiting it. */
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

/** Whether a group's settings can be checked one by one, since no rule involves several. */
function isLoose({ properties, ...group }: JsonSchema): boolean {
  return (
    properties !== undefined &&
    group.additionalProperties === false &&
    Object.keys(group).every(keyword => SAID.has(keyword)) &&
    (group.required ?? []).every(name => properties[name]?.default !== undefined)
  )
}

/**
 * Checks the configured settings, each by its part of the schema, which is compiled when it is first needed. Compiling
 * everything would take a sixth of the start, and most configurations set only a few.
 * @param unproven names of sections whose schemas may be unusable; they are compiled immediately and checked as a whole
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
      // A test checks the defaults, and the shipped config.yaml contains nothing else.
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
  /** The options that engines know; empty if no plugin lists any. */
  engineOptions: ReadonlySet<string>
  /** Names, in lower case, of the models in these values whose engines may know other options. */
  openModels(values: unknown): ReadonlySet<string>
  /** Fills in defaults, in place, and returns the mistakes. */
  check(value: unknown): ErrorObject[]
}

/**
 * The schema of the whole configuration: the core's settings, and one section per plugin under its name.
 * @throws PluginError if a plugin's name is taken or its options schema is unusable.
 */
export function composeConfigSchema(definitions: readonly FoundPlugin[]): ConfigSchema {
  const sections: Record<string, JsonSchema> = {}
  for (const definition of definitions) {
    const { name, fault } = definition
    if (fault !== undefined) {
      // A disabled plugin's section may contain anything.
      if (/^[a-z][a-z0-9_-]*$/.test(name) && !RESERVED.has(name)) sections[name] ??= { type: 'object', default: {} }
      continue
    }
    if (RESERVED.has(name) || !/^[a-z][a-z0-9_-]*$/.test(name)) {
      throw new PluginError(
        'plugin_name_invalid',
        name,
        `A plugin cannot be called ${JSON.stringify(name)}: a name has only lower-case letters, digits, "-" and "_", starts with a letter, and is not one of ${[...RESERVED].join(', ')}.`
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
      // A test checks the defaults of corral's own schemas. Those of other plugins are checked here.
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

/** The schema of the value under `key`, or undefined if the key is unknown or open. */
function childSchema(schema: JsonSchema | undefined, key: string): JsonSchema | undefined {
  if (!schema) return undefined
  if (schema.properties && Object.hasOwn(schema.properties, key)) return schema.properties[key]
  for (const [pattern, inner] of Object.entries(schema.patternProperties ?? {})) {
    if (new RegExp(pattern).test(key)) return inner
  }
  if (schema.items && /^\d+$/.test(key)) return schema.items
  return typeof schema.additionalProperties === 'object' ? schema.additionalProperties : undefined
}

/** The schema of a setting, if it exists. */
export function schemaAt(root: JsonSchema, path: readonly string[]): JsonSchema | undefined {
  return path.reduce<JsonSchema | undefined>(childSchema, root)
}

/** Whether the schema describes a group of settings rather than a single one. */
export function isGroup(schema: JsonSchema | undefined): boolean {
  return schema?.properties !== undefined || schema?.patternProperties !== undefined
}

function holdsSecret(schema: JsonSchema): boolean {
  const inner = [...Object.values(schema.properties ?? {}), ...Object.values(schema.patternProperties ?? {})]
  if (schema.items) inner.push(schema.items)
  return schema.writeOnly === true || inner.some(holdsSecret)
}

/** Whether the value at this path must not be shown: it is a secret, part of one, or contains one. */
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
 * Whether a setting, or a group around it, has a mark: `restart` if a change takes effect only after a restart, or
 * `needsTrust` if it is accepted only in a trusted file.
 */
export function hasMark(root: JsonSchema, path: readonly string[], mark: 'restart' | 'needsTrust'): boolean {
  return path.some((_, index) => schemaAt(root, path.slice(0, index + 1))?.[mark] === true)
}

/** The name of a setting in messages: `security.api_keys`, `models."corral/tiny-chat".pin`. */
export function settingName(path: readonly string[]): string {
  return path.map(key => (/^[\w-]+$/.test(key) ? key : JSON.stringify(key))).join('.')
}

export interface SettingValue {
  path: string[]
  value: unknown
  schema: JsonSchema | undefined
}

/** All single settings of a configuration, in the schema's order. An empty group counts as one. */
export function listSettings(schema: JsonSchema | undefined, value: unknown, path: string[] = []): SettingValue[] {
  if (!isGroup(schema) || !isObject(value)) return [{ path, value, schema }]
  const known = Object.keys(schema!.properties ?? {}).filter(key => Object.hasOwn(value, key))
  const keys = [...known, ...Object.keys(value).filter(key => !known.includes(key))]
  // An empty group with fixed names sets nothing. An empty group whose names people choose is a setting.
  if (keys.length === 0) return schema!.patternProperties ? [{ path, value, schema }] : []
  return keys.flatMap(key => listSettings(childSchema(schema, key), value[key], [...path, key]))
}
