import { formatNumber, formatSize } from '../parts/formats.ts'
import type { Attachment } from '../state/chat-format.ts'
import { fill, texts } from '../texts/texts.ts'

/** Larger images and sounds do not fit into a request. Of documents, only the text is sent. */
const MAX_BYTES = 20_000_000
const MAX_DOCUMENT_BYTES = 100_000_000
/** Characters of a document: two long books. */
const MAX_TEXT_LENGTH = 2_000_000

/** Reads files that were dropped, pasted or chosen. @returns the attachments, and why other files were rejected */
export async function readFiles(
  files: readonly File[],
  capabilities: readonly string[],
  signal: AbortSignal
): Promise<{ attachments: Attachment[]; refused: string[] }> {
  const t = texts.peek()
  const attachments: Attachment[] = []
  const refused: string[] = []
  for (const file of files) {
    const { name, type, size } = file
    const limit = /^(image|audio)\//.test(type) ? MAX_BYTES : MAX_DOCUMENT_BYTES
    if (size > limit) refused.push(fill(t.fileTooLarge, { name, size: formatSize(limit) }))
    else if (type.startsWith('image/')) {
      if (!capabilities.includes('vision')) refused.push(fill(t.modelBlind, { name }))
      else attachments.push({ name, type, kind: 'image', data: await dataAddress(file) })
    } else if (type.startsWith('audio/')) {
      if (!capabilities.includes('audio')) refused.push(fill(t.modelDeaf, { name }))
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
  return { attachments, refused }
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

function dataAddress(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader()
    reader.onload = () => resolve(String(reader.result))
    reader.onerror = () => reject(reader.error)
    reader.readAsDataURL(file)
  })
}
