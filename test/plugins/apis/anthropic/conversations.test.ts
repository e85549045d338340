import t from 'tap'
import { engineMessages } from '../../../../plugins/apis/anthropic/message-request.ts'
import { assistant, image, PNG, result, text, use, user } from './support.ts'

const imageUrl = { type: 'image_url', image_url: { url: `data:image/png;base64,${PNG}` } }
const call = (id: string, name: string, input: object) => ({
  id,
  type: 'function',
  function: { name, arguments: JSON.stringify(input) }
})

t.test('converts conversations for the engine', t => {
  const table: [what: string, given: unknown[], wanted: unknown[], system?: unknown][] = [
    ['text', [user('Hi')], [user('Hi')]],
    ['blocks of text', [user([text('a'), { ...text('b'), cache_control: { type: 'ephemeral' } }])], [user('a\nb')]],
    ['an empty message', [user([])], [user('')]],
    ['a system text', [user('Hi')], [{ role: 'system', content: 'Be brief.' }, user('Hi')], 'Be brief.'],
    ['system blocks', [user('Hi')], [{ role: 'system', content: 'a\nb' }, user('Hi')], [text('a'), text('b')]],
    ['an empty system text', [user('Hi')], [user('Hi')], ''],
    [
      'leading system messages are merged, later ones become part of a user message',
      [
        { role: 'system', content: 'b' },
        { role: 'system', content: [text('c')] },
        user('Hi'),
        { role: 'system', content: [text('d'), text('e')] },
        assistant('Ho'),
        { role: 'system', content: [{ type: 'tool_removal', tool: { type: 'tool_reference', name: 'f' } }] },
        assistant('!'),
        { role: 'system', content: 'f' }
      ],
      [
        { role: 'system', content: 'a\nb\nc' },
        user('Hi\n<system-reminder>\nd\ne\n</system-reminder>'),
        assistant('Ho!'),
        user('<system-reminder>\nf\n</system-reminder>')
      ],
      'a'
    ],
    [
      'system messages for one message only',
      [
        user('Hi'),
        { role: 'system', content: 'gone', clear_at: 'next_user_message' },
        assistant('Ho'),
        user('and?'),
        { role: 'system', content: 'here', clear_at: 'next_user_message' }
      ],
      [user('Hi'), assistant('Ho'), user('and?\n<system-reminder>\nhere\n</system-reminder>')]
    ],
    [
      "Claude Code's header is removed",
      [user('Hi')],
      [{ role: 'system', content: 'You are a program.' }, user('Hi')],
      [
        text('x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;'),
        text('You are a program.')
      ]
    ],
    [
      "Claude Code's header is removed from the start of a text",
      [user('Hi')],
      [{ role: 'system', content: 'You are a=b; a program.' }, user('Hi')],
      'x-anthropic-billing-header: cc_version=2; cch=a5145;\nYou are a=b; a program.'
    ],
    [
      'consecutive messages of the same role are merged',
      [user('a'), user([text('b')]), assistant('c'), assistant([text('d')]), user('e')],
      [user('a\nb'), assistant('cd'), user('e')]
    ],
    ['an image among text', [user([text('see'), image])], [user([text('see'), imageUrl])]],
    [
      'documents and search results become text',
      [
        user([
          { type: 'document', title: 'T', context: 'C', source: { type: 'text', media_type: 'text/plain', data: 'D' } },
          { type: 'document', source: { type: 'content', content: [text('x'), text('y')] } },
          { type: 'document', source: { type: 'content', content: 'z' } },
          { type: 'search_result', title: 'S', source: 'https://x', content: [text('found')] }
        ])
      ],
      [user('T\nC\nD\nx\ny\nz\nS\nhttps://x\nfound')]
    ],
    [
      'tool calls and results keep the ids of the engine',
      [
        user('weather?'),
        assistant([
          { type: 'thinking', thinking: 'hm', signature: 's' },
          { type: 'redacted_thinking', data: 'x' },
          text('Let me see.'),
          use('toolu_abc', 'get', { city: 'Paris' }),
          use('own', 'get', {})
        ]),
        user([
          text('and now?'),
          result('toolu_abc', { content: 'sunny' }),
          result('own', { content: [text('a'), text('b')] })
        ])
      ],
      [
        user('weather?'),
        {
          role: 'assistant',
          content: 'Let me see.',
          reasoning_content: 'hm',
          tool_calls: [call('abc', 'get', { city: 'Paris' }), call('own', 'get', {})]
        },
        { role: 'tool', tool_call_id: 'abc', content: 'sunny' },
        { role: 'tool', tool_call_id: 'own', content: 'a\nb' },
        user('and now?')
      ]
    ],
    [
      'empty, failed and image results',
      [
        assistant([use('1', 'f', {}), use('2', 'f', {}), use('3', 'f', {}), use('4', 'f', {})]),
        user([
          result('1'),
          result('2', { content: null }),
          result('3', { content: 'no such city', is_error: true }),
          result('4', { content: [text('see'), image] })
        ])
      ],
      [
        { role: 'assistant', content: '', tool_calls: ['1', '2', '3', '4'].map(id => call(id, 'f', {})) },
        { role: 'tool', tool_call_id: '1', content: '' },
        { role: 'tool', tool_call_id: '2', content: '' },
        { role: 'tool', tool_call_id: '3', content: 'Error:\nno such city' },
        { role: 'tool', tool_call_id: '4', content: [text('see'), imageUrl] }
      ]
    ]
  ]
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
