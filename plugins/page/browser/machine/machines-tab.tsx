import { useEffect, useState } from 'preact/hooks'
import type { MemberRecord, PlanStepRecord, ReplicasRecord } from '../../../../core/contracts/native-records.ts'
import { attempt, confirm, openDialog } from '../parts/controls.tsx'
import { formatAgo } from '../parts/formats.ts'
import { Actions, Button, Field, type FieldText, Form, Select } from '../parts/forms.tsx'
import { Card, Fault, joinFacts, Table } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { may, me } from '../state/me.ts'
import { fill, labelFor, plural, texts } from '../texts/texts.ts'

interface LinkedMachine {
  name: string
  may: 'ask' | 'pull' | 'administer'
  state: 'here' | 'absent' | 'refused'
  since?: string
  address?: string
  can_wake: boolean
}

interface LinkReply {
  name: string
  port: number
  addresses: string[]
  code?: { expires_at: string }
  machines: LinkedMachine[]
}

interface ClusterReply {
  members: MemberRecord[]
  replicas: ReplicasRecord[]
  plan: PlanStepRecord[]
  rollout?: { kind: string; target: string; state: string; note?: string; failure?: string }
}

const REFRESH_MS = 3000

/** The other computers that answer for this one: what they have, and what they do. */
export function MachinesTab() {
  const t = texts.value
  const { reply, fault, again } = useReply<LinkReply>('api/link')
  const nodes = useReply<ClusterReply>('api/cluster')
  const refresh = () => {
    again()
    nodes.again()
  }
  const link = () => {
    const body = (close: () => void) => (
      <LinkDialog
        onLinked={() => {
          close()
          refresh()
        }}
      />
    )
    openDialog(t.linkMachine, body, 'dialog-small')
  }
  useEffect(() => {
    const timer = setTimeout(refresh, REFRESH_MS)
    return () => clearTimeout(timer)
  })
  // A cluster need not have linked machines.
  if (fault && !nodes.reply) return <Fault text={fault.message} />
  const { machines = [] } = reply ?? {}
  const members = nodes.reply?.members ?? []
  const isAdmin = may('admin')
  const change = (work: () => Promise<unknown>) =>
    attempt(async () => {
      await work()
      refresh()
    })
  return (
    <>
      <div class="row">
        <p class="grow quiet">
          {t.machinesText} {!isAdmin && me.value?.more}
        </p>
        {isAdmin && reply && <Button kind="main" onClick={link} text={t.linkMachine} />}
      </div>
      <ul class="plain-list">
        {machines.map(machine => {
          const { name, state, since, address } = machine
          const remove = () =>
            confirm(fill(t.removeMachine, { name }), t.removeMachineText, t.remove, () =>
              change(() => ask('DELETE', pathOf(name)))
            )
          const facts = [t.machineStates[state], since && formatAgo(Date.parse(since)), address]
          const actions = (
            <>
              {state === 'absent' && machine.can_wake && (
                <Button onClick={() => change(() => ask('POST', `${pathOf(name)}/wake`))} text={t.wakeMachine} />
              )}
              {isAdmin && <Button kind="danger" onClick={remove} text={t.remove} />}
            </>
          )
          return (
            <Card key={name} title={name} facts={facts} actions={actions}>
              <NodeFacts node={members.find(node => node.name === name)} />
              {isAdmin && (
                <Select
                  class="row"
                  label={t.mayHere}
                  value={machine.may}
                  options={Object.entries(t.machineMay)}
                  onChange={({ currentTarget: { value } }) =>
                    void change(() => ask('PUT', pathOf(name), { body: { may: value } }))
                  }
                />
              )}
            </Card>
          )
        })}
        {members
          .filter(({ source }) => source !== 'link')
          .map(node => (
            <Card key={node.url} title={node.name} facts={[node.state, node.url]} fault={node.reason}>
              <NodeFacts node={node} />
            </Card>
          ))}
      </ul>
      {nodes.reply && <ClusterFacts cluster={nodes.reply} />}
    </>
  )
}

/** Which models the nodes should have, and what is being done about it. */
function ClusterFacts({ cluster: { replicas, plan, rollout } }: { cluster: ClusterReply }) {
  const t = texts.value
  const steps = replicas.map(({ model, mode }) =>
    plan.flatMap(step =>
      step.model === model && step.mode === mode ? `${labelFor(t.planActions, step.action)}: ${step.member}` : []
    )
  )
  return (
    <>
      {rollout && (
        <p class={rollout.failure ? 'is-error' : 'quiet'}>
          {fill(t.rollout, { target: rollout.target, state: labelFor(t.rolloutStates, rollout.state) })}{' '}
          {rollout.failure ?? rollout.note}
        </p>
      )}
      {replicas.length > 0 && (
        <>
          <h2 class="section-title">{t.replicas}</h2>
          <Table
            head={[t.model, t.wantedReplicas, t.loadedReplicas, t.machines, t.reason]}
            rows={replicas.map(({ model, wanted, loaded, members, reason }, index) => [
              model,
              wanted,
              loaded,
              members?.join(', '),
              [reason, ...steps[index]!].join('; ')
            ])}
          />
        </>
      )}
    </>
  )
}

const pathOf = (name: string) => `api/link/machines/${encodeURIComponent(name)}`

function NodeFacts({ node }: { node: MemberRecord | undefined }) {
  if (!node || node.state === 'away') return null
  const t = texts.value
  const { models, loaded, running, queued } = node
  return (
    <p class="quiet">
      {joinFacts([
        plural(t.nodeModels, models.length),
        loaded.length > 0 && fill(t.nodeLoaded, { models: loaded.join(', ') }),
        running + queued > 0 && plural(t.nodeRequests, running + queued),
        node.rollout
      ])}
    </p>
  )
}

/** Shows a code for the other machine, and takes the code of the other machine. */
function LinkDialog({ onLinked }: { onLinked: () => void }) {
  const t = texts.value
  const [code, setCode] = useState('')
  const [isSeen, setSeen] = useState(false)
  const { reply, again } = useReply<LinkReply>('api/link')
  useEffect(() => {
    if (code === '') return
    if (reply?.code) setSeen(true)
    else if (isSeen) return onLinked()
    const timer = setTimeout(again, 1000)
    return () => clearTimeout(timer)
  }, [reply, code])
  // A code that nobody sees any more must not be usable.
  useEffect(
    () => () => {
      if (code !== '') void ask('DELETE', 'api/link/code').catch(() => undefined)
    },
    [code]
  )
  const show = () =>
    attempt(async () => {
      setCode((await ask<{ code: string }>('POST', 'api/link/code')).code)
      again()
    })
  const enter = (text: FieldText) =>
    attempt(async () => {
      const host = text('host')
      await ask('POST', 'api/link/join', { body: { code: text('code'), ...(host && { host }) } })
      onLinked()
    })
  return (
    <div class="form">
      <p>{code === '' ? t.linkShowText : t.linkEnterThere}</p>
      {code === '' ? <Button onClick={show} text={t.showCode} /> : <code class="link-code">{code}</code>}
      {code === '' && (
        <Form class="form" onSubmit={enter}>
          <Field label={t.otherCode} name="code" required autocomplete="off" />
          <Field label={t.otherHost} name="host" autocomplete="off" placeholder="192.168.1.20" />
          <Actions>
            <Button kind="main" type="submit" text={t.linkMachine} />
          </Actions>
        </Form>
      )}
    </div>
  )
}
