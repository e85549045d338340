import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  utimesSync,
  writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import t from 'tap'
import type { SavedState } from '../../../../runtimes/llama-server/prompt-cache/retention.ts'
import {
  addWindowCell,
  computeChecksum,
  readParts,
  rewriteForStreams
} from '../../../../runtimes/llama-server/prompt-cache/state-file.ts'
import { openStateStore } from '../../../../runtimes/llama-server/prompt-cache/state-store.ts'
import { getTrail } from '../../../../runtimes/llama-server/prompt-cache/trail.ts'
import { thorough } from '../../../support/thorough.ts'
import { NEVER } from './support.ts'

const words = (...values: number[]) => Buffer.from(Int32Array.from(values).buffer)
const TOKENS = Array.from({ length: 100 }, (_, i) => i + 3)

/**
 * The part of a cache: the cells from `first` on in one of several streams, with one layer of 8-byte rows.
 * @param place words that say where in an image a cell is, and its token
 */
function part({ first = 0, streams = 1, stream = 0, place = [] as number[] } = {}) {
  const rows = 100 - first
  const cells = Array.from({ length: rows }, (_, i) => [first + i, 1, ...place, 0]).flat()
  const row = (value: number) => [1, 8, 0, ...Array.from({ length: 2 * rows }, (_, i) => value + i)]
  const counts = Array.from({ length: streams }, (_, i) =>
    i === stream ? [rows, ...cells, 0, 1, ...row(500), ...row(900)] : [0]
  )
  return words(streams, ...counts.flat())
}

/** The states of two recurrent layers. */
const STATES = words(1, 99, 0, 0, 2, ...[0, 8, 0, 1, 2], ...[0, 8, 0, 3, 4], ...[0, 4, 0, 5], ...[0, 0, 0])

/** A file as llama-server writes it. */
function stateFile(parts: Buffer[], tokens = TOKENS) {
  const list = [-1, 1, tokens.length, ...tokens, 0]
  return Buffer.concat([words(0x67677371, 3, list.length, ...list), ...parts])
}

t.test('the prompt cache reads, checks and rewrites the files of slots', async t => {
  const dir = t.testdir()
  const write = (name: string, bytes: Buffer) => {
    writeFileSync(join(dir, name), bytes)
    return join(dir, name)
  }
  const rewrites = [
    ['full', (streams: number, stream = 0) => stateFile([part({ streams, stream })])],
    [
      'windowed',
      (streams: number, stream = 0) => stateFile([part({ streams, stream }), part({ first: 90, streams, stream })])
    ],
    ['recurrent', (streams: number, stream = 0) => stateFile([part({ streams, stream, place: [7, 8, 9] }), STATES])]
  ] as const
  for (const [kind, make] of rewrites) {
    const third = write(kind, make(4, 2))
    const parts = (await readParts(third, kind))!
    t.match(parts, [{ streams: 4 }])
    for (const streams of [1, 2, 8]) {
      const path = join(dir, `${kind}-${streams}`)
      await rewriteForStreams(third, path, parts, streams, NEVER)
      t.same(readFileSync(path), make(streams), `${kind}, ${streams} slots: it equals the file of such an engine`)
      t.equal(statSync(path).mode & 0o777, 0o600)
    }
    const late = AbortSignal.abort(new Error('no time'))
    await t.rejects(rewriteForStreams(third, join(dir, 'late'), parts, 2, late), { message: 'no time' })
  }

  t.ok(await readParts(write('d', words(0x67677371, 2, 3, 5, 6, 7, 1, 3, 1, 2, 3)), 'full'), 'version 2')
  t.same(await readParts(write('r', stateFile([STATES])), 'recurrent'), [], 'without attention there are no streams')
  for (const [name, rest] of [
    ['no states', words(9)],
    ['states that are cut', Buffer.concat([part(), STATES.subarray(0, -4)])],
    ['something after the states', Buffer.concat([part(), STATES, words(1)])]
  ] as const) {
    t.equal(await readParts(write('s', stateFile([rest])), 'recurrent'), undefined, name)
  }

  const whole = stateFile([part({ streams: 4, stream: 2 })])
  const strange: [string, Buffer][] = [
    ['empty', Buffer.alloc(0)],
    ['another version', Buffer.from(whole).fill(9, 4, 5)],
    ['another mark', Buffer.from(whole).fill(9, 0, 1)],
    ['truncated within the tokens', whole.subarray(0, 100)],
    ['truncated within the counts', whole.subarray(0, 440)],
    ['cells after the last stream', Buffer.concat([whole, Buffer.from([1, 2, 3, 4])])],
    ['no cells', stateFile([part({ streams: 2, stream: 5 })])],
    ['more tokens than any context', Buffer.from(whole).fill(255, 8, 12)]
  ]
  for (const [name, bytes] of strange) t.equal(await readParts(write('e', bytes), 'full'), undefined, name)
  t.same(await computeChecksum(write('w', whole), NEVER), { size: whole.length, crc32: crc32(whole) })
})

t.test('the prompt cache adds a cell before the window of a state', async t => {
  const dir = t.testdir()
  const [source, target] = [join(dir, 'source'), join(dir, 'target')]
  const add = async (bytes: Buffer, window: number) => {
    writeFileSync(source, bytes)
    return await addWindowCell(source, target, TOKENS.length, window, NEVER)
  }
  t.ok(await add(stateFile([part(), part({ first: 90 })]), 10))
  const expected = part({ first: 89 })
  // The first row of the keys and of the values is empty, and the others follow.
  const at = 4 + 4 + 11 * 12 + 8
  const [keys, values] = [at + 12, at + 12 + 11 * 8 + 12]
  const moved = part({ first: 90 })
  for (const [to, from] of [
    [keys, at - 12 + 12],
    [values, at - 12 + 12 + 10 * 8 + 12]
  ] as const) {
    expected.fill(0, to, to + 8)
    moved.copy(expected, to + 8, from, from + 10 * 8)
  }
  t.same(readFileSync(target), stateFile([part(), expected]))

  t.notOk(await add(stateFile([part(), part({ first: 90 })]), 20), 'the engine has another window')
  t.notOk(await add(stateFile([part(), part()]), 100), 'the conversation is no longer than the window')
  t.notOk(await add(stateFile([part()]), 10), 'there is no second cache')
  t.notOk(await add(stateFile([part(), part({ first: 90 }), words(1)]), 10), 'something follows')
  t.notOk(await add(stateFile([part(), part({ first: 90 }).subarray(0, -8)]), 10), 'it is cut')
})

/** A store with states in memory and on disk. */
async function open(root: string, { memory = 1000, disk = 1000, inMemory = true } = {}) {
  const warnings: string[] = []
  const store = await openStateStore({
    directory: join(root, 'disk'),
    memoryDirectory: inMemory ? join(root, 'memory') : undefined,
    memoryBudget: async () => memory,
    budget: disk,
    log: { debug: () => {}, warn: (_, message) => warnings.push(message) }
  })
  let clock = Date.now() - 1e6
  const put = async (variant: string, bytes: number, owner = 'a', more: Partial<SavedState> = {}) => {
    await store.open(variant)
    const room = await store.reserve(variant, bytes, owner)
    if (!room) throw new Error('no room')
    writeFileSync(room.path, Buffer.alloc(bytes, 7))
    room.release()
    const { id, tier } = room
    const trail = getTrail({ prompt: id })
    const state: SavedState = {
      id,
      tier,
      variant,
      owner,
      trail,
      bytes,
      key: 'k',
      revision: '1',
      tokens: 100,
      slots: 1,
      usedAt: ++clock,
      ...more
    }
    await store.add(state)
    await store.seal(state, NEVER)
    return state
  }
  return { store, put, warnings }
}

/** All files below a folder, except the records. */
const list = (root: string): string[] =>
  existsSync(root)
    ? readdirSync(root, { recursive: true, withFileTypes: true }).flatMap(entry =>
        entry.isFile() && !entry.name.endsWith('.json') ? [entry.name] : []
      )
    : []

t.test('the prompt cache stores states in memory, then on disk, within both budgets', async t => {
  const root = t.testdir()
  const { store, put } = await open(root)
  t.same(readdirSync(root), [], 'nothing is created before it is needed')
  const a = await put('x/a', 400)
  const b = await put('x/b', 400)
  t.same([a.tier, b.tier], ['memory', 'memory'])
  for (const [path, mode] of [
    [join(root, 'disk'), 0o700],
    [join(root, 'memory', readdirSync(join(root, 'memory'))[0]!), 0o700]
  ] as const) {
    t.equal(statSync(path).mode & 0o777, mode)
  }
  const c = await put('x/a', 400)
  t.same([a.tier, b.tier, c.tier], ['disk', 'memory', 'memory'], 'the least valuable one moved to the disk')
  t.equal(await store.verify(a, NEVER).then(path => statSync(path).size), 400)
  t.same([store.getUse('memory'), store.getUse('disk')], [800, 400])
  t.equal(await store.reserve('x/a', 1001, 'a'), undefined, 'more than any budget')
  t.same(store.list().length, 3, 'nothing was deleted for it')

  await store.shrinkMemory(0)
  t.equal(store.getUse('memory'), 0)
  t.same(new Set(store.list().map(({ tier }) => tier)), new Set(['disk']))
  t.ok(store.getUse('disk') <= 1000, 'a model gets the memory, and the disk keeps its budget')
  t.equal(list(join(root, 'memory')).length, 0)
  await store.remove(store.list())
  t.same([...list(join(root, 'disk')), ...list(join(root, 'memory'))], [], 'nothing is left after a removal')
})

t.test('the prompt cache keeps the earlier turn of a conversation until the next one survives a restart', async t => {
  const root = t.testdir()
  const { store, put } = await open(root, { inMemory: false })
  const prompt = 'a long conversation '.repeat(30)
  const first = await put('x/a', 100, 'a', { trail: getTrail({ prompt }) })
  const others = [await put('x/a', 100, 'b', { trail: first.trail }), await put('x/a', 100, 'a', { key: 'other' })]
  const addTurn = async (turn: number): Promise<SavedState> => {
    const room = (await store.reserve('x/a', 100, 'a'))!
    writeFileSync(room.path, Buffer.alloc(100, turn))
    room.release()
    const trail = getTrail({ prompt: prompt.repeat(turn) })
    const state = { ...first, id: room.id, trail, crc32: undefined, usedAt: first.usedAt + turn }
    await store.add(state)
    return state
  }
  const second = await addTurn(2)
  const third = await addTurn(3)
  t.same(store.list(), [first, ...others, third], 'a state that would not survive a restart is replaced immediately')
  const restarted = await open(root, { inMemory: false })
  t.ok(restarted.store.has(first), 'after a kill')
  t.notOk(restarted.store.has(second) || restarted.store.has(third))
  await t.rejects(store.seal(third, NEVER), 'the restart has deleted it')
  const fourth = await addTurn(4)
  await store.seal(fourth, NEVER)
  t.same(store.list(), [...others, fourth], 'only its own earlier turns are deleted')
})

t.test('the prompt cache finds its states again after a restart', async t => {
  const root = t.testdir()
  const first = await open(root, { memory: 500 })
  const a = await first.put('x/a', 300)
  const b = await first.put('x/a', 300, 'b')
  t.same([a.tier, b.tier], ['disk', 'memory'])
  const folder = await first.store.open('x/a')
  writeFileSync(join(folder, '0123456789abcdef.slot'), 'an interrupted save')
  writeFileSync(join(root, 'disk', 'stray'), '')
  mkdirSync(join(root, 'disk', 'f'.repeat(32)))
  writeFileSync(join(root, 'disk', 'f'.repeat(32), 'manifest.json'), 'of an earlier version')
  const second = await open(root, { memory: 500 })
  const get = (id: string) => second.store.list().find(state => state.id === id)
  t.match(get(a.id), { owner: 'a', tier: 'disk', crc32: a.crc32 })
  t.match(get(b.id), { owner: 'b', tier: 'memory' })
  t.same(second.store.find('x/a', 'b').length, 1, 'by owner')
  t.same(list(root).sort(), [`${a.id}.slot`, `${b.id}.slot`].sort(), 'everything else is gone')
  t.equal(await second.store.verify(get(a.id)!, NEVER).then(existsSync), true, 'its checksum is right')

  const damages: [string, (path: string) => void][] = [
    ['flipped', path => writeFileSync(path, Buffer.alloc(300, 8))],
    [
      'flipped, with its old time',
      path => {
        writeFileSync(path, Buffer.alloc(300, 9))
        utimesSync(path, new Date(0), new Date(0))
      }
    ]
  ]
  for (const [what, damage] of damages) {
    damage(join(root, 'disk', folder.slice(-32), `${a.id}.slot`))
    await t.rejects(second.store.verify(get(a.id)!, NEVER), { message: 'the file is damaged' }, what)
  }
  truncateSync(join(root, 'disk', folder.slice(-32), `${a.id}.slot`), 10)
  writeFileSync(join(root, 'disk', folder.slice(-32), `${b.id}.json`), '{"version":2')
  const third = await open(root)
  t.same(third.store.list(), [], 'a shortened file and a damaged record are gone')
  t.equal(third.warnings.length, 1)
  t.same(list(root), [])
  const fourth = await open(root)
  await fourth.put('x/a', 100)
  t.same((await open(root, { inMemory: false })).store.list(), [], 'without memory its states are gone')
  await fourth.put('x/a', 100)
  await open(root, { disk: 0 })
  t.same(list(join(root, 'disk')), [], 'without a budget nothing stays')
})

t.test('several engines use a file on disk at once, and deleted folders are made again', async t => {
  const root = t.testdir()
  const { store, put } = await open(root, { memory: 0 })
  const state = await put('x/a', 100)
  const [one, other] = await Promise.all([1, 2].map(() => store.link('x/a', 'disk', `${state.id}.slot`)))
  const folder = await store.open('x/a')
  for (const { name } of [one!, other!]) t.equal(readFileSync(join(folder, name)).length, 100)
  await Promise.all([one!.remove(), other!.remove()])
  t.same(readdirSync(folder), [])
  for (const name of ['disk', 'memory']) rmSync(join(root, name), { recursive: true })
  const room = await store.reserve('x/a', 100, 'a')
  writeFileSync(room!.path, '')
})

t.test('a thousand conversations of ten owners stay within the budgets', thorough, async t => {
  const root = t.testdir()
  const { store, put } = await open(root, { memory: 3000, disk: 5000 })
  const kept = await put('x/a', 100, 'quiet')
  for (let at = 0; at < 1000; at++) {
    await put('x/a', 50 + (at % 7) * 10, `owner ${at % 9}`)
    if (at % 100 > 0) continue
    t.ok(
      store.getUse('memory') <= 3000 && store.getUse('disk') <= 5000,
      `${store.getUse('memory')}, ${store.getUse('disk')}`
    )
  }
  t.ok(store.has(kept), 'an owner within its share loses nothing to others')
  t.equal(list(root).length, store.list().length, 'no file is left over')
})
