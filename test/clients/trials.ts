import facts from './facts.json' with { type: 'json' }

/* The facts that all clients are tried with. `facts.json` has more: programs in other languages get all of them. */

/** Trials in the order of the table in docs/measurements/clients.md: their names, and descriptions for readers. */
export const FEATURES = facts.FEATURES
export type Feature = keyof typeof FEATURES

/** The server that trials use. */
export interface Place {
  /** For example http://127.0.0.1:11435. */
  address: string
  /** Milliseconds that a request may continue after its reader disconnected. */
  leavingLimit: number
  /** A server that requires a key and has no room for any model. Absent for a server elsewhere. */
  strict?: { address: string; key: string }
  /** The address at which Ollama's clients find their API without a path. Absent for a server elsewhere. */
  listener?: string
  /** A reranker with random weights. Absent for a server elsewhere. */
  ranker?: string
}

/** Tries one feature: returns a note for the table, if any, or fails. */
export type Trial = (place: Place) => Promise<string | undefined>

export interface Client {
  /** The npm packages. The first one gives the client its name. */
  packages: string[]
  trials: Partial<Record<Feature, Trial>>
}

export const LANGUAGES = ['JavaScript', 'Python', 'Frameworks in Python', 'Go', 'Java', 'Rust'] as const
export type Language = (typeof LANGUAGES)[number]

/** The outcome of one trial. Scripts print it as a line of JSON. */
export interface Outcome {
  client: string
  version: string
  language: Language
  feature: Feature
  result: 'works' | 'fails'
  note: string
}

/** The demo model, which answers deterministically at temperature 0, and as `makeEndless` changes it. */
export const { MODEL, ENDLESS, QUESTION, ANSWER, ASK_WEATHER, ASK_TWO, SAY_WEATHER, DIMENSION, PNG, JSON_ANSWER } =
  facts

/** The tool of all trials, as JSON schema. */
export const WEATHER = facts.WEATHER as Omit<typeof facts.WEATHER, 'parameters'> & {
  parameters: Omit<typeof facts.WEATHER.parameters, 'type'> & { type: 'object' }
}

/** A conversation after which the model knows a name. */
export const ROSA = facts.ROSA as { role: 'user' | 'assistant'; content: string }[]

/** Makes the demo model answer the question about the weather in Paris with an object. */
export const JSON_SYSTEM = `Tools:\n${JSON.stringify({ type: 'function', function: WEATHER })}
To use a tool, answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.`

/** A prompt that exceeds every context of the demo model. */
export const LONG = 'hello there '.repeat(20_000)

/** All facts, for programs in other languages. */
export const FACTS = { ...facts, JSON_SYSTEM, LONG }
