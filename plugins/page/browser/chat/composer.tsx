import { useSignal, useSignalEffect } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { announce, attempt, IconButton, notify } from '../parts/controls.tsx'
import { Icon } from '../parts/icons.tsx'
import { later } from '../parts/layout.tsx'
import { useWindowEvents } from '../parts/view-hooks.ts'
import { stop } from '../state/answering.ts'
import type { Attachment, Settings } from '../state/chat-format.ts'
import { keepDraft, readDraft, scalings } from '../state/drafts.ts'
import { capabilitiesOf, speechModel } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { canRecord, insertText, useDictation } from './dictation.ts'
import { loadMarkdown } from './markdown-view.tsx'
import { ModelPicker } from './model-picker.tsx'

const SlashMenu = later(async () => (await import('./slash-menu.tsx')).SlashMenu)
const ComposerLine = later(
  async () => (await import('./composer-line.tsx')).ComposerLine,
  () => <span class="grow" />
)

/** Longer pasted text is attached as a file, so that the field stays readable. */
const LONG_PASTE = 4000

/** The message field. Enter sends, Shift+Enter starts a new line, Escape stops the answer. */
export function Composer(props: {
  /** The chat, or undefined for a new one. */
  id: string | undefined
  /** Id of the answer that is being received. */
  busyWith: string | undefined
  model: string
  onModel: (model: string) => unknown
  settings: Settings
  onSettings: (change: Partial<Settings>) => unknown
  /** Sends the message, or queues it. */
  onSend: (text: string, attachments: Attachment[]) => Promise<unknown>
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
  const warning = useSignal('')
  const isCommand = /^\/\S*$/.test(text.value)
  const wasCommand = useRef(false)
  wasCommand.current ||= isCommand
  const command = useSignal<string | undefined>(undefined)
  const commandKeys = useRef<((key: string) => boolean) | null>(null)
  const listId = `commands-${props.id}`
  const form = useRef<HTMLFormElement>(null)
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
    const names = files.map(({ name }) => name).join(', ')
    const controller = new AbortController()
    const entry = { names, cancel: () => controller.abort() }
    reading.value = [...reading.peek(), entry]
    await attempt(async () => {
      const { readFiles } = await import('./attachments.ts')
      const read = await readFiles(files, capabilitiesOf(props.model), controller.signal)
      attachments.value = [...attachments.peek(), ...read.attachments]
      announce(read.told)
      if (read.refused.length > 0) notify(read.refused.join(' '), true)
    })
    reading.value = reading.peek().filter(other => other !== entry)
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
    if (!isReady) return
    const said = text.value
    const given = attachments.value
    text.value = ''
    attachments.value = []
    void attempt(() => props.onSend(said, [...given])).then(isSent => {
      if (isSent) return
      text.value ||= said
      attachments.value = [...given, ...attachments.peek()]
    })
  }
  // Files can be dropped anywhere. Otherwise browsers would leave the page and open the file.
  /** Whether files at this place are for another chat that is shown beside this one. */
  const isElsewhere = ({ target }: Event) => {
    const chat = target instanceof Element && target.closest('.chat')
    return chat instanceof Element && chat !== form.current?.closest('.chat')
  }
  useWindowEvents({
    dragover(event) {
      if (!event.dataTransfer?.types.includes('Files')) return
      event.preventDefault()
      isDropTarget.value = !isElsewhere(event)
    },
    dragleave({ relatedTarget }) {
      if (relatedTarget === null) isDropTarget.value = false
    },
    drop(event) {
      isDropTarget.value = false
      const files = [...(event.dataTransfer?.files ?? [])]
      if (files.length === 0) return
      event.preventDefault()
      if (!isElsewhere(event)) void take(files)
    }
  })
  return (
    <>
      {isDropTarget.value && <p class="drop-area">{t.dropFiles}</p>}
      <div class="composer">
        {/* Outside of the form, because its dialogs have forms. */}
        {wasCommand.current && (
          <SlashMenu
            id={listId}
            chat={props.id}
            text={text}
            isOpen={isCommand}
            keys={commandKeys}
            current={command}
            field={field}
            model={props.model}
            settings={props.settings}
            onSettings={props.onSettings}
            onAttach={files => void take(files)}
          />
        )}
        <form
          class="composer-box"
          ref={form}
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
            send()
          }}
        >
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
                  {scalings.get(attachment) ?? attachment.name}
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
          {warning.value && <p class="context-warning">{warning.value}</p>}
          <textarea
            id="message"
            ref={field}
            rows={1}
            dir="auto"
            aria-label={t.message}
            placeholder={t.messagePlaceholder}
            aria-autocomplete="list"
            aria-controls={command.value && listId}
            aria-activedescendant={command.value}
            value={text.value}
            onInput={event => {
              text.value = event.currentTarget.value
              void loadMarkdown().catch(() => undefined)
            }}
            onKeyDown={event => {
              // Enter that confirms an input method's suggestion does not send.
              if (event.isComposing || event.keyCode === 229) return
              if (isCommand && !event.shiftKey && commandKeys.current?.(event.key)) {
                event.preventDefault()
                event.stopPropagation()
                return
              }
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
          <div class="composer-line">
            <IconButton icon="clip" label={t.addFiles} class="clip" onClick={() => picker.current?.click()} />
            <ModelPicker model={props.model} onChoose={props.onModel} />
            <ComposerLine
              chat={props.id}
              model={props.model}
              settings={props.settings}
              onSettings={props.onSettings}
              onAttach={files => void take(files)}
              text={text.value}
              attachments={attachments.value}
              warning={warning}
            />
            {canRecord && speechModel('transcribe').name !== '' && (
              <IconButton
                icon={dictating ? 'stop' : 'microphone'}
                label={dictating ? t.stopDictation : t.dictate}
                class="clip"
                onClick={dictation.toggle}
              />
            )}
            {isBusy && <IconButton icon="stop" label={t.stop} class="send" onClick={() => stop(busyWith)} />}
            {(!isBusy || hasContent) && (
              <button type="submit" class="send" aria-label={t.send} title={t.send} disabled={!isReady}>
                <Icon name="send" size={20} />
              </button>
            )}
          </div>
        </form>
      </div>
    </>
  )
}
