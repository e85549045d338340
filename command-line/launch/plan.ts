import type { LocalModel } from '../../core/contracts/native-records.ts'
import type { Agent } from './agents.ts'

/** A model in the reply of `GET /v1/models`. */
export interface ListedModel {
  id: string
  max_input_tokens: number
  max_tokens: number
  status: { value: string }
}

/** A chat model of the server. */
export interface AgentModel {
  name: string
  /** Bytes. */
  size: number
  /** ISO 8601. */
  modifiedAt: string
  loaded: boolean
  /** Tokens that it was trained for, if known. */
  trained: number | undefined
  /** Tokens that a prompt and its answer may have together, and that the answer may have. */
  context: number
  answer: number
  tools: boolean
  images: boolean
  thinking: boolean
}

/** Combines what two lists of a server say about its chat models. */
export function agentModels(models: readonly LocalModel[], rows: readonly ListedModel[]): AgentModel[] {
  return models.flatMap(({ name, size, modified_at: modifiedAt, capabilities, details }) => {
    const row = rows.find(({ id }) => id === name)
    const [chats, tools, images, thinking] = ['completion', 'tools', 'vision', 'thinking'].map(each =>
      capabilities.includes(each)
    ) as [boolean, boolean, boolean, boolean]
    if (!row || !chats) return []
    const { max_input_tokens: context, max_tokens, status } = row
    const answer = Math.min(max_tokens, MAX_ANSWER_TOKENS, Math.floor(context * ANSWER_SHARE))
    const trained = details.context_length
    return {
      name,
      size,
      modifiedAt,
      loaded: status.value === 'loaded',
      trained,
      context,
      answer,
      tools,
      images,
      thinking
    }
  })
}

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

/** Says why the context is too small, and which setting to change. @param limiting settings that limit it, with places */
export function contextProblem(
  { name, trained, context }: Pick<AgentModel, 'name' | 'trained' | 'context'>,
  { title, minContext }: Needs,
  limiting: readonly string[]
): string {
  const problem = `${title} needs a context of at least ${minContext} tokens`
  if (trained !== undefined && trained < minContext) {
    return `${problem}, and "${name}" was trained for ${trained}. ${PULL}`
  }
  const change =
    limiting.length > 0
      ? `Change ${limiting.join(' and ')}`
      : `Set models."${name}".options.num_ctx to ${minContext} or more in config.yaml on the server, and check limits.num_ctx there`
  return `${problem}, and "${name}" has ${context}. ${change}, then run: corral reload`
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
