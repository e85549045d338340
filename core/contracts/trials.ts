import { type Static, Type } from 'typebox'
import { ModelSettingsSchema } from '../config/core-schema.ts'
import { Described, Integer, Text, Titled } from '../http/request-fields.ts'
import { LoadOptionsSchema } from '../models/load-options.ts'
import type { ModelName } from '../models/model-name.ts'
import type { RunningModel } from './leases.ts'
import { Nanoseconds } from './native-records.ts'
import type { Waiting } from './progress.ts'

/* For `corral bench`: a model is loaded with other settings while a client holds a connection open. */

const { arguments: flags, draft, ngram } = ModelSettingsSchema.properties

/** The settings of a trial: the part of a model's section in `config.yaml` that may make its engine faster. */
export const TrialSettingsSchema = Type.Object(
  { arguments: flags, draft, ngram, options: Type.Optional(Type.Partial(LoadOptionsSchema)) },
  { additionalProperties: false, title: 'TrialSettings', description: "As in a model's section of the configuration" }
)
export type TrialSettings = Static<typeof TrialSettingsSchema>

const ValueSchema = Type.Object({ label: Text('The value, in words'), settings: TrialSettingsSchema })
export const TunableSchema = Described('Tunable', 'A setting that may make the engine of a model faster', {
  name: Text('The setting, in words'),
  values: Type.Array(ValueSchema, {
    description: 'Values worth a try; the settings are complete: the sent ones, and the value'
  }),
  changes_answers: Type.Optional(Text('The effect on the answers; absent if they do not get worse'))
})
export type Tunable = Static<typeof TunableSchema>

export const TrialRecordSchema = Titled('Trial', {
  status: Type.Literal('ready'),
  model: Text('The name of the variant'),
  label: Text('Its label, such as Q4_K_M'),
  mode: Type.Enum(['chat', 'embedding'], { description: 'What its engine is started for' }),
  load_duration: Nanoseconds('Duration of the load'),
  context_length: Integer('Tokens of each slot'),
  slots: Integer('Maximum concurrent requests'),
  provider: Text('Kind of its engine, such as llama-server'),
  build: Type.Optional(Text('The build that it runs on')),
  options: LoadOptionsSchema
})
export type TrialRecord = Static<typeof TrialRecordSchema>

export const TrialFailureSchema = Titled('TrialFailure', {
  status: Type.Literal('failed'),
  reason: Text('What happened, and what would help'),
  code: Text('Stable, for programs: load_failed, insufficient_memory, …')
})
export type TrialFailure = Static<typeof TrialFailureSchema>

export interface TrialRequest extends Waiting {
  model: ModelName
  settings: TrialSettings
  /** Each trial replaces the previous trial of its session. Other sessions are refused. */
  session: string
  /** The trial ends when this is aborted. */
  signal: AbortSignal
}

export interface RunningTrial extends Pick<RunningModel, 'variant' | 'engine' | 'options'> {
  mode: TrialRecord['mode']
  loadTime: number
}
