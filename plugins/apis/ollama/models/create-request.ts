import { basename } from 'node:path/posix'
import { type Static, Type } from 'typebox'
import type { AdoptedFile } from '../../../../core/contracts/adopted-files.ts'
import type { Model, ModelDefaults } from '../../../../core/contracts/models.ts'
import type { StoredFile } from '../../../../core/contracts/storage.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { Given, Loose, Titled } from '../../../../core/http/request-fields.ts'
import { foreignStart, readGguf, START_SIZE } from '../../../../core/models/gguf-file.ts'
import { shardNames, storedName } from '../../../../core/models/gguf-file-name.ts'
import { describesSafetensors, isTokenizer } from '../../../../core/models/model-folder.ts'
import {
  MAX_DEFAULT_CHARACTERS,
  readDefaults,
  requireLength,
  withoutEmpty
} from '../../../../core/models/new-defaults.ts'
import { optionName } from '../../../../core/models/options.ts'
import { readOpened, withRegularFile } from '../../../../core/system/regular-file.ts'
import { parseDigest } from './blobs.ts'

const Digests = (description: string) => Given(Type.Record(Type.String(), Type.String(), { description }))
const Text = (description: string) => Given(Type.String({ description }))

export const CreateRequestSchema = Titled('CreateRequest', {
  model: Text('Name of the new model'),
  name: Text('The same as model'),
  from: Text('Model to create it from'),
  files: Digests(
    'Or files to create it from: the digest of each file (uploaded to blobs/<digest> before), by its name'
  ),
  adapters: Digests('LoRA adapters, which are not supported'),
  parameters: Given(Loose({}, { description: 'Options that apply if a request does not set them' })),
  template: Text("Jinja chat template, instead of the model's own"),
  system: Text('System message for conversations without one'),
  messages: Given(
    Type.Array(Loose({ role: Type.Enum(['system', 'user', 'assistant']), content: Given(Type.String()) }), {
      description: 'Messages that every conversation starts with'
    })
  ),
  license: Given(Type.Union([Type.String(), Type.Array(Type.String())])),
  quantize: Text('Weight type of the new model, such as q4_K_M; the source weights must be F16, F32 or BF16'),
  quantization: Text('The same as quantize'),
  modelfile: Text('All of these fields as the text of a Modelfile; the other fields take precedence'),
  stream: Given(Type.Boolean({ default: true }))
})
type CreateRequest = Static<typeof CreateRequestSchema>
type Message = NonNullable<CreateRequest['messages']>[number]

const MAX_MODELFILE_CHARACTERS = 5 * MAX_DEFAULT_CHARACTERS
/** Maximum number of files of a model. Large models have a few hundred. */
const MAX_FILES = 2000

export type NewModel = ReturnType<typeof readCreateRequest>

const refuse = (param: string, message: string, code: ErrorCode = 'invalid_request') =>
  new CorralError(code, message, { param })

export function readCreateRequest(request: CreateRequest) {
  const { modelfile } = request
  if (modelfile) requireLength('modelfile', modelfile.length, MAX_MODELFILE_CHARACTERS)
  const text = modelfile ? parseModelfile(modelfile) : {}
  const body = withoutEmpty({ ...text, ...withoutEmpty(request) })
  if (body.adapters) {
    throw refuse(
      'adapters',
      'corral does not build LoRA adapters into models. Set the adapter in config.yaml ' +
        '(models.<name>.lora), or merge it into its base model and create a model from the result.',
      'unsupported_capability'
    )
  }
  const quantize = body.quantize ?? body.quantization ?? undefined
  return { source: readSource(body), defaults: readDefaults(body), quantize }
}

function readSource({ from, files }: CreateRequest): { from: string } | { files: { name: string; sha256: string }[] } {
  if (from && files) throw refuse('files', 'A model is created from "from" or from "files". Send only one of them.')
  if (from) return { from }
  if (files) {
    const count = Object.keys(files).length
    if (count > MAX_FILES) {
      throw refuse('files', `A model may have at most ${MAX_FILES} files, but the request has ${count}.`)
    }
    return { files: Object.entries(files).map(([name, digest]) => ({ name, sha256: parseDigest(digest, 'files') })) }
  }
  throw refuse(
    'from',
    'The request does not say what to create the model from. Set "from" to a model that is here, or "files" to the digests of uploaded files.'
  )
}

export function mergedDefaults(source: ModelDefaults | undefined, own: ModelDefaults): ModelDefaults | undefined {
  const named = new Set(Object.keys(own.options ?? {}).map(optionName))
  const kept = Object.entries(source?.options ?? {}).filter(([name]) => !named.has(optionName(name)))
  const options = { ...Object.fromEntries(kept), ...own.options }
  const merged = { ...source, ...own, ...(Object.keys(options).length > 0 && { options }) }
  return Object.keys(merged).length > 0 ? merged : undefined
}

const KEYWORDS = new Set([
  ...['from', 'adapter', 'template', 'system', 'license', 'message', 'parameter'],
  // Ollama uses these to build prompts and parse answers. llama.cpp uses the chat template instead.
  ...['renderer', 'parser', 'requires']
])

/**
 * Parses an Ollama Modelfile, which older clients send (https://docs.ollama.com/modelfile). A FROM or ADAPTER of the
 * form `@sha256:…` is an uploaded file.
 * @throws CorralError `invalid_request` with the line number
 */
export function parseModelfile(text: string): CreateRequest {
  const request: CreateRequest & { parameters: Record<string, unknown> } = { parameters: {} }
  const licenses: string[] = []
  const messages: Message[] = []
  const files: [name: string, digest: string][] = []
  for (const command of parseCommands(text)) {
    const { keyword, value } = command
    const digest = /^@?(sha256[:-][0-9a-f]{64})$/i.exec(value)?.[1]
    if (keyword === 'from' && digest) {
      files.push([`model-${files.length + 1}`, digest])
    } else if (keyword === 'from') request.from = value
    else if (keyword === 'adapter') request.adapters = { ...request.adapters, [value]: digest ?? value }
    else if (keyword === 'template') request.template = value
    else if (keyword === 'system') request.system = value
    else if (keyword === 'license') licenses.push(value)
    else if (keyword === 'message') messages.push(toMessage(command))
    else if (keyword === 'parameter') addParameter(request.parameters, command)
  }
  if (licenses.length > 0) request.license = licenses
  if (messages.length > 0) request.messages = messages
  if (files.length > 0) request.files = Object.fromEntries(files)
  return request
}

interface Command {
  keyword: string
  /** The word before the value: the role in a MESSAGE, the name in a PARAMETER. */
  word: string
  value: string
  line: number
}

function parseCommands(text: string): Command[] {
  const commands: Command[] = []
  const lines = text.replaceAll('\r\n', '\n').split('\n')
  for (let at = 0; at < lines.length; at++) {
    const line = at + 1
    if (/^\s*(#.*)?$/.test(lines[at]!)) continue
    const [command, rest] = firstWord(lines[at]!)
    const keyword = command.toLowerCase()
    if (!KEYWORDS.has(keyword)) throw modelfileError(line, 'it does not start with a Modelfile instruction')
    const [word, begin] = keyword === 'message' || keyword === 'parameter' ? firstWord(rest) : ['', rest]
    if (word !== '' && begin === '') throw modelfileError(line, `a ${command.toUpperCase()} needs a word and a value`)
    const quotes = /^("""|")/.exec(begin)?.[1]
    let value = begin.trim()
    if (quotes && (value.length < 2 * quotes.length || !value.endsWith(quotes))) {
      // The closing quotes are at the end of a later line.
      const quoteText = [value]
      do {
        if (++at >= lines.length) throw modelfileError(line, `its ${quotes} is not closed`)
        quoteText.push(lines[at]!)
      } while (!lines[at]!.trimEnd().endsWith(quotes))
      value = quoteText.join('\n').trimEnd()
    }
    if (quotes) value = value.slice(quotes.length, -quotes.length)
    commands.push({ keyword, word, value, line })
  }
  return commands
}

/** Splits off the first word. Unlike a regular expression, this does not rescan long texts. */
function firstWord(text: string): [word: string, rest: string] {
  const trimmed = text.trimStart()
  const end = trimmed.search(/\s/)
  return end < 0 ? [trimmed, ''] : [trimmed.slice(0, end), trimmed.slice(end).trimStart()]
}

function toMessage({ word, value, line }: Command): Message {
  if (word === 'system' || word === 'user' || word === 'assistant') return { role: word, content: value }
  throw modelfileError(line, 'a MESSAGE needs a role (system, user or assistant) and a text')
}

function addParameter(parameters: Record<string, unknown>, { word: name, value, line }: Command): void {
  if (name === '') throw modelfileError(line, 'a PARAMETER needs a name and a value')
  if (name === 'stop') {
    parameters[name] ??= []
    ;(parameters[name] as string[]).push(value)
  } else if (value.trim() !== '' && Number.isFinite(Number(value))) parameters[name] = Number(value)
  else parameters[name] = value === 'true' || value === 'false' ? value === 'true' : value
}

function modelfileError(line: number, what: string): CorralError {
  return refuse('modelfile', `The Modelfile cannot be read: line ${line}: ${what}.`)
}

export function modelfileText({ defaults, metadata }: Model, name: string): string {
  const { options = {}, system, messages = [], license } = defaults ?? {}
  const lines = ['# Modelfile written by corral', `FROM ${name}`]
  if (metadata.chatTemplate) lines.push(`TEMPLATE ${quoteText(metadata.chatTemplate)}`)
  if (system) lines.push(`SYSTEM ${quoteText(system)}`)
  for (const [option, value] of Object.entries(options)) {
    for (const entry of Array.isArray(value) ? value : [value]) {
      lines.push(`PARAMETER ${option} ${quoteText(typeof entry === 'string' ? entry : JSON.stringify(entry))}`)
    }
  }
  if (license) lines.push(`LICENSE ${quoteText(license)}`)
  for (const { role, content } of messages) lines.push(`MESSAGE ${role} ${quoteText(content)}`)
  return `${lines.join('\n')}\n`
}

function quoteText(text: string): string {
  return /\n|^\s|\s$|^"|^$/.test(text) ? `"""${text}"""` : text
}

export interface UploadedFile {
  name: string
  sha256: string
  path: string
}

export async function detectFiles(
  files: UploadedFile[]
): Promise<{ format: 'gguf' | 'safetensors'; files: AdoptedFile[] }> {
  const isWeights = ({ name }: UploadedFile) => /\.safetensors$/i.test(name)
  if (files.some(isWeights)) return { format: 'safetensors', files: safetensorsFiles(files) }
  const adopted: AdoptedFile[] = []
  for (const file of files) adopted.push(adoptedFile(file, ggufName(file.name), await ggufRole(file)))
  // Model files come first, sorted by shard.
  const order = ({ role, path }: AdoptedFile) => `${role === 'model' ? 0 : 1} ${path}`
  return { format: 'gguf', files: adopted.sort((a, b) => (order(a) < order(b) ? -1 : 1)) }
}

function safetensorsFiles(files: UploadedFile[]): AdoptedFile[] {
  // Some clients send whole paths. sentence-transformers modules have their folder in the name.
  const named = files.map(file => ({
    ...file,
    name: /(?:^|\/)(\d+_\w+\/[^/]+)$/.exec(file.name)?.[1] ?? basename(file.name)
  }))
  const weights = named.filter(({ name }) => /\.safetensors$/i.test(name) && !name.includes('/'))
  const names = new Set(named.map(({ name }) => name))
  const missing = [...new Set(weights.flatMap(({ name }) => shardNames(name)))].filter(name => !names.has(name))
  if (!names.has('config.json')) missing.unshift('config.json')
  if (missing.length > 0) {
    throw refuse(
      'files',
      `The SafeTensors model is incomplete: ${missing.slice(0, 12).join(', ')} missing. Send its whole folder.`
    )
  }
  if (![...names].some(isTokenizer)) {
    throw refuse(
      'files',
      'The SafeTensors model has no tokenizer (tokenizer.json or tokenizer.model). Send its whole folder.'
    )
  }
  const others = named.filter(file => !weights.includes(file) && describesSafetensors(file.name))
  return [
    ...weights.map(file => adoptedFile(file, file.name, 'model')).sort((a, b) => (a.path < b.path ? -1 : 1)),
    ...others.map(file => adoptedFile(file, file.name, 'other'))
  ]
}

function adoptedFile({ path: source, sha256 }: UploadedFile, path: string, role: StoredFile['role']): AdoptedFile {
  return { source, path, role, sha256 }
}

/** Clients may choose any file name. The basename is kept because llama.cpp finds shards by name. */
function ggufName(name: string): string {
  const plain = storedName(basename(name.replaceAll('\\', '/')))
  return /\.gguf$/i.test(plain) ? plain : `${plain}.gguf`
}

async function ggufRole({ name, path }: UploadedFile): Promise<StoredFile['role']> {
  return await withRegularFile(path, async file => {
    const start = await readOpened(file, START_SIZE)
    if (start.toString('latin1', 0, 4) !== 'GGUF') {
      const other = `${JSON.stringify(name)} is neither a GGUF file nor part of a SafeTensors model. Send GGUF files, or the whole folder of a SafeTensors model.`
      throw refuse('files', foreignStart(name, start) ?? other)
    }
    const { metadata } = await readGguf(path, file)
    return metadata['general.type'] === 'mmproj' || metadata['general.architecture'] === 'clip' ? 'projector' : 'model'
  })
}
