export interface ConfigProblem {
  /** Place of the mistake: `config.yaml:12:3`, `env CORRAL_PORT` or `flag --port`. */
  where: string
  /** Path of the file, with the place in it, counted from 1. */
  file?: string
  line?: number
  column?: number
  /** Name of the setting, such as `security.api_keys`, if any. */
  setting?: string
  /** What is wrong and what is allowed. Never contains a secret. */
  message: string
  /** The setting is an unknown request option, which engines get anyway. Other unknown settings are ignored. */
  passedOn?: true
}

/** The log's warning about an unknown setting. */
export function unknownWarning({ where, message, passedOn }: Pick<ConfigProblem, 'where' | 'message' | 'passedOn'>) {
  return `${where}: ${message} ${passedOn ? 'It is passed on to the engine.' : 'It is ignored.'}`
}

/** The configuration cannot be used. Lists all mistakes that were found. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
  readonly code = 'invalid_config'
  readonly problems: readonly ConfigProblem[]

  constructor(problems: readonly ConfigProblem[], { title, hint }: { title?: string; hint?: string | undefined } = {}) {
    super(formatProblems(problems, title) + (hint ? `\n${hint}` : ''))
    this.problems = problems
  }
}

export function formatProblems(problems: readonly ConfigProblem[], named?: string): string {
  const title = named ?? `The configuration has ${problems.length === 1 ? 'a mistake' : `${problems.length} mistakes`}:`
  const width = Math.min(40, Math.max(...problems.map(({ where }) => where.length)))
  return [title, ...problems.map(({ where, message }) => `  ${where.padEnd(width)}  ${message}`)].join('\n')
}
