import t from 'tap'
import {
  answerMessages,
  type HostedEvent,
  partsOf,
  withEvent
} from '../../../plugins/page/browser/state/answer-calls.ts'
import type { HostedCall } from '../../../plugins/page/browser/state/chat-format.ts'

const event = (type: HostedEvent['type'], id: string, more: Partial<HostedEvent> = {}): HostedEvent => ({
  type,
  id,
  server: 'files',
  tool: 'read',
  name: 'files_read',
  arguments: '{}',
  ...more
})
const collect = (...events: [HostedEvent, number][]) =>
  events.reduce<HostedCall[]>((calls, [event, at]) => withEvent(calls, event, at), [])

t.test('events become calls, also if engines repeat their ids', async t => {
  const calls = collect(
    [event('call', 'call_0'), 5],
    [event('result', 'call_0', { output: 'one' }), 5],
    [event('call', 'call_0'), 9],
    [event('result', 'call_0', { output: 'two', failed: true }), 9]
  )
  t.match(calls, [
    { id: 'call_0', at: 5, output: 'one', failed: false },
    { id: 'call_0', at: 9, output: 'two', failed: true }
  ])
})

t.test('an approval becomes the call that was approved, or its refusal', async t => {
  const asked = collect([event('approval', 'mcpr_1'), 0], [event('approval', 'mcpr_2'), 0])
  t.match(asked, [{ state: 'asked' }, { state: 'asked' }])
  const begun = withEvent(asked, event('call', 'call_7', { approval: 'mcpr_2' }), 0)
  t.match(begun[1], { id: 'call_7', approval: 'mcpr_2', state: undefined, output: undefined })
  const denied = withEvent(begun, event('result', 'call_6', { approval: 'mcpr_1', output: 'No.', failed: true }), 0)
  t.match(denied, [{ id: 'call_6', output: 'No.', state: undefined }, { id: 'call_7' }])
  t.equal(denied.length, 2)
})

t.test('an answer is divided where the model called tools', async t => {
  const call = (id: string, at: number, output?: string): HostedCall => ({
    ...{ id, server: 'files', tool: 'read', name: 'files_read', arguments: '{}', at },
    ...(output !== undefined && { output })
  })
  const message = { content: 'Look. See.', calls: [call('a', 5, 'x'), call('b', 5), call('c', 10, 'y')] }
  const texts = (content: string, calls?: HostedCall[]) =>
    partsOf({ content, ...(calls && { calls }) }).map(({ text, calls }) => [text, ...calls.map(({ id }) => id)])
  t.strictSame(texts(message.content, message.calls), [['Look.', 'a', 'b'], [' See.', 'c'], ['']])
  t.strictSame(texts('Plain.'), [['Plain.']])
  t.strictSame(texts('x', [call('a', 99), call('b', -1)]), [['x', 'a', 'b'], ['']], 'places beyond the text')
  const image = { name: 'a.png', type: 'image/png', data: 'AAAA' }
  const drawn = { ...call('d', 0, 'z'), files: [image, { ...image, type: 'image/svg+xml' }] }
  const full = { id: 'm', chat: 'c', role: 'assistant' as const, at: 1 }
  t.match(answerMessages({ ...full, ...message }, true), [
    { role: 'assistant', content: 'Look.', tool_calls: [{ id: 'a', function: { name: 'files_read' } }, { id: 'b' }] },
    { role: 'tool', tool_call_id: 'a', content: /^\[Data that the tool "read" of "files" returned\..*\nx$/ },
    { role: 'tool', tool_call_id: 'b', content: 'The tool was not run.' },
    { role: 'assistant', content: ' See.' },
    { role: 'tool', tool_call_id: 'c' }
  ])
  const seen = (seesImages: boolean) => answerMessages({ ...full, content: '', calls: [drawn] }, seesImages) as any[]
  t.equal(seen(false).length, 2)
  const [, , images, ...rest] = seen(true)
  t.match(images, { role: 'user', content: [{}, { image_url: { url: 'data:image/png;base64,AAAA' } }] })
  t.equal(images.content.length, 2)
  t.strictSame(rest, [])
})
