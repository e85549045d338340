import type { Model } from '../contracts/models.ts'
import { CorralError, invalidRequest } from '../errors.ts'
import { merged } from '../system/collections.ts'
import { isObject } from '../system/json-object.ts'

interface Medium {
  /** The capability that the model needs. Undefined if the metadata does not say. */
  capability?: 'vision' | 'audio'
  plural: string
  one: string
  /** Matches the first bytes (as Latin-1) of the formats that engines read. */
  formats: RegExp
  names: string
}

const IMAGE: Medium = {
  capability: 'vision',
  plural: 'images',
  one: 'an image',
  formats: /^(\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF.{4}WEBP)/s,
  names: 'PNG, JPEG, GIF, BMP or WebP'
}
export const SOUNDS = 'WAV, MP3 or FLAC, or Opus in Ogg or WebM'
const SOUND: Medium = {
  capability: 'audio',
  plural: 'sounds',
  one: 'a sound',
  formats: /^(RIFF.{4}WAVE|ID3|\xff[\xe0-\xff]|fLaC|OggS|.E\xdf\xa3)/s,
  names: SOUNDS
}
const VIDEO: Medium = {
  plural: 'videos',
  one: 'a video',
  formats: /^(.{4}ftyp|.E\xdf\xa3|RIFF.{4}AVI )/s,
  names: 'MP4, WebM or AVI'
}

const PARTS: Record<string, { medium: Medium; fields: readonly string[]; plain: boolean }> = {
  image_url: { medium: IMAGE, fields: ['url'], plain: false },
  input_audio: { medium: SOUND, fields: ['data', 'url'], plain: true },
  input_video: { medium: VIDEO, fields: ['data', 'url'], plain: true },
  video_url: { medium: VIDEO, fields: ['data', 'url'], plain: true }
}

const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/
const DATA_URL = /^data:[^,]*;base64,/
/** Characters of base64 decoded to find format and size. In JPEG files the size can come late. */
const HEAD = 2 ** 20
/** The engine stores an image with 3 bytes a pixel, twice while it decodes it. */
const MAX_PIXELS = 100_000_000
/** corral decodes WebP itself, into 4 bytes a pixel several times. */
const MAX_WEBP_PIXELS = 25_000_000

type Fields = Record<string, unknown>

/** Formats the place of a part as a parameter. Undefined if it is not in the request's newest user message. */
export type Place = (message: number, part: number) => string | undefined

const inContent: Place = (message, part) => `messages[${message}].content[${part}]`

/** A file that engines cannot read. `withReadFiles` replaces documents by their text, WebP by PNG, and Opus by WAV. */
export interface FilePart {
  type: 'file'
  /** A document if absent. */
  kind?: 'image' | 'sound'
  file: { file_data?: unknown; file_id?: unknown; file_url?: unknown; filename?: unknown }
  /** Its place in the request if the request fails when the file cannot be used. */
  param: string | undefined
}

/**
 * Checks the images, sounds and videos in chat messages before a model is loaded for them: whether the model
 * understands them, and whether the data is valid. URLs are refused, because an engine would fetch them from inside
 * this machine's network. Formats in which the engine's tools would follow URLs are refused too.
 *
 * Media that cannot be used fail the request if they are in the newest user message. In earlier messages and in
 * results of tools they are replaced by a sentence, because every later request contains them too.
 * @throws CorralError `unsupported_capability` or `invalid_request` with the place as `param`
 */
export function withUsableMedia<T extends Fields>(
  messages: readonly T[],
  variant: Model,
  { projector }: { projector?: string | null | undefined },
  place: Place = inContent
): T[] {
  const newest = newestUserMessage(messages)
  return messages.map((message, index) => {
    const { content } = message
    if (!Array.isArray(content) || !content.some(part => part?.type === 'file' || kindOf(part))) return message
    const parts = content.map((part: Fields, at) => usablePart(part, index === newest ? place(index, at) : undefined))
    return merged(message, {
      content: parts.some((part, at) => part !== content[at]) ? joinTexts(parts) : content
    }) as T
  })

  function usablePart(part: Fields, param: string | undefined): unknown {
    if (part?.type === 'file')
      return { type: 'file', file: isObject(part.file) ? part.file : {}, param } satisfies FilePart
    const kind = kindOf(part)
    if (!kind) return part
    const { medium, fields, plain } = kind
    // The capabilities of a configured projector are not known before it is loaded.
    const blind = typeof projector === 'string' ? undefined : capabilityFault(variant, medium, projector === null)
    const data = dataOf(part, fields)
    const fault = blind ?? dataFault(data, medium, plain)
    const decoded = DECODED.find(each => each.medium === medium && each.mark.test(headOf(data)))
    if (!fault && decoded) {
      return { type: 'file', kind: decoded.kind, file: { file_data: data }, param } satisfies FilePart
    }
    if (!fault) {
      places.set(part, { param, one: medium.one })
      return part
    }
    if (param === undefined) return lost(medium, blind && `this model cannot understand ${medium.plural}`)
    if (blind) throw new CorralError('unsupported_capability', blind, { param })
    throw invalidRequest(param, `"${param}" ${fault}`)
  }
}

/** The field of an image or sound (undefined in earlier messages), and its name in messages, such as "an image". */
interface MediumPlace {
  param: string | undefined
  one: string
}

const places = new WeakMap<object, MediumPlace>()

export const placeOfMedium = (part: unknown) =>
  typeof part === 'object' && part !== null ? places.get(part) : undefined

const lost = ({ one }: Pick<Medium, 'one'>, why = 'its data cannot be used') => ({
  type: 'text',
  text: `[There was ${one} here, but ${why}.]`
})
export const lostMedium = (part: object) => lost(places.get(part)!)

const headOf = (data: unknown) =>
  Buffer.from(String(data).replace(DATA_URL, '').slice(0, 16), 'base64').toString('latin1')

/** What corral decodes for engines, by the first bytes. */
const DECODED = [
  { medium: IMAGE, kind: 'image', mark: /^RIFF.{4}WEBP/s },
  { medium: SOUND, kind: 'sound', mark: /^(OggS|.E\xdf\xa3)/ }
] as const

/**
 * Returns the base64 of an image, which may be given as a data URL.
 * @throws CorralError `invalid_request` if it is not an image that engines read
 */
export function requireImage(data: string, param: string): string {
  const fault = dataFault(data, IMAGE, true)
  if (fault) throw invalidRequest(param, `"${param}" ${fault}`)
  return data.replace(DATA_URL, '')
}

const kindOf = (part: Fields | null) =>
  typeof part?.type === 'string' && Object.hasOwn(PARTS, part.type) ? PARTS[part.type] : undefined

/**
 * Returns the index of the user message that asks for the answer, or -1 if results of tools ask for it. Clients may put
 * files that a tool has returned into a user message after the result.
 */
function newestUserMessage(messages: readonly Fields[]): number {
  const last = messages.findLastIndex(({ role }) => role === undefined || role === 'user')
  // The last message may be the beginning of the answer.
  const isAnswered = messages.slice(last + 1, -1).some(({ role }) => role === 'assistant')
  return isAnswered || messages.at(-1)?.role === 'tool' || messages[last - 1]?.role === 'tool' ? -1 : last
}

/** Joins parts into plain text if they are all text, because every template supports that. */
export function joinTexts(parts: readonly unknown[]): string | readonly unknown[] {
  const texts = parts.flatMap(part => (isObject(part) && typeof part.text === 'string' ? [part.text] : []))
  return texts.length === parts.length ? texts.filter(text => text !== '').join('\n') : parts
}

function capabilityFault(variant: Model, { capability, plural }: Medium, switchedOff: boolean): string | undefined {
  const able = variant.metadata.capabilities
  if (!switchedOff && (capability ? able.includes(capability) : able.includes('vision'))) return undefined
  const why = switchedOff
    ? 'its projector is switched off in config.yaml'
    : `it has no projector (mmproj) file for ${plural}`
  return `Model "${variant.publicName}" cannot understand ${plural}: ${why}. Use a model that can, or import it together with its projector.`
}

/** The data of a part: `{ type, [type]: { url } }`, or the same with a string instead of the object. */
function dataOf(part: Fields, fields: readonly string[]): unknown {
  const content = part[part.type as string]
  if (typeof content !== 'object' || content === null) return content
  return fields.map(field => (content as Fields)[field]).find(value => value !== undefined && value !== null)
}

/** Says what is wrong with a medium's data, after its place. @param plain whether base64 without a prefix is allowed */
function dataFault(data: unknown, medium: Medium, plain: boolean): string | undefined {
  const { one, formats, names } = medium
  const wanted = `a data URL (data:…;base64,…)${plain ? ' or base64' : ''}`
  if (typeof data !== 'string' || data === '') return `contains no data. Send ${one} as ${wanted}.`
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(data)) {
    return `is a URL. corral does not fetch anything for a request: send ${one} as ${wanted}.`
  }
  const start = DATA_URL.exec(data)?.[0].length ?? (plain && !data.startsWith('data:') ? 0 : undefined)
  if (start === undefined) return `must be ${wanted}.`
  const base64 = start === 0 ? data : data.slice(start)
  if (!BASE64.test(base64)) return 'is not valid base64.'
  const head = Buffer.from(base64.slice(0, HEAD), 'base64')
  if (!formats.test(head.toString('latin1', 0, 16))) return `is not ${one} that can be read. Send ${names}.`
  const { width, height } = medium === IMAGE ? imageSize(head) : { width: 0, height: 0 }
  const most = head.toString('latin1', 0, 4) === 'RIFF' ? MAX_WEBP_PIXELS : MAX_PIXELS
  if (width * height <= most) return undefined
  return `is an image of ${width} × ${height} pixels, more than ${most / 1e6} million. Send a smaller one.`
}

export function imageSize(head: Buffer): { width: number; height: number } {
  const signature = head.toString('latin1', 0, 4)
  if (signature.startsWith('\xff\xd8')) return jpegSize(head)
  if (signature === '\x89PNG' && head.length >= 24)
    return { width: head.readUInt32BE(16), height: head.readUInt32BE(20) }
  if (signature === 'GIF8' && head.length >= 10) return { width: head.readUInt16LE(6), height: head.readUInt16LE(8) }
  if (signature.startsWith('BM') && head.length >= 26) {
    return { width: Math.abs(head.readInt32LE(18)), height: Math.abs(head.readInt32LE(22)) }
  }
  if (signature === 'RIFF' && head.length >= 30) return webpSize(head)
  return { width: 0, height: 0 }
}

/** The size depends on the first chunk: extended, lossless or lossy. */
function webpSize(head: Buffer): { width: number; height: number } {
  const chunk = head.toString('latin1', 12, 16)
  if (chunk === 'VP8X') return { width: head.readUIntLE(24, 3) + 1, height: head.readUIntLE(27, 3) + 1 }
  if (chunk === 'VP8 ') return { width: head.readUInt16LE(26) & 0x3fff, height: head.readUInt16LE(28) & 0x3fff }
  const bits = head.readUInt32LE(21)
  return { width: (bits & 0x3fff) + 1, height: ((bits >> 14) & 0x3fff) + 1 }
}

/** A JPEG file is a sequence of segments. The first start-of-frame segment (SOF0 to SOF15) has the size. */
function jpegSize(head: Buffer): { width: number; height: number } {
  for (let at = 2; at + 9 <= head.length; ) {
    const marker = head[at + 1]!
    if (head[at] !== 0xff) break
    // Padding, and markers without a length.
    if (marker === 0xff) at += 1
    else if (marker === 0x01 || (marker >= 0xd0 && marker <= 0xd8)) at += 2
    else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
      return { width: head.readUInt16BE(at + 7), height: head.readUInt16BE(at + 5) }
    } else at += 2 + head.readUInt16BE(at + 2)
  }
  return { width: 0, height: 0 }
}
