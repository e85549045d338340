import { formatNumber, formatSize } from '../parts/formats.ts'
import type { Attachment } from '../state/chat-format.ts'
import { scalings } from '../state/drafts.ts'
import { fill, texts } from '../texts/texts.ts'
import type { ScaledImage } from './image-worker.ts'
import { startWorker } from './start-worker.ts'

/** Larger images and sounds do not fit into a request. Of documents, only the text is sent. */
const MAX_BYTES = 20_000_000
const MAX_DOCUMENT_BYTES = 100_000_000
/** Characters of a document: two long books. */
const MAX_TEXT_LENGTH = 2_000_000

/**
 * Reads files that were dropped, pasted or chosen.
 * @param capabilities of the model; undefined to read only documents
 * @returns the attachments, why other files were rejected, and what to announce
 */
export async function readFiles(
  files: readonly File[],
  capabilities: readonly string[] | undefined,
  signal: AbortSignal
): Promise<{ attachments: Attachment[]; refused: string[]; told: string }> {
  const t = texts.peek()
  const attachments: Attachment[] = []
  const refused: string[] = []
  for (const file of files) {
    const { name, type, size } = file
    const limit = /^(image|audio)\//.test(type) ? MAX_BYTES : MAX_DOCUMENT_BYTES
    if (size > limit) refused.push(fill(t.fileTooLarge, { name, size: formatSize(limit) }))
    else if (type.startsWith('image/') && type !== 'image/svg+xml') {
      if (!capabilities?.includes('vision')) refused.push(fill(capabilities ? t.modelBlind : t.noDocument, { name }))
      else {
        const image = await readImage(file, signal)
        if (signal.aborted) break
        if (image) attachments.push(image)
        else refused.push(fill(t.imageBroken, { name }))
      }
    } else if (type.startsWith('audio/')) {
      if (!capabilities?.includes('audio')) refused.push(fill(capabilities ? t.modelDeaf : t.noDocument, { name }))
      else attachments.push({ name, type, kind: 'audio', data: await dataAddress(file) })
    } else {
      try {
        const isPdf = type === 'application/pdf' || /\.pdf$/i.test(name)
        const { text, cutAfter } = isPdf ? await readPdf(file, signal) : { text: await readText(file) }
        if (text.trim() === '') refused.push(fill(t.fileEmpty, { name }))
        else attachments.push({ name, type: 'text/plain', kind: 'text', data: text.slice(0, MAX_TEXT_LENGTH), size })
        if (cutAfter !== undefined) refused.push(fill(t.pdfCut, { name, pages: cutAfter }))
        else if (text.length > MAX_TEXT_LENGTH)
          refused.push(fill(t.textCut, { name, count: formatNumber(MAX_TEXT_LENGTH) }))
      } catch (error) {
        if (signal.aborted) break
        const isLocked = (error as Error).name === 'PasswordException'
        refused.push(fill(isLocked ? t.pdfLocked : t.fileUnknown, { name }))
      }
    }
  }
  const names = attachments.map(attachment => scalings.get(attachment) ?? attachment.name).join(', ')
  return { attachments, refused, told: names && fill(t.attached, { names }) }
}

/** Scales an image in a worker. Returns undefined if the browser cannot decode it. */
async function readImage(file: File, signal: AbortSignal): Promise<Attachment | undefined> {
  const worker = startWorker('image-worker')
  try {
    const scaled = await new Promise<ScaledImage | undefined>(resolve => {
      worker.onmessage = ({ data }: MessageEvent<ScaledImage | undefined>) => resolve(data)
      worker.onerror = () => resolve(undefined)
      signal.addEventListener('abort', () => resolve(undefined))
      worker.postMessage(file)
    })
    if (!scaled) return undefined
    const { blob, from, to } = scaled
    const image: Attachment = { name: file.name, type: blob.type, kind: 'image', data: await dataAddress(blob) }
    if (from !== to) scalings.set(image, fill(texts.peek().scaled, { name: file.name, from, to }))
    return image
  } finally {
    worker.terminate()
  }
}

/** @throws TypeError if the file is not text */
async function readText(file: File): Promise<string> {
  const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer())
  if (text.includes('\0')) throw new TypeError('binary')
  return text
}

async function readPdf(file: File, signal: AbortSignal): Promise<{ text: string; cutAfter?: number }> {
  const { textOfPdf } = await import('./pdf-text.ts')
  return await textOfPdf(await file.arrayBuffer(), MAX_TEXT_LENGTH, signal)
}

function dataAddress(file: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader()
    reader.onload = () => resolve(String(reader.result))
    reader.onerror = () => reject(reader.error)
    reader.readAsDataURL(file)
  })
}
