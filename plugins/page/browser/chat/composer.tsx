import { useSignal, useSignalEffect } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { IconButton, notify } from '../parts/controls.tsx'
import { Icon } from '../parts/icons.tsx'
import { later } from '../parts/layout.tsx'
import { useWindowEvents } from '../parts/view-hooks.ts'
import { stop } from '../state/answering.ts'
import type { Attachment } from '../state/chat-format.ts'
import { keepDraft, readDraft } from '../state/drafts.ts'
import { toolServers } from '../state/hosted-tools.ts'
import { models, speechModel } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { readFiles } from './attachments.ts'
import { canRecord, insertText, useDictation } from './dictation.ts'
import { loadMarkdown } from './markdown-view.tsx'

const ToolLine = later(async () => (await import('./tool-picker.tsx')).ToolLine)

/** Longer pasted text is attached as a file, so that the field stays readable. */
const LONG_PASTE = 4000

/** The message field. Enter sends, Shift+Enter starts a new line, Escape stops the answer. */
export function Composer(props: {
  /** The chat, or undefined for a new one. */
  id: string | undefined
  /** Id of the answer that is being received. */
  busyWith: string | undefined
  model: string
  /** The tools of the server that the chat uses. */
  tools: readonly string[] | undefined
  onTools: (tools: string[]) => unknown
  onSend: (text: string, attachments: Attachment[]) => Promise<void>
  /** Called for the Up arrow in an empty field. */
  onEditLast?: () => void
}) {
  const t = texts.value
  const draft = useMemo(() => readDraft(props.id ?? ''), [])
  const text = useSignal(draft.text)
  const attachments = useSignal<readonly Attachment[]>(draft.attachments)
  useSignalEffect(() => keepDraft(props.id ?? '', text.value, attachments.value))
  /** Files that are being read. */
  const reading = useSignal<readonly { names: string; cancel: () => void }[]>([])
  useEffect(
    () => () => {
      for (const { cancel } of reading.peek()) cancel()
    },
    []
  )
  const isDropTarget = useSignal(false)
  const picker = useRef<HTMLInputElement>(null)
  const field = useRef<HTMLTextAreaElement>(null)
  useEffect(() => {
    // On a phone the keyboard would hide half of the page. Focus later, since browsers need time to lay out a new chat.
    if (matchMedia('(hover: hover)').matches) setTimeout(() => field.current?.focus())
  }, [props.id])
  const dictation = useDictation(heard => {
    text.value = insertText(field.current!, heard)
  })
  const dictating = dictation.state.value
  const { busyWith } = props
  const isBusy = busyWith !== undefined
  const hasContent = text.value.trim() !== '' || attachments.value.length > 0
  const isReady = hasContent && props.model !== '' && reading.value.length === 0
  const take = async (files: readonly File[]) => {
    const capabilities = models.peek().find(({ name }) => name === props.model)?.capabilities ?? []
    const names = files.map(({ name }) => name).join(', ')
    const controller = new AbortController()
    const entry = { names, cancel: () => controller.abort() }
    reading.value = [...reading.peek(), entry]
    const read = await readFiles(files, capabilities, controller.signal)
    reading.value = reading.peek().filter(other => other !== entry)
    attachments.value = [...attachments.peek(), ...read.attachments]
    if (read.refused.length > 0) notify(read.refused.join(' '), true)
  }
  const remove = (attachment: Attachment) => {
    attachments.value = attachments.value.filter(other => other !== attachment)
  }
  // The message was submitted before the list of models arrived, and is sent when it does.
  const isEager = useRef(false)
  useEffect(() => {
    if (isEager.current && isReady) send()
  }, [isReady])
  const send = () => {
    isEager.current = props.model === ''
    if (!isReady || isBusy) return
    const said = text.value
    const given = attachments.value
    text.value = ''
    attachments.value = []
    void props.onSend(said, [...given])
  }
  // Files can be dropped anywhere. Otherwise browsers would leave the page and open the file.
  useWindowEvents({
    dragover(event) {
      if (!event.dataTransfer?.types.includes('Files')) return
      event.preventDefault()
      isDropTarget.value = true
    },
    dragleave({ relatedTarget }) {
      if (relatedTarget === null) isDropTarget.value = false
    },
    drop(event) {
      isDropTarget.value = false
      const files = [...(event.dataTransfer?.files ?? [])]
      if (files.length === 0) return
      event.preventDefault()
      void take(files)
    }
  })
  return (
    <form
      class={`composer ${isDropTarget.value ? 'is-drop-target' : ''}`}
      onPaste={event => {
        const files = [...(event.clipboardData?.files ?? [])]
        const pasted = event.clipboardData?.getData('text/plain') ?? ''
        if (files.length > 0) {
          event.preventDefault()
          void take(files)
        } else if (pasted.length > LONG_PASTE) {
          event.preventDefault()
          const name = fill(t.pastedText, {
            number: attachments.value.filter(({ kind }) => kind === 'text').length + 1
          })
          attachments.value = [...attachments.value, { name, kind: 'text', type: 'text/plain', data: pasted }]
        }
      }}
      onSubmit={event => {
        event.preventDefault()
        if (isBusy) stop(busyWith)
        else send()
      }}
    >
      <div class="composer-box">
        {(attachments.value.length + reading.value.length > 0 || dictating) && (
          <ul class="attachments">
            {dictating && (
              <li class="chip is-accent">
                <span class="pulse" aria-hidden="true" />
                {t.dictation[dictating]}
              </li>
            )}
            {reading.value.map(({ names, cancel }, index) => (
              <li key={index} class="chip" aria-busy="true">
                <span class="pulse" aria-hidden="true" />
                {fill(t.readingFile, { name: names })}
                <IconButton icon="close" label={fill(t.cancelReading, { name: names })} onClick={cancel} />
              </li>
            ))}
            {attachments.value.map((attachment, index) => (
              <li key={`${index} ${attachment.name}`} class="chip">
                {attachment.kind === 'image' && <img src={attachment.data} alt="" />}
                {attachment.name}
                {attachment.kind === 'text' && (
                  <IconButton
                    icon="down"
                    label={fill(t.asMessage, { name: attachment.name })}
                    onClick={() => {
                      text.value = [text.value, attachment.data].filter(part => part !== '').join('\n\n')
                      remove(attachment)
                      field.current?.focus()
                    }}
                  />
                )}
                <IconButton
                  icon="close"
                  label={fill(t.removeFile, { name: attachment.name })}
                  onClick={() => remove(attachment)}
                />
              </li>
            ))}
          </ul>
        )}
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          aria-label={t.addFiles}
          onChange={event => {
            void take([...(event.currentTarget.files ?? [])])
            event.currentTarget.value = ''
          }}
        />
        <IconButton icon="clip" label={t.addFiles} class="clip" onClick={() => picker.current?.click()} />
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
            void loadMarkdown().catch(() => undefined)
          }}
          onKeyDown={event => {
            // Enter that confirms an input method's suggestion does not send.
            if (event.isComposing || event.keyCode === 229) return
            if (event.key === 'Enter' && !event.shiftKey) {
              event.preventDefault()
              send()
            }
            if (event.key === 'ArrowUp' && text.peek() === '' && props.onEditLast) {
              event.preventDefault()
              props.onEditLast()
            }
          }}
        />
        {canRecord && speechModel('transcribe').name !== '' && (
          <IconButton
            icon={dictating ? 'stop' : 'microphone'}
            label={dictating ? t.stopDictation : t.dictate}
            class="clip"
            onClick={dictation.toggle}
          />
        )}
        <button
          type="submit"
          class="send"
          aria-label={isBusy ? t.stop : t.send}
          title={isBusy ? t.stop : t.send}
          disabled={!isBusy && !isReady}
        >
          <Icon name={isBusy ? 'stop' : 'send'} size={20} />
        </button>
        {toolServers.value.length > 0 && (
          <ToolLine chosen={props.tools ?? []} onChoose={props.onTools} onAttach={files => void take(files)} />
        )}
      </div>
    </form>
  )
}
