import { EFFORTS, readThinking, THINKING_FIELDS } from '../../core/answers/thinking.ts'
import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { templateCode, withoutStrings } from '../../core/models/template-code.ts'
import { isObject } from '../../core/system/json-object.ts'
import { isConstrained } from './answer-fields.ts'
import marks from './thinking-marks.json' with { type: 'json' }

/*
 * Writes what a request says about thinking for a chat template, and lets grammars begin after the thinking. Each
 * template has its own variables and levels of effort. llama-server itself sets `enable_thinking` and
 * `reasoning_effort`, and enforces budgets and schemas.
 */

/** Variables that keep the thinking of earlier turns, so that the next prompt continues the cached one. */
const KEPT = ['keep_past_thinking', 'preserved_thinking']
/** Levels of effort that mean no thinking. */
const NO_EFFORT = ['no_think', 'none']
const USUAL_EFFORTS = ['low', 'medium', 'high']
/** Maximum tokens of thinking with little effort, if the template has no levels. */
const SMALL_BUDGETS: Record<string, number> = { minimal: 512, low: 2048 }
/** The part of an answer's tokens that thinking may take, if the rest must follow a format. */
const MAX_SHARE = 0.75
/** With a budget of 0, llama-server 0.5.0 skips the first token of the mark that ends the thinking. */
const MIN_BUDGET = 1

/** Returns a function that prepares requests for this template. @param thinks whether the model can think */
export function thinkingWriter(template: string, thinks: boolean): (body: EngineFields) => EngineFields {
  const pieces = templateCode(template)
  const code = pieces.join('\n')
  const variables = pieces.map(withoutStrings).join('\n')
  const reads = (name: string) => new RegExp(`(?<![\\w.])${name}(?!\\w)`).test(variables)
  const switches = ['thinking', 'thinking_mode'].filter(reads)
  const hasBudget = reads('thinking_budget')
  const hasEffort = /\b(reasoning|thinking)_(effort|strength)\b/.test(variables)
  const efforts = reads('thinking_effort') ? ['reasoning_effort', 'thinking_effort'] : ['reasoning_effort']
  // If a template lists its levels, it refuses others. Otherwise it names only those that it treats specially.
  const [, list] = /_effort not in (\[[^\]]*\])/.exec(code) ?? []
  const names = (level: string) => new RegExp(`['"]${level}['"]`).test(list ?? code)
  const levels = EFFORTS.filter(level => names(level) || (!list && USUAL_EFFORTS.includes(level)))
  const noEffort = hasEffort ? NO_EFFORT.find(names) : undefined
  const canSwitch = switches.length > 0 || hasBudget || hasEffort || reads('enable_thinking')
  const kept = Object.fromEntries(KEPT.filter(reads).map(name => [name, true]))

  function getLevel(enabled: boolean | undefined, effort: string | undefined): string | undefined {
    if (!hasEffort) return undefined
    if (enabled === false) return noEffort ?? (switches.length > 0 || reads('enable_thinking') ? undefined : levels[0])
    // Without a level, such a template would not think.
    return effort ? nearestLevel(effort, levels) : enabled && noEffort && 'high'
  }

  function getBudget(body: EngineFields, { enabled, effort = '', budget }: ReturnType<typeof readThinking>) {
    if (enabled === false) return canSwitch ? undefined : MIN_BUDGET
    const wanted = budget ?? (hasEffort ? undefined : SMALL_BUDGETS[effort])
    const { tools, max_tokens: all, ...format } = body
    const isTight = typeof all === 'number' && all > 0 && (isConstrained(format) || Number(wanted) >= all)
    const most = isTight ? Math.min(wanted ?? all, Math.floor(all * MAX_SHARE)) : wanted
    return most === undefined ? undefined : Math.max(MIN_BUDGET, most)
  }

  return body => {
    if (!thinks || body.messages === undefined) return body
    const said = readThinking(body)
    const { enabled, effort } = said
    const level = getLevel(enabled, effort)
    const budget = getBudget(body, said)
    const { chat_template_kwargs: given } = body
    const template: EngineFields = { ...kept, ...(isObject(given) && given) }
    if (enabled !== undefined) {
      template.enable_thinking = enabled
      for (const name of switches) template[name] = name === 'thinking' ? enabled : enabled ? 'enabled' : 'disabled'
    }
    if (level) for (const name of efforts) template[name] = level
    const tokens = enabled === false ? 0 : budget
    if (hasBudget && tokens !== undefined) template.thinking_budget = tokens
    const rest = Object.fromEntries(Object.entries(body).filter(([name]) => !THINKING_FIELDS.has(name)))
    return {
      ...rest,
      ...(budget !== undefined && { thinking_budget_tokens: budget }),
      chat_template_kwargs: template
    }
  }
}

/** Returns the level that is closest to an effort, and the higher of two. Levels of the model's own stay. */
function nearestLevel(effort: string, levels: readonly string[]): string {
  const wanted = EFFORTS.indexOf(effort)
  if (wanted === -1) return effort
  const distance = (level: string) => Math.abs(EFFORTS.indexOf(level) - wanted)
  return levels.reduce((best, level) => (distance(level) <= distance(best) ? level : best))
}

/** Templates whose answers llama.cpp 0.5.0 does not constrain to a schema. */
const IGNORES_SCHEMAS =
  /<\|tool_calls_section_begin\|>|<\|end_of_msg\|>|<role>ASSISTANT<\/role>|<atem:function_calls>|>>>all|<\|role_sep\|>(?![\s\S]*<\|function_call\|>)/

/** @throws CorralError `unsupported_capability` for a schema that llama.cpp would ignore */
export function requireSchemas({ response_format, json_schema }: EngineFields, template: string): void {
  if (!isConstrained({ response_format, json_schema }) || !IGNORES_SCHEMAS.test(template)) return
  const text =
    "llama.cpp does not constrain this model's answers to JSON or a schema, because it does not support that for its chat template. Describe the format in a message instead, or use another model."
  throw new CorralError('unsupported_capability', text, { param: 'response_format' })
}

/** The texts around thinking, and before the answer after and without thinking. */
const MARKS: readonly { start: string; end: string; after?: string; without?: string }[] = marks

/** Returns how a template marks thinking, if it is known. */
export function thinkingMarks(template: string) {
  return MARKS.find(({ end, without }) => template.includes(without ? '<|channel|>' : end))
}

/**
 * Returns a grammar (GBNF) of an answer with thinking before it. The given grammar applies to the rest.
 * @param enabled whether the model may think if the prompt does not begin with it
 */
export function afterThinking(
  grammar: string,
  { start, end, after = '', without = '' }: NonNullable<ReturnType<typeof thinkingMarks>>,
  prompt: string,
  enabled: boolean
): string {
  const beginning = prompt.trimEnd()
  const isBegun = beginning.endsWith(start)
  // The prompt may end with empty thinking.
  if (beginning.endsWith(end) || !(isBegun || enabled || without)) return grammar
  const answer = grammar.replace(GRAMMAR_PARTS, part => (part === 'root' ? 'corral-root' : part))
  const thought = `${isBegun ? '' : `${literal(start)} `}corral-t0 ${literal(after)}`
  return [
    `root ::= ${isBegun ? thought : `(${thought} | ${literal(without)})`} corral-root`,
    ...[...end].map((_, at) => `corral-t${at} ::= ${untilMark(end, at)}`),
    answer
  ].join('\n')
}

/** Strings, character classes and comments in a grammar, and names. */
const GRAMMAR_PARTS = /"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*|[A-Za-z0-9_-]+/g

const literal = (text: string) => JSON.stringify(text)

/** A state of the automaton that finds a mark, of which it has read this many characters. */
function untilMark(mark: string, read: number): string {
  const ways = [...new Set(mark)].flatMap(character => {
    const text = mark.slice(0, read) + character
    let next = text.length
    while (!mark.startsWith(text.slice(text.length - next))) next--
    return next === 0 ? [] : [{ character, next }]
  })
  const others = ways.map(({ character }) => `\\x${character.charCodeAt(0).toString(16)}`).join('')
  return [
    ...ways.map(({ character, next }) => literal(character) + (next < mark.length ? ` corral-t${next}` : '')),
    `[^${others}] corral-t0`
  ].join(' | ')
}
