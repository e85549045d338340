import { type Static, type TObject, Type } from 'typebox'
import { Count, Described, Flag, Items, Loose, Text, Titled } from '../http/request-fields.ts'
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

/* The events of `GET /api/events`: the state as records by topic and key, first all of them, then changes. */

/** The topics of records, with a description of their keys. */
export const STATE_TOPICS = {
  server: {
    key: '"server"',
    value: Titled('ServerState', {
      version: Text("corral's"),
      id: Text('Of this server; a new one after each start'),
      started_at: Time(),
      draining: Flag('Whether new requests for models are refused')
    })
  },
  requests: {
    key: '"requests"',
    value: Titled('RequestsState', {
      total: Count('Requests for models since the start, including loads'),
      open: Count('Requests in progress or queued')
    })
  },
  model: {
    key: 'its name, as in GET /api/tags',
    value: Described('ModelState', 'A model, as GET /api/tags lists it', {
      ...LocalModelSchema.properties,
      pinned: Flag('It is not unloaded for other models'),
      failure: Type.Optional(
        Loose({ code: Type.String(), message: Type.String() }, { description: 'Why the last load failed' })
      )
    })
  },
  engine: {
    key: 'opaque; `name` is the name of its model, which may have one for each mode',
    value: Type.Union(
      [
        Described(
          'LoadedEngine',
          'As `models` of GET /api/ps; while it answers, `expires_at` changes in steps of 10 s',
          {
            ...RunningModelSchema.properties,
            state: Type.Literal('loaded')
          }
        ),
        Described(
          'LoadingEngine',
          'As `loading` of GET /api/ps; `progress` is in hundredths',
          LoadingModelSchema.properties
        )
      ],
      { description: 'A model that is in memory, loading or unloading. Other models have no record' }
    )
  },
  pull: { key: 'its id', value: PullSchema },
  conversion: {
    key: 'opaque',
    value: Described('ConversionState', 'A SafeTensors model that is being converted to GGUF, for a load or not', {
      model: Text('As in GET /api/tags'),
      dtype: Text('The target type, such as f16'),
      status: Text('The current step, such as "converting 12%"'),
      progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1, description: 'In hundredths' }))
    })
  },
  memory: { key: 'the pool', value: PoolSchema },
  gpu: {
    key: 'its id, as in GET /api/runtimes',
    value: Described('GpuState', "A GPU's sensor readings, every few seconds, if it has sensors", {
      name: Type.String(),
      temperature: Type.Optional(Type.Number({ description: 'Degrees Celsius' })),
      utilization: Type.Optional(
        Type.Number({ minimum: 0, maximum: 1, description: 'The share of time in which it computed' })
      )
    })
  },
  build: {
    key: '"build"',
    value: Described('BuildState', 'llama.cpp: the build in use, and the build being fetched or made', {
      state: Type.Enum(['idle', 'searching', 'ready', 'failed'], { description: 'idle: none was needed yet' }),
      id: Type.Optional(Text('Of the build for new engines')),
      kind: Type.Optional(BuildKindSchema),
      version: Type.Optional(Text('As llama-server --version prints it')),
      status: Type.Optional(Text('The current step, such as "downloading llama.cpp 12%"')),
      progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 }))
    })
  },
  member: { key: 'its name', value: MemberSchema },
  replicas: { key: 'opaque; `model` is the name of the model', value: ReplicasSchema }
} as const
export type StateTopic = keyof typeof STATE_TOPICS
export type StateValue<Topic extends StateTopic = StateTopic> = Static<(typeof STATE_TOPICS)[Topic]['value']>

/** The current state of one object. */
export type StateRecord = { [T in StateTopic]: { topic: T; key: string; value: StateValue<T> } }[StateTopic]
/** All fields of a new record. In a change, only the changed fields, with `null` for removed ones. */
export type StatePatch = {
  [T in StateTopic]: { topic: T; key: string; value: { [F in keyof StateValue<T>]?: StateValue<T>[F] | null } }
}[StateTopic]
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
  /** Gets the events in order. While a promise that it returned is pending, it gets no further events. */
  take(event: StateEvent): Promise<void> | undefined
  end(): void
}

/** The state of models, engines, pulls and the server, for all subscribers. */
export interface StateFeed {
  /** Adds a subscriber. @returns ends the subscription. @throws CorralError `rate_limited` if there are too many */
  follow(follower: StateFollower): () => void
}

const topics = Object.entries(STATE_TOPICS) as [StateTopic, { key: string; value: TObject }][]

export const StateSnapshotSchema = Described('StateSnapshot', 'The whole state, which replaces any earlier state', {
  records: Type.Array(
    Type.Union(topics.map(([topic, { key, value }]) => Loose({ topic: Type.Literal(topic), key: Text(key), value })))
  )
})
export const StateChangeSchema = Titled('StateChange', {
  removed: Items('Removed records', { topic: Type.Enum(topics.map(([topic]) => topic)), key: Type.String() }),
  set: Items('New or changed records, to be applied after that', {
    topic: Type.Enum(topics.map(([topic]) => topic)),
    key: Type.String(),
    value: Type.Record(Type.String(), Type.Unknown(), {
      description: 'All fields of a new record, or the changed fields; null for a removed one'
    })
  })
})
