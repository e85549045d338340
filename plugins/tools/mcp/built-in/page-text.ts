import { setImmediate as nextTurn } from 'node:timers/promises'
import { Parser } from 'htmlparser2'

/** Elements whose content is not read. */
const HIDDEN = new Set('script style noscript template svg iframe object select button'.split(' '))
const BLOCKS = new Set(
  'address article aside blockquote div dl fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr main nav ol p pre section table ul'.split(
    ' '
  )
)
/** Elements that begin a line. */
const LINES = new Set(['br', 'li', 'tr', 'dt', 'dd'])
/** The parser searches its open elements, so that their number is limited. */
const MAX_DEPTH = 500
/** Characters that are parsed before other requests get their turn. */
const SLICE_LENGTH = 64 * 1024

/**
 * Returns the text of an HTML page, with headings, list items and links as in Markdown.
 * @throws Error for a page that nests its elements too deeply
 */
export async function pageText(html: string, address: URL): Promise<{ title: string; text: string }> {
  const parts: string[] = []
  /** Targets of the open links. */
  const links: (string | undefined)[] = []
  let title = ''
  let depth = 0
  let hidden = 0
  let isTitle = false
  const parser = new Parser({
    onopentag(name, { href }) {
      if (++depth > MAX_DEPTH) throw new Error(`the page nests elements more than ${MAX_DEPTH} levels deep`)
      if (HIDDEN.has(name)) hidden++
      if (name === 'title' && hidden === 0 && title === '') isTitle = true
      if (hidden > 0) return
      if (BLOCKS.has(name) || LINES.has(name)) parts.push('\n')
      if (/^h[1-6]$/.test(name)) parts.push('#'.repeat(Number(name[1])), ' ')
      if (name === 'li') parts.push('- ')
      if (name === 'td' || name === 'th') parts.push(' | ')
      if (name === 'a') {
        const target = href !== undefined && URL.canParse(href, address.href) ? new URL(href, address) : undefined
        const isPage = target?.protocol.startsWith('http') && target.href.split('#')[0] !== address.href
        links.push(isPage ? target!.href : undefined)
        if (isPage) parts.push('[')
      }
    },
    ontext(text) {
      if (isTitle) title += text
      else if (hidden === 0) parts.push(text.replace(/\s+/g, ' '))
    },
    onclosetag(name) {
      depth--
      if (HIDDEN.has(name)) hidden--
      else if (name === 'title') isTitle = false
      else if (hidden > 0) return
      else if (BLOCKS.has(name)) parts.push('\n')
      else if (name === 'a') {
        const target = links.pop()
        if (target !== undefined) parts.push(`](${target})`)
      }
    }
  })
  for (let at = 0; at < html.length; at += SLICE_LENGTH) {
    parser.write(html.slice(at, at + SLICE_LENGTH))
    await nextTurn()
  }
  parser.end()
  const text = parts
    .join('')
    .replace(/ {2,}/g, ' ')
    .replace(/ ?\n ?/g, '\n')
    .replace(/\n{3,}/g, '\n\n')
  return { title: title.replace(/\s+/g, ' ').trim(), text: text.trim() }
}
