import type { EngineSettings } from '../config/model-settings.ts'
import type { Model } from '../contracts/models.ts'
import { CorralError } from '../errors.ts'

/** A kind of media in messages, and the formats that corral accepts for it. */
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
const SOUND: Medium = {
  capability: 'audio',
  plural: 'sounds',
  one: 'a sound',
  formats: /^(RIFF.{4}WAVE|ID3|\xff[\xe0-\xff]|fLaC)/s,
  names: 'WAV, MP3 or FLAC'
}
const VIDEO: Medium = {
  plural: 'videos',
  one: 'a video',
  formats: /^(.{4}ftyp|.E\xdf\xa3|RIFF.{4}AVI )/s,
  names: 'MP4, WebM or AVI'
}

/** Types of message parts with media, and the fields that contain the data. */
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

type Fields = Record<string, unknown>

/** Formats the position of a message part as a parameter of the request. */
export type Place = (message: number, part: number) => string

const inContent: Place = (message, part) => `messages[${message}].content[${part}]`

/**
 * Checks the images, sounds and videos in chat messages before a model is loaded for them: whether the model
 * understands them, and whether the data is valid. URLs are refused, because an engine would fetch them from inside
 * this machine's network. Formats in which the engine's tools would follow URLs are refused too.
 * @throws CorralError `unsupported_capability` or `invalid_request` with the place as `param`
 */
export function checkMedia(
  messages: readonly Fields[],
  variant: Model,
  { projector }: Pick<EngineSettings, 'projector'>,
  place: Place = inContent
): void {
  messages.forEach(({ content }, message) => {
    if (!Array.isArray(content)) return
    content.forEach((part: Fields | null, index) => {
      const kind = typeof part?.type === 'string' && Object.hasOwn(PARTS, part.type) && PARTS[part.type]
      if (!kind) return
      const param = place(message, index)
      // The capabilities of a configured projector are not known before it is loaded.
      if (typeof projector !== 'string') requireSense(variant, kind.medium, projector === null, param)
      checkData(dataOf(part!, kind.fields), kind.medium, kind.plain, param)
    })
  })
}

function requireSense(variant: Model, { capability, plural }: Medium, switchedOff: boolean, param: string): void {
  const able = variant.metadata.capabilities
  if (!switchedOff && (capability ? able.includes(capability) : able.includes('vision'))) return
  const why = switchedOff
    ? 'its projector is switched off in config.yaml'
    : `it has no projector (mmproj) file for ${plural}`
  const message = `Model "${variant.publicName}" cannot understand ${plural}: ${why}. Use a model that can, or import it together with its projector.`
  throw new CorralError('unsupported_capability', message, { param })
}

/** The data of a part: `{ type, [type]: { url } }`, or the same with a string instead of the object. */
function dataOf(part: Fields, fields: readonly string[]): unknown {
  const content = part[part.type as string]
  if (typeof content !== 'object' || content === null) return content
  return fields.map(field => (content as Fields)[field]).find(value => value !== undefined && value !== null)
}

/** @param plain whether base64 without a data URL prefix is allowed too */
function checkData(data: unknown, medium: Medium, plain: boolean, param: string): void {
  const { one, formats, names } = medium
  const refuse = (what: string): CorralError => new CorralError('invalid_request', `"${param}" ${what}`, { param })
  const wanted = `a data URL (data:…;base64,…)${plain ? ' or base64' : ''}`
  if (typeof data !== 'string' || data === '') throw refuse(`contains no data. Send ${one} as ${wanted}.`)
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(data)) {
    throw refuse(`is a URL. corral does not fetch anything for a request: send ${one} as ${wanted}.`)
  }
  const start = DATA_URL.exec(data)?.[0].length ?? (plain && !data.startsWith('data:') ? 0 : undefined)
  if (start === undefined) throw refuse(`must be ${wanted}.`)
  const base64 = start === 0 ? data : data.slice(start)
  if (!BASE64.test(base64)) throw refuse('is not valid base64.')
  const head = Buffer.from(base64.slice(0, HEAD), 'base64')
  if (!formats.test(head.toString('latin1', 0, 16))) throw refuse(`is not ${one} that can be read. Send ${names}.`)
  const { width, height } = medium === IMAGE ? imageSize(head) : { width: 0, height: 0 }
  if (width * height > MAX_PIXELS) {
    throw refuse(
      `is an image of ${width} × ${height} pixels, more than ${MAX_PIXELS / 1e6} million. Send a smaller one.`
    )
  }
}

/** Reads the size of an image in pixels from its first bytes. Returns zeros if they do not contain it. */
export function imageSize(head: Buffer): { width: number; height: number } {
  const signature = head.toString('latin1', 0, 4)
  if (signature.startsWith('\xff\xd8')) return jpegSize(head)
  if (signature === '\x89PNG' && head.length >= 24)
    return { width: head.readUInt32BE(16), height: head.readUInt32BE(20) }
  if (signature === 'GIF8' && head.length >= 10) return { width: head.readUInt16LE(6), height: head.readUInt16LE(8) }
  if (signature.startsWith('BM') && head.length >= 26) {
    return { width: Math.abs(head.readInt32LE(18)), height: Math.abs(head.readInt32LE(22)) }
  }
  return { width: 0, height: 0 }
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
