import type { FastifyReply } from 'fastify'
import type { TSchema } from 'typebox'
import type { CoreConfig } from '../config/core-schema.ts'
import { nearest } from '../config/suggestion.ts'
import type { EngineMode, Engines } from '../contracts/engines.ts'
import type { Model } from '../contracts/models.ts'
import { CorralError } from '../errors.ts'
import { isKnownOption, knownOptionNames } from '../models/options.ts'
import { isObject } from '../system/json-object.ts'
import { headerList } from './answer-headers.ts'

export const UNKNOWN_OPTIONS_HEADER = 'x-corral-unknown-options'

const NONE: ReadonlySet<string> = new Set()

interface UnknownOption {
  name: string
  param: string
}

interface Asked {
  config: Pick<CoreConfig, 'limits'>
  engines: Pick<Engines, 'providerOf'>
  /** Whether the API reads options at the top level of bodies, in addition to `options`. */
  optionsAtTop?: boolean
}

/**
 * Finds options of a request that neither its route, nor corral, nor the model's engine knows; most are misspelled.
 * They are passed on anyway, and a header of the reply lists them. With `limits.strict_options` they are refused. If
 * the engine's provider does not list its options, no option counts as unknown.
 * @throws CorralError `invalid_option`
 */
export function reportUnknownOptions(
  { config, engines, optionsAtTop = false }: Asked,
  reply: FastifyReply,
  variant: Model,
  mode: EngineMode = 'chat'
): void {
  const ofEngine = engines.providerOf(variant, mode)?.knownOptions
  const { body } = reply.request
  if (!ofEngine || !isObject(body)) return
  const documented = documentedFields(reply)
  const unknown: UnknownOption[] = []
  for (const name in body) {
    if (documented.has(name) || body[name] === null) continue
    if (optionsAtTop && (ofEngine.has(name) || isKnownOption(name))) continue
    unknown.push({ name, param: name })
  }
  unknown.push(...unknownAmong(body.options, ofEngine, 'options'))
  report(config, reply, unknown, () => [...ofEngine, ...(optionsAtTop ? documented : [])])
}

export function reportUnknownParameters(
  config: Asked['config'],
  reply: FastifyReply,
  parameters: unknown,
  ofEngines: ReadonlySet<string> | undefined
): void {
  if (ofEngines) report(config, reply, unknownAmong(parameters, ofEngines, 'parameters'), () => [...ofEngines])
}

function report({ limits }: Asked['config'], reply: FastifyReply, unknown: UnknownOption[], getKnown: () => string[]) {
  if (unknown.length === 0) return
  if (limits.strict_options) throw refusal(unknown, getKnown())
  const names = unknown.map(({ name }) => name)
  reply.header(UNKNOWN_OPTIONS_HEADER, headerList(names))
}

function unknownAmong(options: unknown, ofEngine: ReadonlySet<string>, field: string): UnknownOption[] {
  if (!isObject(options)) return []
  return Object.keys(options)
    .filter(name => options[name] !== null && !ofEngine.has(name) && !isKnownOption(name))
    .map(name => ({ name, param: `${field}.${name}` }))
}

const fieldsOf = new WeakMap<object, ReadonlySet<string>>()

function documentedFields(reply: FastifyReply): ReadonlySet<string> {
  const schema = reply.request.routeOptions.schema?.body as (TSchema & { properties?: object }) | undefined
  if (!schema) return NONE
  let fields = fieldsOf.get(schema)
  if (!fields) {
    fields = new Set(Object.keys(schema.properties ?? {}))
    fieldsOf.set(schema, fields)
  }
  return fields
}

function refusal([first, ...others]: readonly UnknownOption[], known: readonly string[]): CorralError {
  const { name, param } = first!
  const cut = (text: string) => (text.length > 80 ? `${text.slice(0, 80)}…` : text)
  const near = nearest(name, [...knownOptionNames, ...known])
  const guess = near === undefined || near === name ? '' : ` Did you mean ${JSON.stringify(near)}?`
  const misplaced = knownOptionNames.includes(name) || known.includes(name) ? ' Options belong in "options".' : ''
  const more = others.length > 0 ? ` ${others.length} more ${others.length === 1 ? 'is' : 'are'} unknown too.` : ''
  const message = `The option ${JSON.stringify(cut(param))} is unknown, and "limits.strict_options" refuses unknown options.${guess}${misplaced}${more}`
  return new CorralError('invalid_option', message, { param: cut(param) })
}
