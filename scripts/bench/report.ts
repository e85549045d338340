import type { ManyModelsFigures } from './many-models.ts'
import type { Figures, Load } from './rounds.ts'
import type { LoadFigures, StartFigures } from './starts.ts'
import { short } from './statistics.ts'

/** Everything that one run of the benchmark has measured. */
export interface Report {
  /** ISO 8601 UTC. */
  date: string
  corral: string
  quick: boolean
  machine: {
    processor: string
    cores: number
    memoryGiB: number
    system: string
    node: string
    engine: string
    /** Threads of each engine. */
    engineThreads: number
    /** One-minute load average before the run: other people's work on the same cores. */
    loadBefore: number
  }
  loads: { load: Load; rounds: number; figures: Figures[] }[]
  start: StartFigures
  coldLoad: LoadFigures
  manyModels: ManyModelsFigures
}

function table(rows: string[][]): string {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map(row => row[column]!.length)))
  return rows
    .map(row =>
      row.map((cell, column) => (column ? cell.padStart(widths[column]!) : cell.padEnd(widths[0]!))).join('  ')
    )
    .join('\n')
}

const times = (ratio: number | undefined) => (ratio === undefined ? '1' : ratio.toFixed(2))
const added = (ms: number | undefined) => (ms === undefined ? '' : `${ms < 0 ? '' : '+'}${ms.toFixed(2)}`)

function loadTable({ load, rounds, figures }: Report['loads'][number]): string {
  const title = `${load.name}: ${load.concurrent} at once, ${load.tokens} tokens each, ${rounds} rounds of ${load.requests} requests`
  const streamed = load.stream
  const head = streamed
    ? ['', 'tokens/s', 'ratio', 'first text p50', 'p99', 'added', 'between p50', 'p99', 'µs/chunk', 'MiB', 'busy']
    : ['', 'requests/s', 'ratio', 'answer p50', 'p99', 'added', 'µs/request', 'MiB', 'busy']
  const rows = figures.map(figure => [
    figure.target,
    short(streamed ? figure.tokensPerSecond : figure.requestsPerSecond),
    times(figure.ratio?.requestsPerSecond),
    `${short(figure.firstText.p50)} ms`,
    short(figure.firstText.p99),
    added(figure.addedToFirstText),
    ...(streamed ? [`${short(figure.betweenTokens.p50)} ms`, short(figure.betweenTokens.p99)] : []),
    figure.ratio ? short(streamed ? figure.gatewayPerChunk : figure.gatewayPerRequest) : '',
    figure.ratio ? short(figure.gatewayMemory) : '',
    `${short(figure.machineBusy * 100)}%`
  ])
  return `${title}\n${table([head, ...rows])}`
}

/** The report as tables for people. */
export function formatReport(report: Report): string {
  const { machine, start, coldLoad, manyModels } = report
  const against = (ms: number) => `${short(ms)} ms (${(ms / coldLoad.direct).toFixed(2)} of direct)`
  return [
    `corral ${report.corral}, ${report.date}${report.quick ? ', quick' : ''}`,
    `${machine.processor}, ${machine.cores} cores, ${machine.memoryGiB} GiB, ${machine.system}, Node ${machine.node}, llama.cpp ${machine.engine} with ${machine.engineThreads} threads, load ${machine.loadBefore} before`,
    '"direct" is the engine that corral started, asked at its own socket with the same work; ratios are the median of the rounds, speed against direct.',
    '',
    ...report.loads.flatMap(load => [loadTable(load), '']),
    table([
      ['start until it listens', `${short(start.listening)} ms (Node alone: ${short(start.emptyNode)} ms)`],
      ['memory when idle', `${short(start.idleMemory)} MiB`],
      ['cold load, llama-server alone', `${short(coldLoad.direct)} ms`],
      ['cold load, POST /api/load', against(coldLoad.load)],
      ['first chat of a model not loaded', against(coldLoad.firstChat)],
      [`start with ${manyModels.models} models`, `${short(manyModels.listening)} ms`],
      [
        `GET /api/tags of ${manyModels.models}`,
        `${short(manyModels.tags.p50)} ms p50, ${short(manyModels.tags.p99)} ms p99 (${short(manyModels.tagsSize / 1e6)} MB)`
      ],
      [
        `GET /v1/models of ${manyModels.models}`,
        `${short(manyModels.hostedModels.p50)} ms p50, ${short(manyModels.hostedModels.p99)} ms p99`
      ],
      [`memory with ${manyModels.models} models`, `${short(manyModels.memory)} MiB`]
    ])
  ].join('\n')
}
