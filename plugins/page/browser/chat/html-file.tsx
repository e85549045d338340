import { type ComponentChild, render } from 'preact'
import { download, fileName, headingOf, markdownOf, readBranch } from '../state/chat-files.ts'
import type { Chat, Message } from '../state/chat-format.ts'
import { shownLanguage, texts } from '../texts/texts.ts'
import { MarkdownBlocks } from './markdown-blocks.ts'
import { partOf } from './markdown-view.tsx'
import { QuestionBody } from './message-view.tsx'

/** The file runs nothing and loads nothing. Alignments of tables are attributes `style`. */
const POLICY =
  "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
const STYLE = `:root { color-scheme: light dark; --line: light-dark(#d5d5d0, #45454d); --wash: light-dark(#f4f4f1, #26262b) }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.6 system-ui, sans-serif; overflow-wrap: anywhere }
article { margin-top: 2rem }
article > h2 { margin: 0.5rem 0; font-size: 0.85rem; font-weight: 600; opacity: 0.75 }
.is-user, pre { padding: 0.6rem 0.9rem; border-radius: 0.6rem; background: var(--wash) }
.is-plain, .question-text, pre { white-space: pre-wrap }
figure { margin: 1rem 0 } figcaption { font-size: 0.85rem; opacity: 0.75 }
img { max-width: 100% } table { border-collapse: collapse } td, th { padding: 0.3rem 0.6rem; border: 1px solid var(--line) }
blockquote { margin-inline: 0; padding-inline-start: 1rem; border-inline-start: 3px solid var(--line) }
.formula.is-displayed { display: block; text-align: center }`

/** Exports the current branch of a chat as one HTML file. */
export async function exportHtml(chat: Chat): Promise<void> {
  const parts: string[] = []
  for (const message of await readBranch(chat)) parts.push(await htmlOf(<Article message={message} />))
  const [title, heading] = [await htmlOf(chat.title), await htmlOf(<h1 dir="auto">{chat.title}</h1>)]
  const head = `<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<title>${title}</title>
<style>${STYLE}</style>`
  const body = `<main>\n${[heading, ...parts].join('\n')}\n</main>`
  const html = `<!doctype html>\n<html lang="${shownLanguage.peek()}">\n<head>\n${head}\n</head>\n<body>\n${body}\n</body>\n</html>\n`
  download(`${fileName(chat.title)}.html`, 'text/html', html)
}

/** Renders nodes as HTML outside of the page. Browsers escape all texts in it. */
async function htmlOf(shown: ComponentChild): Promise<string> {
  // A pause, so that no frame is late.
  await new Promise(resolve => setTimeout(resolve))
  const place = document.createElement('div')
  render(shown, place)
  for (const button of place.querySelectorAll('button')) button.remove()
  for (const box of place.querySelectorAll('input')) box.toggleAttribute('checked', box.checked)
  for (const formula of place.querySelectorAll('.formula')) {
    const { formulaOf } = await import('./formulas.ts')
    formula.replaceChildren(formulaOf(formula.textContent, formula.classList.contains('is-displayed')))
  }
  const html = place.innerHTML
  render(null, place)
  return html
}

function Article({ message }: { message: Message }) {
  const { role, sources = [] } = message
  return (
    <article class={`is-${role}`}>
      <h2>{headingOf(message)}</h2>
      {role === 'assistant' ? (
        <div dir="auto">
          {new MarkdownBlocks().update(markdownOf(message), true).map((part, index) => partOf(part, index, true))}
        </div>
      ) : (
        <QuestionBody message={message} />
      )}
      {sources.length > 0 && (
        <details>
          <summary>{texts.peek().passages}</summary>
          <ol>
            {sources.map(({ name, text }) => (
              <li class="is-plain">{`${name}\n${text}`}</li>
            ))}
          </ol>
        </details>
      )}
    </article>
  )
}
