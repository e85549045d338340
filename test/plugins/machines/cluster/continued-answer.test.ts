import t from 'tap'
import type { Delta, EngineFields } from '../../../../core/contracts/engines.ts'
import { ContinuedAnswer, hasAnswerContent } from '../../../../plugins/machines/cluster/asking/continued-answer.ts'

const messages = [{ role: 'user', content: 'Count.' }]
const text = (content: string): Delta[] => [{ content }]
const event = (fields: object) => `data: ${JSON.stringify(fields)}\n\n`
const piece = (delta: object, more: object = {}) =>
  event({ choices: [{ finish_reason: null, index: 0, delta }], id: 'chatcmpl-1', ...more })
const opening = (more?: object) => piece({ role: 'assistant', content: null }, more)

/** An answer of which "1, 2," has come, in three tokens. */
function begun(request: EngineFields = { messages }, call: 'chat' | 'completion' = 'chat'): ContinuedAnswer {
  const kept = new ContinuedAnswer(call, request)
  for (const piece of ['1', ', 2', ',']) kept.keep(text(piece))
  return kept
}

t.test('a chat continues from the last message with the text so far', async t => {
  const next = begun({ messages, max_completion_tokens: 10, n_predict: 50 }).continuation([1, 2, 3])
  t.strictSame(next, {
    request: {
      messages: [...messages, { role: 'assistant', content: '1, 2,' }],
      // Both names of the token limit count, and the remainder of the first is left.
      max_tokens: 47,
      continue_final_message: true,
      add_generation_prompt: false
    },
    ending: '1, 2,'
  })
})

t.test('reasoning and prefilled messages are continued', async t => {
  const thinking = new ContinuedAnswer('chat', { messages })
  thinking.keep([{ thinking: 'I must' }])
  t.match(thinking.continuation([1, 2]), {
    request: { messages: [messages[0], { role: 'assistant', content: '', reasoning_content: 'I must' }] },
    ending: 'I must'
  })
  const prefilled = { messages: [...messages, { role: 'assistant', content: 'So: ' }], continue_final_message: true }
  t.match(begun(prefilled).continuation([1, 2, 3]), {
    request: { messages: [messages[0], { role: 'assistant', content: 'So: 1, 2,' }] },
    ending: 'So: 1, 2,'
  })
})

t.test('a completion continues after its text or its tokens', async t => {
  t.match(begun({ prompt: 'Numbers: ' }, 'completion').continuation([1, 2, 3]), {
    request: { prompt: 'Numbers: 1, 2,' }
  })
  t.strictSame(begun({ prompt: [7, 8] }, 'completion').continuation([1, 2, 3])?.request.prompt, [7, 8, 1, 2, 3])
})

t.test('an answer that cannot be continued safely has no continuation', async t => {
  const last = { role: 'assistant', content: 'So: ' }
  const chats: EngineFields[] = [
    { n: 2 },
    { response_format: { type: 'json_object' } },
    { grammar: 'root ::= "a"' },
    { json_schema: {} },
    { tools: [{}], tool_choice: 'required' },
    { messages: [...messages, last] }
  ]
  for (const more of chats) {
    t.equal(begun({ messages, ...more }).continuation([1, 2, 3]), undefined, JSON.stringify(more))
  }
  for (const request of [{ prompt: 'a', suffix: 'b' }, { prompt: ['a', 'b'] }]) {
    t.equal(begun(request, 'completion').continuation([1, 2, 3]), undefined, JSON.stringify(request))
  }
  for (const delta of [{ toolCalls: [{ index: 0, name: 'f', arguments: '{' }] }, { finish: 'stop' }, { choice: 1 }]) {
    const kept = begun()
    kept.keep([delta as Delta])
    t.equal(kept.continuation([1, 2, 3]), undefined, JSON.stringify(delta))
  }
  const long = begun()
  for (let count = 0; count < 11; count++) long.keep(text('x'.repeat(100_000)))
  t.equal(long.continuation([1]), undefined, 'it is longer than the limit')
  t.equal(long.text, '', 'nothing of it is stored')
  t.ok(begun({ messages, tools: [{}] }).continuation([1, 2, 3]), 'no tool has been called yet')
})

t.test('an answer ends with its token limit or its finish reason', async t => {
  const prompt = { promptTokens: 9, cachedTokens: 4 }
  const usage = { ...prompt, completionTokens: 3 }
  const limited = begun({ messages, max_tokens: 3 })
  t.strictSame(limited.ending(0), { completionTokens: 3, prompt: undefined })
  t.match(limited.lastDeltas(usage), [{ finish: 'length', usage }])
  t.equal(begun({ messages, max_tokens: 4 }).ending(3), undefined)
  t.strictSame(begun({ messages, max_tokens: 4 }).ending(4), { completionTokens: 4, prompt: undefined })
  t.equal(begun().ending(3), undefined, 'it has no limit')
  t.equal(begun({ messages, n: 2, max_tokens: 3 }).ending(3), undefined, 'another choice may continue')
  t.equal(begun({ prompt: ['a', 'b'], max_tokens: 3 }, 'completion').ending(3), undefined)

  const finished = begun()
  finished.keep([{ reading: { tokens: 9, total: 9, cached: 4 } }, { finish: 'stop' }])
  t.strictSame(finished.ending(3), { completionTokens: 3, prompt })
  t.notOk(finished.lastDeltas(usage)[0]?.finish, 'the reason has come')
  t.match(finished.lastDeltas(usage), [{ usage }])
  finished.keep([{ usage }])
  t.strictSame(finished.lastDeltas(usage), [], 'the counts too')
})

t.test('join adds a piece with the counts and times of the whole answer', async t => {
  const kept = new ContinuedAnswer('chat', { messages })
  kept.keep([{ reading: { tokens: 5, total: 9, cached: 4 } }], false)
  for (const piece of ['1', ', 2', ',']) kept.keep(text(piece))
  t.strictSame(kept.join(text('unchanged')), text('unchanged'))
  kept.continuation([1, 2, 3])
  t.strictSame(kept.join([{ reading: { tokens: 1, total: 12, cached: 0 } }]), [], 'the prompt was read once')
  const usage = { promptTokens: 12, cachedTokens: 0, completionTokens: 4 }
  const [end] = kept.join([{ finish: 'stop', usage, timing: { prompt: 1, generation: 2 } }])
  t.match(end, { finish: 'stop', usage: { promptTokens: 9, cachedTokens: 4, completionTokens: 7 } })
  t.ok(end!.timing!.generation >= 2)
})

t.test('an answer has begun with its first text, reasoning or call', async t => {
  t.notOk(hasAnswerContent(Buffer.from(opening())))
  t.notOk(hasAnswerContent(Buffer.from(opening({ prompt_progress: { total: 1 } }))))
  t.ok(hasAnswerContent(Buffer.from(opening() + piece({ content: '1' }))))
  t.notOk(hasAnswerContent([{ reading: { tokens: 1, total: 2, cached: 0 } }, { extra: {} }]))
  for (const delta of [{ content: 'a' }, { thinking: 'a' }, { finish: 'stop' as const }])
    t.ok(hasAnswerContent([delta]))
})
