import { join } from 'node:path'
import { parse } from 'yaml'
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
export interface LaunchFacts {
  /** Address of the server, without a path. */
  url: string
  /** The key for the server, or `unused`. */
  key: string
  model: string
  /** Tokens that a prompt and its answer may have together, and tokens that the answer may have. */
  context: number
  answer: number
  images: boolean
  thinking: boolean
  /** The server's catalog for Codex. */
  catalog: unknown
  /** The agent's folder for corral's own files. */
  folder: string
  /** The user's home folder. */
  home: string
}

export interface Launch {
  /** Undefined removes a variable. */
  env: Record<string, string | undefined>
  args: string[]
  /** Texts of corral's own files, by path. */
  own: Record<string, string>
  changes: { file: string; list: Change[] } | undefined
}

/** Share of the context after which an agent should shorten the conversation. */
const COMPACT_SHARE = 0.8
/** Minimum tokens for Claude Code's own setting. */
const MIN_LARGE_CONTEXT = 100_000

/**
 * Plans the variables, arguments and files of an agent.
 * @param read returns the text of a file, or undefined if there is none
 */
export function planLaunch(
  { env = {}, args = [], own = {}, changes }: Agent,
  facts: LaunchFacts,
  user: { env: NodeJS.ProcessEnv; platform: NodeJS.Platform; read(path: string): string | undefined }
): Launch {
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
    env: Object.fromEntries(variables),
    args: fill(args),
    own: Object.fromEntries(files),
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
