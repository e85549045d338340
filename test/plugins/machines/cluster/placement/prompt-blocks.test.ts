import t from 'tap'
import type { EngineFields } from '../../../../../core/contracts/engines.ts'
import { promptBlocks } from '../../../../../plugins/machines/cluster/placement/prompt-blocks.ts'
import { randomBelow } from '../../../../support/random.ts'
import { trialCount } from '../../../../support/trial-count.ts'
import { digestsOf, MODEL, talk, text } from './support.ts'

/** Length of the common prefix of two prompts, by their digests. */
function common(one: EngineFields, other: EngineFields): number {
  const known = new Set(digestsOf(one).blocks.map(({ digest }) => digest))
  return Math.max(
    0,
    ...digestsOf(other)
      .blocks.filter(({ digest }) => known.has(digest))
      .map(({ end }) => end)
  )
}

t.test('a continued conversation keeps all earlier digests', async t => {
  const question = talk(text(700))
  const further = talk(text(700), text(3000, 1), 'and then?')
  t.equal(common(question, further), digestsOf(question).length, 'to the end of the earlier prompt')
  t.notOk(digestsOf(question).continued)
  t.ok(digestsOf(further).continued)
  t.equal(digestsOf(question).key, digestsOf(further).key, 'the conversation is the same')
  t.not(digestsOf(question).key, digestsOf(talk(text(700, 2))).key)
})

t.test('digests differ from the first difference of two prompts on', async t => {
  const messages = (content: unknown) => ({ messages: [{ role: 'user', content }] })
  const table: [what: string, one: EngineFields, other: EngineFields, least: number, most: number][] = [
    ['the same', talk('hello'), talk('hello'), 5, 100],
    ['another question', talk(text(2000)), talk(text(2000, 1)), 0, 100],
    ['the end of a question', talk(`${text(2000)}a`), talk(`${text(2000)}b`), 1500, 2000],
    [
      'the role',
      { messages: [{ role: 'system', content: 'x' }] },
      { messages: [{ role: 'user', content: 'x' }] },
      0,
      100
    ],
    ['one message or two', talk('a', 'b'), talk('ab'), 0, 100],
    ['tools', { ...talk('x'), tools: [{ name: 'one' }] }, { ...talk('x'), tools: [{ name: 'two' }] }, 0, 0],
    ['a field of the template', { ...talk('x'), chat_template_kwargs: { thinking: true } }, talk('x'), 0, 0],
    [
      'a field without effect on the prompt',
      { ...talk(text(500)), temperature: 1 },
      { ...talk(text(500)), stream: true },
      500,
      600
    ],
    ['a continued text', { prompt: text(5000) }, { prompt: text(9000) }, 4096, 5100],
    ['plain content and its parts', messages('hello'), messages([{ type: 'text', text: 'hello' }]), 5, 100]
  ]
  for (const [what, one, other, least, most] of table) {
    const found = common(one, other)
    t.ok(found >= least && found <= most, `${what}: ${found}`)
  }
})

t.test('images count by digest, and by the time that they take to read', async t => {
  const picture = (data: string) => ({
    messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: `data:image/png;base64,${data}` } }] }]
  })
  const one = picture(text(300_000))
  t.equal(common(one, picture(text(300_000))), digestsOf(one).length)
  t.ok(common(one, picture(text(300_000, 1))) < 100)
  t.ok(digestsOf(one).length > 2000 && digestsOf(one).length < 3000, `${digestsOf(one).length}`)
})

t.test('different owners and models share no digests', async t => {
  const request = talk(text(3000))
  const all = [
    { model: MODEL, owner: 'anna' },
    { model: MODEL, owner: 'ben' },
    { model: MODEL, owner: undefined },
    { model: 'other', owner: 'anna' }
  ].flatMap(scope => promptBlocks(request, { ...scope, session: 's' }))
  const digests = all.flatMap(({ blocks, session }) => [...blocks.map(({ digest }) => digest), session])
  t.equal(new Set(digests).size, digests.length)
})

t.test('later text does not change earlier digests, in random conversations', async t => {
  const below = randomBelow(11)
  const letters = ['a', 'ß', '🙂', '\u0001', '\u0002', '"', '\n', 'lorem ']
  const say = () => Array.from({ length: below(below(4) ? 40 : 900) }, () => letters[below(letters.length)]).join('')
  for (let trial = 0; trial < trialCount(300); trial++) {
    const said = Array.from({ length: 1 + 2 * below(4) }, say)
    const longer = [...said, say(), say()]
    const before = digestsOf(talk(...said))
    const after = digestsOf(talk(...longer))
    const beginning = after.blocks.slice(0, before.blocks.length)
    const digests = (blocks: typeof before.blocks) => blocks.map(({ digest, end }) => `${digest} ${end}`)
    if (digests(beginning).join() !== digests(before.blocks).join()) return t.fail(JSON.stringify(longer))
    // One character more or less makes another prompt from there on.
    const at = below(said.length)
    const changed = said.map((content, index) =>
      index === at ? `${content.slice(0, -1)}${content.endsWith('a') ? 'b' : 'a'}` : content
    )
    const other = digestsOf(talk(...changed))
    if (other.blocks.at(-1)!.digest === before.blocks.at(-1)!.digest) return t.fail(JSON.stringify([said, changed]))
  }
})
