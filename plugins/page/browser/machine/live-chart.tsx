import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { type LoadSample, samples } from '../state/recent-load.ts'

/** Minimum width of a chart in seconds. */
const MIN_LENGTH = 60
/** Possible distances between the axis labels. */
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]

/** @param at epoch seconds */
const formatTime = (at: number) =>
  new Date(at * 1000).toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    hourCycle: 'h23'
  })

/** The last minutes of one value. The chart library is loaded when the first chart is shown. */
export function LiveChart({ field }: { field: Exclude<keyof LoadSample, 'at'> }) {
  const element = useRef<HTMLDivElement>(null)
  useEffect(() => {
    let chart: uPlot | undefined
    let isGone = false
    const stops: (() => void)[] = []
    void import('uplot').then(({ default: Plot }) => {
      const parent = element.current
      if (isGone || !parent) return
      const colours = getComputedStyle(parent)
      const format = (value: number) =>
        value === 0 ? '0' : field === 'memory' ? formatSize(value) : formatNumber(value, 1)
      const axis = { stroke: colours.color, grid: { show: false }, ticks: { show: false }, font: '12px system-ui' }
      chart = new Plot(
        {
          width: parent.clientWidth,
          height: 120,
          legend: { show: false },
          cursor: { show: false },
          scales: {
            x: { range: (_chart, first, last) => [Math.min(first, last - MIN_LENGTH), last] },
            y: { range: (_chart, _low, high) => [0, Math.max(field === 'memory' ? 1e6 : 1, high * 1.1)] }
          },
          axes: [
            {
              ...axis,
              size: 24,
              space: 90,
              incrs: [10, 30, 60, 120],
              values: (_chart, times) => times.map(formatTime)
            },
            // Requests are whole numbers.
            {
              ...axis,
              size: 64,
              ...(field !== 'memory' && { incrs: WHOLE }),
              values: (_chart, values) => values.map(format)
            }
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
        samples.subscribe(all => chart?.setData([all.map(({ at }) => at), all.map(sample => sample[field])]))
      )
    })
    return () => {
      isGone = true
      for (const stop of stops) stop()
      chart?.destroy()
    }
  }, [field])
  return <div class="live-chart" ref={element} aria-hidden="true" />
}
