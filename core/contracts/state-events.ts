import { type Static, type TObject, Type } from 'typebox'
import { BuildKindSchema } from './builds.ts'
import type { Caller } from './callers.ts'
import {
  LoadingModelSchema,
  LocalModelSchema,
  MemberSchema,
  PoolSchema,
  PullSchema,
  ReplicasSchema,
  RunningModelSchema,
  Time
} from './native-records.ts'

/*
 * The events of `GET /api/events`: the server's state as records by topic and key. The first event contains all
 * records, later ones the changes. The API document, the feed and its clients are based on these schemas.
 */

const loose = { additionalProperties: true }

export const ServerStateSchema = Type.Object(
  {
    version: Type.String({ description: "corral's" }),
    id: Type.String({ description: 'Of this server; a new one after each start' }),
    started_at: Time(),
    draining: Type.Boolean({ description: 'Whether new requests for models are refused' })
  },
  { ...loose, title: 'ServerState' }
)

export const RequestsStateSchema = Type.Object(
  {
    total: Type.Integer({ minimum: 0, description: 'Requests for models since the start, including loads' }),
    open: Type.Integer({ minimum: 0, description: 'Requests in progress or queued' })
  },
  { ...loose, title: 'RequestsState' }
)

export const ModelStateSchema = Type.Object(
  {
    ...LocalModelSchema.properties,
    pinned: Type.Boolean({ description: 'It is not unloaded for other models' }),
    failure: Type.Optional(
      Type.Object(
        { code: Type.String(), message: Type.String() },
        { ...loose, description: 'Why the last load failed' }
      )
    )
  },
  { ...loose, title: 'ModelState', description: 'A model, as GET /api/tags lists it' }
)

export const EngineStateSchema = Type.Union(
  [
    Type.Object(
      { ...RunningModelSchema.properties, state: Type.Literal('loaded') },
      {
        ...loose,
        title: 'LoadedEngine',
        description: 'As `models` of GET /api/ps; while it answers, `expires_at` changes in steps of 10 s'
      }
    ),
    Type.Object(LoadingModelSchema.properties, {
      ...loose,
      title: 'LoadingEngine',
      description: 'As `loading` of GET /api/ps; `progress` is in hundredths'
    })
  ],
  { description: 'A model in memory, or one that is being loaded or unloaded. Other models have no such record' }
)

export const BuildStateSchema = Type.Object(
  {
    state: Type.Enum(['idle', 'searching', 'ready', 'failed'], { description: 'idle: none was needed yet' }),
    id: Type.Optional(Type.String({ description: 'Of the build for new engines' })),
    kind: Type.Optional(BuildKindSchema),
    version: Type.Optional(Type.String({ description: 'As llama-server --version prints it' })),
    status: Type.Optional(Type.String({ description: 'The current step, such as "downloading llama.cpp 12%"' })),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 }))
  },
  { ...loose, title: 'BuildState', description: 'llama.cpp: the build in use, and the build being fetched or made' }
)

export const ConversionStateSchema = Type.Object(
  {
    model: Type.String({ description: 'As in GET /api/tags' }),
    dtype: Type.String({ description: 'The target type, such as f16' }),
    status: Type.String({ description: 'The current step, such as "converting 12%"' }),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1, description: 'In hundredths' }))
  },
  {
    ...loose,
    title: 'ConversionState',
    description: 'A SafeTensors model that is being converted to GGUF, for a load or not'
  }
)

export const GpuStateSchema = Type.Object(
  {
    name: Type.String(),
    temperature: Type.Optional(Type.Number({ description: 'Degrees Celsius' })),
    utilization: Type.Optional(
      Type.Number({ minimum: 0, maximum: 1, description: 'The share of time in which it computed' })
    )
  },
  { ...loose, title: 'GpuState', description: "A GPU's sensor readings, every few seconds, if it has sensors" }
)

/** The topics of records, with a description of their keys. */
export const STATE_TOPICS = {
  server: { key: '"server"', value: ServerStateSchema },
  requests: { key: '"requests"', value: RequestsStateSchema },
  model: { key: 'its name, as in GET /api/tags', value: ModelStateSchema },
  engine: {
    key: 'opaque; `name` is the name of its model, which may have one for each mode',
    value: EngineStateSchema
  },
  pull: { key: 'its id', value: PullSchema },
  conversion: { key: 'opaque', value: ConversionStateSchema },
  memory: { key: 'the pool', value: PoolSchema },
  gpu: { key: 'its id, as in GET /api/runtimes', value: GpuStateSchema },
  build: { key: '"build"', value: BuildStateSchema },
  member: { key: 'its name', value: MemberSchema },
  replicas: { key: 'opaque; `model` is the name of the model', value: ReplicasSchema }
} as const
export type StateTopic = keyof typeof STATE_TOPICS
export type StateValue<Topic extends StateTopic = StateTopic> = Static<(typeof STATE_TOPICS)[Topic]['value']>

/** The current state of one object. */
export type StateRecord = { [T in StateTopic]: { topic: T; key: string; value: StateValue<T> } }[StateTopic]
/** All fields of a new record, or the changed fields, with `null` for removed ones. */
export type StatePatch = {
  [T in StateTopic]: { topic: T; key: string; value: { [F in keyof StateValue<T>]?: StateValue<T>[F] | null } }
}[StateTopic]
/** Identifies a record. */
export type StateKey = { [T in StateTopic]: { topic: T; key: string } }[StateTopic]

/** The data of `event: snapshot`: the whole state, which replaces any earlier state. */
export interface StateSnapshot {
  records: StateRecord[]
}

/** The data of `event: change`: removed records, then new or changed ones. */
export interface StateChange {
  removed: StateKey[]
  set: StatePatch[]
}

/** A record for subscribers within the server. */
export type FedRecord = StateRecord & {
  /** The record as JSON; in a change only the changed fields. */
  readonly json: string
}

/** An event for subscribers within the server. */
export type StateEvent = { readonly id: string } & (
  | { readonly kind: 'snapshot'; readonly records: readonly FedRecord[] }
  | { readonly kind: 'change'; readonly removed: readonly FedRecord[]; readonly set: readonly FedRecord[] }
)

/** A subscriber of the state. */
export interface StateFollower {
  /** Determines which records are visible. */
  caller: Pick<Caller, 'turn' | 'role' | 'models'>
  /** Absent for all. */
  topics?: ReadonlySet<StateTopic>
  /** Id of the last event that it got on an earlier connection. */
  lastId?: string | undefined
  /** Gets the events in order. While a promise that it returned is pending, it gets none. */
  take(event: StateEvent): Promise<void> | undefined
  /** Called at the end of the stream. */
  end(): void
}

/** The state of models, engines, pulls and the server, for all subscribers. */
export interface StateFeed {
  /**
   * Adds a subscriber, who gets the events from now on, or from the last event of an earlier connection on.
   * @returns ends the subscription
   * @throws CorralError `rate_limited` if there are too many subscribers
   */
  follow(follower: StateFollower): () => void
}

const topics = Object.entries(STATE_TOPICS) as [StateTopic, { key: string; value: TObject }][]
const each = (value: (schema: TObject) => TObject) =>
  topics.map(([topic, { key, value: schema }]) =>
    Type.Object({ topic: Type.Literal(topic), key: Type.String({ description: key }), value: value(schema) }, loose)
  )

export const StateSnapshotSchema = Type.Object(
  { records: Type.Array(Type.Union(each(schema => schema))) },
  { ...loose, title: 'StateSnapshot', description: 'The whole state, which replaces any earlier state' }
)
export const StateChangeSchema = Type.Object(
  {
    removed: Type.Array(Type.Object({ topic: Type.Enum(topics.map(([topic]) => topic)), key: Type.String() }, loose), {
      description: 'Removed records'
    }),
    set: Type.Array(
      Type.Object(
        {
          topic: Type.Enum(topics.map(([topic]) => topic)),
          key: Type.String(),
          value: Type.Record(Type.String(), Type.Unknown(), {
            description: 'All fields of a new record, or the changed fields; null for a removed one'
          })
        },
        loose
      ),
      { description: 'New or changed records, to be applied after that' }
    )
  },
  { ...loose, title: 'StateChange' }
)
