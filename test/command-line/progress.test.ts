import t from 'tap'
import { chooseFound, formatFound } from '../../command-line/commands/import.ts'
import { formatPlan, formatPulls } from '../../command-line/commands/pull.ts'
import { formatModel } from '../../command-line/commands/stored-models.ts'
import { shorten } from '../../command-line/display-width.ts'
import {
  formatPercent,
  formatTimeLeft,
  measureSpeed,
  Transfers,
  transferLines,
  transferText
} from '../../command-line/progress-display.ts'
import { each } from '../support/each.ts'
import { planReply, pullReply, shownModel } from './records.ts'
import { pattern, tables } from './tables.ts'

const MB = 1e6

t.test('measureSpeed averages the last seconds', async t => {
  for (const [what, samples, now, speed] of tables.measureSpeed!) {
    const moves = samples.map(([at, moved]: number[]) => ({ at, moved }))
    t.equal(measureSpeed(moves, now), speed ?? undefined, what)
  }
  const steady = Array.from({ length: 31 }, (_, second) => ({ at: second * 1000, moved: second * 5 }))
  t.equal(measureSpeed(steady, 30_000), 5)
})

t.test('formatTimeLeft formats seconds to days', async t => {
  for (const [remaining, speed, text] of tables.formatTimeLeft!) {
    t.equal(formatTimeLeft(remaining, speed ?? undefined), text ?? undefined, `${remaining} at ${speed}`)
  }
})

t.test('Transfers sums amounts and speeds', async t => {
  const transfers = new Transfers(1000)
  t.match({ completed: transfers.completed, total: transfers.total }, { completed: 0, total: 1000 })
  transfers.update('a', 400, 500, 0)
  t.equal(transfers.speed(0), undefined)
  transfers.update('a', 450, 500, 1000)
  transfers.update('b', 300, 500, 2000)
  t.equal(transfers.speed(2000), 25, 'bytes present when a file first appears are not speed')
  transfers.update('a', 100, 500, 2500)
  transfers.update('a', 150, 500, 4000)
  t.equal(transfers.speed(4000), 25, 'dropping a damaged part is not negative speed')
  t.match({ completed: transfers.completed, total: transfers.total }, { completed: 450, total: 1000 })
  transfers.update('c', 0, 500, 4000)
  t.equal(transfers.total, 1500, 'more than expected')
  t.same(each(transfers.items, 'name'), ['a', 'b', 'c'])
  for (let at = 5000; at <= 60_000; at += 100) transfers.update('c', (at - 5000) / 200, 500, at)
  t.equal(transfers.speed(60_000), 5, 'only the last seconds matter')
  transfers.reset()
  t.match({ completed: transfers.completed, total: transfers.total }, { completed: 0, total: 1000 })
  t.equal(transfers.speed(60_000), undefined)
})

/** Files of 1000 MB, each with `completed` MB and moving at 10 MB/s. */
function moved(completed: number[], name = (index: number) => `model-${index + 1}.gguf`) {
  const transfers = new Transfers()
  completed.forEach((amount, index) => {
    transfers.update(name(index), Math.max(0, amount - 20) * MB, 1000 * MB, 0)
  })
  completed.forEach((amount, index) => {
    transfers.update(name(index), amount * MB, 1000 * MB, 2000)
  })
  return transfers
}

t.test('transferLines draws progress bars', async t => {
  for (const [amounts, unit, status, columns, now, lines] of tables.transferLines!) {
    const shown = { unit, status: status ?? undefined }
    t.same(transferLines(moved(amounts), shown, { columns, rows: 24 }, now), lines, lines[0])
  }
  const storing = transferLines(
    moved([1000, 1000]),
    { unit: 'bytes', status: 'storing' },
    { columns: 80, rows: 24 },
    2000
  )
  t.match(storing.at(-1), /^storing {2}/)
})

t.test('transferLines selects files if there are too many', async t => {
  const shard = (index: number) => `Some-Very-Long-Model-Name-123B-Instruct-BF16-0000${index}-of-00030.gguf`
  const transfers = moved([...Array(10).fill(1000), ...Array(20).fill(0)], shard)
  for (const index of [12, 20, 11]) transfers.update(shard(index), 100 * MB, 1000 * MB, 3000 + index)
  const lines = transferLines(transfers, { unit: 'bytes' }, { columns: 80, rows: 8 }, 4000)
  t.equal(lines.length, 5)
  t.match(lines[0], /^Some.*….*-000011-of-00030\.gguf .* 10%/, 'active files in order, with the end of the name')
  t.match(lines[1], '000012-of')
  t.match(lines[2], '000020-of')
  t.equal(lines[3], '10 of 30 files done')
  t.match(lines[4], /34% {2}10\.3 GB \/ 30\.0 GB$/)
  for (const columns of [20, 21, 39, 40, 41, 60, 79, 80, 81, 120, 300]) {
    for (const rows of [1, 5, 24, 80]) {
      const drawn = transferLines(transfers, { unit: 'bytes' }, { columns, rows }, 4000)
      t.ok(
        drawn.every(line => line.length < columns && line.length <= 110),
        `${columns} columns`
      )
      t.ok(drawn.length <= Math.max(3, Math.min(12, rows - 1)), `${rows} rows`)
    }
  }
})

t.test('transferText formats progress as a line', async t => {
  t.equal(transferText(moved([450]), { unit: 'bytes' }, 2000), '45%, 450 MB of 1.0 GB, 10 MB/s, 55 s left')
  t.equal(transferText(moved([450]), { unit: 'parts' }, 2000), '45%, 55 s left')
  t.equal(transferText(moved([1000]), { unit: 'bytes', status: 'storing' }, 2000), '100%, 1.0 GB of 1.0 GB, storing')
  for (const [completed, total, text] of tables.formatPercent!) {
    t.equal(formatPercent(completed, total), text, `${completed} of ${total}`)
  }
  for (const [text, width, shown] of tables.shorten!) t.equal(shorten(text, width), shown)
})

const PLAN = {
  ...planReply('Qwen/Qwen3-GGUF'),
  files: [
    { path: 'Qwen3-Q8_0.gguf', role: 'model' as const, size: 639 * MB },
    { path: 'mmproj.gguf', role: 'projector' as const, size: undefined }
  ],
  size: 639 * MB,
  choices: [
    { label: 'Q8_0', size: 639 * MB },
    { label: 'Q4_K_M', size: 397 * MB }
  ],
  memory: { required: 900 * MB, available: 8e9, fits: true },
  disk: { required: 639 * MB, available: 5 * MB, fits: false },
  warnings: ['The disk is too \x1b[2Jsmall.']
}

t.test('formatPlan describes a pull', async t => {
  const text = formatPlan(PLAN, 'Qwen/Qwen3-GGUF')
  t.match(text, /^Qwen\/Qwen3-GGUF\n {2}variant +Q8_0\n/)
  t.match(text, /chosen +It is the best that fits\./)
  t.match(text, /disk +639 MB needed, 5\.0 MB free: not enough\n/)
  t.match(text, /memory +900 MB needed, 8\.0 GB available\n/)
  t.match(text, /639 MB {4}model {8}Qwen3-Q8_0\.gguf\n +unknown {4}projector {4}mmproj\.gguf\n +639 MB +total\n/)
  t.match(text, /Other choices\n.*\n +397 MB {4}Q4_K_M\n/)
  t.notMatch(text, /Q8_0\n\nWarnings/, 'the chosen variant is not listed as another choice')
  t.match(text, 'The disk is too [2Jsmall.')
  t.match(text, /Nothing was downloaded\. Get it with: corral pull Qwen\/Qwen3-GGUF$/)
  const present = formatPlan({ ...PLAN, present: true, warnings: [], choices: [], files: [PLAN.files[0]!] }, 'x/y')
  t.match(present, /Already downloaded, so nothing would be downloaded\.$/)
  t.notMatch(present, /Warnings|Other choices|total/)
})

t.test('formatPulls formats downloads as a table', async t => {
  const pull = pullReply('a/b:Q8_0', { completed: 450 * MB, total: 1000 * MB })
  const failed = { ...pull, model: 'c/d', state: 'failed' as const, speed: 0, reason: 'The hub cannot be reached.' }
  t.equal(
    formatPulls([pull, failed]),
    [
      'MODEL       STATE          DONE    AMOUNT                SPEED    LEFT    WHY',
      'a/b:Q8_0    downloading     45%    450 MB of 1.0 GB    10 MB/s    55 s',
      'c/d         failed          45%    450 MB of 1.0 GB                       The hub cannot be reached.'
    ].join('\n')
  )
  t.equal(formatPulls([]).split('\n').length, 1, 'titles alone')
})

t.test('chooseFound finds a model of another tool by name', async t => {
  const found = (name: string, more: object = {}) => ({
    found: name.toLowerCase(),
    name,
    format: 'gguf' as const,
    size: 5 * MB,
    path: '/x',
    present: false,
    ...more
  })
  const models = [
    found('library/llama3:Q4_K_M', { found: 'llama3:8b' }),
    found('library/llama3:Q8_0', { found: 'llama3:70b' }),
    found('library/tiny:F16', { found: 'tiny:latest' }),
    found('library/tiny:Q8_0', { found: 'tiny:q8' }),
    found('me/odd', { problem: 'Its file is missing.' }),
    found('me/fine:F16', { present: true })
  ]
  for (const [asked, expected, message] of tables.chooseFound!) {
    const choose = () => chooseFound(models, asked)
    if (message === undefined) t.equal(choose().found, expected, asked)
    else t.throws(choose, { exitCode: expected, message: pattern(message) }, asked)
  }
  const table = formatFound({ from: 'ollama', folder: '/x', models })
  t.match(table, /me\/odd +5\.0 MB +gguf +Its file is missing\.\n/)
  t.match(table, /me\/fine:F16 .* already imported$/)
})

t.test('formatModel lists conversions', async t => {
  const model = shownModel('a/b')
  const made = {
    dtype: 'q4_k_m',
    size: 5 * MB,
    created_at: '2026-11-21T11:57:00.000Z',
    converter: '1',
    projector: false
  }
  const now = new Date('2026-11-21T12:00:00.000Z')
  t.match(formatModel({ ...model, conversions: [made] }, now), /Conversions\n {2}q4_k_m {2}5\.0 MB {2}3 minutes ago$/)
  t.notMatch(formatModel({ ...model, conversions: [] }, now), 'Conversions')
})
