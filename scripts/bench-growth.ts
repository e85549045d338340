/**
 * Measures the cost of a request with 10, 1,000 and 10,000 models, keys, waiting requests and members: `npm run
 * bench:growth -- [--json FILE] [--docs]`. `--docs` writes the output and a picture to docs/measurements/growth.md.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { LineChart } from 'echarts/charts'
import { GridComponent, LegendComponent, TitleComponent } from 'echarts/components'
import { init, use } from 'echarts/core'
import { SVGRenderer } from 'echarts/renderers'
import { formatTable } from '../command-line/output.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { measureTime, OPERATIONS } from './bench/growth.ts'
import { describeMachine, short } from './bench/measuring.ts'

const COUNTS = [10, 1000, 10_000]

/** One for each operation. */
const COLORS = [
  ...['#1f77b4', '#ff7f0e', '#2ca02c', '#d62728', '#9467bd', '#8c564b', '#e377c2', '#7f7f7f', '#bcbd22', '#17becf'],
  ...['#111111', '#f2c80f']
]

interface Row {
  name: string
  /** The kind of item that is multiplied. */
  of: string
  times: number[]
}

/** Chart of all operations on logarithmic axes. An operation with constant cost is a horizontal line. */
function drawPicture(rows: readonly Row[], date: string): string {
  use([LineChart, GridComponent, LegendComponent, TitleComponent, SVGRenderer])
  const chart = init(null, null, { renderer: 'svg', ssr: true, width: 1040, height: 420 })
  const names = rows.map(({ name, of }) => `${name} (${of})`)
  chart.setOption({
    animation: false,
    // Readable on light and dark pages.
    backgroundColor: '#ffffff',
    title: {
      text: 'Processor time of the steps of a request',
      subtext: date.slice(0, 10),
      left: 'center',
      textStyle: { fontSize: 15 }
    },
    color: COLORS,
    legend: { orient: 'vertical', right: 0, top: 'middle', data: names },
    grid: { left: 70, right: 520, top: 60, bottom: 50 },
    xAxis: {
      type: 'category',
      name: 'number of items',
      nameLocation: 'middle',
      nameGap: 26,
      data: COUNTS.map(count => count.toLocaleString('en'))
    },
    yAxis: { type: 'log', name: 'µs' },
    series: rows.map(({ times }, at) => ({ type: 'line', name: names[at], data: times, symbolSize: 7 }))
  })
  const svg = chart.renderToSVGString()
  chart.dispose()
  return svg
}

const { values } = parseArgs({ options: { json: { type: 'string' }, docs: { type: 'boolean', default: false } } })
const rows: Row[] = []
for (const operation of OPERATIONS) {
  process.stderr.write(`${operation.name} …\n`)
  const { name, of } = operation
  // Compiles the code before the first measurement.
  await measureTime(operation, COUNTS[0]!, 1000, 3)
  const times: number[] = []
  for (const count of COUNTS) times.push(await measureTime(operation, count, 50, 5))
  rows.push({ name, of, times })
}
const date = new Date().toISOString()
const circumstances = `${date}, ${describeMachine()}. Microseconds of processor time, minimum of 5 rounds`
const table = formatTable(
  ['', 'items', ...COUNTS.map(count => `>${count}`), '>growth'],
  rows.map(({ name, of, times }) => [name, of, ...times.map(short), short(times.at(-1)! / times[0]!)])
)
console.log(`${circumstances}.\n`)
console.log(table)
if (values.json) writeFileSync(values.json, `${JSON.stringify({ counts: COUNTS, microseconds: rows }, undefined, 2)}\n`)
if (values.docs) {
  const docs = `${packageRoot}/docs/measurements`
  writeFileSync(`${docs}/pictures/bench-growth.svg`, `${drawPicture(rows, date)}\n`)
  const page = readFileSync(`${docs}/growth.md`, 'utf8')
  const written = page
    .replace(/`npm run bench:growth` printed \(.*?\):/, () => `\`npm run bench:growth\` printed (${circumstances}):`)
    .replace(/```\n[\s\S]*?\n```/, () => `\`\`\`\n${table.trimEnd()}\n\`\`\``)
  if (written === page)
    throw new Error('docs/measurements/growth.md has no block for the output. Restore its comment and block.')
  writeFileSync(`${docs}/growth.md`, written)
}
