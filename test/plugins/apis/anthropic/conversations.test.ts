import t from 'tap'
import { engineMessages } from '../../../../plugins/apis/anthropic/history.ts'
import { readCases } from '../../../support/cases.ts'
import { assistant, image, result, text, use, user } from './support.ts'

const CASES = readCases('anthropic-conversations')

t.test('converts conversations for the engine', t => {
  const table: [what: string, given: unknown[], wanted: unknown[], system?: unknown][] = CASES.messages
  for (const [what, messages, wanted, system] of table) {
    t.strictSame(engineMessages({ messages, system } as never).messages, wanted, what)
  }
  t.end()
})

t.test('reports where images are in the request', t => {
  const { messages, places } = engineMessages({
    system: 'x',
    messages: [
      user('a'),
      user([text('b'), image]),
      assistant([use('1', 'f', {})]),
      user([
        result('1', { content: [image] }),
        { type: 'document', title: 'T', source: { type: 'content', content: [image] } }
      ])
    ]
  } as never)
  const found = messages.flatMap(({ content }, at) =>
    Array.isArray(content)
      ? content.flatMap((part, index) => (part.type === 'image_url' ? [places[at]![index]] : []))
      : []
  )
  t.strictSame(found, [
    'messages.1.content.1.source',
    'messages.3.content.0.content.0.source',
    'messages.3.content.1.source.content.0.source'
  ])
  t.end()
})
