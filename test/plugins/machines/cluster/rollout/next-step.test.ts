import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { packageRoot } from '../../../../../core/system/package-info.ts'
import { acceptedFiles } from '../../../../../plugins/machines/cluster/nodes/nodes.ts'
import {
  isInCanary,
  judgeAnswer,
  type NodeFacts,
  nextStep
} from '../../../../../plugins/machines/cluster/rollout/next-step.ts'
import type { Rollout } from '../../../../../plugins/machines/cluster/rollout/rollout-record.ts'

interface Case {
  /** What the case shows. */
  that: string
  rollout?: Partial<Rollout>
  /** Nodes: phase, marks (out, applied, back), state, and minutes since then. */
  nodes: string[]
  /** The step, the number of its node if any, and a part of its reason if any. */
  step: string
}

const NOW = Date.parse('2026-01-02T03:04:05Z')
const file = join(packageRoot, 'test', 'fixtures', 'cluster', 'rollout-steps.yaml')
const cases: Case[] = parse(readFileSync(file, 'utf8'))

for (const { that, rollout = {}, nodes, step } of cases) {
  t.test(that, async t => {
    const facts = new Map<string, NodeFacts>()
    const listed = nodes.map((text, index) => {
      const name = `node-${index + 1}`
      const [phase, ...words] = text.split(' ')
      const state = words.find(word => ['draining', 'away'].includes(word)) as 'draining' | 'away' | undefined
      const minutes = Number(words.find(word => /^\d+$/.test(word)) ?? 0)
      if (!words.includes('gone')) facts.set(name, { state: state ?? 'up', since: NOW - minutes * 60_000 })
      const has = (mark: string) => words.includes(mark)
      return { name, phase, out: has('out'), applied: has('applied'), back: has('back') }
    })
    const found = nextStep(
      { id: 'r', kind: 'model', state: 'running', ...rollout, nodes: listed } as Rollout,
      facts,
      NOW
    )
    const place = 'node' in found ? ` ${found.node.name}` : ''
    const why = 'why' in found ? `: ${found.why}` : 'state' in found ? ` ${found.state}` : ''
    t.equal(found.do + place + why, step)
  })
}

t.test('a canary takes its share of conversations, and each conversation stays', async t => {
  const rollout = { id: 'r', canary: { share: 0.1, key: 'tester', over: false } }
  const taken = (key?: string) =>
    Array.from({ length: 5000 }, (_, conversation) => isInCanary(rollout, { key, conversation: conversation * 7919 }))
  const share = taken().filter(Boolean).length / 5000
  t.ok(share > 0.08 && share < 0.12, String(share))
  t.same(taken(), taken())
  t.ok(taken('tester').every(Boolean))
  t.notSame(
    taken(),
    Array.from({ length: 5000 }, (_, at) =>
      isInCanary({ ...rollout, id: 'other' }, { key: undefined, conversation: at * 7919 })
    )
  )
})

t.test('answers are judged', async t => {
  const judge = (text: string, expect?: string) => judgeAnswer(text, expect) ?? 'good'
  t.equal(judge('Paris'), 'good')
  t.equal(judge('Paris.', 'paris'), 'good')
  t.match(judge('Rome.', 'Paris'), /does not contain "Paris": "Rome\."/)
  t.match(judge('GGGGGGGGGGGG'), /repeats itself/)
  t.match(judge(' \n '), /empty/)
  t.match(judge('a\ufffdb'), /not a text/)
  t.ok(judge('x'.repeat(10_000)).length < 300)
})

t.test('both revisions of a node that has both count, and others by majority', async t => {
  const node = (models: Record<string, string>) => ({
    models: new Map(Object.entries(models).map(([key, digest]) => [key, { key, digest }]))
  })
  const accepted = (...members: ReturnType<typeof node>[]) => {
    const found = acceptedFiles(
      members.flatMap(({ models }) => [...models.values()]),
      members
    )
    return Object.fromEntries([...found].map(([key, digests]) => [key, [...digests].sort().join()]))
  }
  t.same(accepted(node({ a: 'old' }), node({ a: 'old' }), node({ a: 'new' })), { a: 'old' })
  t.same(accepted(node({ a: 'old' }), node({ a: 'old' }), node({ a: 'new', 'a-rollout': 'old' })), { a: 'new,old' })
  t.same(accepted(node({ a: 'old' }), node({ a: 'old', 'a-rollout': 'new' }), node({ a: 'x' })), { a: 'new,old' })
})
