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
 * What `GET /api/events` tells of the server: records by topic and key. First all of them, then what changes. Made of
 * these schemas are the API document, the feed, and the clients that follow it.
 */

const loose = { additionalProperties: true }

export const ServerStateSchema = Type.Object(
  {
    version: Type.String({ description: "corral's" }),
    id: Type.String({ description: 'Of this server; another one after each start' }),
    started_at: Time(),
    draining: Type.Boolean({ description: 'Whether new requests for models are refused' })
  },
  { ...loose, title: 'ServerState' }
)

export const RequestsStateSchema = Type.Object(
  {
    total: Type.Integer({ minimum: 0, description: 'Requests for models since the start, loads included' }),
    open: Type.Integer({ minimum: 0, description: 'Those that are answered now, or wait' })
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
        { ...loose, description: 'Why it could not be loaded the last time' }
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
        description: 'As `models` of GET /api/ps; while it answers, `expires_at` is in steps of 10 s'
      }
    ),
    Type.Object(LoadingModelSchema.properties, {
      ...loose,
      title: 'LoadingEngine',
      description: 'As `loading` of GET /api/ps; `progress` is in hundredths'
    })
  ],
  { description: 'A model in memory, or on its way there or from there. One that has no such record is not loaded' }
)

export const BuildStateSchema = Type.Object(
  {
    state: Type.Enum(['idle', 'searching', 'ready', 'failed'], { description: 'idle: none was needed yet' }),
    id: Type.Optional(Type.String({ description: 'Of the build that new engines run on' })),
    kind: Type.Optional(BuildKindSchema),
    version: Type.Optional(Type.String({ description: 'As llama-server --version prints it' })),
    status: Type.Optional(Type.String({ description: 'What is being done, such as "downloading llama.cpp 12%"' })),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 }))
  },
  { ...loose, title: 'BuildState', description: 'llama.cpp: the build in use, and what is fetched or made' }
)

export const ConversionStateSchema = Type.Object(
  {
    model: Type.String({ description: 'As in GET /api/tags' }),
    dtype: Type.String({ description: 'What its weights become, such as f16' }),
    status: Type.String({ description: 'What is being done, such as "converting 12%"' }),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1, description: 'In hundredths' }))
  },
  { ...loose, title: 'ConversionState', description: 'A SafeTensors model of which a GGUF is made, for a load or not' }
)

export const GpuStateSchema = Type.Object(
  {
    name: Type.String(),
    temperature: Type.Optional(Type.Number({ description: 'Degrees Celsius' })),
    utilization: Type.Optional(
      Type.Number({ minimum: 0, maximum: 1, description: 'The part of the time in which it computed' })
    )
  },
  { ...loose, title: 'GpuState', description: 'What the sensors of a GPU say, every few seconds; where they are read' }
)

/** What records there are, by topic, with what their keys are. */
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

/** One record: what a thing is like now. */
export type StateRecord = { [T in StateTopic]: { topic: T; key: string; value: StateValue<T> } }[StateTopic]
/** Of a record that is new all fields; else those that have changed, `null` for those that have gone. */
export type StatePatch = {
  [T in StateTopic]: { topic: T; key: string; value: { [F in keyof StateValue<T>]?: StateValue<T>[F] | null } }
}[StateTopic]
/** Names a record. */
export type StateKey = { [T in StateTopic]: { topic: T; key: string } }[StateTopic]

/** The data of `event: snapshot`: all that there is. What was known before is forgotten. */
export interface StateSnapshot {
  records: StateRecord[]
}

/** The data of `event: change`: what has gone, then what is new or different. */
export interface StateChange {
  removed: StateKey[]
  set: StatePatch[]
}

/** A record as a follower within the server gets it. */
export type FedRecord = StateRecord & {
  /** The record as JSON; in a change what has changed of it. */
  readonly json: string
}

/** What a follower within the server gets. */
export type StateEvent = { readonly id: string } & (
  | { readonly kind: 'snapshot'; readonly records: readonly FedRecord[] }
  | { readonly kind: 'change'; readonly removed: readonly FedRecord[]; readonly set: readonly FedRecord[] }
)

/** Somebody who follows the state. */
export interface StateFollower {
  /** Decides what is shown. */
  caller: Pick<Caller, 'turn' | 'role' | 'models'>
  /** All where absent. */
  topics?: ReadonlySet<StateTopic>
  /** Id of the last event that it had, of an earlier connection. */
  lastId?: string | undefined
  /** Gets events in their order; while a promise that it returned is pending, none. */
  take(event: StateEvent): Promise<void> | undefined
  /** Nothing more comes. */
  end(): void
}

/** What becomes of models, engines, pulls and the server, for all who follow it. */
export interface StateFeed {
  /**
   * Lets somebody follow the state from now on, or from the last event of an earlier connection on.
   * @returns ends that
   * @throws CorralError `rate_limited` where too many follow it already
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
  { ...loose, title: 'StateSnapshot', description: 'All that there is; what was known before is to be forgotten' }
)
export const StateChangeSchema = Type.Object(
  {
    removed: Type.Array(Type.Object({ topic: Type.Enum(topics.map(([topic]) => topic)), key: Type.String() }, loose), {
      description: 'What has gone'
    }),
    set: Type.Array(
      Type.Object(
        {
          topic: Type.Enum(topics.map(([topic]) => topic)),
          key: Type.String(),
          value: Type.Record(Type.String(), Type.Unknown(), {
            description: 'Of a new record all fields, else those that have changed; null for one that has gone'
          })
        },
        loose
      ),
      { description: 'What is new or different, after that' }
    )
  },
  { ...loose, title: 'StateChange' }
)
