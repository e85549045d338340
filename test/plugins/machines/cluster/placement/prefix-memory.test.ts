import t from 'tap'
import { PrefixMemory } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import { digestsOf, MODEL, talk, text } from './support.ts'

const reader = (member: string, more: object = {}) => ({ member, model: MODEL, slots: 2, context: 4096, ...more })

t.test('a member is found by continuations and by shared prefixes', async t => {
  const memory = new PrefixMemory()
  const first = digestsOf(talk(text(3000)))
  memory.read(reader('a'), first, 0)
  const further = memory.find(digestsOf(talk(text(3000), 'yes', 'and then?')))
  t.same(further.longest(9), ['a'])
  t.equal(further.common('a'), first.length)
  t.ok(further.goesOn('a'))
  t.equal(further.common('b'), 0)
  const similar = memory.find(digestsOf(talk(`${text(2500)} something else`)))
  t.ok(similar.common('a') >= 2048)
  t.notOk(similar.goesOn('a'))
  t.same(memory.find(digestsOf(talk(text(3000, 1)))).longest(9), [])
})

t.test('longest returns members that know most first', async t => {
  const memory = new PrefixMemory()
  const [one, two, three] = [talk('hi'), talk('hi', text(500), 'on'), talk('hi', text(500), 'on', text(500), 'more')]
  memory.read(reader('a'), digestsOf(one), 0)
  memory.read(reader('c'), digestsOf(three), 0)
  memory.read(reader('b'), digestsOf(two), 0)
  const found = memory.find(digestsOf(talk('hi', text(500), 'on', text(500), 'more', 'x', 'y')))
  t.same(found.longest(9), ['c', 'b', 'a'])
  t.same(found.longest(2), ['c', 'b'])
})

t.test('a conversation replaces the one that it continues', async t => {
  const memory = new PrefixMemory()
  const said = [text(400)]
  for (let turn = 0; turn < 20; turn++) {
    memory.read(reader('a'), digestsOf(talk(...said)), turn)
    said.push(text(200, turn), 'on')
  }
  t.equal(memory.size.sequences, 1)
  t.equal(memory.held('a', MODEL), 1)
  t.equal(memory.oldest('a', MODEL, 100), Number.POSITIVE_INFINITY, 'a slot is empty')
})

t.test('a member is not believed to hold more than its slots can', async t => {
  const memory = new PrefixMemory()
  const prompts = Array.from({ length: 30 }, (_, index) => digestsOf(talk(text(4000, index + 1))))
  for (const [index, prompt] of prompts.entries()) memory.read(reader('a'), prompt, index)
  t.equal(memory.held('a', MODEL), 8, '2 slots × 4096 tokens of 4 characters')
  t.equal(memory.oldest('a', MODEL, 100), 72, 'of the two in its slots')
  t.equal(memory.find(prompts[21]!).common('a'), 0)
  t.equal(memory.find(prompts[22]!).common('a'), prompts[22]!.length, 'perhaps in a cache beside its slots')
  t.notOk(memory.find(prompts[22]!).goesOn('a'))
  t.ok(memory.find(prompts[28]!).goesOn('a'), 'in a slot')
})

t.test('a member that stores conversations holds more, also after an unload', async t => {
  const memory = new PrefixMemory()
  const prompts = Array.from({ length: 30 }, (_, index) => digestsOf(talk(text(4000, index + 1))))
  // Each has about 1000 tokens.
  for (const [index, prompt] of prompts.entries())
    memory.read(reader('a', { storedTokens: Math.max(0, index - 2) * 1000 }), prompt, index)
  t.equal(memory.held('a', MODEL), 30)
  t.equal(memory.find(prompts[0]!).common('a'), prompts[0]!.length)
  memory.emptySlots('a', MODEL)
  memory.emptySlots('nobody', MODEL)
  t.equal(memory.find(prompts[29]!).common('a'), prompts[29]!.length)
  t.notOk(memory.find(prompts[29]!).goesOn('a'), 'it is in no slot')
  memory.forget('a')
  t.same(memory.size, { sequences: 0, digests: 0 })
})

t.test('all members share the memory, and forget leaves nothing behind', async t => {
  const memory = new PrefixMemory(40)
  const large = { slots: 8, context: 1e6 }
  const read = (member: string, index: number) =>
    memory.read(reader(member, large), digestsOf(talk(text(300, index)), `${index}`), index)
  for (let index = 0; index < 100; index++) read('a', index)
  t.equal(memory.size.sequences, 40)
  for (let index = 0; index < 100; index++) read('b', index)
  t.ok(memory.size.sequences <= 40, `${memory.size.sequences}`)
  t.equal(memory.held('b', MODEL), 20)
  memory.read({ member: 'b', model: 'other', slots: 1, context: 4096 }, digestsOf(talk('x')), 0)
  memory.forget('b', MODEL)
  t.equal(memory.held('b', 'other'), 1)
  memory.forget('b')
  memory.forget('a')
  memory.forget('nobody')
  t.same(memory.size, { sequences: 0, digests: 0 })
})

t.test('a session is where its last request went', async t => {
  const memory = new PrefixMemory()
  memory.read(reader('a'), digestsOf(talk('one thing'), 's'), 0)
  t.ok(memory.find(digestsOf(talk('something else'), 's')).hasSession('a'))
  t.notOk(memory.find(digestsOf(talk('something else'), 't')).hasSession('a'))
  t.notOk(memory.find(digestsOf(talk('one thing'))).hasSession('a'))
})
