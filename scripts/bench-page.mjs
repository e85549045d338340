/**
 * Updates docs/measurements: copies the output of `npm run bench` into benchmark.md and draws pictures/bench-*.svg. The
 * input is benchmark.json, and benchmark-products.json for other products (benchmark.md lists the commands).
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { BarChart, LineChart } from 'echarts/charts'
import { GridComponent, LegendComponent, TitleComponent } from 'echarts/components'
import { init, use } from 'echarts/core'
import { SVGRenderer } from 'echarts/renderers'

use([BarChart, LineChart, GridComponent, LegendComponent, TitleComponent, SVGRenderer])

const docs = new URL('../docs/measurements/', import.meta.url)
const read = name => JSON.parse(readFileSync(new URL(name, docs), 'utf8'))
const { results, date, text } = read('benchmark.json')
const products = read('benchmark-products.json')
const day = date.slice(0, 10)

function draw(name, option, height = 320) {
  const chart = init(null, null, { renderer: 'svg', ssr: true, width: 760, height })
  // Readable on light and dark pages.
  chart.setOption({ animation: false, backgroundColor: '#ffffff', ...option })
  writeFileSync(new URL(`pictures/bench-${name}.svg`, docs), `${chart.renderToSVGString()}\n`)
  chart.dispose()
}

const title = text => ({ text, subtext: day, left: 'center', textStyle: { fontSize: 15 } })

function bars(name, heading, figures, value) {
  const shown = figures.filter(each => value(each) !== undefined).toSorted((a, b) => value(b) - value(a))
  draw(
    name,
    {
      title: title(heading),
      grid: { left: 130, right: 60, top: 60, bottom: 30 },
      xAxis: { type: 'value' },
      yAxis: { type: 'category', data: shown.map(({ way }) => way) },
      series: [
        { type: 'bar', data: shown.map(each => Math.round(value(each))), label: { show: true, position: 'right' } }
      ]
    },
    90 + 28 * shown.length
  )
}

/** One line per way, over the parameter that differs between the loads of a group. */
function lines(name, heading, group, along, value, axis) {
  const found = results.filter(({ load }) => load.group === group)
  if (found.length === 0) return
  const ways = found[0].figures.map(({ way }) => way)
  draw(name, {
    title: title(heading),
    legend: { bottom: 0 },
    grid: { left: 70, right: 30, top: 60, bottom: 70 },
    xAxis: { type: 'log', logBase: axis.base, name: axis.name, nameLocation: 'middle', nameGap: 25 },
    yAxis: { type: 'log', min: axis.min },
    series: ways
      .map(way => ({
        type: 'line',
        name: way,
        data: found
          .map(({ load, figures }) => [load[along], value(figures.find(each => each.way === way))])
          .filter(([, y]) => y !== undefined)
      }))
      .filter(({ data }) => data.length > 0)
  })
}

const short = products.results.findLast(({ load, engine }) => load.group === 'short' && engine === 'burst')
if (short) bars('short', 'Processor time of a short answer, µs, 16 at once', short.figures, each => each.perRequest)
lines('chunks', 'Processor time of a token, µs, by streams at once', 'many', 'concurrent', each => each.perChunk, {
  base: 4,
  name: 'streams'
})
lines('first', 'Time to the first text, ms (p99), by streams at once', 'many', 'concurrent', each => each.first.p99, {
  base: 4,
  name: 'streams'
})
lines(
  'bodies',
  'Processor time of a short answer, µs, by size of the question',
  'bodies',
  'bytes',
  each => each.perRequest,
  {
    base: 10,
    name: 'bytes'
  }
)

const page = new URL('benchmark.md', docs)
/** Replaces the block after a comment. */
const withBlock = (markdown, comment, content) => {
  const at = markdown.indexOf(`<!-- ${comment} -->`)
  const begin = markdown.indexOf('```text\n', at) + '```text\n'.length
  const end = markdown.indexOf('\n```', begin)
  if (at === -1 || end === -1) throw new Error(`benchmark.md has no block after the comment "${comment}".`)
  return markdown.slice(0, begin) + content + markdown.slice(end)
}
const markdown = withBlock(readFileSync(page, 'utf8'), 'output of npm run bench', text.trim())
writeFileSync(page, withBlock(markdown, 'output with other products', products.text.trim()))
