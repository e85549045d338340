import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { saveSettings } from '../../command-line/bench/save.ts'
import { judge, type Pair, type Speeds, summarize } from '../../command-line/bench/statistics.ts'
import { type Failed, tune } from '../../command-line/bench/tune.ts'
import { formatReport, shortNumber, stepText } from '../../command-line/commands/bench-model.ts'
import { type ServerClient, ServerRefusal } from '../../command-line/server-client.ts'
import type { TrialRecord, TrialSettings, Tunable } from '../../core/contracts/trials.ts'
import { newHome } from './command.ts'
import { tables } from './tables.ts'

const WORK = { prompt: 1000, answer: 100 }
const MAX_COUNT = 8

/** Pairs in which the trial is this many times as fast. */
const pairs = (...ratios: (number | [prompt: number, answer: number])[]): Pair[] =>
  ratios.map(ratio => {
    const [prompt, answer] = typeof ratio === 'number' ? [ratio, ratio] : ratio
    return { present: { prompt: 1000, answer: 100 }, trial: { prompt: 1000 * prompt, answer: 100 * answer } }
  })

t.test('judge compares settings by pairs of measurements', async t => {
  for (const [what, ratios, most, result] of tables.judge!) {
    t.equal(judge(pairs(...ratios), WORK, most).result, result, what)
  }
  const { overall } = judge(pairs(1.2, 1.21, 1.19, 1.2), WORK, MAX_COUNT)
  t.ok(overall.low > 1.03 && overall.low < overall.mean && overall.mean < overall.high)
  const mixed = tables.judge!.at(-1)![1]
  t.ok(judge(pairs(...mixed), WORK, MAX_COUNT).overall.low > 1.03, 'the overall ratio would be faster')
})

t.test('summarize returns the median and its spread', async t => {
  t.match(summarize([3, 1, 2]), { median: 2, least: 1, most: 3, spread: 0.5 })
  t.match(summarize([5]), { median: 5, low: 5, high: 5, spread: 0 })
  t.equal(summarize([10, 10, 10, 10]).spread, 0)
})

/** An engine whose speed depends on its settings, and that records its calls. */
function fakeBench(
  offered: (given: TrialSettings) => Tunable[],
  measureSpeed: (settings: TrialSettings, seed: number) => number | string
) {
  const measured: [settings: TrialSettings, seed: number][] = []
  return {
    measured,
    tunables: async (given: TrialSettings) => offered(given),
    measure: async (settings: TrialSettings, seed: number): Promise<Speeds | Failed> => {
      measured.push([settings, seed])
      const speed = measureSpeed(settings, seed)
      return typeof speed === 'string' ? { failed: speed } : { prompt: 1000 * speed, answer: 100 * speed }
    }
  }
}

const flag = (given: TrialSettings, ...flags: string[]): TrialSettings => ({
  ...given,
  arguments: [...(given.arguments ?? []), ...flags]
})
const OPTIONS = { base: {}, work: WORK, most: MAX_COUNT, allowChanges: false }

t.test('tune combines faster settings and confirms the result', async t => {
  const bench = fakeBench(
    given => [
      {
        name: 'threads',
        values: [
          { label: '1', settings: flag(given, 't1') },
          { label: '8', settings: flag(given, 't8') }
        ]
      },
      {
        name: 'batch',
        values: [
          { label: 'big', settings: flag(given, 'big') },
          { label: 'bad', settings: flag(given, 'bad') }
        ]
      },
      { name: 'cache', changes_answers: 'It rounds.', values: [{ label: 'q8_0', settings: flag(given, 'q8') }] }
    ],
    ({ arguments: list = [] }) => {
      if (list.includes('bad')) return 'out of memory'
      return (
        (list.includes('t1') ? 0.5 : 1) *
        (list.includes('t8') ? 2 : 1) *
        (list.includes('big') ? 1.2 : 1) *
        (list.includes('q8') ? 9 : 1)
      )
    }
  )
  const { steps, settings, confirmation } = await tune(bench, OPTIONS)
  t.same(
    steps.map(({ name, value, result }) => `${name} ${value}: ${result}`),
    [
      'threads 1: slower',
      'threads 8: faster',
      'batch big: faster',
      'batch bad: does not work here',
      'cache q8_0: changes answers'
    ]
  )
  t.same(settings, { arguments: ['t8', 'big'] })
  t.match(confirmation, { result: 'faster' })
  t.notOk(bench.measured.some(([{ arguments: list = [] }]) => list.includes('q8')))
  for (const seed of new Set(bench.measured.map(([, seed]) => seed))) {
    const same = bench.measured.filter(each => each[1] === seed)
    t.ok(
      same.length === 2 || same[0]![0].arguments?.includes('bad') || same[1]?.[0].arguments?.includes('bad'),
      'both sides had the same work'
    )
  }
  const allowed = await tune(bench, { ...OPTIONS, allowChanges: true })
  t.same(allowed.settings, { arguments: ['t8', 'big', 'q8'] })
})

t.test('tune changes nothing without a gain, or with a gain that does not reproduce', async t => {
  const one = (given: TrialSettings): Tunable[] => [
    { name: 'x', values: [{ label: 'on', settings: flag(given, 'x') }] }
  ]
  const equal = await tune(
    fakeBench(one, () => 1),
    OPTIONS
  )
  t.match(equal, { settings: {}, confirmation: undefined, steps: [{ result: 'same' }] })
  // Fast for the first pairs only.
  const lucky = await tune(
    fakeBench(one, ({ arguments: list }, seed) => (list && seed <= MAX_COUNT ? 1.5 : 1)),
    OPTIONS
  )
  t.match(lucky, { settings: {}, confirmation: { result: 'same' }, steps: [{ result: 'faster' }] })
  await t.rejects(
    tune(
      fakeBench(one, ({ arguments: list }) => (list ? 1 : 'broken')),
      OPTIONS
    ),
    /current settings.*broken/
  )
})

const summary = summarize([1234.5, 1240, 1250, 1200])
const RECORD: TrialRecord = {
  status: 'ready',
  model: 'me/model',
  label: 'Q4_K_M',
  mode: 'chat',
  load_duration: 1,
  context_length: 4096,
  slots: 4,
  provider: 'llama-server',
  options: { num_ctx: 4096, num_parallel: 4, n_gpu_layers: -1, cache_type_k: 'f16', cache_type_v: 'f16', dtype: 'f16' }
}

t.test('the bench report fits 40 columns', async t => {
  const row = { prompt_tokens: 1, answer_tokens: 1, prompt: summary, answer: summary, first: summary }
  const text = formatReport({
    ...RECORD,
    corral: '0',
    engine: 'llama-server b1',
    machine: { cpu: '', threads: 1, memory: 1 },
    load: summarize([0.5]),
    rows: [
      { ...row, context: 131_072, slots: 4 },
      { ...row, context: 512, slots: 1, answer: undefined, first: undefined }
    ]
  })
  const lines = text.split('\n').slice(3)
  t.match(lines[1], /^ 131072 +4 1237 ±3% 1237 ±3% 1237 s$/)
  for (const line of lines) t.ok(line.length <= 40, line)
  t.same([0.312, 12.34, 1234.5, 12_345].map(shortNumber), ['0.31', '12.3', '1235', '12.3k'])
  const verdict = judge(pairs(1.2, 1.21, 1.19, 1.2), WORK, MAX_COUNT)
  t.equal(
    stepText({ name: 'batch', value: '1024', result: 'faster', verdict }),
    'batch 1024: 20 % faster (+19 to +21 %), kept'
  )
  t.equal(
    stepText({ name: 'batch', value: '1', result: 'does not work here', reason: 'No.' }),
    'batch 1: does not work here. No.'
  )
})

t.test('saveSettings lets the server write the settings, and keeps a backup', async t => {
  const file = join(newHome(t), 'config.yaml')
  const told: string[] = []
  const sent: unknown[] = []
  let refusal: Error | undefined
  const reply = { section: 'Me/Model:q4', file, settings: { pin: true, options: { num_ctx: 512 } }, revision: 'r' }
  const client = {
    bySocket: true,
    async json(method: string, _path: string, body: unknown) {
      if (method === 'GET') return reply
      sent.push(body)
      if (refusal) throw refusal
    }
  } as unknown as ServerClient
  const settings = { arguments: ['--threads', '2'], options: { num_parallel: 1 } }
  const tell = (text: string) => void told.push(text)
  const save = (options: object) => saveSettings({ client, record: RECORD, settings, tell, options })
  const lines = 'models:\n  Me/Model:q4:\n    arguments: [--threads, "2"]\n    options:\n      num_parallel: 1'
  t.equal(await save({ dryRun: true }), false)
  t.same(told, [lines])
  t.equal(await save({}), false, 'no user to ask')
  t.match(told.at(-1), /--yes/)
  t.same(sent, [])
  t.equal(await save({ yes: true }), file, 'a new file')
  const merged = { pin: true, arguments: ['--threads', '2'], options: { num_ctx: 512, num_parallel: 1 } }
  t.same(sent, [{ model: 'me/model', settings: merged, revision: 'r' }])
  t.notOk(existsSync(`${file}.bak`))
  writeFileSync(file, '# mine\n')
  t.equal(await save({ yes: true }), file)
  t.equal(readFileSync(`${file}.bak`, 'utf8'), '# mine\n')
  refusal = new ServerRefusal('The file is read-only.', 'config_not_editable')
  t.equal(await save({ yes: true }), false)
  t.match(told.slice(-2), ['The file is read-only. Add these lines yourself:', /arguments: \[--threads, "2"\]/])
})
