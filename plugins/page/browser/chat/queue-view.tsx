import type { ReadonlySignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { IconButton, onEscape } from '../parts/controls.tsx'
import { Actions, Button, Form } from '../parts/forms.tsx'
import { joinFacts } from '../parts/layout.tsx'
import type { Message } from '../state/chat-format.ts'
import { isUnderWay } from '../state/conversation-tree.ts'
import { editQueued, type Queued, queues, removeQueued, sendNext, sendNow } from '../state/queue.ts'
import { plural, texts } from '../texts/texts.ts'

/** The queued messages of a chat, below its last message. */
export function QueueView({ chat, last }: { chat: string; last: ReadonlySignal<Message | undefined> }) {
  const t = texts.value
  useEffect(() => void sendNext(chat), [chat])
  const items = queues.value.get(chat) ?? []
  if (items.length === 0) return null
  const isBusy = last.value !== undefined && isUnderWay(last.value)
  return (
    <section class="queue" aria-label={t.queue}>
      <p class="note">{isBusy ? t.queueNote : t.queueWaits}</p>
      <ol class="plain-list">
        {items.map(item => (
          <li key={item.id}>
            <QueuedMessage chat={chat} item={item} />
          </li>
        ))}
      </ol>
    </section>
  )
}

function QueuedMessage({ chat, item }: { chat: string; item: Queued }) {
  const t = texts.value
  const { id, text, attachments } = item
  if (item.isEdited) {
    const close = () => void editQueued(chat, { id, isEdited: false })
    return (
      <Form onSubmit={field => editQueued(chat, { id, text: field('text') || text, isEdited: false })}>
        <textarea
          class="editor"
          name="text"
          rows={3}
          aria-label={t.editQueued}
          ref={field => field?.focus()}
          defaultValue={text}
          onKeyDown={onEscape(close)}
        />
        <Actions>
          <Button onClick={close} text={t.cancel} />
          <Button kind="main" type="submit" text={t.save} />
        </Actions>
      </Form>
    )
  }
  const remove = async () => {
    await removeQueued(chat, id)
    document.getElementById('message')?.focus()
  }
  const files = attachments.length > 0 && plural(t.withFiles, attachments.length)
  return (
    <div class="question row">
      <p class="grow queued-text">{joinFacts([text, files])}</p>
      <IconButton icon="send" label={t.sendNow} onClick={() => sendNow(chat, item)} />
      <IconButton icon="edit" label={t.editQueued} onClick={() => editQueued(chat, { id, isEdited: true })} />
      <IconButton icon="trash" label={t.removeQueued} onClick={remove} />
    </div>
  )
}
