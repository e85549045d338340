import { getDocument } from 'pdfjs-dist'
import { WorkerMessageHandler } from 'pdfjs-dist/build/pdf.worker.mjs'

// Where this is set, the library starts no worker, which the page's policy would not let it.
Object.assign(globalThis, { pdfjsWorker: { WorkerMessageHandler } })

/** The text of a PDF, page by page. @throws Error for what is no PDF, or needs a password */
export async function textOfPdf(data: ArrayBuffer): Promise<string> {
  const loading = getDocument({
    data,
    isEvalSupported: false,
    useWorkerFetch: false,
    useSystemFonts: false,
    disableFontFace: true,
    stopAtErrors: false
  })
  try {
    const document = await loading.promise
    const pages: string[] = []
    for (let number = 1; number <= document.numPages; number++) {
      const { items } = await (await document.getPage(number)).getTextContent()
      pages.push(items.map(item => ('str' in item ? item.str + (item.hasEOL ? '\n' : '') : '')).join(''))
    }
    return pages.join('\n\n')
  } finally {
    await loading.destroy()
  }
}
