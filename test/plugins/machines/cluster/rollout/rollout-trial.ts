import type { Test } from 'tap'
import { type Corral, until } from '../../../../support/corral.ts'
import type { NodeCorral } from '../support.ts'

/** An admin's key at each node. */
export const KEY = 'an-admin-key-of-the-nodes-0123456789'
export const LIMIT = 300_000
export const local = { local: true }

export const asNodes = (nodes: readonly Corral[], key = KEY): NodeCorral[] =>
  nodes.map(({ url }, index) => ({ name: `node-${index + 1}`, url, key }))

export const state = async (gateway: Corral): Promise<any> =>
  (await gateway.json('/api/cluster/rollout', undefined, local)).body.rollout
export const start = (gateway: Corral, body: object) => gateway.json('/api/cluster/rollout', body, local)
export const change = (gateway: Corral, action: string) =>
  gateway.json('/api/cluster/rollout', { action }, { ...local, method: 'PUT' })
export const untilState = (gateway: Corral, wanted: string) =>
  until(
    `the rollout is ${wanted}`,
    async () => {
      const rollout = await state(gateway)
      if (rollout.state === 'failed' && wanted !== 'failed') throw new Error(JSON.stringify(rollout))
      return rollout.state === wanted ? rollout : undefined
    },
    LIMIT
  )
export const phases = async (gateway: Corral) => (await state(gateway)).nodes.map(({ phase }: any) => phase)
export const untilDone = (gateway: Corral, count: number) =>
  until(
    `${count} members are done`,
    async () => (await phases(gateway)).filter((phase: string) => phase === 'done').length === count,
    LIMIT
  )
/** Clients that stream one answer after the other. @returns stops them, and returns how their answers ended */
export function clients(t: Test, gateway: () => Corral, model: string, count = 4) {
  let isOver = false
  t.teardown(() => {
    isOver = true
  })
  const ends = new Map<string, number>()
  const all = Array.from({ length: count }, async (_, client) => {
    for (let turn = 0; !isOver; turn++) {
      const messages = [{ role: 'user', content: `Count, ${client} ${turn}.` }]
      const asked = { model, messages, ignore_eos: true, max_tokens: 60, stream: true }
      let end: string
      try {
        const reply = await gateway().send('/v1/chat/completions', asked)
        const text = await reply.text()
        end = text.includes('data: [DONE]') && !text.includes('"error"') ? 'whole' : text.slice(-300)
      } catch (error) {
        end = String(error)
      }
      ends.set(end, (ends.get(end) ?? 0) + 1)
    }
  })
  return {
    total: () => [...ends.values()].reduce((sum, count) => sum + count, 0),
    async stop(): Promise<string[]> {
      isOver = true
      await Promise.all(all)
      return [...ends.keys()]
    }
  }
}
