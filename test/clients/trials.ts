/**
 * Trials for every client that has the feature, in the order of the table in docs/measurements/clients.md: the trial's
 * name and its description for readers.
 */
export const FEATURES = {
  models: 'model list',
  chat: 'chat',
  system: 'system message and history',
  stream: 'streamed chat',
  usage: 'token counts',
  stop: 'stop sequence and length limit',
  seed: 'seed',
  choices: 'several choices',
  logprobs: 'log probabilities',
  completions: 'text completion',
  load: 'load and unload',
  tools: 'tool call and its result',
  two_tools: 'two parallel tool calls',
  streamed_tools: 'streamed tool calls',
  forced_tool: 'forced tool call',
  json: 'JSON mode',
  schema: 'JSON schema',
  streamed_schema: 'streamed JSON schema',
  embeddings: 'embeddings',
  rerank: 'reranking',
  responses: 'Responses API',
  streamed_responses: 'streamed Responses API',
  count_tokens: 'counting tokens',
  show: 'model details',
  running: 'loaded models',
  pull: 'model pull',
  copy: 'copy and delete',
  create: 'model created from another',
  push: 'push',
  images: 'images for a model without image support',
  not_found: 'unknown model',
  bad_request: 'bad request',
  context: 'prompt longer than the context',
  wrong_key: 'wrong key',
  no_retries: 'failure that a retry cannot fix',
  cancel: 'cancellation',
  bare_name: 'name without owner',
  root: 'at the root address',
  listener: 'at its own listener',
  addresses: 'other forms of the base address'
} as const
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

/** Tries one feature: returns a note for the table, or fails. */
export type Trial = (place: Place) => Promise<string>

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

/** The demo model, which answers deterministically at temperature 0. */
export const MODEL = 'corral/tiny-chat'
/** The demo model as `makeEndless` changes it. */
export const ENDLESS = 'corral/endless'
export const QUESTION = 'What is the capital of France?'
export const ANSWER = 'The capital of France is Paris.'
export const ASK_WEATHER = 'What is the weather in Paris?'
export const ASK_TWO = 'What is the weather in Paris and Rome?'
export const SAY_WEATHER = 'The weather in Paris is sunny.'
export const DIMENSION = 256

/** The tool of all trials, as JSON schema. */
export const WEATHER = {
  name: 'get_weather',
  description: 'Get the current weather in a city',
  parameters: {
    type: 'object' as const,
    properties: { city: { type: 'string' as const } },
    required: ['city'],
    additionalProperties: false
  }
}

/** The schema of answers in trials of JSON schemas. */
export const CITY_REPORT = {
  type: 'object' as const,
  properties: {
    city: { type: 'string' as const, enum: ['Paris', 'Rome'] },
    warm: { type: 'boolean' as const },
    rank: { type: 'string' as const, enum: ['1', '2'] }
  },
  required: ['city', 'warm', 'rank'],
  additionalProperties: false
}

/** Makes the demo model answer the question about the weather in Paris with an object. */
export const JSON_SYSTEM = `Tools:\n${JSON.stringify({ type: 'function', function: WEATHER })}
To use a tool, answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.`
export const JSON_ANSWER = { name: 'get_weather', arguments: { city: 'Paris' } }

/** A small valid picture. */
export const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=='

/** A prompt that exceeds every context of the demo model. */
export const LONG = 'hello there '.repeat(20_000)
