import { type Static, Type } from 'typebox'
import { Sha256, Time } from '../../../../core/contracts/native-records.ts'
import { Flag, Text, Titled } from '../../../../core/http/request-fields.ts'

/* The state of a rollout, as it is stored and as the API shows it. */

const optional = Type.Optional

const NodeSchema = Titled('RolloutNode', {
  name: Text("The member's name"),
  phase: Type.Enum(['waiting', 'prepared', 'applying', 'applied', 'verified', 'done', 'skipped', 'restored', 'stuck'], {
    description:
      'prepared: what it needs is there; applying: it may have been changed; done: updated and in service; restored: as before; stuck: it could not be restored, and stays drained'
  }),
  note: optional(Text('What happens there now, or has happened')),
  out: Flag('Whether the rollout has drained it'),
  applied: Flag('Whether it may have been changed'),
  back: Flag('Whether it is being restored'),
  was: optional(Text('What it had before: the digest of its files, its build, or its version')),
  now: optional(Text('What it gets')),
  server: optional(Text('Id of its process before it was restarted')),
  loaded: optional(Type.Array(Type.String(), { description: 'Models that were in its memory' }))
})
export type RolloutNode = Static<typeof NodeSchema>

const CanarySchema = Titled('RolloutCanary', {
  share: optional(Type.Number({ minimum: 0, maximum: 1, description: 'Share of conversations for updated members' })),
  key: optional(Text("Name of the key whose clients' requests go to updated members")),
  after: optional(Type.Number({ minimum: 0, description: 'Milliseconds until the rollout continues by itself' })),
  until: optional(Time('When it continues by itself')),
  over: Flag('Whether updated members get all requests')
})

export const RolloutSchema = Titled('Rollout', {
  version: Type.Literal(1),
  id: Type.String(),
  kind: Type.Enum(['model', 'llama', 'corral']),
  target: Text('The model, the llama.cpp build, or the version of corral'),
  key: optional(Text('Key of the model')),
  from: optional(Text('The member that has the new revision')),
  digest: optional(Sha256('Of the new revision')),
  state: Type.Enum(['running', 'paused', 'undoing', 'done', 'failed', 'undone'], {
    description: 'paused: no further member is updated; failed: stopped, and the failed member was restored'
  }),
  note: optional(Text('Why it waits')),
  paused: optional(Text('Why it was paused, if nobody wanted it')),
  failure: optional(Text('Why it was stopped')),
  started_at: Time(),
  ended_at: optional(Time()),
  canary: optional(CanarySchema),
  ask: optional(Text('The question that updated members must answer')),
  expect: optional(Text('Text that the answer must contain')),
  nodes: Type.Array(NodeSchema)
})
export type Rollout = Static<typeof RolloutSchema>

/** Whether no step follows until somebody wants one. */
export const isEnded = ({ state }: Pick<Rollout, 'state'>): boolean => ['done', 'failed', 'undone'].includes(state)
