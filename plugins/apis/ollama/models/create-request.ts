import { type Static, Type } from 'typebox'
import type { Model, ModelDefaults } from '../../../../core/contracts/models.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { Given, Loose, Titled } from '../../../../core/http/request-fields.ts'
import {
  MAX_DEFAULT_CHARACTERS,
  readDefaults,
  requireLength,
  withoutEmpty
} from '../../../../core/models/new-defaults.ts'
import { optionName } from '../../../../core/models/options.ts'
import { parseDigest } from './blobs.ts'

const Digests = (description: string) => Given(Type.Record(Type.String(), Type.String(), { description }))
const Text = (description: string) => Given(Type.String({ description }))

export const CreateRequestSchema = Titled('CreateRequest', {
  model: Text('Name of the new model'),
  name: Text('The same as model'),
  from: Text('Model that it is made from'),
  files: Digests('Or files that it is made from: the digest of each (sent to blobs/<digest> before), by its name'),
  adapters: Digests('LoRA adapters, which are not supported'),
  parameters: Given(Loose({}, { description: 'Options that apply where a request does not set them' })),
  template: Text("Jinja chat template, instead of the model's own"),
  system: Text('System message for conversations that have none'),
  messages: Given(
    Type.Array(Loose({ role: Type.Enum(['system', 'user', 'assistant']), content: Given(Type.String()) }), {
      description: 'Messages that every conversation starts with'
    })
  ),
  license: Given(Type.Union([Type.String(), Type.Array(Type.String())])),
  quantize: Text('Type of weights that the new model gets, such as q4_K_M; those it is made from are F16, F32 or BF16'),
  quantization: Text('The same as quantize'),
  modelfile: Text('All of this as the text of a Modelfile; the other fields take precedence'),
  stream: Given(Type.Boolean({ default: true }))
})
type CreateRequest = Static<typeof CreateRequestSchema>
type Message = NonNullable<CreateRequest['messages']>[number]

/** Characters of a Modelfile, which has all of a model's defaults. */
const MAX_MODELFILE_CHARACTERS = 5 * MAX_DEFAULT_CHARACTERS
/** Files of one model; large ones have some hundreds. */
const MAX_FILES = 2000

/** The model to make. */
export interface Making {
  source: { from: string } | { files: { name: string; sha256: string }[] }
  /** The defaults that the request itself sets. */
  defaults: ModelDefaults
  /** Type of weights, in the client's spelling. */
  quantize: string | undefined
}

const refusal = (param: string, message: string, code: ErrorCode = 'invalid_request') =>
  new CorralError(code, message, { param })

/**
 * Reads what model a request wants.
 * @throws CorralError with the field at fault as `param`: `invalid_request`, `invalid_option`, `unsupported_capability`
 */
export function readCreateRequest(request: CreateRequest): Making {
  const { modelfile } = request
  if (modelfile) requireLength('modelfile', modelfile.length, MAX_MODELFILE_CHARACTERS)
  const text = modelfile ? parseModelfile(modelfile) : {}
  const body = withoutEmpty({ ...text, ...withoutEmpty(request) })
  if (body.adapters) {
    throw refusal(
      'adapters',
      'corral does not build LoRA adapters into models. Name the adapter in config.yaml ' +
        '(models.<name>.lora), or merge it into its base model and create a model of the result.',
      'unsupported_capability'
    )
  }
  const quantize = body.quantize ?? body.quantization ?? undefined
  return { source: sourceOf(body), defaults: readDefaults(body), quantize }
}

function sourceOf({ from, files }: CreateRequest): Making['source'] {
  if (from && files) throw refusal('files', 'A model is made from "from" or from "files". Send one of them.')
  if (from) return { from }
  if (files) {
    const count = Object.keys(files).length
    if (count > MAX_FILES) {
      throw refusal('files', `A model of ${count} files is not taken; ${MAX_FILES} are the most.`)
    }
    return { files: Object.entries(files).map(([name, digest]) => ({ name, sha256: parseDigest(digest, 'files') })) }
  }
  throw refusal(
    'from',
    'Say what the model is made from: "from", the name of a model that is here, or "files", the digests of files that were sent.'
  )
}

/** The defaults of a model that is made of another one; undefined where neither has any. */
export function mergedDefaults(source: ModelDefaults | undefined, own: ModelDefaults): ModelDefaults | undefined {
  const named = new Set(Object.keys(own.options ?? {}).map(optionName))
  const kept = Object.entries(source?.options ?? {}).filter(([name]) => !named.has(optionName(name)))
  const options = { ...Object.fromEntries(kept), ...own.options }
  const merged = { ...source, ...own, ...(Object.keys(options).length > 0 && { options }) }
  return Object.keys(merged).length > 0 ? merged : undefined
}

const KEYWORDS = new Set([
  ...['from', 'adapter', 'template', 'system', 'license', 'message', 'parameter'],
  // Ollama's own code builds prompts and reads answers with these: llama.cpp uses the chat template instead.
  ...['renderer', 'parser', 'requires']
])

/**
 * Reads the text of an Ollama Modelfile, as older clients of Ollama send it
 * (https://docs.ollama.com/modelfile). A FROM or ADAPTER of the form `@sha256:…` is a file that was sent.
 * @throws CorralError `invalid_request` with the line at fault
 */
export function parseModelfile(text: string): CreateRequest {
  const request: CreateRequest & { parameters: Record<string, unknown> } = { parameters: {} }
  const licenses: string[] = []
  const messages: Message[] = []
  const files: [name: string, digest: string][] = []
  for (const command of commandsOf(text)) {
    const { keyword, value } = command
    const digest = /^@?(sha256[:-][0-9a-f]{64})$/i.exec(value)?.[1]
    if (keyword === 'from' && digest) {
      files.push([`model-${files.length + 1}`, digest])
    } else if (keyword === 'from') request.from = value
    else if (keyword === 'adapter') request.adapters = { ...request.adapters, [value]: digest ?? value }
    else if (keyword === 'template') request.template = value
    else if (keyword === 'system') request.system = value
    else if (keyword === 'license') licenses.push(value)
    else if (keyword === 'message') messages.push(errorMessage(command))
    else if (keyword === 'parameter') addParameter(request.parameters, command)
  }
  if (licenses.length > 0) request.license = licenses
  if (messages.length > 0) request.messages = messages
  if (files.length > 0) request.files = Object.fromEntries(files)
  return request
}

interface Command {
  keyword: string
  /** The word before the value: the role of a MESSAGE, the name of a PARAMETER. */
  word: string
  value: string
  /** From 1. */
  line: number
}

function commandsOf(text: string): Command[] {
  const commands: Command[] = []
  const lines = text.replaceAll('\r\n', '\n').split('\n')
  for (let at = 0; at < lines.length; at++) {
    const line = at + 1
    if (/^\s*(#.*)?$/.test(lines[at]!)) continue
    const [command, rest] = firstWord(lines[at]!)
    const keyword = command.toLowerCase()
    if (!KEYWORDS.has(keyword)) throw mistake(line, 'it does not start with an instruction of Modelfiles')
    const [word, begin] = keyword === 'message' || keyword === 'parameter' ? firstWord(rest) : ['', rest]
    if (word !== '' && begin === '') throw mistake(line, `a ${command.toUpperCase()} is a word and a value`)
    const quotes = /^("""|")/.exec(begin)?.[1]
    let value = begin.trim()
    if (quotes && (value.length < 2 * quotes.length || !value.endsWith(quotes))) {
      // It ends where a line does.
      const quoted = [value]
      do {
        if (++at >= lines.length) throw mistake(line, `its ${quotes} does not end`)
        quoted.push(lines[at]!)
      } while (!lines[at]!.trimEnd().endsWith(quotes))
      value = quoted.join('\n').trimEnd()
    }
    if (quotes) value = value.slice(quotes.length, -quotes.length)
    commands.push({ keyword, word, value, line })
  }
  return commands
}

/** A text's first word and the rest of it; without regular expressions that look at long texts again and again. */
function firstWord(text: string): [word: string, rest: string] {
  const trimmed = text.trimStart()
  const end = trimmed.search(/\s/)
  return end < 0 ? [trimmed, ''] : [trimmed.slice(0, end), trimmed.slice(end).trimStart()]
}

function errorMessage({ word, value, line }: Command): Message {
  if (word === 'system' || word === 'user' || word === 'assistant') return { role: word, content: value }
  throw mistake(line, 'a MESSAGE is system, user or assistant and a text')
}

function addParameter(parameters: Record<string, unknown>, { word: name, value, line }: Command): void {
  if (name === '') throw mistake(line, 'a PARAMETER is a name and a value')
  if (name === 'stop') {
    parameters[name] ??= []
    ;(parameters[name] as string[]).push(value)
  } else if (value.trim() !== '' && Number.isFinite(Number(value))) parameters[name] = Number(value)
  else parameters[name] = value === 'true' || value === 'false' ? value === 'true' : value
}

function mistake(line: number, what: string): CorralError {
  return refusal('modelfile', `The Modelfile cannot be read: line ${line}: ${what}.`)
}

/**
 * What a model was made with, as an Ollama Modelfile (https://docs.ollama.com/modelfile).
 * @param name that clients know the model by: what is made FROM it has all that it has
 */
export function modelfileText({ defaults, metadata }: Model, name: string): string {
  const { options = {}, system, messages = [], license } = defaults ?? {}
  const lines = ['# Modelfile written by corral', `FROM ${name}`]
  if (metadata.chatTemplate) lines.push(`TEMPLATE ${quoted(metadata.chatTemplate)}`)
  if (system) lines.push(`SYSTEM ${quoted(system)}`)
  for (const [option, value] of Object.entries(options)) {
    for (const entry of Array.isArray(value) ? value : [value]) {
      lines.push(`PARAMETER ${option} ${quoted(typeof entry === 'string' ? entry : JSON.stringify(entry))}`)
    }
  }
  if (license) lines.push(`LICENSE ${quoted(license)}`)
  for (const { role, content } of messages) lines.push(`MESSAGE ${role} ${quoted(content)}`)
  return `${lines.join('\n')}\n`
}

function quoted(text: string): string {
  return /\n|^\s|\s$|^"|^$/.test(text) ? `"""${text}"""` : text
}
