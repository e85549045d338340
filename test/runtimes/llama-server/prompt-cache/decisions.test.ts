import t from 'tap'
import type { EngineSettings } from '../../../../core/config/model-settings.ts'
import type { EngineFields } from '../../../../core/contracts/engines.ts'
import type { ModelMetadata } from '../../../../core/contracts/models.ts'
import {
  choosePlacement,
  isBackground,
  type PlacedPrompt,
  type SlotState
} from '../../../../runtimes/llama-server/prompt-cache/placement.ts'
import {
  bytesPerToken,
  getEngineKey,
  getStateKind
} from '../../../../runtimes/llama-server/prompt-cache/prompt-cache.ts'
import {
  chooseEvicted,
  getMemoryBudget,
  getSaveDelay,
  isWorthSaving,
  type SavedState
} from '../../../../runtimes/llama-server/prompt-cache/retention.ts'
import { continues, getTrail } from '../../../../runtimes/llama-server/prompt-cache/trail.ts'
import { readFixture } from '../../../support/fixture.ts'
import { buildOf, engineSpec, PLAIN_SETTINGS } from '../support.ts'

function specOf(architecture: string, info: ModelMetadata['info'] = {}, mode: 'chat' | 'embedding' = 'chat') {
  const spec = engineSpec({ mode })
  spec.variant.metadata = {
    architecture,
    capabilities: ['completion'],
    info: Object.fromEntries(Object.entries(info).map(([key, value]) => [`${architecture}.${key}`, value]))
  }
  return spec
}

const DENSE = {
  block_count: 32,
  embedding_length: 4096,
  'attention.head_count': 32,
  'attention.head_count_kv': 8
}
const WINDOW = { ...DENSE, 'attention.sliding_window': 4096 }

interface Kind extends Partial<EngineSettings> {
  what: string
  architecture: string
  info?: 'dense' | 'window'
  mode?: 'chat' | 'embedding'
  kind?: ReturnType<typeof getStateKind>
}

/** A prompt among slots and saved states, the slot that it gets, and the state or other slot that its cache comes from. */
interface Placement extends Partial<Omit<PlacedPrompt, 'saved'>> {
  what: string
  slots: { id: number; owner?: string; said?: string[]; usedAt?: number }[]
  prompt: string[]
  saved?: ({ id: string; said: string[] } & Partial<SavedState>)[]
  slot: number
  source?: string | number
}

const cases = readFixture<{ kinds: Kind[]; placements: Placement[] }>('prompt-slot-cases.yaml')

t.test('the prompt cache tells from the metadata what kind of state a model has', t => {
  for (const { what, architecture, info, mode, kind, ...settings } of cases.kinds) {
    const spec = specOf(architecture, info && { dense: DENSE, window: WINDOW }[info], mode)
    t.equal(getStateKind({ ...spec, settings: { ...PLAIN_SETTINGS, ...settings } }), kind, what)
  }
  t.end()
})

t.test('the prompt cache estimates the bytes of a token', async t => {
  // 32 layers of 8 heads with 128 numbers each, keys and values in two bytes.
  t.equal(bytesPerToken(specOf('llama', DENSE)), 32 * 8 * 128 * 2 * 2 + 16)
  const small = specOf('llama', DENSE)
  small.options = { ...small.options, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  t.equal(bytesPerToken(small), 32 * 8 * 128 * 2 * (34 / 32) + 16)
  t.equal(bytesPerToken(specOf('llama')), undefined, 'without numbers there is no estimate')
})

t.test('the key covers everything that a cache depends on', async t => {
  const build = buildOf('/opt/llama-server')
  const spec = specOf('llama', DENSE)
  const { options, variant } = spec
  const key = (given: Partial<typeof spec> = {}, on = build, stamps: string[] = [], sharedArguments: string[] = []) =>
    getEngineKey({ spec: { ...spec, ...given }, build: on, sharedArguments }, stamps)
  const set = (given: Partial<EngineSettings>) => key({ settings: { ...PLAIN_SETTINGS, ...given } })
  const lora = (scale: number) => set({ loras: [{ path: '/a.gguf', scale }] })
  const plain = key()
  t.equal(key(), plain)
  const roomier = key({ options: { ...options, num_ctx: 65536, num_parallel: 8, n_gpu_layers: 4 } })
  t.equal(roomier, plain, 'context, slots and layers on the GPU may change')
  const others = [
    key({ variant: { ...variant, revision: '2' } }),
    key({ options: { ...options, cache_type_v: 'q8_0' } }),
    key({}, { ...build, version: 'b2' }),
    key({}, { ...build, digest: '1'.repeat(64) }),
    key({ projectorPath: '/p.gguf' }),
    lora(1),
    lora(0.5),
    set({ arguments: ['--rope-freq-base', '1000000'] }),
    key({}, build, [], ['--rope-freq-base', '5']),
    key({}, build, ['12 1'])
  ]
  t.equal(new Set([plain, ...others]).size, 1 + others.length, 'each has its own key')
  const linked = key({}, { ...build, commit: 'abc', digest: '1'.repeat(64) })
  t.equal(linked, key({}, { ...build, commit: 'abc' }), 'a commit matters more than linking')
  const info = { ...variant.metadata.info, 'llama.rope.scaling.original_context_length': 4096 }
  const scaled = { ...variant, metadata: { ...variant.metadata, info } }
  const long = (num_ctx: number) => key({ variant: scaled, options: { ...options, num_ctx } })
  t.equal(long(2048), long(4096))
  t.not(long(4096), long(8192), 'above it other rope factors apply')
})

// ---- placement -------------------------------------------------------------------------------------------------------

const said = (...texts: string[]) => ({
  messages: texts.map((content, at) => ({ role: at % 2 ? 'assistant' : 'user', content }))
})
const LONG = 'The instructions that all conversations of this program begin with. '.repeat(40)
const MANY = 'x'.repeat(9000)

const slot = (id: number, owner: string | undefined, body: EngineFields | undefined, usedAt: number): SlotState => ({
  id,
  owner,
  trail: body && getTrail(body),
  usedAt,
  background: body !== undefined && isBackground(body, getTrail(body))
})
const state = (id: string, body: EngineFields, more: Partial<SavedState> = {}): SavedState => {
  const trail = getTrail(body)
  const common = { variant: 'v', key: 'k', revision: 'r', owner: 'a', slots: 1, tier: 'memory' as const, usedAt: 1 }
  return { id, ...common, trail, tokens: Math.ceil(trail.length / 4), bytes: 1000, ...more }
}

t.test('the prompt cache chooses the slot and the state for a prompt', t => {
  const texts = (list: string[]) =>
    said(...list.map(text => text.replace('LONG', LONG).replace('CUT', LONG.slice(0, -90)).replace('MANY', MANY)))
  for (const { what, slots, prompt, saved = [], slot: wanted, source: from, ...more } of cases.placements) {
    const body = texts(prompt)
    const trail = getTrail(body)
    const free = slots.map(({ id, owner, said, usedAt = 0 }) => slot(id, owner, said && texts(said), usedAt))
    const common = { owner: 'a', trail, background: isBackground(body, trail), exact: false, pace: 1 }
    const states = saved.map(({ id, said, ...more }) => state(id, texts(said), more))
    const chosen = choosePlacement(free, { ...common, restoreSpeed: 1e5, ...more, saved: states })
    t.equal(chosen.slot.id, wanted, what)
    const { source } = chosen
    t.equal(source && ('saved' in source ? source.saved.id : source.slot.id), from, `${what}: the source`)
  }
  t.end()
})

t.test('the prompt cache compares prompts by their trails', t => {
  t.notSame(getTrail({ ...said('Hi'), tools: [{ type: 'function' }] }), getTrail(said('Hi')), 'tools come first')
  t.ok(getTrail({ prompt: 'x'.repeat(5_000_000) }).sums.length < 2000, 'long prompts have few sums')
  t.ok(continues(getTrail(said(LONG, 'Yes.')), getTrail(said(LONG))))
  t.notOk(continues(getTrail(said(LONG)), getTrail(said(LONG, 'Yes.'))))
  t.notOk(continues(getTrail(said(`${LONG.slice(0, 100)}X${LONG.slice(101)}`, 'Yes.')), getTrail(said(LONG))))
  t.end()
})

// ---- what is stored --------------------------------------------------------------------------------------------------

t.test('the prompt cache decides what is saved, and when', t => {
  const whole = { owner: 'a', trail: { length: 1000 }, changed: true, allowed: true }
  t.ok(isWorthSaving(whole))
  t.ok(isWorthSaving({ ...whole, owner: '' }), 'prompts of the server itself')
  t.notOk(isWorthSaving({ ...whole, changed: false }), 'it is saved already')
  t.notOk(isWorthSaving({ ...whole, allowed: false }), 'its request does not allow it')
  t.notOk(isWorthSaving({ ...whole, owner: undefined }), 'nobody knows whose it is')
  t.notOk(isWorthSaving({ ...whole, trail: { length: 100 } }), 'it is short')

  t.equal(getSaveDelay(false, 1000, 100), 0, 'at once while conversations compete')
  t.equal(getSaveDelay(true, 1000, 100), 0)
  t.equal(getSaveDelay(false, Number.POSITIVE_INFINITY, 100), 5000)
  t.equal(getSaveDelay(true, Number.POSITIVE_INFINITY, 100), undefined, 'it would make the next turn slower')
  t.equal(getSaveDelay(true, Number.POSITIVE_INFINITY, 5000), 5000, 'but a kill must not lose a long prompt')

  t.equal(getMemoryBudget(undefined, 1000), 250)
  t.equal(getMemoryBudget(100, 1000), 100)
  t.equal(getMemoryBudget(0, 1000), 0)
  t.equal(getMemoryBudget(900, 1000), 250, 'never more than the share of what is free')
  t.end()
})

t.test('the prompt cache evicts the least valuable states of owners above their share', t => {
  const now = 10 * 3_600_000
  const make = (id: string, owner: string, bytes: number, hours: number, more: Partial<SavedState> = {}) =>
    state(id, said(LONG), { owner, bytes, tokens: 100, usedAt: now - hours * 3_600_000, ...more })
  const evict = (entries: ReturnType<typeof make>[], bytes: number, owner = 'a', budget = 100) =>
    chooseEvicted(entries, bytes, { owner, added: bytes, budget, now }).map(({ id }) => id)
  const old = make('old', 'a', 10, 5)
  const recent = make('new', 'a', 10, 0)
  t.same(evict([recent, old], 0), [])
  t.same(evict([recent, old], 5, 'a', 10), ['old'], 'the oldest of equals')
  t.same(evict([recent, old], 15, 'a', 10), ['old', 'new'])
  t.same(evict([make('large', 'a', 80, 0), make('small', 'a', 8, 0)], 5, 'a', 80), ['large'], 'bytes per token count')
  const slow = make('slow', 'a', 10, 1, { pace: 9, key: 'x' })
  const fast = make('fast', 'a', 10, 0, { pace: 1 })
  t.same(evict([slow, fast], 5, 'a', 10), ['fast'], 'so does the time to process it again')
  const [busy, idle] = [make('busy', 'a', 10, 1, { pace: 9 }), make('idle', 'a', 10, 0, { pace: 1 })]
  const evicted = evict([busy, idle], 5, 'a', 10)
  t.same(evicted, ['busy'], 'but not how busy the machine was when a state of the same model was saved')
  const others = [make('b', 'b', 40, 9), make('a1', 'a', 30, 3), make('a2', 'a', 30, 1)]
  t.same(evict(others, 20), ['a1'], "an owner above its share evicts its own, even if another's is older")
  const first = evict([make('b1', 'b', 50, 0), make('b2', 'b', 40, 1), make('a', 'a', 10, 9)], 20)
  t.same(first, ['b2'], 'a new owner gets its share')
  t.end()
})
