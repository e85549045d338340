import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { type LoadSample, samples } from '../state/recent-load.ts'

/** The last minutes of one figure. Its library is loaded when the first one is shown. */
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
      const format = (value: number) => (field === 'memory' ? formatSize(value) : formatNumber(value, 1))
      const axis = { stroke: colours.color, grid: { show: false }, ticks: { show: false }, font: '12px system-ui' }
      chart = new Plot(
        {
          width: parent.clientWidth,
          height: 120,
          legend: { show: false },
          cursor: { show: false },
          scales: { y: { range: (_chart, _low, high) => [0, Math.max(1, high * 1.1)] } },
          axes: [
            { ...axis, size: 24, space: 80 },
            { ...axis, size: 64, values: (_chart, values) => values.map(format) }
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
