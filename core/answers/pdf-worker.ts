import { readFileSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { init } from '@embedpdf/pdfium'
import { packagedFile } from '../system/package-info.ts'
import type { PdfText, ReadFault, ReadJob } from './file-reader.ts'
import { limitWasmMemory } from './wasm-memory.ts'

/* Extracts the text of one PDF with PDFium. Each PDF gets its own thread, so that none can affect another one. */

const PASSWORD_ERROR = 4

const { bytes, memory, maxPages, maxCharacters } = workerData as ReadJob
const memoryLimit = limitWasmMemory(memory)
const decoder = new TextDecoder('utf-16le')

const wasmBinary = readFileSync(packagedFile('@embedpdf/pdfium/dist/pdfium.wasm'))
const pdfium = await init({ wasmBinary: new Uint8Array(wasmBinary).buffer, print() {}, printErr() {} })
pdfium.PDFiumExt_Init()
const module = pdfium.pdfium as typeof pdfium.pdfium & { readonly HEAPU8: Uint8Array }

function readText(): PdfText | ReadFault {
  const { malloc, free } = module.wasmExports
  const data = malloc(bytes.length)
  module.HEAPU8.set(bytes, data)
  const document = pdfium.FPDF_LoadMemDocument(data, bytes.length, '')
  if (!document) return { fault: pdfium.FPDF_GetLastError() === PASSWORD_ERROR ? 'encrypted' : 'damaged' }
  const pages = pdfium.FPDF_GetPageCount(document)
  const texts: string[] = []
  let left = maxCharacters
  // One more character than allowed shows that the text was truncated.
  while (texts.length < Math.min(pages, maxPages) && left >= 0) {
    const text = pageText(texts.length, left + 1)
    left -= text.length
    texts.push(text)
  }
  return { pages, texts }

  function pageText(index: number, most: number): string {
    const page = pdfium.FPDF_LoadPage(document, index)
    const reader = page ? pdfium.FPDFText_LoadPage(page) : 0
    const length = Math.min(reader ? pdfium.FPDFText_CountChars(reader) : 0, most)
    let text = ''
    if (length > 0) {
      const buffer = malloc(2 * length + 2)
      // The count includes a zero at the end.
      const units = pdfium.FPDFText_GetText(reader, 0, length, buffer) - 1
      // The decoder replaces halves of surrogate pairs, which engines refuse.
      text = decoder.decode(module.HEAPU8.subarray(buffer, buffer + 2 * units))
      free(buffer)
    }
    if (reader) pdfium.FPDFText_ClosePage(reader)
    if (page) pdfium.FPDF_ClosePage(page)
    // PDFium marks hyphens at the ends of lines with U+FFFE.
    return text
      .replace(/[\0\ufffe]/g, '')
      .replace(/\r\n?/g, '\n')
      .trim()
  }
}

let result: PdfText | ReadFault
try {
  result = readText()
} catch {
  result = { fault: memoryLimit.reached ? 'memory' : 'damaged' }
}
parentPort!.postMessage(result)
