import { isDeepStrictEqual } from 'node:util'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import addFormats from 'ajv-formats'
import { errorMessage } from '../errors.ts'
import type { FoundPlugin, PluginDefinition } from '../plugins/plugin.ts'
import { PluginError } from '../plugins/plugin-error.ts'
import { isObject } from '../system/json-object.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import { CoreConfigSchema } from './core-schema.ts'
import { SETTING_FORMATS } from './setting-types.ts'

/** Names at the top of the file that no plugin may use. */
const RESERVED = new Set([...Object.keys(CoreConfigSchema.properties), 'home', 'config'])

/**
 * Completes a schema: unknown keys are mistakes, and an omitted group gets the defaults of its settings.
 * @param chosen whether users create the group themselves; it may then have required settings
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

function sectionSchema({ name, description, optional, ...definition }: PluginDefinition): JsonSchema {
  const options = structuredClone(definition.options) as JsonSchema
  const restart = !options.restart && { restart: true }
  const enabled = { type: 'boolean', default: true, description: 'false switches it off', ...restart }
  const properties = { ...(optional && { enabled }), ...options.properties }
  return { ...complete({ ...options, properties }, name), default: {}, description }
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
    // The code runs once, so optimizing it would take longer than it saves.
    code: { optimize: false },
    // Compiling the meta-schema takes longer than compiling a typical configuration.
    ...(proven && { meta: false, validateSchema: false })
  })
  for (const keyword of ['restart', 'needsTrust']) ajv.addKeyword({ keyword, schemaType: 'boolean' })
  for (const [format, [, accepts]] of Object.entries(SETTING_FORMATS)) ajv.addFormat(format, accepts)
  // Plugins use the formats of JSON Schema; corral's settings have their own.
  if (!proven) addFormats.default(ajv)
  return ajv
}

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

const errorsOf = (validate: ValidateFunction, value: unknown, place: string): ErrorObject[] =>
  validate(value) ? [] : validate.errors!.map(error => ({ ...error, instancePath: place + error.instancePath }))

/** Compiles the section of a plugin that no test of corral checks. @throws Error if it or its defaults are unusable */
function compileUnproven(name: string, section: JsonSchema): ValidateFunction {
  const validate = newAjv(false).compile(section)
  const defaults = {}
  fillDefaults(section, defaults)
  const [error] = errorsOf(validate, defaults, name)
  if (!error) return validate
  throw new Error(`the default of ${error.instancePath.replaceAll('/', '.')} is not valid, because it ${error.message}`)
}

export interface ConfigSchema {
  root: JsonSchema
  /** The options that engines know; empty if no plugin lists any. */
  engineOptions: ReadonlySet<string>
  /** Names, in lower case, of the models in these values whose engines may have additional options. */
  openModels(values: unknown): ReadonlySet<string>
  /** Fills in defaults, in place, and returns the mistakes. */
  check(value: unknown): ErrorObject[]
}

/** The core's settings, and one section per plugin under its name. @throws PluginError if a plugin's is unusable */
export function composeConfigSchema(definitions: readonly FoundPlugin[]): ConfigSchema {
  const sections: Record<string, JsonSchema> = {}
  const unproven = new Map<string, ValidateFunction>()
  for (const definition of definitions) {
    const { name, fault } = definition
    const isName = /^[a-z][a-z0-9_-]*$/.test(name) && !RESERVED.has(name)
    if (fault !== undefined) {
      // A disabled plugin's section may contain anything.
      if (isName) sections[name] ??= { type: 'object', default: {} }
      continue
    }
    if (!isName) {
      const message = `A plugin cannot be called ${JSON.stringify(name)}: a name has only lower-case letters, digits, "-" and "_", starts with a letter, and is not one of ${[...RESERVED].join(', ')}.`
      throw new PluginError('plugin_name_invalid', name, message)
    }
    if (Object.hasOwn(sections, name)) {
      throw new PluginError('plugin_duplicate', name, `Two plugins are called "${name}"; rename one or leave one out.`)
    }
    try {
      sections[name] = sectionSchema(definition)
      if (!definition.builtIn) unproven.set(name, compileUnproven(name, sections[name]))
    } catch (error) {
      const message = `The options schema of plugin "${name}" is unusable: ${errorMessage(error)}.`
      throw new PluginError('plugin_options_invalid', name, message, error)
    }
  }
  const core = complete(structuredClone(CoreConfigSchema) as unknown as JsonSchema, 'core')
  const root: JsonSchema = { ...core, properties: { ...core.properties, ...sections } }
  let ajv: Ajv | undefined
  return {
    root,
    check(values) {
      ajv ??= newAjv(true)
      const { properties = {}, ...strict } = { ...root, required: [] }
      if (!isObject(values)) return errorsOf(ajv.compile(strict), values, '')
      const names = Object.keys(values)
      const defaults: Record<string, unknown> = {}
      for (const each of [values, defaults]) fillDefaults(root, each)
      return names.flatMap(name => {
        const section = Object.hasOwn(properties, name) ? properties[name] : undefined
        if (!section) return errorsOf(ajv!.compile(strict), { [name]: values[name] }, '')
        // Compiling everything would take a sixth of the start. A test checks the defaults.
        if (isDeepStrictEqual(values[name], defaults[name])) return []
        return errorsOf(unproven.get(name) ?? ajv!.compile(section), values[name], `/${name}`)
      })
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
  const named = Object.entries(schema.patternProperties ?? {}).find(([pattern]) => new RegExp(pattern).test(key))
  if (named) return named[1]
  if (schema.items && /^\d+$/.test(key)) return schema.items
  return typeof schema.additionalProperties === 'object' ? schema.additionalProperties : undefined
}

export function schemaAt(root: JsonSchema, path: readonly string[]): JsonSchema | undefined {
  return path.reduce<JsonSchema | undefined>(childSchema, root)
}

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

/** Whether a setting or its group takes effect only after a `restart`, or `needsTrust` in its file. */
export function hasMark(root: JsonSchema, path: readonly string[], mark: 'restart' | 'needsTrust'): boolean {
  return path.some((_, index) => schemaAt(root, path.slice(0, index + 1))?.[mark] === true)
}

/** The name of a setting in messages: `security.api_keys`, `models."corral/tiny-chat".pin`. */
export function settingName(path: readonly string[]): string {
  return path.map(key => (/^[\w-]+$/.test(key) ? key : JSON.stringify(key))).join('.')
}

type SettingValue = { path: string[]; value: unknown; schema: JsonSchema | undefined }

/** All single settings of a configuration, in the schema's order. An empty group counts as one. */
export function listSettings(schema: JsonSchema | undefined, value: unknown, path: string[] = []): SettingValue[] {
  if (!isGroup(schema) || !isObject(value)) return [{ path, value, schema }]
  const known = Object.keys(schema!.properties ?? {}).filter(key => Object.hasOwn(value, key))
  const keys = [...known, ...Object.keys(value).filter(key => !known.includes(key))]
  // An empty group with fixed names sets nothing. An empty group whose names people choose is a setting.
  if (keys.length === 0) return schema!.patternProperties ? [{ path, value, schema }] : []
  return keys.flatMap(key => listSettings(childSchema(schema, key), value[key], [...path, key]))
}
