import type { EngineMode } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { Capability, Model } from '../contracts/models.ts'
import { CorralError } from '../errors.ts'

/* Operations, and the modes of the engines that answer them. */

/** Capabilities that describe a mode or what its requests may contain. All other capabilities are operations. */
const NOT_OPERATIONS = new Set<Capability>(
  'completion base tools thinking vision audio insert embedding rerank'.split(' ')
)

/** Operations that need no capability of their own, because a mode implies them. */
const OF_MODES = new Set<Operation>(['chat', 'completion', 'embeddings', 'rerank', 'tokens'])

const PURPOSES: Record<string, string> = {
  chat: 'answer conversations',
  completion: 'continue texts',
  transcribe: 'transcribe audio',
  translate: 'translate audio',
  speak: 'speak',
  draw: 'make images',
  edit_image: 'edit images',
  vary_image: 'vary images',
  embed: 'make embeddings',
  rerank: 'rank documents',
  tokenize: 'split texts into tokens',
  detokenize: 'turn tokens into text',
  countTokens: 'count tokens',
  applyTemplate: 'show the prompts of conversations'
}

/** Lists the operations of plugins that a model supports, such as `speak` or `draw`. */
export const listOperations = ({ metadata }: Pick<Model, 'metadata'>): Operation[] =>
  metadata.capabilities.filter(capability => !NOT_OPERATIONS.has(capability))

/** Returns the mode in which a model is loaded if the request implies none. */
export function defaultMode(model: Pick<Model, 'metadata'>): EngineMode {
  const { capabilities } = model.metadata
  if (capabilities.includes('completion')) return 'chat'
  if (capabilities.includes('rerank')) return 'rerank'
  if (capabilities.includes('embedding')) return 'embedding'
  return listOperations(model)[0] ?? 'embedding'
}

/** Lists all modes that a model may be loaded in, if a provider serves them. */
export const listModes = (model: Pick<Model, 'metadata'>): EngineMode[] => [
  ...new Set(['chat', 'embedding', 'rerank', defaultMode(model)])
]

/**
 * Returns the mode of the engine for an operation. Operations of plugins use the model's default mode.
 * @throws CorralError `unsupported_capability` if the model does not list an operation of plugins
 */
export function modeFor(operation: Operation, model: Pick<Model, 'metadata' | 'publicName'>): EngineMode {
  if (OF_MODES.has(operation)) return 'chat'
  const { capabilities } = model.metadata
  // Text models that understand sound are asked to transcribe it.
  const isSpeechToText = operation === 'transcribe' || operation === 'translate'
  if (capabilities.includes(operation) || (isSpeechToText && capabilities.includes('audio'))) return defaultMode(model)
  throw unsupportedOperation(`Model "${model.publicName}"`, operation)
}

/** @param subject the model or its engine, as the beginning of a sentence */
export function unsupportedOperation(subject: string, operation: string): CorralError {
  const purpose = Object.hasOwn(PURPOSES, operation) ? PURPOSES[operation] : `do "${operation}"`
  const message = `${subject} cannot ${purpose}. Use a model that can.`
  return new CorralError('unsupported_capability', message, { param: 'model' })
}
