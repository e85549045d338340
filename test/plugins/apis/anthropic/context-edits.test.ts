import t from 'tap'
import type { EngineFields } from '../../../../core/contracts/engines.ts'
import { ClearedSteps, clearContext } from '../../../../plugins/apis/anthropic/context-management.ts'
import type { Edit } from '../../../../plugins/apis/anthropic/schemas.ts'

const RESULT = 'x'.repeat(1000)
const CLEARED = '[This result was removed to save space.]'

function conversation(uses: number) {
  const messages: Record<string, unknown>[] = [{ role: 'user', content: 'go' }]
  for (let use = 0; use < uses; use++) {
    const called = { name: use % 2 ? 'odd' : 'even', arguments: '{"a":1}' }
    messages.push({
      role: 'assistant',
      content: '',
      tool_calls: [{ id: `c${use}`, type: 'function', function: called }]
    })
    messages.push({ role: 'tool', tool_call_id: `c${use}`, content: RESULT })
  }
  return { messages }
}

let counts = 0
/** Counts each character as a token. */
async function count({ messages }: EngineFields): Promise<number> {
  counts++
  const lengths = (messages as any[]).map(({ content, reasoning_content: thought = '' }) => (content + thought).length)
  return lengths.reduce((sum, length) => sum + length, 0)
}

const TRIGGER = { type: 'input_tokens', value: 5000 }
const clear = (uses: number, more: Partial<Edit>, steps = new ClearedSteps()) =>
  clearContext(conversation(uses), [{ type: 'clear_tool_uses_20250919', ...more }], 'a/b', steps, count)

/** The indexes of cleared results. */
function clearedIn({ messages }: EngineFields): number[] {
  const results = (messages as any[]).filter(({ role }) => role === 'tool')
  return results.flatMap(({ content }, index) => (content === CLEARED ? [index] : []))
}

t.test('clears all tool results but the last ones above the trigger', async t => {
  const { body, applied, tokens } = await clear(10, { trigger: TRIGGER })
  t.strictSame(clearedIn(body), [0, 1, 2, 3, 4, 5, 6])
  const removed = 7 * (1000 - CLEARED.length)
  t.strictSame(applied, [{ type: 'clear_tool_uses_20250919', cleared_tool_uses: 7, cleared_input_tokens: removed }])
  t.equal(tokens, (await count(conversation(10))) - removed)
  const table: [more: Partial<Edit>, wanted: number[]][] = [
    [{ trigger: TRIGGER, keep: { value: 9 } }, [0]],
    [{ trigger: TRIGGER, keep: { value: 5 }, exclude_tools: ['odd'] }, [0, 2, 4]],
    [{ trigger: { type: 'tool_uses', value: 9 } }, [0, 1, 2, 3, 4, 5, 6]],
    [{ trigger: TRIGGER, clear_at_least: { value: removed } }, [0, 1, 2, 3, 4, 5, 6]],
    [{ trigger: TRIGGER, clear_at_least: { value: removed + 1 } }, []],
    [{ trigger: { type: 'input_tokens', value: 11_000 } }, []],
    [{ trigger: { type: 'tool_uses', value: 10 } }, []],
    [{ trigger: TRIGGER, keep: { value: 10 } }, []],
    [{ trigger: TRIGGER, exclude_tools: ['odd', 'even'] }, []]
  ]
  for (const [more, wanted] of table) {
    const context = await clear(10, more)
    t.strictSame(clearedIn(context.body), wanted, JSON.stringify(more))
    t.equal(context.applied.length, wanted.length > 0 ? 1 : 0)
  }
})

t.test('clears inputs only if asked', async t => {
  const inputs = async (given: boolean | string[]) => {
    const { body } = await clear(6, { trigger: TRIGGER, clear_tool_inputs: given })
    const calls = (body.messages as any[]).flatMap(({ tool_calls = [] }) => tool_calls)
    return calls.map(call => call.function.arguments)
  }
  const kept = '{"a":1}'
  t.strictSame(await inputs(false), Array(6).fill(kept))
  t.strictSame(await inputs(true), ['{}', '{}', '{}', kept, kept, kept])
  t.strictSame(await inputs(['odd']), [kept, '{}', kept, kept, kept, kept])
})

t.test('clears more only when the cleared conversation reaches the trigger, for the prompt cache', async t => {
  const steps = new ClearedSteps()
  const numbers: number[] = []
  for (let uses = 1; uses <= 12; uses++) {
    const { body } = await clear(uses, { trigger: TRIGGER }, steps)
    numbers.push(clearedIn(body).length)
    t.ok((await count(body)) <= 5000)
  }
  t.strictSame(numbers, [0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8])
})

t.test('does not count a conversation that cannot reach the trigger', async t => {
  counts = 0
  t.strictSame((await clear(10, {})).applied, [])
  t.equal(counts, 0)
})

t.test('clears the thinking of old turns', async t => {
  const said = (content: string, reasoning_content = '') => ({ role: 'assistant', content, reasoning_content })
  const user = { role: 'user', content: 'x' }
  const result = { role: 'tool', content: '' }
  const messages = [user, said('a', 'one'), user, said('b', 'two'), result, said('c', 'two'), user, said('d')]
  const edited = async (keep: unknown) => {
    const edits = [{ type: 'clear_thinking_20251015', keep }] as never
    const { body, applied } = await clearContext({ messages }, edits, 'a/b', new ClearedSteps(), count)
    return [(body.messages as any[]).map(message => message.reasoning_content || ''), applied]
  }
  const unchanged = [['', 'one', '', 'two', '', 'two', '', ''], []]
  for (const keep of ['all', { type: 'all' }, { type: 'thinking_turns', value: 2 }]) {
    t.strictSame(await edited(keep), unchanged)
  }
  const report = { type: 'clear_thinking_20251015', cleared_thinking_turns: 1, cleared_input_tokens: 3 }
  for (const keep of [undefined, { type: 'thinking_turns', value: 1 }]) {
    t.strictSame(await edited(keep), [['', '', '', 'two', '', 'two', '', ''], [report]])
  }
})
