import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { parentPort, workerData } from 'node:worker_threads'
import { init } from '@embedpdf/pdfium'
import type { PdfJob, PdfText } from './file-reader.ts'

/* Extracts the text of one PDF with PDFium. Each PDF gets its own thread, so that none can affect another one. */

declare const WebAssembly: { Memory: { prototype: { readonly buffer: ArrayBuffer; grow(pages: number): number } } }

const WASM_PAGE_BYTES = 65_536
/** PDFium's error code for a missing password. */
const PASSWORD_ERROR = 4

const { bytes, memory, maxPages, maxCharacters } = workerData as PdfJob
const decoder = new TextDecoder('utf-16le')
let outOfMemory = false

/** PDFium's memory is outside the heap that `resourceLimits` limits. It grows only with this function. */
const grow = WebAssembly.Memory.prototype.grow
WebAssembly.Memory.prototype.grow = function (pages) {
  outOfMemory = this.buffer.byteLength + pages * WASM_PAGE_BYTES > memory
  if (outOfMemory) throw new RangeError('The PDF needs more memory than it may have.')
  return grow.call(this, pages)
}

const wasmBinary = readFileSync(createRequire(import.meta.url).resolve('@embedpdf/pdfium/pdfium.wasm'))
const pdfium = await init({ wasmBinary: new Uint8Array(wasmBinary).buffer, print() {}, printErr() {} })
pdfium.PDFiumExt_Init()
const module = pdfium.pdfium as typeof pdfium.pdfium & { readonly HEAPU8: Uint8Array }

function readText(): PdfText {
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

let result: PdfText
try {
  result = readText()
} catch {
  result = { fault: outOfMemory ? 'memory' : 'damaged' }
}
parentPort!.postMessage(result)
