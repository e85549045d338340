import { join } from 'node:path'
import { parse } from 'yaml'
import type { LocalModel } from '../../core/contracts/native-records.ts'
import { shippedText } from '../shipped-text.ts'
import type { Change } from './settings-edit.ts'

/** An agent as `texts/agents.yaml` describes it. */
export interface Agent {
  /** Its name for people. */
  title: string
  /** Names of its program, in the order in which they are tried. */
  programs: string[]
  /** Command or address to install it. */
  install: string
  /** Tokens of its first prompt, with room for a short answer. */
  minContext: number
  /** Whether its model must call tools (default: true). */
  needsTools?: boolean
  /** Variables. null removes one, and anything but text is given as JSON. */
  env?: Record<string, unknown>
  /** Arguments before those of the user. Other users can read them, so none contains the key. */
  args?: string[]
  /** Files in corral's folder for the agent. They are JSON, and `from` adds the settings of a file of the user. */
  own?: Record<string, string | { from?: string; models?: unknown[] }>
  /** Changes of a file of the user, for agents that take these settings from nowhere else. */
  changes?: { file: string | Partial<Record<NodeJS.Platform, string>>; list: Change[] }
}

export const AGENTS: Record<string, Agent> = parse(shippedText('agents.yaml'))

/** What an agent is started with. */
export interface LaunchFacts extends Pick<AgentModel, 'context' | 'answer' | 'images' | 'thinking'> {
  /** Address of the server, without a path. */
  url: string
  /** The key for the server, or `unused`. */
  key: string
  model: string
  /** The server's catalog for Codex. */
  catalog: unknown
  /** The agent's folder for corral's own files. */
  folder: string
  /** The user's home folder. */
  home: string
}

/** Share of the context after which an agent should shorten the conversation. */
const COMPACT_SHARE = 0.8
/** Minimum tokens for Claude Code's own setting. */
const MIN_LARGE_CONTEXT = 100_000

/**
 * Plans the variables, arguments and files of an agent. An undefined variable is removed.
 * @param read returns the text of a file, or undefined if there is none
 */
export function planLaunch(
  { env = {}, args = [], own = {}, changes }: Agent,
  facts: LaunchFacts,
  user: { env: NodeJS.ProcessEnv; platform: NodeJS.Platform; read(path: string): string | undefined }
) {
  const { context, answer, images, folder } = facts
  const names: Record<string, unknown> = {
    ...facts,
    prompt: context - answer,
    compact: Math.floor(context * COMPACT_SHARE),
    largeContext: context < MIN_LARGE_CONTEXT ? null : context,
    input: images ? ['text', 'image'] : ['text']
  }
  const fill = <Value>(value: Value) => fillIn(value, names, user.env) as Value
  const variables = Object.entries(fill(env)).map(([name, value]) => [
    name,
    value === null ? undefined : typeof value === 'string' ? value : JSON.stringify(value)
  ])
  const files = Object.entries(own).map(([name, content]) => {
    const filled = fill(content)
    if (typeof filled === 'string') return [join(folder, name), filled]
    const { from, models, ...settings } = filled
    const theirs = from === undefined ? {} : ((parse(user.read(from) ?? '') ?? {}) as { models?: unknown[] })
    const all = from === undefined ? models : [...(models ?? []), ...(theirs.models ?? [])]
    return [join(folder, name), `${JSON.stringify({ ...settings, ...theirs, models: all }, undefined, 2)}\n`]
  })
  const file = typeof changes?.file === 'object' ? (changes.file[user.platform] ?? changes.file.linux) : changes?.file
  return {
    env: Object.fromEntries(variables) as Record<string, string | undefined>,
    args: fill(args),
    /** Texts of corral's own files, by path. */
    own: Object.fromEntries(files) as Record<string, string>,
    changes: changes && { file: fill(file!), list: fill(changes.list) }
  }
}

/** Replaces `${VARIABLE:-default}` and `$name` in names and values. A text that is only `$name` becomes its value. */
function fillIn(value: unknown, names: Record<string, unknown>, env: NodeJS.ProcessEnv): unknown {
  if (Array.isArray(value)) return value.map(each => fillIn(each, names, env))
  if (typeof value === 'object' && value !== null) {
    const pairs = Object.entries(value).map(pair => pair.map(each => fillIn(each, names, env)))
    return Object.fromEntries(pairs as [string, unknown][])
  }
  if (typeof value !== 'string') return value
  let text = value
  for (let before = ''; before !== text; ) {
    before = text
    text = text.replace(/\$\{(\w+):-([^{}]*)\}/, (_, name: string, usual: string) => env[name] || usual)
  }
  const whole = /^\$(\w+)$/.exec(text)?.[1]
  if (whole !== undefined && whole in names) return names[whole]
  return text.replace(/\$(\w+)/g, (name, known: string) => {
    const found = names[known]
    return found === undefined ? name : typeof found === 'string' ? found : JSON.stringify(found)
  })
}

/** A model in the reply of `GET /v1/models`. */
export interface ListedModel {
  id: string
  max_input_tokens: number
  max_tokens: number
  status: { value: string }
}

/** Combines what two lists of a server say about its chat models. */
export function agentModels(models: readonly LocalModel[], rows: readonly ListedModel[]) {
  return models.flatMap(({ name, size, modified_at: modifiedAt, capabilities, details }) => {
    const row = rows.find(({ id }) => id === name)
    if (!row || !capabilities.includes('completion')) return []
    const { max_input_tokens: context, max_tokens, status } = row
    return {
      name,
      size,
      modifiedAt,
      loaded: status.value === 'loaded',
      /** Tokens that it was trained for, if known. */
      trained: details.context_length,
      /** Tokens that a prompt and its answer may have together, and that the answer may have. */
      context,
      answer: Math.min(max_tokens, MAX_ANSWER_TOKENS, Math.floor(context * ANSWER_SHARE)),
      tools: capabilities.includes('tools'),
      images: capabilities.includes('vision'),
      thinking: capabilities.includes('thinking')
    }
  })
}
export type AgentModel = ReturnType<typeof agentModels>[number]

type Needs = Pick<Agent, 'title' | 'minContext' | 'needsTools'>

/** Models with tools and long contexts, for machines with much and with little memory. */
const PULL =
  'Get one with: corral pull unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF, or on a small machine: corral pull unsloth/Qwen3-4B-Instruct-2507-GGUF'
/** Share of the context that an answer may take, and its maximum tokens. */
const ANSWER_SHARE = 0.25
const MAX_ANSWER_TOKENS = 32_000

/**
 * Returns the models that an agent can use, best first: loaded ones, then the newest. If there is none, returns a
 * sentence about the problem, or the model whose context is too small.
 * @param wanted the name of the only model to consider
 */
export function chooseModel(
  all: readonly AgentModel[],
  { title, minContext, needsTools = true }: Needs,
  wanted?: string
): { models: AgentModel[] } | { problem: string } | { small: AgentModel } {
  const candidates = wanted === undefined ? all : all.filter(({ name }) => name === wanted)
  const capable = candidates
    .filter(({ tools }) => tools || !needsTools)
    .toSorted((a, b) => Number(b.loaded) - Number(a.loaded) || b.modifiedAt.localeCompare(a.modifiedAt))
  const models = capable.filter(({ context }) => context >= minContext)
  if (models.length > 0) return { models }
  const [small] = capable.toSorted((a, b) => (b.trained ?? b.context) - (a.trained ?? a.context))
  if (small) return { small }
  const problem = wanted === undefined ? 'No model on this server can' : `"${wanted}" cannot`
  return { problem: `${problem} ${needsTools ? 'call tools' : 'chat'}, which ${title} needs. ${PULL}` }
}

/** Says why the context is too small, and what to do. */
export function contextProblem(
  { name, trained, context }: Pick<AgentModel, 'name' | 'trained' | 'context'>,
  { title, minContext }: Needs
): string {
  const problem = `${title} needs a context of at least ${minContext} tokens`
  if (trained !== undefined && trained < minContext) {
    return `${problem}, and "${name}" was trained for ${trained}. ${PULL}`
  }
  return `${problem}, and "${name}" has ${context}. Set models."${name}".options.num_ctx to ${minContext} or more in config.yaml on the server, and check limits.num_ctx there, then run: corral reload`
}

/** Formats variables and a command for a POSIX shell. @param secret a value, and the text to show instead of it */
export function formatCommand(
  env: Readonly<Record<string, string | undefined>>,
  command: readonly string[],
  secret?: { value: string; shown: string }
): string {
  const quote = (text: string) => (/^[\w./:@=,+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`)
  const shown = (value: string) => (value === secret?.value ? secret.shown : quote(value))
  const all = Object.entries(env)
  const removed = all.flatMap(([name, value]) => (value === undefined ? ['-u', name] : []))
  const set = all.flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${shown(value)}`]))
  const words = command.map(quote).join(' ')
  if (all.length === 0) return words
  return [['env', ...removed].join(' '), ...set, words].join(' \\\n  ')
}
