import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { Icon } from '../parts/icons.tsx'
import { isRunning, runningCount, stop } from '../state/answering.ts'
import type { Attachment, Chat } from '../state/conversation.ts'
import { texts } from '../texts/texts.ts'

/** The message field. Enter sends, Shift+Enter breaks the line, Escape stops the answer. */
export function Composer(props: {
  chat: Chat | undefined
  model: string
  onSend: (text: string, attachments: Attachment[]) => Promise<void>
}) {
  const t = texts.value
  const text = useSignal('')
  const field = useRef<HTMLTextAreaElement>(null)
  useEffect(() => {
    // On a phone the keyboard would hide half of the page.
    if (matchMedia('(hover: hover)').matches) field.current?.focus()
  }, [props.chat?.id])
  // Read so that the button changes with the answer.
  runningCount.value
  const leaf = props.chat?.leaf
  const isBusy = leaf !== undefined && isRunning(leaf)
  const isReady = text.value.trim() !== '' && props.model !== ''
  const send = () => {
    if (!isReady || isBusy) return
    const said = text.value
    text.value = ''
    void props.onSend(said, [])
  }
  return (
    <form
      class="composer"
      onSubmit={event => {
        event.preventDefault()
        if (isBusy) stop(leaf)
        else send()
      }}
    >
      <div class="composer-box">
        <textarea
          id="message"
          ref={field}
          rows={1}
          dir="auto"
          aria-label={t.message}
          placeholder={t.messagePlaceholder}
          value={text.value}
          onInput={event => {
            text.value = event.currentTarget.value
          }}
          onKeyDown={event => {
            // Enter that only accepts what an input method suggests sends nothing.
            if (event.isComposing || event.keyCode === 229) return
            if (event.key === 'Enter' && !event.shiftKey) {
              event.preventDefault()
              send()
            }
            if (event.key === 'Escape' && isBusy) stop(leaf)
          }}
        />
        <button
          type="submit"
          class="send"
          aria-label={isBusy ? t.stop : t.send}
          title={isBusy ? t.stop : t.send}
          disabled={!isBusy && !isReady}
        >
          <Icon name={isBusy ? 'stop' : 'send'} size={20} />
        </button>
      </div>
    </form>
  )
}
