import { readFileSync } from 'node:fs'
import t from 'tap'
import { formatBytes } from '../../core/system/bytes.ts'
import { runTool } from '../../core/system/child-process.ts'
import { formatDuration } from '../../core/system/duration.ts'
import { TINY_SAFETENSORS } from '../support/conversion-python.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral } from '../support/corral.ts'
import { record } from './support.ts'

// Installs the converter's packages from the real package index: several gigabytes on Linux. The other conversion tests
// use an existing Python.

t.test('a bare data directory leads to an answer of a converted model', { timeout: 3_600_000 }, async t => {
  const corral = await startCorral(t, { config: 'conversion:\n  python: ""\n  install: auto\n' })
  const model = 'test/tiny-st'
  const { status } = await corral.json('/api/import', { path: TINY_SAFETENSORS, name: model })
  t.equal(status, 200)

  const begun = performance.now()
  const events = await corral.events('/api/convert', { model, dtype: 'q4_k_m' })
  const whole = performance.now() - begun
  t.match(events.at(-1), { status: 'success', dtype: 'q4_k_m' }, JSON.stringify(events.at(-1)))
  t.ok(events.some(event => /^installing /.test(event.status)))
  const again = performance.now()
  t.match((await corral.events('/api/convert', { model, dtype: 'f16' })).at(-1), { status: 'success' })
  const second = performance.now() - again

  const { body } = await corral.json('/api/chat', {
    model,
    stream: false,
    messages: [CAPITAL_QUESTION],
    options: { temperature: 0, dtype: 'q4_k_m' }
  })
  t.equal(body.message?.content, CAPITAL_ANSWER)

  const { stdout } = await runTool('sh', [
    '-c',
    `du -sk "${corral.home}/python" && echo "${corral.home}"/python/*/complete.json`
  ])
  const versions = JSON.parse(readFileSync(stdout.at(-1)!, 'utf8')) as Record<string, string>
  record(t, 'Conversion', {
    'packages installed by': /"uv":"/.test(corral.log()) ? 'uv' : 'venv and pip',
    versions: ['python', 'torch', 'transformers', 'numpy', 'sentencepiece']
      .map(name => `${name} ${versions[name]}`)
      .join(', '),
    'time for the packages': formatDuration(Number(versions.seconds) * 1000),
    'their size on disk': formatBytes(Number(stdout[0]!.split('\t')[0]) * 1024),
    'first conversion with all of it': formatDuration(whole),
    'second conversion, of a 4 MB model': formatDuration(second),
    'largest download': largest(events),
    'converter of llama.cpp': String(events.at(-1).converter)
  })
})

function largest(events: { status: string }[]): string {
  const sizes = events.flatMap(({ status }) => {
    const match = /^installing (.+) \(([\d.]+) ?(MB|MiB)\)$/.exec(status)
    return match ? [{ name: match[1]!, size: Number(match[2]) }] : []
  })
  const first = sizes.sort((a, b) => b.size - a.size)[0]
  return first ? `${first.name}, ${first.size} MB` : 'none seen'
}
