import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { Chat, Message } from '../../../plugins/page/browser/state/chat-format.ts'
import { groupChats, startOfDay } from '../../../plugins/page/browser/state/chat-groups.ts'
import { passageIn, patternOf } from '../../../plugins/page/browser/state/chat-search.ts'
import { requestMessages, summaryEnd, withSummary } from '../../../plugins/page/browser/state/conversation-tree.ts'
import {
  type ChatDocument,
  isSameChat,
  mergeChats,
  withChange
} from '../../../plugins/page/browser/state/merge-chats.ts'
import { randomBelow } from '../../support/random.ts'

const ORIGIN: ChatDocument = {
  chat: { id: 'c', title: 'First', leaf: 'm1', createdAt: 1, updatedAt: 10 },
  messages: [
    { id: 'm0', chat: 'c', role: 'user', content: 'Question', at: 9 },
    { id: 'm1', chat: 'c', parent: 'm0', role: 'assistant', content: 'Answer', at: 10 }
  ]
}
const changed = ({ chat, messages }: ChatDocument, change: Partial<Chat>, now: number): ChatDocument => ({
  chat: withChange(chat, change, now),
  messages
})
const said = (document: ChatDocument, id: string, now: number, parent = 'm1'): ChatDocument => ({
  ...changed(document, { leaf: id, updatedAt: now }, now),
  messages: [...document.messages, { id, chat: 'c', parent, role: 'user', content: id, at: now }]
})
const deleted = ({ chat, messages }: ChatDocument, id: string, now: number): ChatDocument => ({
  chat: withChange(chat, { gone: { ...chat.gone, [id]: now } }, now),
  messages: messages.filter(message => message.id !== id)
})
const edited = ({ chat, messages }: ChatDocument, id: string, content: string, now: number): ChatDocument => ({
  chat: withChange(chat, {}, now),
  messages: messages.map(message => (message.id === id ? { ...message, content, rev: now } : message))
})
const ids = ({ messages }: ChatDocument) => messages.map(({ id }) => id)

t.test('merging keeps the changes of both browsers', async t => {
  const a = changed(
    changed(changed(ORIGIN, { title: 'Renamed' }, 20), { pinned: true }, 21),
    { system: 'Be brief.' },
    22
  )
  const b = said(ORIGIN, 'm2', 30)
  const merged = mergeChats(a, b)
  t.match(merged.chat, { title: 'Renamed', pinned: true, system: 'Be brief.', leaf: 'm2', updatedAt: 30 })
  t.same(ids(merged), ['m0', 'm1', 'm2'])

  t.comment('the later change wins, even if the clock was set back')
  const later = changed(changed(ORIGIN, { title: 'Second' }, 1000), { title: 'Third' }, 5)
  t.equal(mergeChats(changed(ORIGIN, { title: 'Second' }, 1000), later).chat.title, 'Third')
  t.equal(mergeChats(changed(a, { pinned: false }, 40), b).chat.pinned, false)
  t.equal('system' in mergeChats(changed(a, { system: undefined } as never, 40), a).chat, false, 'a removed setting')
})

t.test('a deleted message stays deleted, and messages after it stay', async t => {
  const gone = deleted(ORIGIN, 'm1', 20)
  t.same(ids(mergeChats(gone, ORIGIN)), ['m0'])
  t.same(ids(mergeChats(gone, said(ORIGIN, 'm2', 30))), ['m0', 'm2'])
  t.same(ids(mergeChats(gone, edited(ORIGIN, 'm1', 'Better', 15))), ['m0'])
})

t.test('edited messages win over longer ones, longer answers over shorter ones', async t => {
  const short = edited(ORIGIN, 'm1', 'No', 20)
  t.equal(mergeChats(short, ORIGIN).messages[1]!.content, 'No')
  const growing = {
    ...ORIGIN,
    messages: ORIGIN.messages.map(each => ({ ...each, content: `${each.content} and more` }))
  }
  t.equal(mergeChats(growing, ORIGIN).messages[1]!.content, 'Answer and more')
  const waiting: ChatDocument = {
    ...ORIGIN,
    messages: ORIGIN.messages.map(each => ({ ...each, state: 'answering' as const }))
  }
  t.equal(mergeChats(waiting, ORIGIN).messages[1]!.state, undefined, 'a complete answer wins')
})

t.test('without times of fields, the chat with the later message wins', async t => {
  const older = { ...ORIGIN, chat: { ...ORIGIN.chat, title: 'Older', pinned: true } }
  const newer = { ...ORIGIN, chat: { ...ORIGIN.chat, title: 'Newer', updatedAt: 11 } }
  t.match(mergeChats(older, newer).chat, { title: 'Newer', updatedAt: 11 })
  t.equal(mergeChats(older, newer).chat.pinned, undefined)
})

/** Makes a browser's version after some changes. Their times are close, so that some are equal. */
function randomBrowser(next: (bound: number) => number): ChatDocument {
  let document = ORIGIN
  for (let count = next(9); count > 0; count--) {
    const now = 11 + next(30)
    const text = 'abc'.slice(next(3))
    const message = document.messages[next(4)]?.id ?? 'm0'
    const changes = [
      () => changed(document, { title: text }, now),
      () => changed(document, { pinned: next(2) === 1 }, now),
      () => said(document, `n${next(1_000_000)}`, now),
      () => deleted(document, message, now),
      () => edited(document, message, text, now)
    ]
    document = changes[next(changes.length)]!()
  }
  return document
}

t.test('merging is commutative, associative and idempotent, and loses nothing', async t => {
  for (let seed = 0; seed < 2000; seed++) {
    const next = randomBelow(seed)
    const [a, b, c] = [randomBrowser(next), randomBrowser(next), randomBrowser(next)]
    const merged = mergeChats(a, b)
    const isGone = ({ id, rev = 0 }: Message) => Math.max(a.chat.gone?.[id] ?? 0, b.chat.gone?.[id] ?? 0) > rev
    const kept = new Set(ids(merged))
    const faults = Object.entries({
      commutative: isSameChat(merged, mergeChats(b, a)),
      associative: isSameChat(mergeChats(merged, c), mergeChats(a, mergeChats(b, c))),
      absorbing: isSameChat(mergeChats(merged, a), merged),
      idempotent: isSameChat(mergeChats(a, a), a),
      'nothing lost': [...a.messages, ...b.messages].every(message => isGone(message) !== kept.has(message.id))
    }).filter(([, holds]) => !holds)
    t.strictSame(faults, [], `seed ${seed}`)
    if (faults.length > 0) break
  }
})

t.test('chats are grouped by local days, over changes of the clock and in any time zone', async t => {
  const before = process.env.TZ
  t.teardown(() => {
    if (before === undefined) delete process.env.TZ
    else process.env.TZ = before
  })
  for (const [zone, clock, last, groups] of [
    // The clock was set back in the night from Saturday to Sunday.
    ['Europe/Berlin', '2026-10-26T00:10', '2026-10-25T00:00', 'today yesterday yesterday week month 2026-9'],
    ['Pacific/Kiritimati', '2026-01-01T00:01', '2025-12-31T00:00', 'today yesterday yesterday week month 2025-11'],
    // The clock is set forward at midnight, so the day begins at one.
    ['America/Asuncion', '2024-10-06T01:30', '2024-10-05T00:00', 'today yesterday yesterday week month 2024-8']
  ] as const) {
    process.env.TZ = zone
    const now = startOfDay(Date.parse(clock))
    const yesterday = Date.parse(last)
    const ages = [now, now - 1, yesterday, yesterday - 1, startOfDay(now, 7) - 1]
    const chats = ages.map(updatedAt => ({ ...ORIGIN.chat, updatedAt }))
    const found = groupChats(chats, now).flatMap(({ name, at, chats }) =>
      chats.map(() => (name === 'month' ? `month ${new Date(at).getFullYear()}-${new Date(at).getMonth()}` : name))
    )
    t.equal(found.join(' '), groups, zone)
  }
  const odd = [1e300, -1e300].map(updatedAt => ({ ...ORIGIN.chat, updatedAt }))
  const pinned = { ...ORIGIN.chat, pinned: true }
  t.strictSame(
    groupChats([pinned, ...odd], Date.now()).map(({ name, at }) => [name, Number.isFinite(at) && at <= 1e300]),
    [
      ['pinned', true],
      ['today', true],
      ['month', true]
    ]
  )
})

t.test('passages begin with a whole word and contain the match', async t => {
  for (const [wanted, text, passage] of [
    ['NEEDLE', 'A needle.', 'A needle.'],
    ['a  b', 'x\na\n b', 'x a b'],
    ['x', 'x', undefined],
    ['(a+)+$.*', 'It is (a+)+$.*, or not', 'It is (a+)+$.*, or not'],
    ['straße', 'İİİ Straße', 'İİİ Straße'],
    ['needle', `${'word '.repeat(20)}needle`, `…${'word '.repeat(5)}needle`],
    ['针', `${'干草'.repeat(40)}针 `, undefined],
    ['针头', `${'干草'.repeat(40)}针头`, `…${'干草'.repeat(15)}针头`],
    ['needle', `${'👍'.repeat(40)}needle${'👍'.repeat(100)}`, `…${'👍'.repeat(15)}needle${'👍'.repeat(72)}`]
  ] as const) {
    const pattern = patternOf(wanted)
    t.equal(pattern && passageIn(text, pattern), passage, wanted)
    if (passage) t.equal(passage.split(pattern!).length, 3, `${wanted} is marked`)
  }
})

t.test('a summary leaves the last question, and as many others as a quarter of the text holds', async t => {
  const branch = (...sizes: number[]): Message[] =>
    sizes.map((size, at) => ({
      id: `${at}`,
      chat: 'c',
      role: at % 2 ? 'assistant' : 'user',
      content: 'x'.repeat(size),
      at
    }))
  const summarized = (messages: Message[], end: number) => messages.with(end, { ...messages[end]!, summary: 'All.' })
  for (const [messages, end] of [
    [branch(10, 10, 10, 10), 1],
    [branch(10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10), 11],
    [branch(10, 10, 900, 900), 1],
    [branch(10, 10, 10), 1],
    [branch(10, 10), 1],
    [branch(10), -1],
    [branch(10, 0, 10, 0), -1],
    [branch(), -1],
    [summarized(branch(10, 10, 10, 10, 10, 10), 1), 3],
    [summarized(branch(10, 10, 10), 1), -1]
  ] as const) {
    t.equal(summaryEnd(messages), end, messages.map(({ content }) => content.length).join())
  }
  const asked = requestMessages(withSummary(summarized(branch(1, 2, 3), 1)), 'Be brief.', false) as {
    role: string
    content: string
  }[]
  t.strictSame(
    asked.map(({ role, content }) => `${role} ${content.slice(0, 7)}`),
    ['system Be brie', 'user Summary', 'assistant I will ', 'user xxx']
  )
})

type Texts = { [name: string]: string | Texts }

/** Lists the texts of a language with their placeholders. */
function placeholders(language: string): string[] {
  const path = join(packageRoot, 'plugins', 'page', 'browser', 'texts', `${language}.json`)
  const list = (texts: Texts, prefix: string): string[] =>
    Object.entries(texts).flatMap(([name, text]) =>
      typeof text === 'string'
        ? `${prefix}${name}: ${[...new Set(text.match(/\{\w+\}/g))].sort().join()}`
        : list(text, `${prefix}${name}.`)
    )
  return list(JSON.parse(readFileSync(path, 'utf8')), '').filter(line => !line.includes('.one:'))
}

t.test('every language has the same texts with the same placeholders', async t => {
  t.strictSame(placeholders('zh'), placeholders('en'))
})
