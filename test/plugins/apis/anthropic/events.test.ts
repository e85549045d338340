import t from 'tap'
import type { Delta, ToolCallPiece } from '../../../../core/contracts/engines.ts'
import { MessageEvents } from '../../../../plugins/apis/anthropic/message-events.ts'
import type { MessageEvent } from '../../../../plugins/apis/anthropic/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { randomNumbers } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'

const CASES = readCases('anthropic-events')

const HEAD = { id: 'msg_1', model: 'a/b', stopSequences: ['END'] }

function answer(deltas: Delta[], head: Partial<typeof HEAD> & object = {}) {
  const writer = new MessageEvents({ ...HEAD, ...head })
  const events: MessageEvent[] = [...deltas.flatMap(given => writer.add([given])), ...writer.end()]
  return { events, message: writer.whole() }
}

t.test('converts an answer to events and to a message', t => {
  const usage = { promptTokens: 10, cachedTokens: 4, completionTokens: 7 }
  const { events, message } = answer([
    { reading: { tokens: 5, total: 10, cached: 4 } },
    { thinking: 'hm' },
    { content: '\n\n' },
    { content: 'Hi' },
    { content: ' you' },
    { content: '\n' },
    { toolCalls: [{ index: 0, id: 'c0', name: 'f', arguments: '' }] },
    { toolCalls: [{ index: 0, arguments: '{"a":' }] },
    {
      toolCalls: [
        { index: 0, arguments: '1}' },
        { index: 1, id: 'c1', name: 'g', arguments: '{}' }
      ]
    },
    { content: '\n' },
    { finish: 'stop', usage }
  ])
  t.strictSame(events, CASES.events as MessageEvent[])
  t.strictSame(message, CASES.message)
  t.end()
})

t.test('reports the stop reason and drops incomplete parts', t => {
  const piece = (index: number, json: string, name?: string): ToolCallPiece => ({
    index,
    arguments: json,
    ...(name && { name })
  })
  const stopOf = (deltas: Delta[], head = {}) => {
    const { stop_reason, stop_sequence, content } = answer(deltas, head).message
    return { stop_reason, stop_sequence, content }
  }
  const said = [{ type: 'text', text: 'Hi' }]
  const stopped = (stop_reason: string, stop_sequence: string | null, content: unknown[]) => ({
    stop_reason,
    stop_sequence,
    content
  })
  t.strictSame(stopOf([{ content: 'Hi' }, { finish: 'stop' }]), stopped('end_turn', null, said) as never)
  t.strictSame(stopOf([{ content: 'Hi' }, { finish: 'length' }]), stopped('max_tokens', null, said) as never)
  t.strictSame(
    stopOf([{ content: 'Hi' }, { finish: 'stop', stopSequence: 'END' }]),
    stopped('stop_sequence', 'END', said) as never
  )
  const own = stopOf([{ content: 'Hi' }, { finish: 'stop', stopSequence: '<|im_end|>' }])
  t.strictSame(own, stopped('end_turn', null, said) as never, 'a stop text of the engine is not reported')
  t.strictSame(stopOf([{ finish: 'stop' }]), stopped('end_turn', null, []) as never, 'an empty answer')
  t.strictSame(
    stopOf([{ content: ' \n' }, { finish: 'stop' }]),
    stopped('end_turn', null, []) as never,
    'only white space'
  )
  t.strictSame(
    stopOf([{ thinking: 'hm' }, { content: 'Hi' }, { finish: 'stop' }], { omitThinking: true }).content,
    said as never
  )
  const cut = answer([{ content: 'Hi' }, { toolCalls: [piece(0, '{"a', 'f')] }, { finish: 'length' }])
  t.strictSame(cut.message.content, said as never, 'an incomplete call is dropped')
  t.equal(
    cut.events.filter(({ type }) => type === 'content_block_start').length,
    2,
    'a stream contains the incomplete call'
  )
  const two = [{ toolCalls: [piece(0, '{}', 'f')] }, { toolCalls: [piece(1, '{}', 'g')] }, { finish: 'stop' as const }]
  t.match(stopOf(two, { oneCall: true }).content, [{ name: 'f' }])
  t.equal(stopOf(two, { oneCall: true }).content.length, 1)
  const late = stopOf([{ toolCalls: [piece(0, '{"a"')] }, { toolCalls: [piece(0, ':1}', 'f')] }, { finish: 'stop' }])
  t.match(
    late.content,
    [{ type: 'tool_use', id: /^toolu_./, name: 'f', input: { a: 1 } }],
    'the name arrives after the arguments'
  )
  const between = stopOf([
    { toolCalls: [piece(0, '{"a"', 'f')] },
    { content: 'Hi' },
    { toolCalls: [piece(0, ':1}')] },
    { thinking: 'hm' },
    { finish: 'stop' }
  ])
  t.match(between.content, [{ name: 'f', input: { a: 1 } }, { text: 'Hi' }, { thinking: 'hm' }])
  t.end()
})

/** Returns an error in the order of events, if any. */
function fault(events: MessageEvent[]): string | undefined {
  if (events[0]?.type !== 'message_start' || events[1]?.type !== 'ping') return 'wrong start of the stream'
  if (events.at(-2)?.type !== 'message_delta' || events.at(-1)?.type !== 'message_stop')
    return 'wrong end of the stream'
  let open: string | undefined
  let index = 0
  for (const event of events.slice(2, -2)) {
    if (event.type === 'content_block_start') {
      if (open !== undefined) return 'nested block'
      open = event.content_block.type
    } else if (event.type === 'content_block_delta') {
      const kinds = {
        text: ['text_delta'],
        thinking: ['thinking_delta', 'signature_delta'],
        tool_use: ['input_json_delta']
      }
      if (!kinds[open as keyof typeof kinds]?.includes(event.delta.type)) return `${event.delta.type} in ${open}`
    } else if (event.type === 'content_block_stop') {
      if (open === undefined) return 'end without a start of a block'
      open = undefined
    } else return `unexpected ${event.type}`
    if (event.index !== index) return `block ${event.index} instead of ${index}`
    if (event.type === 'content_block_stop') index++
  }
  return open === undefined ? undefined : 'a block without an end'
}

t.test('the stream is well-formed and complete for random answers', t => {
  const PIECES = ['a', ' ', '\n\n', 'word ', '{', '"x"', '']
  const faults: string[] = []
  for (let seed = 1; seed <= trialCount(1000); seed++) {
    const random = randomNumbers(seed)
    const pick = () => PIECES[Math.floor(random() * PIECES.length)]!
    const said = { text: '', thinking: '' }
    const calls: string[] = []
    const deltas: Delta[] = []
    for (let left = Math.floor(random() * 30); left > 0; left--) {
      const given: Delta = {}
      if (random() < 0.3) given.thinking = pick()
      if (random() < 0.4) given.content = pick()
      if (random() < 0.4) {
        given.toolCalls = []
        for (let more = 1 + Math.floor(random() * 3); more > 0; more--) {
          const begins = calls.length === 0 || random() < 0.3
          if (begins) calls.push('')
          const json = pick()
          calls[calls.length - 1] += json
          const index = calls.length - 1
          given.toolCalls.push({ index, ...(begins && { id: `c${index}`, name: `f${index}` }), arguments: json })
        }
      }
      said.text += given.content ?? ''
      said.thinking += given.thinking ?? ''
      deltas.push(given)
    }
    deltas.push({ finish: 'stop' })
    const { events } = answer(deltas)
    const got = { text: '', thinking: '' }
    const json: string[] = []
    const names: string[] = []
    for (const event of events) {
      if (event.type === 'content_block_start' && event.content_block.type === 'tool_use') {
        names.push(event.content_block.name)
        json.push('')
      }
      if (event.type !== 'content_block_delta') continue
      if (event.delta.type === 'text_delta') got.text += event.delta.text
      else if (event.delta.type === 'thinking_delta') got.thinking += event.delta.thinking
      else if (event.delta.type === 'input_json_delta') json[json.length - 1] += event.delta.partial_json
    }
    const words = (of: string) => of.replace(/\s/g, '')
    const wrong =
      fault(events) ??
      (words(got.text) === words(said.text) ? undefined : 'text is lost') ??
      (words(got.thinking) === words(said.thinking) ? undefined : 'thinking is lost') ??
      (JSON.stringify(json) === JSON.stringify(calls) ? undefined : 'calls are lost') ??
      (names.every((name, index) => name === `f${index}`) ? undefined : 'calls are out of order')
    if (wrong) faults.push(`seed ${seed}: ${wrong}`)
  }
  t.strictSame(faults, [])
  t.end()
})
