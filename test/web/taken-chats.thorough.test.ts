import { strToU8, zipSync } from 'fflate'
import t from 'tap'
import { accessibilityFaults, testBrowser } from '../support/browser.ts'
import { CAPITAL_ANSWER, startCorral } from '../support/corral.ts'
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
  const picker = page.getByLabel('Take chats from a file')
  const open = (title: string) => page.getByRole('link', { name: title, exact: true }).click()
  const settings = async () => {
    await page.getByRole('button', { name: 'Settings of this chat' }).click()
    const system = await page.getByLabel('System message').inputValue()
    await page.keyboard.press('Escape')
    return system
  }
  const answer = page.getByRole('article', { name: /^Answer of/ })

  const archive = zipped({ '2026_conv_A1_rivers.jsonl': LLAMA, 'conversations.json': JSON.stringify(CHATGPT) })
  await picker.setInputFiles([
    { name: 'export.zip', mimeType: 'application/zip', buffer: archive },
    json('chat-export-1.json', WEBUI),
    json('1750000000000.conversation.json', LM_STUDIO)
  ])
  await page.getByText('4 chats were taken.').waitFor()

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
  // The model that answered elsewhere is not here: one that is goes on.
  await ask(page, 'What is the capital of France?')
  t.match(await (await ended(page)).innerText(), CAPITAL_ANSWER)

  await picker.setInputFiles(json('chat-export-1.json', WEBUI))
  await page.getByText('1 chat was taken.').waitFor()
  t.equal(await page.getByRole('link', { name: 'Soup', exact: true }).count(), 1, 'nothing is there twice')
  for (const [name, value] of [
    ['recipes.json', [{ title: 'Bread' }]],
    ['broken.jsonl', '{"type": "session"'],
    ['broken.zip', 'PK\u0003\u0004 and no more']
  ] as const) {
    await picker.setInputFiles(json(name, value))
    await page.getByRole('alert').getByText(`${name} has no chats that are known here`).waitFor()
    await page.getByRole('alert').getByRole('button', { name: 'Close' }).click()
  }
  t.strictSame(complaints, [])
  t.strictSame(refusals, [])
})
