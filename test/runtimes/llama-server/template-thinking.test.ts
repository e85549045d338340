import t from 'tap'
import { readThinking } from '../../../core/answers/thinking.ts'
import {
  afterThinking,
  requireSchemas,
  thinkingMarks,
  thinkingWriter
} from '../../../runtimes/llama-server/template-thinking.ts'

/** What requests of each API say about thinking. */
const SAID: [request: object, thinking: object][] = [
  [{}, {}],
  [{ think: true }, { enabled: true }],
  [{ think: false }, { enabled: false }],
  [{ think: 'low' }, { enabled: true, effort: 'low' }],
  [{ think: 'none', reasoning_effort: 'high' }, { enabled: false }],
  [{ reasoning_effort: 'xhigh' }, { enabled: true, effort: 'xhigh' }],
  [{ reasoning_effort: 'none' }, { enabled: false }],
  [{ reasoning_effort: null, reasoning: { effort: null } }, {}],
  [{ reasoning: { effort: 'minimal' } }, { enabled: true, effort: 'minimal' }],
  [{ reasoning: { enabled: true, max_tokens: 50 } }, { enabled: true, budget: 50 }],
  [{ reasoning: 'off' }, { enabled: false }],
  [{ reasoning: 'on' }, { enabled: true }],
  [{ thinking: { type: 'enabled', budget_tokens: 1024 } }, { enabled: true, budget: 1024 }],
  [
    { thinking: { type: 'adaptive' }, output_config: { effort: 'max' } },
    { enabled: true, effort: 'max' }
  ],
  [{ thinking: { type: 'disabled' }, output_config: { effort: 'max' } }, { enabled: false }],
  [
    { enable_thinking: true, thinking_budget: 7 },
    { enabled: true, budget: 7 }
  ],
  [{ chat_template_kwargs: { enable_thinking: false }, reasoning_effort: 'high' }, { enabled: false }],
  [{ think: 1, thinking: { type: { toString: 1 } }, reasoning: ['none'], reasoning_effort: { toString: 1 } }, {}],
  [{ thinking: [], thinking_budget: 'much', reasoning_budget: -1, chat_template_kwargs: 'none' }, {}]
]

t.test('reads thinking in the words of each API', async t => {
  for (const [request, thinking] of SAID) t.same(readThinking({ ...request }), thinking, JSON.stringify(request))
})

const PLAIN = '{% if enable_thinking %}<think>{% endif %}'
const FORCED = '<|assistant|><think>'
const LEVELS = '{% if reasoning_effort is defined %}Reasoning: {{ reasoning_effort }}{% endif %}'
const HIGHEST = `${PLAIN}{% if reasoning_effort == 'max' %}Think hard.{% endif %}`
const LISTED = "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}{{ raise_exception('no') }}{% endif %}"
const OTHER =
  "{% if thinking and thinking_effort not in ['low', 'high', 'max'] %}{{ raise_exception('no') }}{% endif %}"
const MODE = "{% if thinking_mode == 'disabled' %}</think>{% endif %}"
const BUDGET = '{% if thinking_budget == 0 %}</think>{% endif %}'
const TALK = "{# thinking #}thinking {{ 'thinking_mode' }}{{ m.thinking_budget }}<think>"
const on = { enable_thinking: true }
const off = { enable_thinking: false }

/** Templates, requests, the variables for the template and the budget. */
const WRITTEN: [template: string, request: object, variables: object, budget?: number][] = [
  [PLAIN, {}, {}],
  [PLAIN, { think: false }, off],
  [PLAIN, { reasoning_effort: 'low' }, on, 2048],
  [PLAIN, { reasoning_effort: 'minimal' }, on, 512],
  [PLAIN, { reasoning_effort: 'medium' }, on],
  [PLAIN, { thinking_budget: 100 }, {}, 100],
  [PLAIN, { thinking_budget: 0 }, {}, 1],
  [PLAIN, { thinking_budget: 5000, max_tokens: 1000 }, {}, 750],
  [PLAIN, { max_tokens: 100, response_format: { type: 'json_object' } }, {}, 75],
  [PLAIN, { max_tokens: 100, response_format: { type: 'text' } }, {}],
  [PLAIN, { max_tokens: -1, grammar: 'root ::= "a"' }, {}],
  [PLAIN, { max_tokens: 100, tools: [{}] }, {}],
  [PLAIN, { think: true, chat_template_kwargs: { other: 1 } }, { ...on, other: 1 }],
  [PLAIN, { think: true, chat_template_kwargs: 'x'.repeat(99) }, on],
  [FORCED, { think: false }, off, 1],
  [LEVELS, { reasoning_effort: 'minimal' }, { ...on, reasoning_effort: 'low' }],
  [LEVELS, { reasoning_effort: 'xhigh' }, { ...on, reasoning_effort: 'high' }],
  [LEVELS, { reasoning_effort: 'own' }, { ...on, reasoning_effort: 'own' }],
  [LEVELS, { think: false }, { ...off, reasoning_effort: 'low' }],
  [HIGHEST, { reasoning_effort: 'xhigh' }, { ...on, reasoning_effort: 'max' }],
  [HIGHEST, { think: false }, off],
  [LISTED, { reasoning_effort: 'medium' }, { ...on, reasoning_effort: 'high' }],
  [LISTED, { think: true }, { ...on, reasoning_effort: 'high' }],
  [LISTED, { think: false }, { ...off, reasoning_effort: 'no_think' }],
  [OTHER, { reasoning_effort: 'minimal' }, { ...on, thinking: true, reasoning_effort: 'low', thinking_effort: 'low' }],
  [MODE, { think: true }, { ...on, thinking_mode: 'enabled' }],
  [MODE, { think: false }, { ...off, thinking_mode: 'disabled' }],
  [BUDGET, { think: false }, { ...off, thinking_budget: 0 }],
  [BUDGET, { thinking_budget: 64 }, { thinking_budget: 64 }, 64],
  [TALK, { think: false }, off, 1],
  ['', { reasoning_effort: 'high' }, on]
]

t.test('writes thinking for each kind of chat template', async t => {
  for (const [template, request, variables, budget] of WRITTEN) {
    const { chat_template_kwargs, thinking_budget_tokens, ...rest } = thinkingWriter(
      template,
      true
    )({ messages: [], ...request })
    t.same(
      [chat_template_kwargs, thinking_budget_tokens],
      [variables, budget],
      `${template} ${JSON.stringify(request)}`
    )
    t.notOk('think' in rest || 'reasoning_effort' in rest || 'thinking_budget' in rest)
  }
  const body = { messages: [], think: true }
  t.equal(thinkingWriter(PLAIN, false)(body), body, 'requests to other models stay')
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

t.test('refuses schemas that llama.cpp would ignore', async t => {
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
