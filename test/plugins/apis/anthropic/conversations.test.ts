import { Ajv } from 'ajv'
import t from 'tap'
import { engineMessages } from '../../../../plugins/apis/anthropic/history.ts'
import { MessagesRequest } from '../../../../plugins/apis/anthropic/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'
import { trialCount } from '../../../support/trial-count.ts'
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

t.test("accepts every history that the SDK's types allow", t => {
  const files: [string, string[]][] = [
    ['resources/messages/messages.d.ts', ['MessageParam', 'ContentBlock']],
    ['resources/beta/messages/messages.d.ts', ['BetaMessageParam', 'BetaContentBlock']]
  ]
  const ajv = new Ajv({ keywords: ['documented'] })
  const matches = ajv.compile(MessagesRequest)
  for (const [file, names] of files) {
    const [message, reply] = sdkShapes(t.testdir(), file, names)
    const types = new Set<unknown>()
    for (let seed = 1; seed <= trialCount(2000); seed++) {
      const random = randomNumbers(seed)
      const turn = () => {
        const isAnswer = random() < 0.3
        return isAnswer
          ? assistant([randomValue(reply!, random)])
          : (randomValue(message!, random) as { content: unknown })
      }
      const messages = Array.from({ length: 1 + Math.floor(random() * 5) }, turn)
      for (const { content } of messages) if (Array.isArray(content)) for (const { type } of content) types.add(type)
      if (!matches({ model: 'a/b', max_tokens: 1, messages })) {
        t.fail(`${file}, seed ${seed}: ${ajv.errorsText(matches.errors)}`)
      }
      try {
        engineMessages({ messages } as never)
      } catch (error) {
        t.fail(`${file}, seed ${seed}: ${(error as Error).message} in ${JSON.stringify(messages)}`)
      }
    }
    t.ok(types.size >= 15, `${types.size} types of blocks in ${file}`)
  }
  t.end()
})
