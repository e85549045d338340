import { signal } from '@preact/signals'
import type { Token, Tokens } from 'marked'
import { type ComponentChild, Fragment, type JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { CopyButton } from '../parts/controls.tsx'
import { texts } from '../texts/texts.ts'
import type { FormulaToken, MarkdownBlocks } from './markdown-blocks.ts'

/** What reads Markdown, which is loaded when it is first needed. */
const reader = signal<typeof MarkdownBlocks | undefined>(undefined)

/** Loads what reads Markdown, so that it is there when an answer comes. */
export async function loadMarkdown(): Promise<void> {
  reader.value ??= (await import('./markdown-blocks.ts')).MarkdownBlocks
}

/**
 * Markdown as nodes, never as a string of HTML: what a model writes is shown, and does nothing. Images become links, since
 * their addresses would tell somebody else what was said.
 */
export function Markdown({ text, isComplete }: { text: string; isComplete: boolean }) {
  const blocks = useRef<MarkdownBlocks | undefined>(undefined)
  const Reader = reader.value
  if (!Reader) {
    void loadMarkdown().catch(() => undefined)
    return (
      <div class="markdown is-plain" dir="auto">
        {text}
      </div>
    )
  }
  blocks.current ??= new Reader()
  const tokens = blocks.current.update(text, isComplete)
  return (
    <div class="markdown" dir="auto">
      {tokens.map((token, index) => nodeOf(token, index, isComplete || index < tokens.length - 1, 0))}
    </div>
  )
}

/** The nodes of blocks. One that is the same object as before is not looked at again, neither by us nor by Preact. */
const known = new WeakMap<Token, { isComplete: boolean; node: ComponentChild }>()

function nodeOf(token: Token, key: number, isComplete: boolean, depth: number): ComponentChild {
  const before = known.get(token)
  if (before?.isComplete === isComplete) return before.node
  const node = <Fragment key={key}>{blockOf(token, isComplete, depth)}</Fragment>
  known.set(token, { isComplete, node })
  return node
}

/** Nodes in each other that are shown; browsers run out of stack on thousands. */
const DEEPEST = 40

function blockOf(token: Token, isComplete: boolean, depth: number): ComponentChild {
  if (depth > DEEPEST) return token.raw
  switch (token.type) {
    case 'space':
    case 'def':
      return null
    case 'heading': {
      // Headings of answers stand below that of the page.
      const Heading = `h${Math.min(6, (token as Tokens.Heading).depth + 1)}` as 'h2'
      return <Heading>{inline(token.tokens)}</Heading>
    }
    case 'paragraph':
      return <p>{inline(token.tokens)}</p>
    case 'formula':
      return <Formula text={(token as FormulaToken).text} isDisplayed />
    case 'code':
      return <CodeBlock code={token as Tokens.Code} isComplete={isComplete} />
    case 'blockquote':
      return <blockquote>{blocks(token.tokens, isComplete, depth)}</blockquote>
    case 'hr':
      return <hr />
    case 'list':
      return listOf(token as Tokens.List, isComplete, depth)
    case 'table':
      return tableOf(token as Tokens.Table)
    case 'text':
      return token.tokens ? inline(token.tokens) : withEntities((token as Tokens.Text).text)
    default:
      // Raw HTML is shown as it was written.
      return <p>{token.raw}</p>
  }
}

const blocks = (tokens: Token[] | undefined, isComplete: boolean, depth: number) =>
  tokens?.map((token, index) => nodeOf(token, index, isComplete, depth + 1))

function listOf({ ordered, start, items }: Tokens.List, isComplete: boolean, depth: number): JSX.Element {
  const rows = items.map((item, index) => (
    <li key={index} class={item.task ? 'task' : undefined}>
      {item.task && (
        <input type="checkbox" checked={item.checked === true} disabled aria-label={item.text.slice(0, 40)} />
      )}
      {blocks(
        item.tokens.filter(({ type }) => type !== 'checkbox'),
        isComplete,
        depth
      )}
    </li>
  ))
  return ordered ? <ol start={start === '' ? 1 : start}>{rows}</ol> : <ul>{rows}</ul>
}

function tableOf({ header, rows, align }: Tokens.Table): JSX.Element {
  const side = (index: number) => (align[index] ? { textAlign: align[index]! } : undefined)
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {header.map((cell, index) => (
              <th key={index} style={side(index)}>
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, index) => (
                <td key={index} style={side(index)}>
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function inline(tokens: Token[] | undefined, depth = 0): ComponentChild[] {
  return (tokens ?? []).map((token, index) => inlineOf(token, index, depth + 1))
}

function inlineOf(token: Token, key: number, depth: number): ComponentChild {
  if (depth > DEEPEST) return token.raw
  switch (token.type) {
    case 'strong':
      return <strong key={key}>{inline(token.tokens, depth)}</strong>
    case 'em':
      return <em key={key}>{inline(token.tokens, depth)}</em>
    case 'del':
      return <del key={key}>{inline(token.tokens, depth)}</del>
    case 'codespan':
      return <code key={key}>{(token as Tokens.Codespan).text}</code>
    case 'br':
      return <br key={key} />
    case 'link': {
      const { href } = token as Tokens.Link
      return <Link key={key} href={href} children={inline(token.tokens, depth)} />
    }
    case 'image': {
      const { href, text } = token as Tokens.Image
      return <Link key={key} href={href} children={text || href} />
    }
    case 'escape':
      return (token as Tokens.Escape).text
    case 'formula':
      return <Formula key={key} text={(token as FormulaToken).text} isDisplayed={(token as FormulaToken).isDisplayed} />
    case 'text':
      return token.tokens ? inline(token.tokens, depth) : withEntities((token as Tokens.Text).text)
    default:
      return token.raw
  }
}

function Link({ href, children }: { href: string; children: ComponentChild }) {
  if (!/^(https?:|mailto:)/i.test(href)) return <>{children}</>
  return (
    <a href={href} target="_blank" rel="noreferrer noopener">
      {children}
    </a>
  )
}

const ENTITIES: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0' }

/** The characters that entities such as `&lt;` and `&#39;` stand for. */
function withEntities(text: string): string {
  if (!text.includes('&')) return text
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]+));/gi, (whole, decimal, hexadecimal, name) => {
    if (name) return ENTITIES[name] ?? whole
    const point = decimal ? Number(decimal) : Number.parseInt(hexadecimal, 16)
    return point <= 0x10ffff ? String.fromCodePoint(point) : whole
  })
}

/** A formula, as MathML once the library for it is there; as it was written until then, or where it is wrong. */
function Formula({ text, isDisplayed }: { text: string; isDisplayed: boolean }) {
  const element = useRef<HTMLSpanElement>(null)
  useEffect(() => {
    let isGone = false
    void import('./formulas.ts').then(({ showFormula }) => {
      if (!isGone && element.current) showFormula(element.current, text, isDisplayed)
    })
    return () => {
      isGone = true
    }
  }, [text, isDisplayed])
  return (
    <span key={text} ref={element} class={isDisplayed ? 'formula is-displayed' : 'formula'} dir="ltr">
      {text}
    </span>
  )
}

/** Milliseconds between two times that code which still grows is coloured. */
const COLOUR_INTERVAL = 300

function CodeBlock({ code: { text, lang }, isComplete }: { code: Tokens.Code; isComplete: boolean }) {
  const language = lang?.trim().split(/\s+/, 1)[0] ?? ''
  const [coloured, setColoured] = useState<{ text: string; nodes: ComponentChild[] } | undefined>(undefined)
  const last = useRef(0)
  useEffect(() => {
    if (!language) return
    let isGone = false
    const wait = isComplete ? 0 : Math.max(0, last.current + COLOUR_INTERVAL - performance.now())
    const timer = setTimeout(async () => {
      const { colour } = await import('./code-colours.ts')
      last.current = performance.now()
      const nodes = colour(text, language)
      if (!isGone && nodes) setColoured({ text, nodes })
    }, wait)
    return () => {
      isGone = true
      clearTimeout(timer)
    }
  }, [text, language, isComplete])
  // What has come since it was coloured follows without colours.
  const shown = coloured && text.startsWith(coloured.text) ? coloured : undefined
  return (
    <figure class="code" dir="ltr">
      <figcaption>
        <span>{language}</span>
        <CopyButton text={() => text} label={texts.value.copyCode} />
      </figcaption>
      <pre tabIndex={0}>
        <code>
          {shown?.nodes}
          {shown ? text.slice(shown.text.length) : text}
        </code>
      </pre>
    </figure>
  )
}
