import { type Static, Type } from 'typebox'
import { ModelSettingsSchema } from '../config/core-schema.ts'
import { LoadOptionsSchema } from '../models/load-options.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Model } from './models.ts'
import { Nanoseconds } from './native-records.ts'
import type { Waiting } from './progress.ts'

/*
 * Trials: a model is loaded with other settings than the configuration has, for as long as a client holds a connection
 * open. `corral bench` measures with them; nothing is written down.
 */

const { arguments: flags, draft, ngram } = ModelSettingsSchema.properties

/** What a trial may set: that part of a model's section in `config.yaml` which may make its engine faster. */
export const TrialSettingsSchema = Type.Object(
  { arguments: flags, draft, ngram, options: Type.Optional(Type.Partial(LoadOptionsSchema)) },
  { additionalProperties: false, title: 'TrialSettings', description: "As in a model's section of the configuration" }
)
export type TrialSettings = Static<typeof TrialSettingsSchema>

export const TunableSchema = Type.Object(
  {
    name: Type.String({ description: 'What is set, in words' }),
    values: Type.Array(
      Type.Object({
        label: Type.String({ description: 'The value, in words' }),
        settings: TrialSettingsSchema
      }),
      { description: 'Values worth a try; the settings are complete: those that were sent, and the value' }
    ),
    changes_answers: Type.Optional(
      Type.String({ description: 'What becomes of the answers; absent where they stay as good as they are' })
    )
  },
  { title: 'Tunable', description: 'A setting that may make the engine of a model faster' }
)
export type Tunable = Static<typeof TunableSchema>

/** What is loaded for a trial. */
export const TrialRecordSchema = Type.Object(
  {
    status: Type.Literal('ready'),
    model: Type.String({ description: 'The name of the variant' }),
    label: Type.String({ description: 'Its label, such as Q4_K_M' }),
    mode: Type.Enum(['chat', 'embedding'], { description: 'What its engine is started for' }),
    load_duration: Nanoseconds('That the load took'),
    context_length: Type.Integer({ description: 'Tokens of each slot' }),
    slots: Type.Integer({ description: 'Requests that it answers at once' }),
    provider: Type.String({ description: 'What its engine is, such as llama-server' }),
    build: Type.Optional(Type.String({ description: 'The build that it runs on' })),
    options: LoadOptionsSchema
  },
  { title: 'Trial' }
)
export type TrialRecord = Static<typeof TrialRecordSchema>

/** Why nothing is loaded for a trial. */
export const TrialFailureSchema = Type.Object(
  {
    status: Type.Literal('failed'),
    reason: Type.String({ description: 'What happened, and what would help' }),
    code: Type.String({ description: 'Stable, for programs: load_failed, insufficient_memory, …' })
  },
  { title: 'TrialFailure' }
)
export type TrialFailure = Static<typeof TrialFailureSchema>

export interface TrialRequest extends Waiting {
  model: ModelName
  settings: TrialSettings
  /** Trials of one session take each other's place; another session is refused meanwhile. */
  session: string
  /** The trial holds until this is aborted. */
  signal: AbortSignal
}

/** A model that is loaded for a trial. */
export interface RunningTrial {
  variant: Model
  mode: TrialRecord['mode']
  /** Milliseconds. */
  loadTime: number
}
