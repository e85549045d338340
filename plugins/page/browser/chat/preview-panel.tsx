import { useEffect, useRef, useState } from 'preact/hooks'
import { announce, CopyButton, IconButton } from '../parts/controls.tsx'
import { Choices } from '../parts/forms.tsx'
import { useWindowEvents } from '../parts/view-hooks.ts'
import { download } from '../state/chat-files.ts'
import { type Previewed, previewed } from '../state/preview.ts'
import { route } from '../state/route.ts'
import { texts } from '../texts/texts.ts'
import { Code } from './markdown-view.tsx'
import { documentFor } from './preview-document.ts'

/** The file built from preview.html, which receives the code. The server gives it its own origin. */
declare const PREVIEW: string

const FILES = {
  html: { name: 'preview.html', type: 'text/html', language: 'html' },
  svg: { name: 'preview.svg', type: 'image/svg+xml', language: 'svg' },
  mermaid: { name: 'preview.mmd', type: 'text/plain', language: 'mermaid' }
}

/** Maximum length of code that is run, in characters. */
const MAX_LENGTH = 2_000_000

/** Shows what the code of an answer looks like, beside its source. */
export function PreviewPanel() {
  const t = texts.value
  const { kind, text, isComplete } = previewed.value!
  const panel = useRef<HTMLElement>(null)
  const [shown, show] = useState<'preview' | 'code'>('preview')
  const [run, setRun] = useState(0)
  /** Why which text is not running. */
  const [stopped, setStopped] = useState({ text: '', why: '' })
  const [openedAt] = useState(route.value)
  const close = () => (previewed.value = undefined)
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null
    panel.current!.focus()
    // Small screens hide everything else until the panel is gone.
    return () => void setTimeout(() => before?.focus())
  }, [])
  useEffect(() => {
    if (route.value !== openedAt) close()
  })
  const { name, type, language } = FILES[kind]
  const stop = (why: string) => {
    setStopped({ text, why })
    announce(why)
  }
  const note = !isComplete
    ? t.previews.waits
    : text.length > MAX_LENGTH
      ? t.previews.tooLarge
      : stopped.text === text && stopped.why
  return (
    <aside
      ref={panel}
      class={`preview is-${shown}`}
      tabIndex={-1}
      aria-label={t.preview}
      onKeyDown={event => {
        if (event.key !== 'Escape' || document.fullscreenElement) return
        event.stopPropagation()
        close()
      }}
    >
      <header class="preview-head">
        <Choices
          label={t.preview}
          names={{ preview: t.preview, code: t.previews.code }}
          chosen={shown}
          onChoose={show}
        />
        <span class="preview-tools">
          <IconButton
            icon="again"
            label={t.previews.run}
            disabled={!isComplete}
            onClick={() => {
              setStopped({ text: '', why: '' })
              setRun(run + 1)
            }}
          />
          <IconButton
            icon="stop"
            label={t.previews.stop}
            disabled={Boolean(note)}
            onClick={() => stop(t.previews.stopped)}
          />
          {document.fullscreenEnabled && (
            <IconButton
              icon="expand"
              label={t.previews.fullScreen}
              onClick={() =>
                document.fullscreenElement ? document.exitFullscreen() : panel.current!.requestFullscreen()
              }
            />
          )}
          <CopyButton text={() => text} label={t.copyCode} />
          <IconButton icon="download" label={t.previews.file} onClick={() => download(name, type, text)} />
          <IconButton icon="close" label={t.close} onClick={close} />
        </span>
      </header>
      <div class="preview-body">
        <div class="preview-result">
          {note ? <p class="preview-note">{note}</p> : <Frame key={`${run} ${text}`} {...{ kind, text, stop }} />}
        </div>
        <div class="preview-source code" dir="ltr">
          <Code text={text} language={language} isComplete={isComplete} />
        </div>
      </div>
      <p class="preview-foot">{t.previews.note}</p>
    </aside>
  )
}

/** How often a preview may take the focus from what the user has used last. */
const MAX_THEFTS = 3

/** A frame that runs code and can neither read this page nor send anything. */
function Frame({ kind, text, stop }: Pick<Previewed, 'kind' | 'text'> & { stop: (why: string) => void }) {
  const t = texts.value
  const frame = useRef<HTMLIFrameElement>(null)
  const isSent = useRef(false)
  const thefts = useRef(0)
  /** What the user has used last, if it is outside of the frame. */
  const [used, setUsed] = useState<HTMLElement | undefined>(undefined)
  useWindowEvents({
    // Tab may lead into the frame.
    keydown: ({ key, target }) => setUsed(key === 'Tab' ? undefined : (target as HTMLElement)),
    pointerdown: ({ target }) => setUsed(target as HTMLElement),
    blur() {
      // Frames can take the focus, and then what the user types, at any time. Browsers set `activeElement` later.
      setTimeout(() => {
        if (!used || !frame.current || document.activeElement !== frame.current) return
        frame.current.blur()
        used.focus()
        thefts.current += 1
        if (thefts.current > MAX_THEFTS) stop(t.previews.tookFocus)
      })
    }
  })
  return (
    <>
      <iframe
        ref={frame}
        sandbox="allow-scripts"
        title={t.preview}
        src={new URL(PREVIEW, import.meta.url).href}
        onLoad={() => {
          // The sent document loads, too.
          if (isSent.current) return
          isSent.current = true
          documentFor(kind, text).then(
            // Its origin is opaque, so that only "*" reaches it. It is sent nothing but its own code.
            html => frame.current?.contentWindow?.postMessage(html, '*'),
            error => stop(String(error.message))
          )
        }}
      />
      {used && <div class="preview-shield" onPointerMove={() => setUsed(undefined)} />}
    </>
  )
}
