import { getDocument, PDFWorker } from 'pdfjs-dist'
import { startWorker } from './start-worker.ts'

/** A long book. */
const MAX_PAGES = 1000
const MAX_TIME_MS = 60_000

/**
 * Extracts the text of a PDF, page by page, in a worker.
 * @param maxLength stops after this many characters; it also stops after many pages, and after a minute
 * @param stopped cancels
 * @returns the text with form feeds between pages, and the number of pages read if there are more
 * @throws Error if it is not a PDF or needs a password; the reason of `stopped`
 */
export async function textOfPdf(
  data: ArrayBuffer,
  maxLength: number,
  stopped: AbortSignal
): Promise<{ text: string; cutAfter?: number }> {
  stopped.throwIfAborted()
  const port = startWorker('pdf-worker')
  const slow = new Error('slow')
  let timer: ReturnType<typeof setTimeout> | undefined
  // Stops waiting even if the worker hangs.
  const end = new Promise<never>((_, reject) => {
    stopped.addEventListener('abort', () => reject(stopped.reason))
    timer = setTimeout(() => reject(slow), MAX_TIME_MS)
    port.onerror = ({ message }) => reject(new Error(message))
  })
  const pages: string[] = []
  const read = async () => {
    const worker = PDFWorker.create({ port } as never)
    const loading = getDocument({ data, worker, isEvalSupported: false, disableFontFace: true, stopAtErrors: false })
    const document = await Promise.race([loading.promise, end])
    let length = 0
    while (pages.length < document.numPages) {
      if (length > maxLength || pages.length === MAX_PAGES) return false
      const page = await Promise.race([document.getPage(pages.length + 1), end])
      const { items } = await Promise.race([page.getTextContent(), end])
      page.cleanup()
      const text = items.map(item => ('str' in item ? item.str + (item.hasEOL ? '\n' : '') : '')).join('')
      pages.push(text.replaceAll('\f', ' '))
      length += pages.at(-1)!.length
    }
    return true
  }
  try {
    const isWhole = await read().catch(error => {
      if (error === slow && pages.length > 0) return false
      throw error
    })
    const text = pages.join('\f')
    return isWhole ? { text } : { text, cutAfter: pages.length }
  } finally {
    clearTimeout(timer)
    port.terminate()
  }
}
