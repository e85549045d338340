import { type ReadonlySignal, signal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'
import type { HistoryReply } from '../../../../core/contracts/native-records.ts'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { ask } from '../state/api.ts'
import { engines, gpus, pools } from '../state/server-state.ts'

/** The server's load at a time in epoch seconds. */
export type LoadSample = { at: number } & ReturnType<typeof measure>

/** Number of samples kept: one per second for five minutes. */
const MAX_SAMPLES = 300

/** The last minutes, oldest first. Collected only while shown. */
export const samples = signal<readonly LoadSample[]>([])

/** Generated tokens of each engine at the last sample. */
let counted = new Map<string, number>()

/** Collects samples until the returned function is called. */
export function collectSamples(): () => void {
  const timer = setInterval(sample, 1000)
  sample()
  return () => {
    clearInterval(timer)
    counted = new Map()
  }
}

/** The samples of the server, for longer ranges than the last minutes. */
export const history = signal<readonly LoadSample[]>([])

/** Reads the samples of the server until the returned function is called. */
export function followHistory(range: 'hour' | 'day'): () => void {
  const read = async () => {
    const { samples } = await ask<HistoryReply>('GET', `api/history?range=${range}`)
    if (isEnded) return
    history.value = samples.map(({ at, running, queued, tokens_per_second: tokens, reserved }) => {
      return { at, running, waiting: queued, tokens, memory: reserved, temperature: 0, utilization: 0 }
    })
  }
  let isEnded = false
  history.value = []
  // The page says elsewhere that the server is away.
  const readAgain = () => void read().catch(() => undefined)
  const timer = setInterval(readAgain, 10_000)
  readAgain()
  return () => {
    isEnded = true
    clearInterval(timer)
  }
}

function sample(): void {
  const at = Date.now() / 1000
  const last = samples.peek().at(-1)
  const passed = last ? Math.max(0.5, at - last.at) : 1
  const earlier = passed > 10 ? [] : samples.peek().slice(1 - MAX_SAMPLES)
  samples.value = [...earlier, { at, ...measure(passed) }]
}

/** @param passed seconds since the previous sample */
function measure(passed: number) {
  const all = engines.peek()
  const loaded = all.filter(engine => engine.state === 'loaded')
  const next = new Map(loaded.map(({ name, mode, generated_tokens }) => [`${name} ${mode}`, generated_tokens]))
  // A reloaded engine counts from zero.
  const fresh = [...next].map(([engine, tokens]) => Math.max(0, tokens - (counted.get(engine) ?? tokens)))
  counted = next
  const busy = gpus.peek().flatMap(({ utilization = [] }) => utilization)
  return {
    running: sum(loaded.map(({ running }) => running)),
    waiting: sum(all.map(({ queued }) => queued)),
    /** Per second. */
    tokens: sum(fresh) / passed,
    /** Bytes. */
    memory: sum(pools.peek().map(({ reserved }) => reserved)),
    /** Of the hottest GPU, or 0 if unknown. */
    temperature: Math.max(0, ...gpus.peek().map(({ temperature = 0 }) => temperature)),
    /** Average of the GPUs in percent. */
    utilization: (100 * sum(busy)) / Math.max(1, busy.length)
  }
}

const sum = (numbers: readonly number[]) => numbers.reduce((sum, each) => sum + each, 0)

/** Minimum width of a chart in seconds. */
const MIN_LENGTH = 60
/** Possible distances between the axis labels. */
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]

/** @param at epoch seconds */
const formatTime = (at: number, isShort: boolean) =>
  new Date(at * 1000).toLocaleTimeString([], { timeStyle: isShort ? 'short' : 'medium', hourCycle: 'h23' })
/** Possible distances between times in seconds. */
const TIMES = [10, 30, 60, 120, 600, 1200, 3600, 7200, 14_400]

/** One value now, and over time. The chart library is loaded when the first chart is shown. */
export function LiveChart(props: {
  title: string
  value: string
  field: keyof LoadSample
  all: ReadonlySignal<readonly LoadSample[]>
}) {
  const { title, value, field, all } = props
  const element = useRef<HTMLDivElement>(null)
  useEffect(() => {
    let chart: uPlot | undefined
    let isGone = false
    const stops: (() => void)[] = []
    void import('uplot').then(({ default: Plot }) => {
      const parent = element.current
      if (isGone || !parent) return
      const colours = getComputedStyle(parent)
      const isMemory = field === 'memory'
      const format = (value: number) => (value === 0 ? '0' : isMemory ? formatSize(value) : formatNumber(value, 1))
      const axis = { stroke: colours.color, grid: { show: false }, ticks: { show: false }, font: '12px system-ui' }
      chart = new Plot(
        {
          width: parent.clientWidth,
          height: 120,
          legend: { show: false },
          cursor: { show: false },
          scales: {
            x: { range: (_, first, last) => [Math.min(first, last - MIN_LENGTH), last] },
            y: { range: (_, _low, high) => [0, Math.max(isMemory ? 1e6 : 1, high * 1.1)] }
          },
          axes: [
            {
              ...axis,
              size: 24,
              space: 90,
              incrs: TIMES,
              values: (_, times) => times.map(at => formatTime(at, (times[1] ?? 0) - times[0]! >= 600))
            },
            // Requests are whole numbers.
            { ...axis, size: 64, ...(!isMemory && { incrs: WHOLE }), values: (_, values) => values.map(format) }
          ],
          series: [{}, { stroke: colours.getPropertyValue('border-color'), width: 2, points: { show: false } }]
        },
        [[], []],
        parent
      )
      const resize = new ResizeObserver(() => chart?.setSize({ width: parent.clientWidth, height: 120 }))
      resize.observe(parent)
      stops.push(
        () => resize.disconnect(),
        all.subscribe(all => chart?.setData([all.map(({ at }) => at), all.map(sample => sample[field])]))
      )
    })
    return () => {
      isGone = true
      for (const stop of stops) stop()
      chart?.destroy()
    }
  }, [field, all])
  return (
    <figure class="card chart">
      <figcaption>
        <span class="quiet">{title}</span>
        <strong>{value}</strong>
      </figcaption>
      <div class="live-chart" ref={element} aria-hidden="true" />
    </figure>
  )
}
