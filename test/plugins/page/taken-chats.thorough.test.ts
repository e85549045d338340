import { strToU8, zipSync } from 'fflate'
import t from 'tap'
import { accessibilityFaults, testBrowser } from '../../support/browser.ts'
import { CAPITAL_ANSWER, startCorral } from '../../support/corral.ts'
import { ask, ended } from './support.ts'

// Files as other programs write them, as far as their sources and documents tell.

const browser = testBrowser(t)
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })

const lines = (...records: object[]) => records.map(record => JSON.stringify(record)).join('\n')
const message = (id: string, parent: string | null, role: string, content: string, more: object = {}) => ({
  type: 'message',
  message: {
    id,
    convId: 'A1',
    type: 'text',
    timestamp: 1_780_000_000_000,
    role,
    content,
    parent,
    children: [],
    ...more
  }
})
/** A question with two answers, of which the first is shown; what the system was told; a text that was attached. */
const LLAMA = lines(
  { harness: 'llama.app', type: 'session', id: 'A1', name: 'Rivers', lastModified: 1_780_000_005_000, currNode: 'a1' },
  message('r', null, 'system', '', { type: 'root' }),
  message('s', 'r', 'system', 'Be brief.'),
  message('u', 's', 'user', 'Which is the longest?', {
    extra: [{ type: 'TEXT', name: 'rivers.txt', content: 'Nile, Amazon' }]
  }),
  message('a1', 'u', 'assistant', 'The **Nile**.', { model: 'some/model', reasoningContent: 'I compare lengths.' }),
  message('a2', 'u', 'assistant', 'The Amazon.')
)
const WEBUI = [
  {
    id: '1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed',
    title: 'Soup',
    pinned: true,
    created_at: 1_770_000_000,
    updated_at: 1_770_000_100,
    chat: {
      title: 'Soup',
      models: ['llama3.2'],
      params: { system: 'You cook.' },
      history: {
        currentId: 'b',
        messages: {
          a: {
            id: 'a',
            parentId: null,
            childrenIds: ['b'],
            role: 'user',
            content: 'A soup?',
            timestamp: 1_770_000_000
          },
          b: {
            id: 'b',
            parentId: 'a',
            childrenIds: [],
            role: 'assistant',
            content:
              '<details type="reasoning" done="true" duration="2">\n<summary>Thought for 2 seconds</summary>\n> Which one\n</details>\nLentil soup.',
            model: 'llama3.2',
            timestamp: 1_770_000_050
          }
        }
      }
    }
  }
]
const node = (id: string, parent: string | null, author?: string, parts?: unknown[], content_type = 'text') => ({
  id,
  parent,
  children: [],
  message: author
    ? { id, author: { role: author }, create_time: 1_760_000_000.5, content: { content_type, parts } }
    : null
})
const CHATGPT = [
  {
    title: 'Planets',
    create_time: 1_760_000_000.25,
    update_time: 1_760_000_100,
    conversation_id: 'C-9',
    current_node: 'n4',
    mapping: {
      n0: node('n0', null),
      n1: node('n1', 'n0', 'system', ['']),
      n2: node('n2', 'n1', 'user', ['How many planets?']),
      n3: node('n3', 'n2', 'assistant', undefined, 'code'),
      n4: node('n4', 'n3', 'assistant', ['Eight.'])
    }
  }
]
const text = (text: string) => [{ type: 'text', text }]
const LM_STUDIO = {
  name: 'Birds',
  createdAt: 1_750_000_000_000,
  pinned: false,
  systemPrompt: 'You know birds.',
  messages: [
    {
      versions: [{ type: 'singleStep', role: 'user', content: text('Do penguins fly?') }],
      currentlySelected: 0
    },
    {
      versions: [
        { type: 'multiStep', role: 'assistant', steps: [{ type: 'contentBlock', content: text('Yes.') }] },
        {
          type: 'multiStep',
          role: 'assistant',
          senderInfo: { senderName: 'qwen3' },
          steps: [
            { type: 'contentBlock', style: { type: 'thinking' }, content: text('Wings, but …') },
            { type: 'contentBlock', content: text('No, they swim.') }
          ]
        }
      ],
      currentlySelected: 1
    }
  ]
}
const zipped = (files: Record<string, string>) =>
  Buffer.from(zipSync(Object.fromEntries(Object.entries(files).map(([name, text]) => [name, strToU8(text)]))))
const json = (name: string, value: unknown) => ({
  name,
  mimeType: 'application/json',
  buffer: Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))
})

t.test('chats of other programs are taken and gone on with', { skip: browser.skip }, async t => {
  const { page, complaints, refusals } = await browser.open(t, corral.url)
  const picker = page.getByLabel('Import chats')
  const open = (title: string) => page.getByRole('link', { name: title, exact: true }).click()
  const settings = async () => {
    await page.getByRole('button', { name: 'Chat settings' }).click()
    const system = await page.getByLabel('System message').inputValue()
    await page.keyboard.press('Escape')
    return system
  }
  const answer = page.getByRole('article', { name: /^Answer from/ })

  const archive = zipped({ '2026_conv_A1_rivers.jsonl': LLAMA, 'conversations.json': JSON.stringify(CHATGPT) })
  await picker.setInputFiles([
    { name: 'export.zip', mimeType: 'application/zip', buffer: archive },
    json('chat-export-1.json', WEBUI),
    json('1750000000000.conversation.json', LM_STUDIO)
  ])
  await page.getByText('4 chats imported.').waitFor()

  await open('Rivers')
  await answer.locator('strong').waitFor()
  t.match(await answer.innerText(), /Thoughts[\s\S]*The Nile\./)
  t.ok(await page.getByText('rivers.txt').isVisible())
  t.equal(await settings(), 'Be brief.')
  await answer.getByRole('button', { name: 'Next version' }).click()
  await answer.getByText('The Amazon.').waitFor()
  t.ok(await answer.getByText('2 of 2').isVisible())

  await open('Soup')
  await answer.getByText('Lentil soup.').waitFor()
  t.match(await answer.innerText(), /Thoughts[\s\S]*Lentil soup\./)
  t.equal(await settings(), 'You cook.')
  await open('Planets')
  await answer.getByText('Eight.').waitFor()
  t.equal(await page.getByRole('article').count(), 2)
  await open('Birds')
  await answer.getByText('No, they swim.').waitFor()
  t.ok(await answer.getByText('2 of 2').isVisible())
  t.equal(await settings(), 'You know birds.')
  t.strictSame(await accessibilityFaults(page), [])
  // The model that answered elsewhere is not here: one that is continues.
  await ask(page, 'What is the capital of France?')
  t.match(await (await ended(page)).innerText(), CAPITAL_ANSWER)

  await picker.setInputFiles(json('chat-export-1.json', WEBUI))
  await page.getByText('1 chat imported.').waitFor()
  t.equal(await page.getByRole('link', { name: 'Soup', exact: true }).count(), 1, 'nothing is there twice')
  for (const [name, value] of [
    ['recipes.json', [{ title: 'Bread' }]],
    ['broken.jsonl', '{"type": "session"'],
    ['broken.zip', 'PK\u0003\u0004 and no more']
  ] as const) {
    await picker.setInputFiles(json(name, value))
    await page.getByRole('alert').getByText(`${name} has no chats in a known format`).waitFor()
    await page.getByRole('alert').getByRole('button', { name: 'Close' }).click()
  }
  t.strictSame(complaints, [])
  t.strictSame(refusals, [])
})

/** A chat of this page's own export, with changes. */
const ownFile = (chat: object, ...messages: object[]) => ({
  corral: 'chats',
  version: 1,
  chats: [
    { id: 'good', title: 'Good', createdAt: 1, updatedAt: 1, leaf: 'g' },
    { id: 'bad', title: 'Bad', createdAt: 1, updatedAt: 1, ...chat }
  ],
  messages: [{ id: 'g', chat: 'good', role: 'user', content: 'Fine', at: 1 }, ...messages]
})
const own = (id: string, more: object = {}) => ({ id, chat: 'bad', role: 'user', content: id, at: 1, ...more })
const nested = (depth: number) => JSON.parse(`${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`)

const BROKEN: Record<string, [file: unknown, fault: RegExp]> = {
  'a title that is a number': [ownFile({ title: 5 }), /"title"/],
  'a leaf that is a list': [ownFile({ leaf: [] }), /"Bad".*"leaf"/],
  'options that are text': [ownFile({ options: 'zzz' }), /"Bad".*"options"/],
  'options in options in options': [ownFile({ options: nested(1000) }), /"Bad".*"options"/],
  'attachments that are text': [ownFile({}, own('a', { attachments: 'zzz' })), /"Bad".*"attachments" of message a/],
  'an attachment that is text': [ownFile({}, own('a', { attachments: ['zzz'] })), /"attachments"/],
  'an image that is elsewhere': [
    ownFile(
      {},
      own('a', { attachments: [{ name: 'a', kind: 'image', type: 'image/png', data: 'https://example.org/' }] })
    ),
    /"attachments"/
  ],
  'tool calls that are none': [ownFile({}, own('a', { toolCalls: [{ id: 1 }] })), /"toolCalls"/],
  'figures that are none': [ownFile({}, own('a', { timing: 'fast' })), /"timing"/],
  'an error that is none': [ownFile({}, own('a', { error: 'oops' })), /"error"/],
  'a wrong role': [ownFile({}, own('a', { role: 'wizard' })), /"role" of message a/],
  'content that is a list': [ownFile({}, own('a', { content: [] })), /"content"/],
  'no message at all': [ownFile({}, null as never), /does not belong to any chat/],
  'a message of another chat': [ownFile({}, own('a', { chat: 'none' })), /does not belong to any chat/],
  'a message that follows itself': [ownFile({}, own('a', { parent: 'a' })), /"Bad".*follows itself/],
  'messages that follow each other': [
    ownFile({ leaf: 'c' }, own('a', { parent: 'c' }), own('b', { parent: 'a' }), own('c', { parent: 'b' })),
    /"Bad".*follows itself/
  ],
  'a message whose parent is missing': [ownFile({}, own('a', { parent: 'z' })), /follows message z, which is missing/],
  'a message that is there twice': [ownFile({}, own('a'), own('a')), /the id a occurs twice/],
  'more messages than can be shown': [
    ownFile({}, ...Array.from({ length: 20_001 }, (_, at) => own(`m${at}`))),
    /more than 20000 messages/
  ],
  'lists that are none': [{ corral: 'chats', chats: {}, messages: [] }, /no chats in a known format/],
  'presets that are none': [{ ...ownFile({}, own('a')), presets: [{ name: 1 }] }, /"presets"/],
  'a circle in llama.cpp': [
    lines(
      { harness: 'llama.app', type: 'session', id: 'A2', name: 'Round', currNode: 'u' },
      message('u', 'a', 'user', 'One'),
      message('a', 'u', 'assistant', 'Two')
    ),
    /"Round".*follows itself/
  ],
  'a circle in ChatGPT': [
    [{ ...CHATGPT[0], mapping: { n1: node('n1', 'n2', 'user', ['One']), n2: node('n2', 'n1', 'assistant', ['Two']) } }],
    /"Planets".*follows itself/
  ],
  'a missing message in Open WebUI': [
    [{ id: 'x', title: 'Torn', chat: { history: { messages: { b: { parentId: 'a', role: 'user', content: 'B' } } } } }],
    /"Torn".*message a, which is missing/
  ],
  'a wrong role in llama.cpp': [
    lines({ type: 'session', id: 'A3', name: 'Roles' }, message('u', null, 'wizard', 'One')),
    /"Roles".*"role"/
  ]
}

t.test(
  'files with broken chats are refused with the reason, and nothing of them is taken',
  { skip: browser.skip },
  async t => {
    const { page, complaints } = await browser.open(t, corral.url)
    const picker = page.getByLabel('Import chats')
    for (const [name, [file, fault]] of Object.entries(BROKEN)) {
      await picker.setInputFiles(json('broken.json', file))
      const alert = page.getByRole('alert')
      await alert.getByText(/broken\.json/).waitFor()
      t.match(await alert.innerText(), fault, name)
      await alert.getByRole('button', { name: 'Close' }).click()
      t.equal(await page.locator('.chat-line').count(), 0, `${name}: nothing is taken`)
    }
    await page.reload()
    await page.getByLabel('Message', { exact: true }).waitFor()
    t.equal(await page.locator('.chat-line').count(), 0)
    t.strictSame(complaints, [])
  }
)
