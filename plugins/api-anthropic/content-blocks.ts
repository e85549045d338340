import { CorralError } from '../../core/errors.ts'

/** A part of a message's content as engines take it, and where in the request it comes from. */
export interface Part {
  content: { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }
  place: string
}

type Fields = Record<string, unknown>

const MEDIA_TYPE = /^image\/[a-z0-9.+-]+$/i

export function invalid(place: string, must: string): CorralError {
  return new CorralError('invalid_request', `"${place}" ${must}.`, { param: place })
}

/** @throws CorralError `invalid_request` with the place where a field is no text */
export function textOf(block: Fields, field: string, place: string): string {
  const value = block[field]
  if (typeof value === 'string') return value
  throw invalid(`${place}.${field}`, 'must be text')
}

/** The error for a block that has no place where it stands. */
export function unknownBlock(block: Fields, place: string, allowed: string): CorralError {
  const type = typeof block.type === 'string' ? block.type : ''
  return new CorralError(
    'invalid_request',
    `"${place}" is a block of type ${JSON.stringify(type.slice(0, 60))}, which cannot be taken there. Allowed are ${allowed}.`,
    { param: `${place}.type` }
  )
}

/** Content that is text or a list of blocks, each with its place. @throws CorralError `invalid_request` */
export function blocksOf(content: unknown, place: string): { block: Fields; place: string }[] {
  if (typeof content === 'string') return [{ block: { type: 'text', text: content }, place }]
  if (!Array.isArray(content)) throw invalid(place, 'must be text or a list of blocks')
  return content.map((block, index) => {
    if (typeof block === 'object' && block !== null) return { block, place: `${place}.${index}` }
    throw invalid(`${place}.${index}`, 'must be a block: an object with a "type"')
  })
}

/** What the model reads of a block; undefined for blocks that are more than something to read. */
export function readableParts(block: Fields, place: string): Part[] | undefined {
  switch (block.type) {
    case 'text':
      return [text(place, textOf(block, 'text', place))]
    case 'image':
      return [imagePart(block, place)]
    case 'document':
      return documentParts(block, place)
    case 'search_result':
      return [
        text(place, [block.title, block.source].filter(given => typeof given === 'string').join('\n')),
        ...allReadable(block.content, `${place}.content`)
      ]
    case 'tool_reference':
      return [text(place, `The tool ${textOf(block, 'tool_name', place)} can be called now.`)]
    default:
      return undefined
  }
}

/** Content in which only blocks to read may be. @throws CorralError `invalid_request` */
export function allReadable(content: unknown, at: string): Part[] {
  return blocksOf(content, at).flatMap(({ block, place }) => {
    const parts = readableParts(block, place)
    if (!parts) throw unknownBlock(block, place, 'text, image, document and search_result')
    return parts
  })
}

/** Parts as engines take them: plain text where there is nothing else, which every template can show. */
export function joined(parts: readonly Part[]): string | Part['content'][] {
  const texts = parts.flatMap(({ content }) => (content.type === 'text' ? [content.text] : []))
  return texts.length === parts.length ? texts.join('\n') : parts.map(({ content }) => content)
}

function text(place: string, of: string): Part {
  return { content: { type: 'text', text: of }, place }
}

function sourceOf(block: Fields, place: string): Fields {
  const { source } = block
  if (typeof source === 'object' && source !== null) return source as Fields
  throw invalid(`${place}.source`, 'must be an object with a "type"')
}

function imagePart(block: Fields, place: string): Part {
  const source = sourceOf(block, place)
  const at = `${place}.source`
  if (source.type !== 'base64') {
    throw invalid(
      `${at}.type`,
      'must be "base64": corral fetches nothing for a request. Send the image itself as base64 in "data"'
    )
  }
  const type = textOf(source, 'media_type', at)
  if (!MEDIA_TYPE.test(type)) throw invalid(`${at}.media_type`, 'must be an image type such as "image/png"')
  const url = `data:${type};base64,${textOf(source, 'data', at)}`
  return { content: { type: 'image_url', image_url: { url } }, place: at }
}

function documentParts(block: Fields, place: string): Part[] {
  const source = sourceOf(block, place)
  const at = `${place}.source`
  const about = [block.title, block.context].filter(given => typeof given === 'string' && given !== '').join('\n')
  const heading = about === '' ? [] : [text(place, about)]
  if (source.type === 'text') return [...heading, text(at, textOf(source, 'data', at))]
  if (source.type === 'content') return [...heading, ...allReadable(source.content, `${at}.content`)]
  throw new CorralError(
    'unsupported_capability',
    `"${place}" is a document that is no text. corral reads documents whose source has the type "text" or "content", no PDF files and no addresses: send its text.`,
    { param: `${at}.type` }
  )
}
