import { cpus, totalmem } from 'node:os'
import type { ShownModel } from '../../core/contracts/native-records.ts'
import type { TrialRecord, TrialSettings, Tunable } from '../../core/contracts/trials.ts'
import { version } from '../../core/system/package-info.ts'
import { plural } from '../../core/system/plural.ts'
import { createMeter, type Meter, type Sample } from '../bench/measure.ts'
import { saveSettings } from '../bench/save.ts'
import { runSessions } from '../bench/sessions.ts'
import { type Ratio, type Summary, summarize } from '../bench/statistics.ts'
import { type BenchServer, benchServer } from '../bench/trial-client.ts'
import { type Step, tune } from '../bench/tune.ts'
import { failure, interruption } from '../command-failure.ts'
import { type CommandContext, modelArgument, type Options, usageFailure } from '../context.ts'
import { formatTable, printJson, printNote, printResult, printText, wrapLines } from '../output.ts'
import { showProgress } from '../progress-display.ts'
import { createClient, type ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

type BenchOptions = Options<
  'quick' | 'session' | 'tune' | 'allowQuantizedCache' | 'yes' | 'dryRun' | 'anyway' | 'json',
  'context' | 'slots' | 'beside'
> & { repeat?: number; agents?: number; turns?: number }
/** Default contexts. The sequence starts at the first one, and each is four or eight times as large as the last. */
const CONTEXTS = [512, 4096, 16_384, 65_536, 131_072]
const SLOTS = [1, 2, 4]
const REPEAT = { usual: 5, quick: 2 }
/** With `--session`: the context and slots of the model, and the words of instructions per token of the context. */
const SESSION = { agents: 6, turns: 6, context: 8192, slots: 2, words: 0.25 }
/** A default context is skipped if one answer would take longer than this. */
const MAX_ANSWER_SECONDS = 20
/** Target duration of an answer, and its limits in tokens. */
const ANSWER = { seconds: 2, least: 16, most: 128, quick: 16 }
/** The benchmark warns if a 95 % interval is wider. */
const MAX_SPREAD = 0.1

/** In ascending order. */
function wholeNumbers(option: string, text: string | undefined): number[] | undefined {
  if (text === undefined) return undefined
  const values = [...new Set(text.split(',').map(Number))]
  if (values.every(value => Number.isSafeInteger(value) && value > 0)) return values.sort((a, b) => a - b)
  throw usageFailure(`--${option} cannot be "${text}". It must be whole numbers, 1 or more.`)
}

interface Work {
  client: ServerClient
  server: BenchServer
  model: string
  options: Omit<BenchOptions, 'context' | 'slots'> & ReturnType<typeof readSizes>
  say(text: string): void
  notes: string[]
}

const readSizes = ({ context, slots }: BenchOptions) => ({
  context: wholeNumbers('context', context),
  slots: wholeNumbers('slots', slots)
})

export async function bench(context: CommandContext, model: string, given: BenchOptions): Promise<void> {
  const options = { ...given, ...readSizes(given) }
  modelArgument(model)
  const { tune, anyway = false, session, json } = options
  await withServer(context, 'usual', async ({ client, own }) => {
    if (own) printNote('No server is running, so one was started that stops with this command.')
    const shown = await client.json<ShownModel>('POST', '/api/show', { model })
    const progress = await showProgress('loading', { plain: 'lines' })
    let doing = ''
    const notes: string[] = []
    const server = benchServer(client, model, anyway, text =>
      progress.status(doing === '' ? text : `${doing}: ${text}`)
    )
    const say = (text: string) => {
      doing = text
      progress.status(text)
    }
    const work: Work = { client, server, model, options, say, notes }
    try {
      if (session) return await reportSessions(work, progress)
      const result = tune ? await tuneModel(work) : await measureModel(work, shown.details.context_length)
      server.close()
      progress.clear()
      if ('steps' in result) await reportTuning(work, result)
      else printResult(json, result, formatReport)
      for (const note of notes) printNote(note)
    } finally {
      progress.clear()
      server.close()
    }
  })
}

type BenchRow = ReturnType<typeof toRow>
type BenchReport = Awaited<ReturnType<typeof measureModel>>

async function measureModel(work: Work, trained = Number.POSITIVE_INFINITY) {
  const { client, server, model, options, say, notes } = work
  const { quick = false, repeat = quick ? REPEAT.quick : REPEAT.usual } = options
  const named = options.context
  const usual = quick
    ? CONTEXTS.slice(0, 1)
    : [...CONTEXTS.filter(each => each < trained), ...(trained < 131_072 ? [trained] : [])]
  const contexts = named ?? usual.filter((each, index) => each <= trained || index === 0)
  const rows: BenchRow[] = []
  const loads: number[] = []
  let record: TrialRecord | undefined
  let meter: Meter | undefined
  let last: BenchRow | undefined

  for (const [index, wanted] of contexts.entries()) {
    const slotCounts = options.slots ?? (index > 0 || quick ? [1] : SLOTS)
    if (!named && last) {
      const { prompt, answer, answer_tokens } = last
      const seconds = wanted / prompt.median + (answer ? answer_tokens / answer.median : 0)
      if (seconds > MAX_ANSWER_SECONDS) {
        const time = `about ${Math.ceil(seconds / 10) * 10} seconds. Measure it with --context ${wanted}.`
        notes.push(`Longer contexts were skipped: an answer at ${wanted} tokens would take ${time}`)
        break
      }
    }
    say(`loading with a context of ${wanted}`)
    const loaded = await server.load({ options: { num_ctx: wanted, num_parallel: Math.max(...slotCounts) } })
    if (loaded.status === 'failed') {
      // If the first context fails, there is nothing to show.
      if (rows.length === 0) throw failure(loaded.reason)
      notes.push(`A context of ${wanted} does not work on this machine: ${loaded.reason}`)
      break
    }
    record = loaded
    loads.push(loaded.load_duration / 1e9)
    meter ??= createMeter(client, model, loaded.mode)
    const warm = await server.alone(meter.sent, () => meter!.warmUp())
    const size = Math.min(wanted, loaded.context_length)
    if (size < wanted) notes.push(`A context of ${wanted} exceeds the model's limit, so ${size} was measured.`)
    if (rows.some(({ context }) => context === size)) continue
    const answer = loaded.mode === 'embedding' ? 0 : answerTokens(warm, size, quick)
    for (const slots of slotCounts) {
      if (slots > loaded.slots) {
        notes.push(`${slots} concurrent requests exceed the limit of ${loaded.slots} slots.`)
        continue
      }
      const samples: Sample[] = []
      for (let run = 0; run < repeat; run++) {
        say(`context ${size}, ${plural(slots, 'slot')}: ${run + 1} of ${repeat}`)
        samples.push(await server.alone(meter.sent, () => meter!.sample(size - answer - 8, answer, slots)))
      }
      const row = toRow(size, slots, answer, samples)
      rows.push(row)
      if (slots === 1) last = row
    }
  }
  if (!record) throw failure('There is nothing to measure.')
  if (rows.some(({ prompt, answer }) => Math.max(prompt.spread, answer?.spread ?? 0) > MAX_SPREAD)) {
    notes.push(
      'The measurements vary by more than 10 %. Another program uses this machine, or its speed changes. Close other programs, or repeat more often (--repeat 15).'
    )
  }
  const disturbed = server.disturbed()
  if (disturbed > 0) notes.push(`Measurements repeated because others used the server: ${disturbed}.`)
  // Speeds are in tokens per second, and times in seconds.
  return { ...origin(record), mode: record.mode, load: summarize(loads), rows }
}

/** The model, the programs and the machine of a report. */
function origin({ model, label, provider, build }: TrialRecord) {
  const all = cpus()
  return {
    model,
    label,
    corral: version,
    engine: [provider, build].filter(Boolean).join(' '),
    machine: { cpu: all[0]?.model.trim() ?? 'unknown', threads: all.length, memory: totalmem() }
  }
}

/** Measures agents that take turns with this server, then with others. */
async function reportSessions({ client, server, model, options, say }: Work, progress: { clear(): void }) {
  const { agents, turns } = { ...SESSION, ...options }
  const num_ctx = options.context?.[0] ?? SESSION.context
  say(`loading with a context of ${num_ctx}`)
  const loaded = await server.load({ options: { num_ctx, num_parallel: options.slots?.[0] ?? SESSION.slots } })
  if (loaded.status === 'failed') throw failure(loaded.reason)
  const plan = { agents, turns, words: Math.floor(SESSION.words * Math.min(num_ctx, loaded.context_length)) }
  const others = (options.beside?.split(',') ?? []).map(address =>
    createClient({ address, apiKey: undefined, signal: interruption() })
  )
  const reports: Awaited<ReturnType<typeof runSessions>>[] = []
  for (const one of [client, ...others]) reports.push(await runSessions(one, model, plan, say))
  progress.clear()
  if (options.json) return printJson(reports)
  const rows = reports.map(({ server, first, cached }) => [
    server,
    `${shortNumber(first.median)} s`,
    `${shortNumber(first.p95)} s`,
    `${(100 * cached).toFixed(1)} %`
  ])
  printText(formatTable(['SERVER', '>FIRST', '>95 %', '>CACHED'], rows))
}

function answerTokens(warm: Sample, context: number, quick: boolean): number {
  const { seconds, least, most } = ANSWER
  const wanted = quick ? ANSWER.quick : Math.round((warm.answer ?? 0) * seconds)
  return Math.max(1, Math.min(Math.max(least, Math.min(most, wanted)), context >> 2))
}

function toRow(context: number, slots: number, answer: number, samples: readonly Sample[]) {
  const of = (name: keyof Sample) => summarize(samples.map(sample => sample[name]!))
  const tokens = samples.reduce((sum, { promptTokens }) => sum + promptTokens, 0)
  return {
    context,
    slots,
    prompt_tokens: Math.round(tokens / samples.length / slots),
    answer_tokens: answer,
    prompt: of('prompt'),
    ...(samples[0]!.answer !== undefined && { answer: of('answer'), first: of('first') })
  }
}

/** Formats a number with at least three digits: `0.31`, `12.4`, `1234`, `12.3k`. */
export function shortNumber(value: number): string {
  if (value >= 10_000) return `${(value / 1000).toFixed(1)}k`
  if (value >= 100) return String(Math.round(value))
  return value >= 10 ? value.toFixed(1) : value.toFixed(2)
}

/** Formats the result in at most 40 columns. */
export function formatReport({ model, label, engine, load, rows }: BenchReport): string {
  const withSpread = (summary: Summary | undefined) => {
    if (!summary) return '-'
    const spread = Math.min(999, Math.round(summary.spread * 100))
    return `${shortNumber(summary.median)}${summary.values.length > 1 ? ` ±${spread}%` : ''}`
  }
  const cells = rows.map(({ context, slots, prompt, answer, first }) => [
    String(context),
    String(slots),
    withSpread(prompt),
    withSpread(answer),
    first === undefined ? '-' : `${shortNumber(first.median)} s`
  ])
  const table = [['CONTEXT', 'SLOTS', 'PROMPT/s', 'ANSWER/s', 'FIRST'], ...cells]
  const widths = table[0]!.map((_, column) => Math.max(...table.map(row => row[column]!.length)))
  const lines = table.map(row => row.map((cell, column) => cell.padStart(widths[column]!)).join(' '))
  return [
    wrapLines(`${model} (${label}) on ${engine}`),
    wrapLines(`loaded in ${shortNumber(load.median)} s (${shortNumber(load.least)} to ${shortNumber(load.most)} s)`),
    '',
    ...lines
  ].join('\n')
}

/** Tokens of a typical request. A quarter of the answer repeats text of the conversation. */
const USUAL_WORK = { chat: { prompt: 1024, answer: 192, repeat: 64 }, embedding: { prompt: 512 } }
const PAIRS = { usual: 8, quick: 4 }
/** Smallest context to try when the configured one does not fit. */
const MIN_CONTEXT = 512

type TuningResult = Awaited<ReturnType<typeof tuneModel>>

async function tuneModel(work: Work) {
  const { client, server, model, options, say } = work
  const { quick = false } = options
  const most = Math.max(4, options.repeat ?? (quick ? PAIRS.quick : PAIRS.usual))
  const { record, needed } = await loadPresent(work)
  const meter = createMeter(client, model, record.mode)
  const warm = await server.alone(meter.sent, () => meter.warmUp())
  const size = tuningSize(warm, record.context_length, quick)
  let loaded = needed
  const tuning = await tune(
    {
      async tunables(settings) {
        const body = { model, settings }
        return (await client.json<{ tunables: Tunable[] }>('POST', '/api/trials/tunables', body)).tunables
      },
      async measure(settings, seed) {
        if (settings !== loaded) {
          const ready = await server.load(settings)
          if (ready.status === 'failed') {
            loaded = {}
            return { failed: ready.reason }
          }
          loaded = settings
          await server.alone(meter.sent, () => meter.warmUp())
        }
        return await server.alone(meter.sent, () => meter.speeds(size, seed))
      }
    },
    {
      base: needed,
      work: USUAL_WORK[record.mode],
      most,
      allowChanges: options.allowQuantizedCache ?? false,
      say: text => say(`trying ${text}`),
      onStep: step => {
        if (!options.json) printNote(stepText(step))
      }
    }
  )
  const largest = quick ? undefined : await largestContext(work, tuning.settings, record)
  return { ...tuning, record, needed, largest }
}

/**
 * Loads the model with its configured settings, halving the context while it does not fit the memory.
 * @returns the trial, and the settings without which the model does not load at all
 */
async function loadPresent({ server, say }: Work) {
  say('loading with the current settings')
  let first: string | undefined
  for (let size: number | undefined; ; ) {
    const needed: TrialSettings = size === undefined ? {} : { options: { num_ctx: size } }
    const loaded = await server.load(needed)
    if (loaded.status === 'ready') return { record: loaded, needed }
    first ??= loaded.reason
    if (loaded.code !== 'insufficient_memory' || (size ?? 4096) <= MIN_CONTEXT) throw failure(first)
    size = size === undefined ? 4096 : size >> 1
    say(`loading with a context of ${size}, because a larger one does not fit the memory`)
  }
}

function tuningSize(warm: Sample, context: number, quick: boolean): { prompt: number; answer: number } {
  const seconds = quick ? 0.5 : ANSWER.seconds
  const between = (least: number, wanted: number, most: number) => Math.max(least, Math.min(Math.round(wanted), most))
  return {
    prompt: between(64, warm.prompt * seconds, Math.min(2048, context >> 1)),
    answer: between(ANSWER.least, (warm.answer ?? 0) * seconds, Math.min(256, context >> 2))
  }
}

/** Finds the largest context that loads with these settings, by doubling. */
async function largestContext(work: Work, settings: TrialSettings, record: TrialRecord): Promise<number> {
  const { server, say } = work
  let largest = record.context_length
  for (let size = largest * 2; ; size *= 2) {
    say(`trying a context of ${size}`)
    const loaded = await server.load({ ...settings, options: { ...settings.options, num_ctx: size } })
    if (loaded.status === 'failed' || loaded.context_length <= largest) return largest
    largest = loaded.context_length
    if (largest < size) return largest
  }
}

const percent = (ratio: number) => `${Math.abs((ratio - 1) * 100).toFixed(Math.abs(ratio - 1) < 0.095 ? 1 : 0)} %`
function faster(ratio: number): string {
  if (ratio >= 3) return `${shortNumber(ratio)} times as fast`
  return `${percent(ratio)} ${ratio >= 1 ? 'faster' : 'slower'}`
}
const gain = ({ mean, low, high }: Ratio) => `${faster(mean)} (${signed(low)} to ${signed(high)} %)`

export function stepText({ name, value, result, reason, verdict }: Step): string {
  const subject = `${name} ${value}`
  if (!verdict) return `${subject}: ${result === 'changes answers' ? 'not tried' : result}. ${reason ?? ''}`.trim()
  return `${subject}: ${gain(verdict.overall)}, ${result === 'faster' ? 'kept' : 'not kept'}`
}

const signed = (ratio: number) => {
  const value = Math.max(-99, Math.min(999, Math.round((ratio - 1) * 100)))
  return value > 0 ? `+${value}` : `${value}`
}

async function reportTuning(work: Work, result: TuningResult): Promise<void> {
  const { options, client } = work
  const { record, settings, confirmation, largest, needed, steps } = result
  const found = Object.keys(settings).length > 0
  const tell = options.json ? printNote : (text: string) => printText(wrapLines(text))
  if (confirmation && settings !== needed) {
    tell(`Together: ${gain(confirmation.overall)}.`)
    for (const [part, ratio] of Object.entries(confirmation.parts))
      tell(`  ${PARTS[part] ?? part}: ${faster(ratio.mean)}`)
  } else if (confirmation) {
    tell('The speed-up did not reproduce, so no settings were changed.')
  } else tell('No setting was faster than the current ones.')
  if (Object.keys(needed).length > 0) {
    tell(`The configured context does not fit the memory. ${settings.options?.num_ctx} tokens do.`)
  }
  if (largest !== undefined && largest > record.context_length) {
    tell(
      `Contexts of up to ${largest} tokens fit the memory (now ${record.context_length}, in ${record.slots} slots). A larger context is not faster.`
    )
  }
  const saved = found ? await saveSettings({ client, record, settings, tell, options }) : false
  if (options.json) {
    const found = { steps, settings, confirmation: confirmation ?? null, largest_context: largest ?? null }
    printJson({ ...origin(record), ...found, written: saved })
  }
}

const PARTS: Record<string, string> = {
  prompt: 'reading the prompt',
  answer: 'writing an answer',
  repeat: 'repeating a text'
}
