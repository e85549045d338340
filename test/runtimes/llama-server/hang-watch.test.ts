import t from 'tap'
import {
  AT_REST,
  judge,
  type Look,
  memoryLimit,
  readSlots,
  type Stillness
} from '../../../runtimes/llama-server/hang-watch.ts'

const PATIENCE = { stuckAfter: 30_000, hangTimeout: 120_000 }
const STEP = 1000
const CAUGHT: Look = {
  passed: STEP,
  open: 1,
  moved: false,
  slots: 'silent',
  busy: true,
  healthy: true,
  filing: false
}

/**
 * Repeats checks of an engine until a fault is found. Returns the fault and the number of checks, or undefined after
 * 10,000.
 */
function judged(looks: (Partial<Look> | ((count: number) => Partial<Look>))[], from: Stillness = AT_REST, more = {}) {
  let state = from
  for (let count = 0; count < 10_000; count++) {
    const each = looks[count % looks.length]!
    const look = { ...CAUGHT, ...(typeof each === 'function' ? each(count) : each) }
    const { now, fault } = judge(state, look, { ...PATIENCE, ...more })
    if (fault) return `${fault} ${count + 1}`
    state = now
  }
  return undefined
}

t.test('the hang watch detects stuck and hanging engines', t => {
  t.equal(judged([{}]), 'stuck 30', 'its main loop is blocked while a client waits')
  t.equal(judged([{ open: 0 }]), 'stuck 30', 'its client has left')
  t.equal(judged([{ slots: 'resting' }]), 'stuck 30', 'it never finishes reading a request')
  t.equal(judged([{ slots: 'resting', open: 0 }]), 'stuck 30', 'the same without a client')
  t.equal(judged([{ busy: undefined }]), 'stuck 30', 'if the system does not report processor use, the threads show it')
  t.equal(judged([{ busy: false, healthy: false }]), 'hung 120')
  t.equal(judged([{ busy: undefined, healthy: false }]), 'hung 120')
  t.equal(judged([{}, { busy: false }]), 'stuck 59', 'other processes use the processor half of the time')
  t.equal(judged([{}], { ...AT_REST, slowest: 5000 }), 'stuck 100', '20 times the slowest token')
  t.end()
})

t.test('the hang watch tolerates slow engines that make progress', t => {
  const cases: Record<string, Parameters<typeof judged>> = {
    'it is idle': [[{ open: 0, busy: false, slots: 'resting' }]],
    'it is idle, on a system that reports nothing': [[{ open: 0, busy: undefined, slots: 'resting' }]],
    'tokens arrive': [[{ moved: true, slots: 'unknown' }]],
    'a token arrives every minute': [[count => ({ moved: count % 25 === 0 })]],
    'a batch of a prompt takes an hour': [[{ slots: 'working' }]],
    'the same after its client has left': [[{ slots: 'working', open: 0 }]],
    'a GPU works': [[{ slots: 'working', busy: false }]],
    'a GPU works, and the main loop waits for it': [[{ busy: false }]],
    'slots are being saved': [[{ filing: true }]],
    'its slots are not visible': [[{ slots: 'unknown' }]],
    'the main loop answers occasionally': [[count => (count % 20 === 0 ? { slots: 'working' } : {})]],
    'both limits are off': [[{}, { busy: false, healthy: false }], AT_REST, { stuckAfter: 0, hangTimeout: 0 }]
  }
  for (const [name, [looks, from, more]] of Object.entries(cases)) t.equal(judged(looks, from, more), undefined, name)
  t.end()
})

t.test('the hang watch learns its slowness only from the model', t => {
  const after = (...looks: Partial<Look>[]) =>
    looks.reduce((state, look) => judge(state, { ...CAUGHT, ...look }, PATIENCE).now, AT_REST).slowest
  t.equal(after({ slots: 'working' }, { slots: 'working' }, { moved: true }), 3 * STEP)
  t.equal(after({}, {}, { moved: true }), 0, 'a grammar that slows tokens down does not buy time')
  t.equal(after({ moved: true }, { moved: true }), 0)
  t.end()
})

t.test('the memory limit is 1.5 times the reservation, and at least 512 MiB more', t => {
  const MIB = 2 ** 20
  t.equal(memoryLimit(98 * MIB), 610 * MIB)
  t.equal(memoryLimit(1024 * MIB), 1536 * MIB)
  t.equal(memoryLimit(40_000 * MIB), 60_000 * MIB)
  t.end()
})

t.test('the hang watch reads the counters of slots', t => {
  const slot = (more: object) => ({
    id_task: 1,
    is_processing: true,
    n_prompt_tokens: 5,
    n_prompt_tokens_processed: 5,
    next_token: [{ n_decoded: 1 }],
    ...more
  })
  const { counters, working } = readSlots([slot({})])!
  t.equal(working, true)
  t.equal(readSlots([slot({ is_processing: false })])!.working, false)
  for (const more of [{ next_token: [{ n_decoded: 2 }] }, { n_prompt_tokens_processed: 6 }, { id_task: 2 }]) {
    t.not(readSlots([slot(more)])!.counters, counters, JSON.stringify(more))
  }
  t.equal(readSlots([slot({ n_ctx: 7 })])!.counters, counters)
  t.same(readSlots([{ id: 0, is_processing: false }])!.working, false, 'a slot that was never used')
  t.equal(readSlots({ error: {} }), undefined)
  t.same(readSlots([null, 7]), { working: false, counters: '' })
  t.end()
})
