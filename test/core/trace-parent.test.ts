import t from 'tap'
import { formatTraceParent, parseTraceParent } from '../../core/http/trace-parent.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'

t.test('parseTraceParent parses a valid header, which formats to the same text', async t => {
  const header = `00-${TRACE}-${SPAN}-01`
  t.same(parseTraceParent(header), { traceId: TRACE, spanId: SPAN, sampled: true })
  t.equal(formatTraceParent(parseTraceParent(header)!), header)
  t.equal(parseTraceParent(`00-${TRACE}-${SPAN}-00`)?.sampled, false)
  t.equal(parseTraceParent(`00-${TRACE}-${SPAN}-03`)?.sampled, true, 'flags beyond the first are unchanged')
  t.equal(parseTraceParent(`cc-${TRACE}-${SPAN}-01-more`)?.spanId, SPAN, 'a later version may have more fields')
})

t.test('an invalid traceparent counts as absent', async t => {
  const texts = `  x 00-${TRACE}-${SPAN} 00-${TRACE}-${SPAN}-01-more ff-${TRACE}-${SPAN}-01 00-${'0'.repeat(32)}-${SPAN}-01
00-${TRACE}-${'0'.repeat(16)}-01 00-${TRACE.toUpperCase()}-${SPAN}-01 00-${TRACE.slice(1)}-${SPAN}-01 00-${TRACE}-${SPAN}-0x`
  const wrong = [
    ...[undefined, ['a', 'b'], ` 00-${TRACE}-${SPAN}-01`, ...texts.split(/\s/)],
    `00-${TRACE}-${SPAN}-01, 00-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-01\n`,
    `cc-${TRACE}-${SPAN}-01-${'x'.repeat(100_000)}`
  ]
  for (const header of wrong) t.equal(parseTraceParent(header), undefined, JSON.stringify(header)?.slice(0, 80))
})
