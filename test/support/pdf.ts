/** Builds a PDF from its objects by number. Object 1 is the catalog. */
export function pdfOf(objects: Record<number, string | Buffer>, trailer = ''): Buffer {
  const parts = Object.entries(objects).flatMap(([number, object]) => [`${number} 0 obj\n`, object, '\nendobj\n'])
  const all = ['%PDF-1.4\n', ...parts, `trailer<</Root 1 0 R${trailer}>>\n%%EOF\n`]
  return Buffer.concat(all.map(part => Buffer.from(part as string)))
}

export const pdfStream = (content: string | Buffer, more = '') =>
  Buffer.concat([
    Buffer.from(`<</Length ${content.length}${more}>>stream\n`),
    Buffer.from(content as string),
    Buffer.from('\nendstream')
  ])

const FONT = '<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>'
const FIRST_PAGE = 10

/** Builds a PDF with one line of text on each page. */
export function pdfWith(...lines: string[]): Buffer {
  const kids = lines.map((_, index) => `${FIRST_PAGE + 2 * index} 0 R`).join(' ')
  const objects: Record<number, string | Buffer> = {
    1: '<</Type/Catalog/Pages 2 0 R>>',
    2: `<</Type/Pages/Kids[${kids}]/Count ${lines.length}>>`,
    3: FONT
  }
  lines.forEach((line, index) => {
    const at = FIRST_PAGE + 2 * index
    objects[at] = pageOf(at + 1)
    objects[at + 1] = pdfStream(line && `BT /F1 18 Tf 20 100 Td (${line}) Tj ET`)
  })
  return pdfOf(objects)
}

/** A page whose text uses the font in object 3. @param content number of the object with its content */
export const pageOf = (content: number, more = '') =>
  `<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 200]/Contents ${content} 0 R/Resources<</Font<</F1 3 0 R>>${more}>>>>`

/** Builds a PDF with one page. @param content the stream with its content */
export const onePage = (content: Buffer, more: Record<number, string | Buffer> = {}, resources = '') =>
  pdfOf({
    1: '<</Type/Catalog/Pages 2 0 R>>',
    2: '<</Type/Pages/Kids[5 0 R]/Count 1>>',
    3: FONT,
    4: content,
    5: pageOf(4, resources),
    ...more
  })
