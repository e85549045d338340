import { signal } from '@preact/signals'
import type { Token, Tokens } from 'marked'
import { Component, type ComponentChild, createContext, h, type JSX, render } from 'preact'
import { useContext, useEffect, useRef, useState } from 'preact/hooks'
import { CopyButton, IconButton } from '../parts/controls.tsx'
import { useGradually } from '../parts/view-hooks.ts'
import type { Source } from '../state/chat-format.ts'
import { followPreview, type Previewed, previewed, previewKind } from '../state/preview.ts'
import { fill, texts } from '../texts/texts.ts'
import type { FormulaToken, MarkdownBlocks, Part } from './markdown-blocks.ts'

const reader = signal<typeof MarkdownBlocks | undefined>(undefined)

/** Loads the Markdown parser before an answer needs it. */
export async function loadMarkdown(): Promise<void> {
  reader.value ??= (await import('./markdown-blocks.ts')).MarkdownBlocks
}

/** Samples that make browsers prepare the fonts and rules for each kind of block. */
const SAMPLES = [
  '# a',
  'a',
  '*a* **b**',
  '`a` [b](#)',
  '- a',
  '1. a',
  '|a|\n|-|\n|b|',
  '> a',
  '```python\ndef a():\n```'
]

/** Prepares the rendering of Markdown, in short steps. */
export const MARKDOWN_STEPS: readonly (() => unknown)[] = [
  loadMarkdown,
  () => import('./code-colours.ts'),
  ...SAMPLES.map(text => () => showUnseen(<Markdown text={text} isComplete />))
]

/** Renders something off-screen and hidden from screen readers, and removes it. */
async function showUnseen(shown: ComponentChild): Promise<void> {
  const place = document.createElement('div')
  place.className = 'unseen'
  document.body.append(place)
  render(shown, place)
  // Waits for the highlighting and one frame.
  await new Promise(resolve => setTimeout(resolve, 50))
  render(null, place)
  place.remove()
}

/**
 * Renders Markdown as nodes, never as an HTML string, so that model output cannot run anything. Images become links,
 * because loading them would reveal the conversation to other servers.
 */
export function Markdown({ text, isComplete }: { text: string; isComplete: boolean }) {
  const blocks = useRef<MarkdownBlocks | undefined>(undefined)
  const Reader = reader.value
  if (!Reader) {
    void loadMarkdown().catch(() => undefined)
    return <div class="markdown is-plain" dir="auto" children={text} />
  }
  blocks.current ??= new Reader()
  const parts = blocks.current.update(text, isComplete)
  return <Parts key={blocks.current.generation} parts={parts} isComplete={isComplete} />
}

/** Parts rendered at first, from the end, and added in each following frame. */
const PARTS_A_FRAME = 2

function Parts({ parts, isComplete }: { parts: readonly Part[]; isComplete: boolean }) {
  const count = useGradually(parts.length, PARTS_A_FRAME)
  const shown = parts.map((part, index) => partOf(part, index, isComplete || index < parts.length - 1))
  return <div class="markdown" dir="auto" children={shown.slice(-count)} />
}

/** Renders its content again only if its source has changed. */
class Kept extends Component<{ source: unknown; isComplete: boolean; children: () => ComponentChild }> {
  override shouldComponentUpdate({ source, isComplete }: this['props']) {
    return source !== this.props.source || isComplete !== this.props.isComplete
  }
  render() {
    return this.props.children()
  }
}

/** A part, which browsers lay out only while it is visible. */
export const partOf = (part: Part, key: number, isComplete: boolean) => (
  <Kept key={key} source={part} isComplete={isComplete}>
    {() => <div class="part">{blocks(part, isComplete, -1)}</div>}
  </Kept>
)

/** Only the last block of unfinished ones may change. */
const blocks = (tokens: readonly Token[] | undefined, isComplete: boolean, depth: number) =>
  tokens?.map((token, index) => {
    const isDone = isComplete || index < tokens.length - 1
    return (
      <Kept key={`${token.type} ${index}`} source={token.raw} isComplete={isDone}>
        {() => blockOf(token, isDone, depth + 1)}
      </Kept>
    )
  })

/** Maximum depth of rendered nodes. Browsers overflow their stack on thousands. */
const DEEPEST = 40

function blockOf(token: Token, isComplete: boolean, depth: number): ComponentChild {
  if (depth > DEEPEST) return token.raw
  switch (token.type) {
    case 'space':
    case 'def':
      return null
    case 'heading': {
      // Headings of answers rank below the heading of the page.
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
      return token.tokens ? inline(token.tokens) : withCitations((token as Tokens.Text).text)
    case 'html':
      return <Html text={token.raw} />
    default:
      // Unparsed text is shown as written.
      return <p class="is-plain">{token.raw}</p>
  }
}

function listOf({ ordered, start, items }: Tokens.List, isComplete: boolean, depth: number): JSX.Element {
  const rows = items.map((item, index) => itemOf(item, index, isComplete || index < items.length - 1, depth))
  return ordered ? <ol start={start === '' ? 1 : start}>{rows}</ol> : <ul>{rows}</ul>
}

const itemOf = (item: Tokens.ListItem, key: number, isComplete: boolean, depth: number) => (
  <Kept key={key} source={`${item.loose} ${item.raw}`} isComplete={isComplete}>
    {() => (
      <li class={item.task ? 'task' : undefined}>
        {item.task && (
          <input type="checkbox" checked={item.checked === true} disabled aria-label={item.text.slice(0, 40)} />
        )}
        {blocks(
          item.tokens.filter(({ type }) => type !== 'checkbox'),
          isComplete,
          depth
        )}
      </li>
    )}
  </Kept>
)

function tableOf({ header, rows, align }: Tokens.Table): JSX.Element {
  const row = (tag: 'th' | 'td', cells: Tokens.TableCell[], key: number) => (
    <tr key={key}>
      {cells.map((cell, index) => {
        const style = align[index] ? { textAlign: align[index] } : undefined
        return h(tag, { key: index, style }, inline(cell.tokens))
      })}
    </tr>
  )
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>{row('th', header, 0)}</thead>
        <tbody>
          {rows.map((cells, key) => (
            <Kept key={key} source={cells.map(({ text }) => text).join('\n') + align} isComplete>
              {() => row('td', cells, key)}
            </Kept>
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
    case 'em':
    case 'del':
      return h(token.type, { key }, inline(token.tokens, depth))
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
    case 'html':
      return <Html key={key} text={token.raw} isInline />
    case 'formula':
      return <Formula key={key} text={(token as FormulaToken).text} isDisplayed={(token as FormulaToken).isDisplayed} />
    case 'text':
      return token.tokens ? inline(token.tokens, depth) : withCitations((token as Tokens.Text).text, key)
    default:
      return token.raw
  }
}

/** The address of a README, to which its links are relative. Its HTML is for the looks of the hub's page. */
export const ReadmeAddress = createContext<string | undefined>(undefined)

/** Raw HTML as written, or only the text in it if it belongs to a README. */
function Html({ text, isInline }: { text: string; isInline?: boolean }) {
  const isReadme = useContext(ReadmeAddress) !== undefined
  const shown = isReadme ? withEntities(withoutTags(text)).trim() : text
  return isInline ? shown : shown && <p class={isReadme ? '' : 'is-plain'}>{shown}</p>
}

function withoutTags(html: string): string {
  const [first, ...rest] = html.split('<!--')
  const parts = [first!, ...rest.map(part => part.slice((part.indexOf('-->') + 1 || part.length) + 2))]
  return parts.join('').replace(/<(script|style)\b[^<]*(?:<\/\1\s*>|$)|<[^<>]*>/gi, ' ')
}

function Link({ href: written, children }: { href: string; children: ComponentChild }) {
  const address = useContext(ReadmeAddress)
  const href = address !== undefined && URL.canParse(written, address) ? new URL(written, address).href : written
  if (!/^(https?:|mailto:)/i.test(href)) return <>{children}</>
  return (
    <a href={href} target="_blank" rel="noreferrer noopener">
      {children}
    </a>
  )
}

/** The passages that a text may cite, and what opens one of them. */
export const CitedPassages = createContext<{ sources: readonly Source[]; open: (index: number) => void } | undefined>(
  undefined
)

/** A button that opens a passage. */
export function Citation({ index }: { index: number }) {
  const { sources, open } = useContext(CitedPassages)!
  const label = fill(texts.value.passage, { number: index + 1, place: sources[index]!.name })
  return (
    <button type="button" class="citation" aria-label={label} title={label} onClick={() => open(index)}>
      [{index + 1}]
    </button>
  )
}

const CITATION = /(\[\d{1,2}(?:, ?\d{1,2})*\])/

const withCitations = (text: string, key?: number) =>
  CITATION.test(text) ? <Citing key={key} text={text} /> : withEntities(text)

/** A text with buttons in place of the numbers of passages, such as `[1]`. Other numbers stay as written. */
function Citing({ text }: { text: string }) {
  const count = useContext(CitedPassages)?.sources.length ?? 0
  const parts = text.split(CITATION).map((part, place) => {
    const numbers = place % 2 === 0 ? [] : part.slice(1, -1).split(',').map(Number)
    if (numbers.length === 0 || numbers.some(number => number < 1 || number > count)) return withEntities(part)
    return numbers.map(number => <Citation key={number} index={number - 1} />)
  })
  return <>{parts}</>
}

const ENTITIES: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0' }

/** Decodes entities such as `&lt;` and `&#39;`. */
function withEntities(text: string): string {
  if (!text.includes('&')) return text
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]+));/gi, (whole, decimal, hexadecimal, name) => {
    if (name) return ENTITIES[name] ?? whole
    const point = decimal ? Number(decimal) : Number.parseInt(hexadecimal, 16)
    return point <= 0x10ffff ? String.fromCodePoint(point) : whole
  })
}

/** A formula as MathML, or as written until the library is loaded or if it is invalid. */
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

/** Interval for highlighting code that still grows, and time per frame for it, in milliseconds. */
const COLOUR_INTERVAL = 300
const COLOUR_BUDGET = 4

/** Highlights the start of a code block. Finished pieces are kept. */
function useColours(code: string, language: string, isComplete: boolean): { text: string; nodes: ComponentChild[] } {
  const [coloured, setColoured] = useState({ text: '', nodes: [] as ComponentChild[] })
  const settled = useRef(coloured)
  const last = useRef(performance.now())
  useEffect(() => {
    // Loaded before the first lines arrive, so that one frame need not both load and use it.
    if (language) void import('./code-colours.ts').catch(() => undefined)
  }, [language])
  useEffect(() => {
    if (!language) return
    let timer: ReturnType<typeof setTimeout> | undefined
    const work = async () => {
      const { colourPiece } = await import('./code-colours.ts')
      if (timer === undefined) return
      const began = performance.now()
      let now = code.startsWith(settled.current.text) ? settled.current : { text: '', nodes: [] }
      while (now.text.length < code.length && performance.now() - began < COLOUR_BUDGET) {
        const piece = colourPiece(code.slice(now.text.length), language, isComplete)
        if (!piece) return
        const { length, nodes, isSettled } = piece
        const text = code.slice(0, now.text.length + length)
        now = { text, nodes: [...now.nodes, isSettled ? <span class="code-piece">{nodes}</span> : nodes] }
        if (isSettled) settled.current = now
      }
      last.current = performance.now()
      setColoured(now)
      if (now.text.length < code.length) timer = setTimeout(work)
    }
    timer = setTimeout(work, isComplete ? 0 : Math.max(0, last.current + COLOUR_INTERVAL - performance.now()))
    return () => {
      clearTimeout(timer)
      timer = undefined
    }
  }, [code, language, isComplete])
  return code.startsWith(coloured.text) ? coloured : { text: '', nodes: [] }
}

function CodeBlock({ code: { text, lang }, isComplete }: { code: Tokens.Code; isComplete: boolean }) {
  const language = lang?.trim().split(/\s+/, 1)[0] ?? ''
  const kind = previewKind(language, text)
  return (
    <figure class="code" dir="ltr">
      <figcaption>
        <span>{language}</span>
        {kind && <PreviewButton kind={kind} text={text} isComplete={isComplete} />}
        <CopyButton text={() => text} label={texts.value.copyCode} />
      </figcaption>
      <Code text={text} language={language} isComplete={isComplete} />
    </figure>
  )
}

/** Highlighted code. */
export function Code({ text, language, isComplete }: { text: string; language: string; isComplete: boolean }) {
  const coloured = useColours(text, language, isComplete)
  return (
    <pre tabIndex={0}>
      <code>
        {coloured.nodes}
        {/* What has come since it was coloured follows without colours. */}
        {text.slice(coloured.text.length)}
      </code>
    </pre>
  )
}

/** Opens the code in the preview panel. */
function PreviewButton(block: Previewed) {
  useEffect(() => followPreview(block), [block.text, block.isComplete])
  return <IconButton icon="play" label={texts.value.preview} onClick={() => (previewed.value = block)} />
}
