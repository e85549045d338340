import t from 'tap'
import { readThinking } from '../../../core/answers/thinking.ts'
import {
  afterThinking,
  requireSchemas,
  thinkingMarks,
  thinkingWriter
} from '../../../runtimes/llama-server/template-thinking.ts'
import { readFixture } from '../../support/fixture.ts'

const { said, templates, written } = readFixture<{
  said: { request: object; thinking: object }[]
  templates: Record<string, string>
  written: [template: string, request: object, variables: object, budget?: number][]
}>('thinking-cases.yaml')

t.test('the template reader reads thinking in the words of each API', async t => {
  for (const { request, thinking } of said) t.same(readThinking({ ...request }), thinking, JSON.stringify(request))
})

t.test('the template reader writes thinking for each kind of chat template', async t => {
  for (const [name, request, variables, budget] of written) {
    const write = thinkingWriter(templates[name] ?? '', true)
    const { chat_template_kwargs, thinking_budget_tokens, ...rest } = write({ messages: [], ...request })
    t.same([chat_template_kwargs, thinking_budget_tokens], [variables, budget], `${name} ${JSON.stringify(request)}`)
    t.notOk('think' in rest || 'reasoning_effort' in rest || 'thinking_budget' in rest)
  }
  const body = { messages: [], think: true }
  t.equal(thinkingWriter(templates.plain!, false)(body), body, 'requests to other models stay')
  t.equal(thinkingWriter('{%'.repeat(500_000), true)(body).think, undefined, 'a malicious template is read quickly')
})

t.test('a grammar begins after the thinking that the prompt has begun', async t => {
  const marks = thinkingMarks('<think></think>')!
  const grammar = 'root ::= "root" other # root\nother ::= [root] root?'
  const answer = 'corral-root ::= "root" other # root\nother ::= [root] corral-root?'
  t.equal(afterThinking(grammar, marks, 'a<think></think>\n\n', true), grammar)
  t.equal(afterThinking(grammar, marks, 'a', false), grammar, 'the model must not think')
  const begun = afterThinking(grammar, marks, 'a<think>\n', false).split('\n')
  t.equal(begun[0], 'root ::= corral-t0 "" corral-root')
  t.equal(begun[1], 'corral-t0 ::= "<" corral-t1 | [^\\x3c] corral-t0')
  t.equal(begun[2], 'corral-t1 ::= "<" corral-t1 | "/" corral-t2 | [^\\x3c\\x2f] corral-t0')
  t.equal(begun.slice(9).join('\n'), answer)
  t.match(afterThinking(grammar, marks, 'a', true), /^root ::= \("<think>" corral-t0 "" \| ""\) corral-root\n/)
})

t.test('the template reader refuses schemas that llama.cpp would ignore', async t => {
  const format = { response_format: { type: 'json_object' } }
  const kimi = '<|tool_calls_section_begin|>'
  t.throws(() => requireSchemas(format, kimi), { code: 'unsupported_capability', param: 'response_format' })
  t.throws(() => requireSchemas({ json_schema: {} }, '<|role_sep|>'), { code: 'unsupported_capability' })
  for (const [fields, template] of [
    [{}, kimi],
    [{ response_format: { type: 'text' } }, kimi],
    [format, '<think>'],
    [format, '<|role_sep|><|function_call|>']
  ] as const)
    requireSchemas(fields, template)
})
