import { type Static, Type } from 'typebox'
import type { ModelDefaults } from '../../../core/contracts/catalog.ts'
import { CorralError } from '../../../core/errors.ts'
import { Given, loose } from '../../../core/http/request-fields.ts'
import { optionName, parseOptions } from '../../../core/models/options.ts'
import { requireJinja } from './chat-template.ts'
import { parseDigest } from './digest.ts'
import { parseModelfile } from './modelfile.ts'

const Digests = (description: string) => Given(Type.Record(Type.String(), Type.String(), { description }))

export const CreateRequestSchema = Type.Object(
  {
    model: Given(Type.String({ description: 'Name of the new model' })),
    name: Given(Type.String({ description: 'The same as model' })),
    from: Given(Type.String({ description: 'Model that it is made of' })),
    files: Digests('Or files that it is made of: the digest of each, which was sent to blobs/<digest>, by its name'),
    adapters: Digests('LoRA adapters, which are refused'),
    parameters: Given(
      Type.Object({}, { ...loose, description: 'Options that hold where a request gives none of its own' })
    ),
    template: Given(Type.String({ description: "Jinja chat template in the place of the model's own" })),
    system: Given(Type.String({ description: 'System message of conversations that have none' })),
    messages: Given(
      Type.Array(
        Type.Object({ role: Type.Enum(['system', 'user', 'assistant']), content: Given(Type.String()) }, loose),
        { description: 'Messages that every conversation begins with' }
      )
    ),
    license: Given(Type.Union([Type.String(), Type.Array(Type.String())])),
    quantize: Given(Type.String({ description: 'Type that a SafeTensors model is converted to, such as q4_K_M' })),
    quantization: Given(Type.String({ description: 'The same as quantize' })),
    modelfile: Given(Type.String({ description: 'All of this as the text of a Modelfile; fields go before it' })),
    stream: Given(Type.Boolean({ default: true }))
  },
  { ...loose, title: 'CreateRequest' }
)
export type CreateRequest = Static<typeof CreateRequestSchema>

/** Characters of what is laid down for one model: all of it is kept in memory, and read at each start. */
const MOST_TEXT = 1_000_000

/** What is to be made. */
export interface Making {
  source: { from: string } | { files: { name: string; sha256: string }[] }
  /** What the request lays down itself. */
  defaults: ModelDefaults
  /** Type of weights, in the client's spelling. */
  quantize: string | undefined
}

/**
 * Reads what a request wants to be made.
 * @throws CorralError with the field at fault as `param`: `invalid_request`, `invalid_option`, `unsupported_capability`
 */
export function readCreateRequest(request: CreateRequest): Making {
  const text = request.modelfile ? parseModelfile(request.modelfile) : {}
  const body = withoutEmpty({ ...text, ...withoutEmpty(request) })
  if (body.adapters) {
    throw new CorralError(
      'unsupported_capability',
      'corral does not make LoRA adapters a part of models. Name the adapter in config.yaml ' +
        '(models.<name>.lora), or merge it into its base model and create a model of the result.',
      { param: 'adapters' }
    )
  }
  return {
    source: sourceOf(body),
    defaults: defaultsOf(body),
    quantize: body.quantize ?? body.quantization ?? undefined
  }
}

function sourceOf({ from, files }: CreateRequest): Making['source'] {
  if (from && files) {
    throw new CorralError('invalid_request', 'A model is made of "from" or of "files". Send one of them.', {
      param: 'files'
    })
  }
  if (from) return { from }
  if (files) {
    return { files: Object.entries(files).map(([name, digest]) => ({ name, sha256: parseDigest(digest, 'files') })) }
  }
  throw new CorralError(
    'invalid_request',
    'Say what the model is made of: "from", the name of a model that is here, or "files", the digests of files that were sent.',
    { param: 'from' }
  )
}

function defaultsOf({ parameters, template, system, messages, license }: CreateRequest): ModelDefaults {
  if (template) requireJinja(template)
  const defaults: ModelDefaults = {
    ...(parameters && { options: optionsOf(parameters) }),
    ...(template && { template }),
    ...(system && { system }),
    ...(messages && { messages: messages.map(plainMessage) }),
    ...(license && { license: typeof license === 'string' ? license : license.join('\n') })
  }
  const [longest] = Object.entries(defaults)
    .map(([field, value]) => ({ field, length: JSON.stringify(value).length }))
    .sort((a, b) => b.length - a.length)
  if (!longest || longest.length <= MOST_TEXT) return defaults
  const param = longest.field === 'options' ? 'parameters' : longest.field
  throw new CorralError(
    'invalid_request',
    `"${param}" is too long to be laid down for a model: it has ${longest.length} characters, ${MOST_TEXT} are the most.`,
    { param }
  )
}

function optionsOf(parameters: object): Record<string, unknown> {
  const options: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(parameters)) {
    // Where it fills text in, llama-server takes lists of stop sequences only.
    if (value !== null) options[name] = name === 'stop' && typeof value === 'string' ? [value] : value
  }
  parseOptions(options)
  return options
}

type Message = NonNullable<CreateRequest['messages']>[number]

function plainMessage({ role, content, ...more }: Message, index: number): { role: string; content: string } {
  // Ollama's command line saves a conversation with what the model thought: of earlier turns templates leave that out.
  const extra = Object.entries(more).find(
    ([field, value]) => field !== 'thinking' && (Array.isArray(value) ? value.length > 0 : Boolean(value))
  )
  if (!extra) return { role, content: content ?? '' }
  throw new CorralError(
    'invalid_request',
    `Messages of a model have a role and a content; "${extra[0]}" cannot be kept with it. Send it with each request.`,
    { param: `messages.${index}.${extra[0]}` }
  )
}

/** As Ollama's clients send it: what is empty was not given. */
function withoutEmpty(request: CreateRequest): CreateRequest {
  const isEmpty = (value: unknown) =>
    value === null || value === '' || (typeof value === 'object' && Object.keys(value as object).length === 0)
  return Object.fromEntries(Object.entries(request).filter(([, value]) => !isEmpty(value)))
}

/** What holds for a model that is made of another one; nothing where nothing was laid down for either. */
export function mergedDefaults(source: ModelDefaults | undefined, given: ModelDefaults): ModelDefaults | undefined {
  const named = new Set(Object.keys(given.options ?? {}).map(optionName))
  const kept = Object.entries(source?.options ?? {}).filter(([name]) => !named.has(optionName(name)))
  const options = { ...Object.fromEntries(kept), ...given.options }
  const merged = { ...source, ...given, ...(Object.keys(options).length > 0 && { options }) }
  return Object.keys(merged).length > 0 ? merged : undefined
}
