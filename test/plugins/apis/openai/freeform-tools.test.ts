import t from 'tap'
import { FreeformInput, freeformArguments, freeformInput } from '../../../../plugins/apis/openai/freeform-tools.ts'
import { pick, randomNumbers } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'

t.test('takes the input of a freeform call out of its arguments, however they are split', async t => {
  const texts = ['', 'a', '"', '\\', '\n', '\u0000', 'ä', '🦙', '}', '{"input":"', '\\u0041', '\u2028']
  for (let seed = 1; seed <= trialCount(500); seed++) {
    const random = randomNumbers(seed)
    const input = Array.from({ length: Math.floor(random() * 8) }, () => pick(random, texts)).join('')
    const plain = JSON.stringify(freeformArguments(input))
    const escaped = plain.replace(/[^\0-\x7f]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
    const json = pick(random, [plain, escaped, plain.replace('{', '{\n  ').replace(':', ' : '), `${plain}\n`])
    const reader = new FreeformInput()
    let read = ''
    for (let at = 0; at < json.length; ) {
      const length = 1 + Math.floor(random() * 5)
      const delta = reader.add(json.slice(at, at + length))
      if (/[\ud800-\udbff]$/.test(delta)) t.fail(`half a character with seed ${seed}`)
      read += delta
      at += length
    }
    read += reader.end()
    if (read !== input) t.equal(read, input, `seed ${seed}: ${json}`)
    if (freeformInput(json) !== input) t.equal(freeformInput(json), input, `seed ${seed}, in one piece`)
  }
  t.pass('no difference')
})

t.test('reads what models without a grammar write', async t => {
  const table: [string, string][] = [
    ['{"input":"line\nbreak"}', 'line\nbreak'],
    [String.raw`{"input":"a\qb"}`, String.raw`a\qb`],
    ['*** Begin Patch', '*** Begin Patch'],
    ['{"note":"x","input":"a"}', 'a'],
    ['{"patch":"a"}', '{"patch":"a"}'],
    ['"a"', 'a'],
    ['{"input":7}', '{"input":7}'],
    ['{"in', ''],
    ['', '']
  ]
  for (const [json, input] of table) t.equal(freeformInput(json), input, json)
})
