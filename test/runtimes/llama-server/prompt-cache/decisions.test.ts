import t from 'tap'
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
  isWorthSaving
} from '../../../../runtimes/llama-server/prompt-cache/retention.ts'
import type { SavedState } from '../../../../runtimes/llama-server/prompt-cache/saved-state.ts'
import { continues, getTrail } from '../../../../runtimes/llama-server/prompt-cache/trail.ts'
import { buildOf, engineSpec } from '../support.ts'

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
const SETTINGS = { arguments: [] as string[], environment: {}, loras: [], speculation: { ngram: false } }

t.test('tells from the metadata what kind of state a model has', t => {
  const kinds: [string, ReturnType<typeof specOf>, ReturnType<typeof getStateKind>][] = [
    ['dense', specOf('llama', DENSE), 'full'],
    ['with images', specOf('qwen2vl', DENSE), 'full'],
    ['a window that llama.cpp does not use', specOf('phi3', WINDOW), 'full'],
    ['no window in this file', specOf('olmo2', DENSE), 'full'],
    ['an unknown architecture', specOf('something-new'), 'full'],
    [
      'n-gram speculation',
      { ...specOf('llama', DENSE), settings: { ...SETTINGS, speculation: { ngram: true } } },
      'full'
    ],
    ['a window', specOf('gemma3', WINDOW), 'windowed'],
    ['a window of unknown size', specOf('gemma3', DENSE), undefined],
    [
      'a window with all cells',
      { ...specOf('gemma3', WINDOW), settings: { ...SETTINGS, arguments: ['--swa-full'] } },
      undefined
    ],
    ['a window of another kind', specOf('llama4', WINDOW), undefined],
    ['an unknown architecture with a window', specOf('olmo2', WINDOW), undefined],
    ['recurrent', specOf('mamba', DENSE), 'recurrent'],
    ['hybrid', specOf('qwen35', DENSE), 'recurrent'],
    ['an encoder with a decoder', specOf('t5', DENSE), undefined],
    ['embeddings', specOf('llama', DENSE, 'embedding'), undefined],
    [
      'a draft model',
      {
        ...specOf('llama', DENSE),
        settings: { ...SETTINGS, speculation: { ngram: false, draft: { model: 'a/b', modelPath: '/b.gguf' } } }
      },
      undefined
    ]
  ]
  for (const [what, spec, kind] of kinds) t.equal(getStateKind(spec), kind, what)
  t.end()
})

t.test('estimates the bytes of a token', async t => {
  // 32 layers of 8 heads with 128 numbers each, keys and values in two bytes.
  t.equal(bytesPerToken(specOf('llama', DENSE)), 32 * 8 * 128 * 2 * 2 + 16)
  const small = specOf('llama', DENSE)
  small.options = { ...small.options, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  t.equal(bytesPerToken(small), 32 * 8 * 128 * 2 * (34 / 32) + 16)
  t.equal(bytesPerToken(specOf('llama')), undefined, 'without numbers there is no estimate')
})

t.test('the key covers everything that a cache depends on', async t => {
  const build = buildOf('/opt/llama-server')
  const key = (
    change: (spec: ReturnType<typeof specOf>) => void = () => {},
    on = build,
    stamps: string[] = [],
    sharedArguments: string[] = []
  ) => {
    const spec = specOf('llama', DENSE)
    change(spec)
    return getEngineKey({ spec, build: on, sharedArguments }, stamps)
  }
  const settings = { arguments: [], environment: {}, speculation: { ngram: false }, loras: [] }
  const plain = key()
  t.equal(key(), plain)
  t.equal(
    key(spec => {
      spec.options = { ...spec.options, num_ctx: 65536, num_parallel: 8, n_gpu_layers: 4 }
    }),
    plain,
    'context, slots and layers on the GPU may change'
  )
  const others = {
    revision: key(spec => {
      spec.variant.revision = '2'
    }),
    type: key(spec => {
      spec.options = { ...spec.options, cache_type_v: 'q8_0' }
    }),
    version: key(undefined, { ...build, version: 'b2' }),
    digest: key(undefined, { ...build, digest: '1'.repeat(64) }),
    projector: key(spec => {
      spec.projectorPath = '/p.gguf'
    }),
    lora: key(spec => {
      spec.settings = { ...settings, loras: [{ path: '/a.gguf', scale: 1 }] }
    }),
    scale: key(spec => {
      spec.settings = { ...settings, loras: [{ path: '/a.gguf', scale: 0.5 }] }
    }),
    arguments: key(spec => {
      spec.settings = { ...settings, arguments: ['--rope-freq-base', '1000000'] }
    }),
    shared: key(undefined, build, [], ['--rope-freq-base', '5']),
    stamp: key(undefined, build, ['12 1'])
  }
  t.equal(new Set([plain, ...Object.values(others)]).size, 1 + Object.keys(others).length, 'each has its own key')
  t.equal(
    key(undefined, { ...build, commit: 'abc', digest: '1'.repeat(64) }),
    key(undefined, { ...build, commit: 'abc' }),
    'a commit matters more than linking'
  )
  const long = (context: number) =>
    key(spec => {
      spec.variant.metadata.info['llama.rope.scaling.original_context_length'] = 4096
      spec.options = { ...spec.options, num_ctx: context }
    })
  t.equal(long(2048), long(4096))
  t.not(long(4096), long(8192), 'above it other rope factors apply')
})

// ---- placement -------------------------------------------------------------------------------------------------------

const said = (...texts: string[]) => ({
  messages: texts.map((content, at) => ({ role: at % 2 ? 'assistant' : 'user', content }))
})
const LONG = 'The instructions that all conversations of this program begin with. '.repeat(40)
const PARIS = said('Where is Paris?', 'In France.', 'And Rome?')

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

t.test('chooses the slot and the state for a prompt', t => {
  const empty = slot(0, undefined, undefined, 0)
  const grown = said(LONG, 'Yes.', 'Count to three.')
  const saved = state('s', said(LONG, 'Yes.'))
  const table: [string, SlotState[], EngineFields, number, (string | number)?, Partial<PlacedPrompt>?][] = [
    ['the first slot', [empty, slot(1, undefined, undefined, 0)], said('Hi'), 0],
    [
      'the conversation that continues',
      [
        slot(0, 'a', said('One, two and three'), 1),
        slot(1, 'a', said('Where is Paris?'), 2),
        slot(2, undefined, undefined, 0)
      ],
      PARIS,
      1
    ],
    [
      'with most in common',
      [slot(0, 'a', said('Where is Paris?'), 3), slot(1, 'a', said('Where is Paris?', 'In France.'), 2)],
      PARIS,
      1
    ],
    [
      "not another owner's, however similar",
      [slot(0, 'b', said('Where is Paris?'), 1), slot(1, 'a', said('Hi'), 2)],
      PARIS,
      0
    ],
    ['the oldest one', [slot(0, 'b', said(LONG), 7), slot(1, 'a', said('Hello'), 6)], said(`X ${LONG}`), 1],
    [
      'for a short prompt a slot with a short one',
      [slot(0, 'b', said(LONG), 6), slot(1, 'b', said('Hello'), 7), slot(2, 'b', said(LONG, 'Hello'), 8)],
      said('What is this?'),
      1
    ],
    [
      'for a request that says so too, even if that slot is the latest one',
      [slot(0, 'b', said(LONG), 6), slot(1, 'b', said('Hello'), 7)],
      said('Summarize this', LONG),
      1,
      undefined,
      { background: true }
    ],
    [
      'for a background request with the same instructions a copy of them',
      [slot(0, 'a', said(LONG, 'Yes.', 'x'.repeat(9000)), 6), slot(1, 'b', said('Hello'), 7)],
      said(LONG, 'Make a title.'),
      1,
      0,
      { background: true }
    ],
    ['a saved state in an unused slot', [slot(1, 'b', said('Hi'), 4), empty], grown, 0, 's', { saved: [saved] }],
    [
      'a saved state in the oldest slot',
      [slot(0, 'b', said('Hi'), 4), slot(1, 'b', said(LONG), 5)],
      grown,
      0,
      's',
      { saved: [saved] }
    ],
    [
      'not a saved state if the slot has as much',
      [slot(0, 'a', said(LONG, 'Yes.'), 4), empty],
      grown,
      0,
      undefined,
      { saved: [saved] }
    ],
    [
      'the saved state with most of the prompt',
      [empty],
      grown,
      0,
      's',
      { saved: [state('x', said(LONG)), saved, state('y', said('Other', LONG))] }
    ],
    [
      'not a state that takes longer to restore',
      [empty],
      grown,
      0,
      undefined,
      { saved: [state('s', said(LONG, 'Yes.'), { bytes: 1e9 })] }
    ],
    ['not a short state', [empty], PARIS, 0, undefined, { saved: [state('s', said('Where is Paris?'))] }],
    ['a state with the same instructions', [empty], said(LONG, 'No.', 'Why?'), 0, 's', { saved: [saved] }],
    [
      'only a state that continues, if there is no way back in it',
      [empty],
      said(LONG.slice(0, -90), 'No.', 'Why?'),
      0,
      undefined,
      { saved: [saved], exact: true }
    ],
    ['a state that continues', [empty], grown, 0, 's', { saved: [saved], exact: true }],
    [
      'a copy of a slot with the same instructions in an unused slot',
      [slot(1, 'a', said(LONG, 'Yes.', 'x'.repeat(9000)), 1), empty],
      said(LONG, 'Yes.', 'Count.'),
      0,
      1
    ],
    [
      'that slot itself if none is unused',
      [slot(0, 'b', said(LONG), 1), slot(1, 'a', said(LONG, 'Yes.', 'x'.repeat(9000)), 2)],
      said(LONG, 'Yes.', 'Count.'),
      1
    ]
  ]
  for (const [what, free, body, wanted, from, more] of table) {
    const trail = getTrail(body)
    const common = { owner: 'a', trail, background: isBackground(body, trail), saved: [] }
    const prompt = { ...common, exact: false, pace: 1, restoreSpeed: 1e5, ...more }
    const { slot, source } = choosePlacement(free, prompt)
    t.equal(slot.id, wanted, what)
    t.equal(source && ('saved' in source ? source.saved.id : source.slot.id), from, `${what}: the source`)
  }
  t.end()
})

t.test('compares prompts by their trails', t => {
  t.notSame(getTrail({ ...said('Hi'), tools: [{ type: 'function' }] }), getTrail(said('Hi')), 'tools come first')
  t.ok(getTrail({ prompt: 'x'.repeat(5_000_000) }).sums.length < 2000, 'long prompts have few sums')
  t.ok(continues(getTrail(said(LONG, 'Yes.')), getTrail(said(LONG))))
  t.notOk(continues(getTrail(said(LONG)), getTrail(said(LONG, 'Yes.'))))
  t.notOk(continues(getTrail(said(`${LONG.slice(0, 100)}X${LONG.slice(101)}`, 'Yes.')), getTrail(said(LONG))))
  t.end()
})

// ---- what is stored --------------------------------------------------------------------------------------------------

t.test('decides what is saved, and when', t => {
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

t.test('evicts the least valuable states of owners above their share', t => {
  const now = 10 * 3_600_000
  const make = (id: string, owner: string, bytes: number, hours: number, more: Partial<SavedState> = {}) => ({
    state: state(id, said(LONG), { owner, bytes, tokens: 100, usedAt: now - hours * 3_600_000, ...more })
  })
  const evict = (entries: ReturnType<typeof make>[], bytes: number, owner = 'a', budget = 100) =>
    chooseEvicted(entries, bytes, { owner, added: bytes, budget, now }).map(({ state }) => state.id)
  const old = make('old', 'a', 10, 5)
  const recent = make('new', 'a', 10, 0)
  t.same(evict([recent, old], 0), [])
  t.same(evict([recent, old], 5, 'a', 10), ['old'], 'the oldest of equals')
  t.same(evict([recent, old], 15, 'a', 10), ['old', 'new'])
  t.same(evict([make('large', 'a', 80, 0), make('small', 'a', 8, 0)], 5, 'a', 80), ['large'], 'bytes per token count')
  t.same(
    evict([make('slow', 'a', 10, 1, { pace: 9, key: 'x' }), make('fast', 'a', 10, 0, { pace: 1 })], 5, 'a', 10),
    ['fast'],
    'so does the time to process it again'
  )
  t.same(
    evict([make('busy', 'a', 10, 1, { pace: 9 }), make('idle', 'a', 10, 0, { pace: 1 })], 5, 'a', 10),
    ['busy'],
    'but not how busy the machine was when a state of the same model was saved'
  )
  const others = [make('b', 'b', 40, 9), make('a1', 'a', 30, 3), make('a2', 'a', 30, 1)]
  t.same(evict(others, 20), ['a1'], "an owner above its share evicts its own, even if another's is older")
  t.same(
    evict([make('b1', 'b', 50, 0), make('b2', 'b', 40, 1), make('a', 'a', 10, 9)], 20),
    ['b2'],
    'a new owner gets its share'
  )
  t.end()
})
