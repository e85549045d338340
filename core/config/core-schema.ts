import { type Static, type TProperties, type TSchema, Type } from 'typebox'
import type { BudgetName } from '../contracts/callers.ts'
import { DEFAULT_LOAD_OPTIONS, LoadOptionsSchema } from '../models/load-options.ts'
import { DEFAULT_SAMPLING_OPTIONS, OverflowPolicySchema, SamplingOptionsSchema } from '../models/options.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import modelExamples from './model-examples.json' with { type: 'json' }
import texts from './setting-texts.json' with { type: 'json' }
import { Bytes, Duration, KeepAlive, Path, Program, Timeout } from './setting-types.ts'

export { Bytes, Duration, KeepAlive, Path, Program, Timeout }

/** A group of settings. Other names are mistakes. */
export const Group = <Properties extends TProperties>(properties: Properties) =>
  Type.Object(properties, { additionalProperties: false })

/** Makes all of these settings optional. */
export const optional = <Properties extends TProperties>(properties: Properties) =>
  Type.Partial(Type.Object(properties)).properties

export const Count = (
  fallback: number,
  minimum: number,
  more?: { description?: string; restart?: boolean; maximum?: number }
) => Type.Integer({ default: fallback, minimum, ...more })

type Texts = { [name: string]: string | Texts }

/**
 * Adds the descriptions of a group's settings, a tree like the settings themselves: "" is the group's own text, and "*"
 * has those of each entry.
 */
function describe(schema: TSchema, texts: string | Texts): void {
  const { '': description, ...inner } = typeof texts === 'string' ? { '': texts } : texts
  if (description) Object.assign(schema, { description })
  const { items, properties, patternProperties } = schema as JsonSchema
  const entry = items ?? Object.values(patternProperties ?? {})[0]
  for (const [name, text] of Object.entries(inner)) {
    const described = name === '*' ? entry : properties?.[name]
    if (described) describe(described, text)
  }
}

function withDefaults<Properties extends TProperties>(
  properties: Properties,
  defaults: Record<keyof Properties, unknown>
): Properties {
  return Object.fromEntries(
    Object.entries(properties).map(([name, schema]) => [name, { ...schema, default: defaults[name] }])
  ) as unknown as Properties
}

const DAY = '(Mon|Tue|Wed|Thu|Fri|Sat|Sun)'
const CLOCK = '([01]\\d|2[0-3]):[0-5]\\d'
const TIME_WINDOW = `^(${DAY}(-${DAY})?(,${DAY}(-${DAY})?)* )?${CLOCK}-(${CLOCK}|24:00)$`

const requestBounds = {
  num_ctx: Type.Integer({ minimum: 0 }),
  num_parallel: Type.Integer({ minimum: 1 }),
  max_tokens: Type.Integer({ minimum: 1 }),
  keep_alive: KeepAlive(),
  prompts: Type.Integer({ minimum: 1 }),
  n: Type.Integer({ minimum: 1 }),
  repeats: Type.Integer({ minimum: 0 })
}
export const RequestBoundsSchema = Type.Object(optional(requestBounds))

const MAX_COUNT = 999_999_999_999_999

const amount = Type.Integer({ minimum: 0, maximum: MAX_COUNT })

const budgets = {
  requests_per_minute: amount,
  requests_per_day: amount,
  tokens_per_minute: amount,
  tokens_per_day: amount,
  tokens_in_per_minute: amount,
  tokens_in_per_day: amount,
  tokens_out_per_minute: amount,
  tokens_out_per_day: amount
} satisfies Record<BudgetName, TSchema>
export const BudgetsSchema = Type.Object(optional(budgets))

const LimitsSchema = Group({
  ...withDefaults(requestBounds, {
    num_ctx: 0,
    num_parallel: 64,
    max_tokens: 131_072,
    keep_alive: -1,
    prompts: 8192,
    n: 128,
    repeats: 16
  }),
  ...withDefaults(budgets, Object.fromEntries(Object.keys(budgets).map(name => [name, 0])) as Record<BudgetName, 0>),
  strict_options: Type.Boolean({ default: false }),
  body_depth: Count(200, 1),
  body_memory: Bytes({ default: 0 }),
  body_memory_per_client: Bytes({ default: 0 }),
  grammar_size: Bytes({ default: '64KiB', restart: true }),
  grammar_repetition: Count(20_000, 1, { restart: true }),
  document_size: Bytes({ default: '32MiB' }),
  document_pages: Count(200, 1),
  document_text: Count(2_000_000, 1),
  document_time: Timeout({ default: '30s' }),
  document_memory: Bytes({ default: '256MiB' }),
  connections: Count(1024, 1),
  connections_per_address: Count(256, 1),
  uploads: Count(8, 1, { restart: true }),
  uploads_size: Bytes({ default: '400GiB', restart: true }),
  upload_stall: Duration({ default: '2m', restart: true }),
  pulls: Count(4, 1),
  waiting_pulls: Count(64, 0),
  stored_responses: Count(1000, 0, { restart: true }),
  queue_per_key: Count(512, 1),
  reader_stall: Duration({ default: '60s' }),
  resume: Duration({ default: '30s' }),
  hook_timeout: Duration({ default: '30s' }),
  stuck_after: Duration({ default: '30s' }),
  reloads: Count(6, 0)
})

/** The section of one model under `models`. */
export const ModelSettingsSchema = Group(
  optional({
    keep_alive: KeepAlive(),
    pin: Type.Boolean(),
    preload: Type.Boolean(),
    aliases: Type.Array(Type.String(), { uniqueItems: true }),
    groups: Type.Array(Type.String({ minLength: 1 }), { uniqueItems: true }),
    max_concurrent: Type.Integer({ minimum: 1 }),
    replicas: Group(
      optional({
        min: Type.Integer({ minimum: 0 }),
        max: Type.Integer({ minimum: 0 }),
        nodes: Type.Array(Type.String({ minLength: 1 }), { minItems: 1, uniqueItems: true }),
        idle: Duration(),
        copies: Type.Integer({ minimum: 0 }),
        schedule: Type.Array(
          Group({
            at: Type.String({ title: 'a time such as Mon-Fri 08:00-18:00', pattern: TIME_WINDOW }),
            ...optional({ min: Type.Integer({ minimum: 0 }), max: Type.Integer({ minimum: 0 }) })
          }),
          { maxItems: 100 }
        )
      })
    ),
    engine: Type.String({ minLength: 1, restart: true, needsTrust: true }),
    files: Path({ restart: true, needsTrust: true }),
    runtime: Type.String(),
    rpc: Type.Array(
      Type.String({
        title: 'an address and a port such as 192.168.1.20:50052',
        pattern: '^[\\w.-]{1,80}:[1-9]\\d{0,4}$'
      }),
      { uniqueItems: true, maxItems: 16, needsTrust: true }
    ),
    rpc_insecure: Type.Boolean({ needsTrust: true }),
    arguments: Type.Array(Type.String(), { needsTrust: true }),
    environment: Type.Record(Type.String(), Type.String(), { needsTrust: true }),
    draft: Group({
      model: Type.String({ minLength: 1 }),
      ...optional({
        max_tokens: Type.Integer({ minimum: 1 }),
        min_tokens: Type.Integer({ minimum: 0 }),
        min_probability: Type.Number({ minimum: 0, maximum: 1 }),
        n_gpu_layers: Type.Integer({ minimum: -1 })
      })
    }),
    ngram: Type.Boolean(),
    tools: Type.Array(Type.String({ minLength: 1 }), { uniqueItems: true, maxItems: 32 }),
    lora: Type.Array(
      Group({
        path: Path({ minLength: 1 }),
        ...optional({ scale: Type.Number() })
      })
    ),
    projector: Path(),
    limits: Group({ ...RequestBoundsSchema.properties, ...BudgetsSchema.properties }),
    options: Type.Object(
      {
        ...optional({ ...LoadOptionsSchema.properties, ...SamplingOptionsSchema.properties }),
        ...optional({ context_overflow: OverflowPolicySchema })
      },
      { additionalProperties: true }
    )
  })
)
export type ModelSettings = Static<typeof ModelSettingsSchema>

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const
const LogLevel = (options: { default?: string; description?: string }) => Type.Enum([...LOG_LEVELS], options)

/** Settings that do not belong to a plugin. */
export const CoreConfigSchema = Group({
  host: Type.String({
    default: '127.0.0.1',
    minLength: 1,
    pattern: '^[^/]+$',
    title: 'a host name or an address, without a port',
    restart: true
  }),
  port: Type.Integer({ default: 11435, minimum: 0, maximum: 65535, restart: true }),
  tls: Group({
    certificate: Path({ default: '', restart: true }),
    key: Path({ default: '', restart: true }),
    check_interval: Timeout({ default: '10s', restart: true })
  }),
  log_level: LogLevel({ default: 'info' }),
  log_levels: Type.Record(Type.String(), LogLevel({}), { default: {}, examples: [{ scheduler: 'debug' }] }),
  watch_config: Type.Boolean({ default: false }),
  body_limit: Bytes({ default: '64MiB', restart: true }),
  shutdown_grace: Duration({ default: '10s', restart: true }),
  models_directory: Path({ default: '', restart: true }),
  default_model: Type.String({ default: '', examples: ['corral/tiny-chat'] }),
  plugins: Type.Array(Type.String({ minLength: 1 }), {
    default: [],
    uniqueItems: true,
    examples: [['./plugins/shelf.js', 'corral-plugin-shelf']],
    needsTrust: true
  }),
  defaults: Type.Object(
    {
      ...withDefaults(SamplingOptionsSchema.properties, DEFAULT_SAMPLING_OPTIONS),
      ...withDefaults(LoadOptionsSchema.properties, DEFAULT_LOAD_OPTIONS),
      context: Type.Enum(['grow', 'fixed'], { default: 'grow' }),
      context_overflow: { ...OverflowPolicySchema, default: 'error' }
    },
    { additionalProperties: true }
  ),
  limits: LimitsSchema,
  models: Type.Record(Type.String(), ModelSettingsSchema, { default: {}, examples: [modelExamples] })
})
for (const bounds of [RequestBoundsSchema, BudgetsSchema]) describe(bounds, texts.limits)
describe(CoreConfigSchema, texts)
export type CoreConfig = Static<typeof CoreConfigSchema>
