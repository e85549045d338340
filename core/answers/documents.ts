import { createHash } from 'node:crypto'
import { open, readFile } from 'node:fs/promises'
import type { FastifyReply } from 'fastify'
import type { CoreConfig } from '../config/core-schema.ts'
import type { UserFileFinder } from '../contracts/built-in-services.ts'
import type { Caller } from '../contracts/callers.ts'
import type { EngineFields } from '../contracts/engines.ts'
import { CorralError, type ErrorCode, isSystemError } from '../errors.ts'
import { formatBytes, parseBytes } from '../system/bytes.ts'
import { merged } from '../system/collections.ts'
import { parseDuration } from '../system/duration.ts'
import { isObject } from '../system/json-object.ts'
import { FileReader, type PdfText, type ReadFault } from './file-reader.ts'
import { type FilePart, joinTexts, SOUNDS } from './media-parts.ts'

const files = new FileReader()

type Limits = ReturnType<typeof readLimits>

function readLimits(limits: CoreConfig['limits']) {
  return {
    size: parseBytes(limits.document_size)!,
    read: {
      maxPages: limits.document_pages,
      maxCharacters: limits.document_text,
      memory: parseBytes(limits.document_memory)!,
      time: parseDuration(limits.document_time)!
    }
  }
}

/** Why a document cannot be used, as the end of a sentence that begins with "it", and what the client can do. */
interface Fault {
  code: ErrorCode
  because: string
  advice: string
}

const unsupported = (because: string, advice: string): Fault => ({ code: 'unsupported_capability', because, advice })
const invalid = (because: string, advice: string): Fault => ({ code: 'invalid_request', because, advice })
const over = (because: string, setting: string, advice = 'Send a part of it'): Fault => ({
  code: 'over_limit',
  because,
  advice: `${advice}, or have the admin raise "limits.${setting}".`
})

const CANNOT_FETCH = invalid('it is a URL, and corral does not fetch anything for a request', 'Send the file itself.')
const FILE_GONE: Fault = {
  code: 'file_not_found',
  because: 'you have no file with this id',
  advice: 'List your files with GET /v1/files, or send the file itself.'
}
const EMPTY = invalid('it contains no data', 'Send the file as a data URL (data:…;base64,…) or base64.')
const DAMAGED_BASE64 = invalid('its data is not valid base64', 'Encode the file again.')
const SCANNED = unsupported(
  'it contains no text, probably because its pages are scanned images',
  'Send its text, or images of its pages to a model that can understand images.'
)

const READ_FAULTS: Record<ReadFault['fault'], (limits: Limits['read']) => Fault> = {
  encrypted: () => invalid('it needs a password', 'Send a copy without a password.'),
  codec: () => invalid('it does not contain Opus', `Send ${SOUNDS}.`),
  damaged: () => invalid('it is damaged', 'Check that other programs can open it.'),
  memory: ({ memory }) => over(`it needs more than ${formatBytes(memory)} of memory to be read`, 'document_memory'),
  slow: ({ time }) => over(`reading it takes longer than ${time / 1000} s`, 'document_time')
}

interface Source {
  name: string
  bytes: number
  id(): string
  /** The first bytes, from which its type is detected. */
  head(): Buffer | Promise<Buffer>
  load(): Buffer | Promise<Buffer>
}

type Part = { type: string; input_audio?: { data: string; format: string } } & Record<string, unknown>

/** A document's text, an image as a data URL or a sound in base64, and what was left out because of limits. */
interface Text {
  text: string
  pages?: number
  cut?: Fault & { note: string }
}

/**
 * Replaces the documents in chat messages by their text, and what engines cannot decode: WebP by PNG, and Opus by WAV. A file that cannot be used fails the request if it is in the newest user message. Anywhere
 * else a sentence tells the model, because every later request of the conversation would fail otherwise.
 * @throws CorralError with the file's place as `param`, `too_busy`; the reason of the signal
 */
export async function withReadFiles<Body extends EngineFields>(
  body: Body,
  { limits }: Pick<CoreConfig, 'limits'>,
  reply: FastifyReply,
  signal: AbortSignal
): Promise<Body> {
  if (!hasFiles(body)) return body
  // A recording to transcribe.
  if (isFile(body.audio)) return merged(body, { audio: (await readable(body.audio)).input_audio?.data }) as Body
  const read: unknown[] = []
  for (const message of body.messages as unknown[]) read.push(hasFile(message) ? await withTexts(message) : message)
  return merged(body, { messages: read }) as Body

  async function withTexts(message: { content: unknown[] }): Promise<unknown> {
    const parts: unknown[] = []
    for (const part of message.content) parts.push(isFile(part) ? await readable(part) : part)
    return merged(message, { content: joinTexts(parts) })
  }

  async function readable(given: FilePart): Promise<Part> {
    const { kind = 'document', file, param } = given
    const source = findSource(file, {
      find: id => reply.server.userFiles?.find(reply.request.caller.owner, id),
      take: bytes => reply.server.bodyMemory.take(reply.request, bytes)
    })
    const read = isFault(source)
      ? source
      : await READERS[kind](source, readLimits(limits), reply.request.caller.turn, signal).catch(error => {
          if (isSystemError(error, 'ENOENT')) return FILE_GONE
          throw error
        })
    const fault = isFault(read) ? read : read.cut
    if (fault && param !== undefined) {
      const { code, because, advice } = fault
      throw new CorralError(code, `The ${kind} "${param}" cannot be used: ${because}. ${advice}`, { param })
    }
    const name = displayName('name' in source ? source.name : file.filename)
    const text = isFault(read) ? `[The ${kind}${name && ` "${name}"`} was left out here: ${read.because}.]` : read.text
    reply.server.bodyMemory.take(reply.request, text.length)
    if (isFault(read)) return { type: 'text', text }
    if (kind === 'image') return { type: 'image_url', image_url: { url: text } }
    if (kind === 'sound') return { type: 'input_audio', input_audio: { data: text, format: 'wav' } }
    const attributes = `${name && ` name="${name}"`}${read.pages === undefined ? '' : ` pages="${read.pages}"`}`
    const note = read.cut ? `[${read.cut.note}]\n` : ''
    return { type: 'text', text: `<document${attributes}>\n${text}\n${note}</document>` }
  }
}

/**
 * Returns the text of a file that a client has stored. Pages begin with `[Page 1]`.
 * @returns or why there is none, as the end of a sentence that begins with "it"
 * @throws the reason of the signal
 */
export async function storedText(
  id: string,
  files: UserFileFinder,
  { owner, turn }: Caller,
  limits: CoreConfig['limits'],
  signal: AbortSignal
): Promise<{ text: string; pages?: number } | { because: string }> {
  const source = findSource({ file_id: id }, { find: id => files.find(owner, id), take: () => undefined })
  if (isFault(source)) return source
  return await readDocument(source, readLimits(limits), turn, signal).catch(error => {
    if (isSystemError(error, 'ENOENT')) return FILE_GONE
    throw error
  })
}

const isFault = (value: object): value is Fault => 'because' in value
const isFile = (part: unknown): part is FilePart => isObject(part) && part.type === 'file'
/** Whether `withReadFiles` changes a request. */
export const hasFiles = (body: EngineFields | undefined): boolean =>
  isFile(body?.audio) || (Array.isArray(body?.messages) && body.messages.some(hasFile))
const hasFile = (message: unknown): message is { content: unknown[] } =>
  isObject(message) && Array.isArray(message.content) && message.content.some(isFile)

/** Returns a file's name without characters that would break the tag around its text. */
function displayName(name: unknown): string {
  return typeof name === 'string' ? name.slice(0, 200).replace(/[\p{Cc}\p{Cs}"<>]/gu, '') : ''
}

const DATA_URL = /^data:[^,]{0,200};base64,/
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/
/** Bytes that show what a document is. PDF readers look for the signature in this many. */
const HEAD_BYTES = 1024

/** The client's stored files, and the memory for a file that is read. */
interface Files {
  find(id: string): ReturnType<UserFileFinder['find']>
  take(bytes: number): void
}

function findSource(
  { file_url: url, file_id: id, file_data: data, filename }: FilePart['file'],
  { find, take }: Files
): Source | Fault {
  const name = typeof filename === 'string' ? filename : ''
  if (typeof id === 'string' && id !== '') {
    const found = find(id)
    if (!found) return FILE_GONE
    const { path, bytes } = found
    return {
      name: name || found.filename,
      bytes,
      id: () => id,
      async head() {
        const handle = await open(path)
        try {
          const { buffer, bytesRead } = await handle.read(Buffer.alloc(HEAD_BYTES))
          return buffer.subarray(0, bytesRead)
        } finally {
          await handle.close()
        }
      },
      load() {
        take(bytes)
        return readFile(path)
      }
    }
  }
  if (typeof data !== 'string' || data === '') return typeof url === 'string' ? CANNOT_FETCH : EMPTY
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(data)) return CANNOT_FETCH
  const encoded = data.slice(DATA_URL.exec(data)?.[0].length ?? 0)
  // Some clients send base64 with line breaks.
  const base64 = encoded.includes('\n') ? encoded.replace(/\s+/g, '') : encoded
  if (!BASE64.test(base64)) return DAMAGED_BASE64
  return {
    name,
    bytes: Math.floor((base64.length * 3) / 4),
    id: () => createHash('sha256').update(base64).digest('hex'),
    head: () => Buffer.from(base64.slice(0, HEAD_BYTES * 2), 'base64').subarray(0, HEAD_BYTES),
    load: () => Buffer.from(base64, 'base64')
  }
}

async function readImage(
  source: Source,
  { read: limits }: Limits,
  client: string,
  signal: AbortSignal
): Promise<Text | Fault> {
  const read = await files.read('webp', source.id(), source.load, limits, client, signal)
  return 'fault' in read ? READ_FAULTS[read.fault](limits) : { text: `data:image/png;base64,${read.png}` }
}

async function readSound(
  source: Source,
  { read: limits }: Limits,
  client: string,
  signal: AbortSignal
): Promise<Text | Fault> {
  const read = await files.read('sound', source.id(), source.load, limits, client, signal)
  if ('fault' in read) return READ_FAULTS[read.fault](limits)
  const { buffer, byteOffset, length } = read.wav
  return { text: Buffer.from(buffer, byteOffset, length).toString('base64') }
}

async function readDocument(
  source: Source,
  { size, read: limits }: Limits,
  client: string,
  signal: AbortSignal
): Promise<Text | Fault> {
  if (source.bytes > size) return over(`it is larger than ${formatBytes(size)}`, 'document_size')
  const head = await source.head()
  if (head.includes('%PDF-')) {
    const read = await files.read('pdf', source.id(), source.load, limits, client, signal)
    return 'fault' in read ? READ_FAULTS[read.fault](limits) : pdfText(read, limits)
  }
  const text = decodeText(await source.load())
  if (text === undefined) {
    const [, ending] = /\.(\w{1,10})$/.exec(source.name) ?? []
    const type = ending ? `files of the type "${ending}"` : 'such files'
    return unsupported(`corral reads text and PDFs, but not ${type}`, 'Send its text, or convert it to PDF.')
  }
  if (text.length <= limits.maxCharacters) return { text }
  return { text: text.slice(0, limits.maxCharacters).replace(/\p{Cs}$/u, ''), cut: tooLong(limits) }
}

const READERS = { document: readDocument, image: readImage, sound: readSound }

/** Decodes text in UTF-8, or in UTF-16 with a byte order mark. Returns undefined if it is not text. */
function decodeText(bytes: Buffer): string | undefined {
  const mark = bytes.toString('hex', 0, 2)
  const encoding = mark === 'fffe' ? 'utf-16le' : mark === 'feff' ? 'utf-16be' : 'utf-8'
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes)
    return text.includes('\0') ? undefined : text
  } catch {
    return undefined
  }
}

const tooLong = ({ maxCharacters }: Limits['read']) => ({
  ...over(`it has more than ${maxCharacters} characters of text`, 'document_text'),
  note: `Only the first ${maxCharacters} characters of this document are here.`
})

function pdfText({ pages, texts }: PdfText, limits: Limits['read']): Text | Fault {
  const { maxPages, maxCharacters } = limits
  if (texts.every(text => text === '')) return SCANNED
  const text = texts
    .map((text, index) => (text === '' ? `[Page ${index + 1}: no text]` : `[Page ${index + 1}]\n${text}`))
    .join('\n\n')
  if (texts.reduce((sum, { length }) => sum + length, 0) > maxCharacters) return { text, pages, cut: tooLong(limits) }
  if (texts.length === pages) return { text, pages }
  const cut = {
    ...over(`it has ${pages} pages, more than ${maxPages}`, 'document_pages'),
    note: `Only the first ${texts.length} pages of this document are here.`
  }
  return { text, pages, cut }
}
