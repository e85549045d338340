import { shownTheme } from '../state/preferences.ts'
import type { Previewed } from '../state/preview.ts'

/** File with the bundled Mermaid. */
declare const MERMAID: string

const SVG_STYLE = 'body{margin:0;height:100vh;display:grid;place-items:center}svg{max-width:100%;max-height:100vh}'

let library: Promise<string> | undefined

/** Mermaid as text: the frame may load nothing, not even from this server. */
function loadMermaid(): Promise<string> {
  library ??= fetch(new URL(MERMAID, import.meta.url)).then(reply => {
    if (!reply.ok) throw new Error(`${reply.status} ${reply.statusText}`)
    return reply.text()
  })
  library.catch(() => (library = undefined))
  return library
}

/** Returns the HTML document that shows some code. @throws TypeError if Mermaid cannot be loaded */
export async function documentFor(kind: Previewed['kind'], text: string): Promise<string> {
  if (kind === 'html') return text
  if (kind === 'svg') return `<!doctype html><style>${SVG_STYLE}</style>${text}`
  const isDark = shownTheme() === 'dark'
  const options = {
    startOnLoad: false,
    securityLevel: 'strict',
    suppressErrorRendering: true,
    theme: isDark ? 'dark' : 'default',
    // The bundle does not contain the default layout, which is very large.
    layout: 'dagre',
    secure: ['secure', 'securityLevel', 'startOnLoad', 'maxTextSize', 'suppressErrorRendering', 'maxEdges', 'layout']
  }
  const show = `mermaid.initialize(${JSON.stringify(options)})
    mermaid.render('chart', ${JSON.stringify(text).replaceAll('<', '\\u003c')}).then(
      ({ svg }) => (document.body.innerHTML = svg),
      ({ message }) => (document.body.textContent = message)
    )`
  const style = `:root{color-scheme:${isDark ? 'dark' : 'light'};background:${isDark ? '#201f1c' : '#fff'}}body{white-space:pre-wrap;font:1rem sans-serif}`
  return `<!doctype html><style>${style}</style><body><script>${await loadMermaid()}</script><script>${show}</script>`
}
