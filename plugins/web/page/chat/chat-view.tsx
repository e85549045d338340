import { computed, type Signal, useComputed, useSignal, useSignalEffect } from '@preact/signals'
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { IconButton } from '../parts/controls.tsx'
import { Icon } from '../parts/icons.tsx'
import { resumeAnswers, say } from '../state/answering.ts'
import { changeChat, chats, createChat, isReady, type OpenChat, openChat } from '../state/chats.ts'
import { branchTo, type Message } from '../state/conversation-tree.ts'
import { lastModel } from '../state/preferences.ts'
import { go } from '../state/route.ts'
import { defaultModel } from '../state/server-state.ts'
import { texts } from '../texts/texts.ts'
import { ChatSettings } from './chat-settings.tsx'
import { Composer } from './composer.tsx'
import { MessageView } from './message-view.tsx'
import { ModelPicker } from './model-picker.tsx'

/** A chat, or the beginning of one. @param id of the chat; undefined for a new one */
export function ChatView({ id }: { id: string | undefined }) {
  const t = texts.value
  if (!isReady.value) return <main class="view" aria-busy="true" />
  const chat = id === undefined ? undefined : chats.value.get(id)
  if (id !== undefined && !chat) {
    return (
      <main class="view is-centred">
        <p>{t.chatGone}</p>
      </main>
    )
  }
  return chat ? <OldChat key={chat.id} id={chat.id} /> : <NewChat />
}

function NewChat() {
  const t = texts.value
  const chosen = useSignal('')
  const model = chosen.value || defaultModel.value
  return (
    <main class="view chat is-new">
      <header class="view-head">
        <ModelPicker
          model={model}
          onChoose={name => {
            chosen.value = name
            lastModel.value = name
          }}
        />
      </header>
      <div class="greeting">
        <h1>{t.greeting}</h1>
      </div>
      <Composer
        chat={undefined}
        model={model}
        onSend={async (text, attachments) => {
          const chat = await createChat({ model })
          go(['chat', chat.id])
          await say(chat.id, text, attachments)
        }}
      />
    </main>
  )
}

function OldChat({ id }: { id: string }) {
  const opened = useSignal<Signal<OpenChat> | undefined>(undefined)
  useEffect(() => {
    void openChat(id).then(found => {
      opened.value = found
      resumeAnswers(id)
    })
  }, [id])
  const chat = chats.value.get(id)!
  const [isOpen, setOpen] = useState(false)
  return (
    <main class="view chat">
      <header class="view-head">
        <ModelPicker model={chat.model ?? ''} onChoose={model => void changeChat(id, { model })} />
        <h1 class="chat-title">{chat.title || texts.value.untitled}</h1>
        <IconButton icon="settings" label={texts.value.chatSettings} onClick={() => setOpen(true)} />
        {isOpen && <ChatSettings chat={chat} onClose={() => setOpen(false)} />}
      </header>
      {opened.value && <Conversation id={id} opened={opened.value} />}
      <Composer
        chat={chat}
        model={chat.model ?? ''}
        onSend={async (text, attachments) => void say(id, text, attachments)}
      />
    </main>
  )
}

/** Pixels from the end within which a reader follows what comes. */
const FOLLOW_DISTANCE = 40

function Conversation({ id, opened }: { id: string; opened: Signal<OpenChat> }) {
  const t = texts.value
  const list = useRef<HTMLDivElement>(null)
  const isFollowing = useSignal(true)
  const branch = useComputed(() => {
    const leaf = chats.value.get(id)?.leaf
    const messages = new Map<string, Message>()
    // Only the tree counts here: each message follows its own signal.
    for (const [id, message] of opened.value.messages) messages.set(id, message.peek())
    return branchTo(messages, leaf).map(message => opened.value.messages.get(message.id)!)
  })
  const shown = useMemo(
    () => branch.value.map(message => <MessageView key={message.peek().id} message={message} opened={opened} />),
    [branch.value]
  )
  const last = computed(() => branch.value.at(-1)?.value)
  const toEnd = () => {
    if (list.current) list.current.scrollTop = list.current.scrollHeight
  }
  useLayoutEffect(toEnd, [id])
  useSignalEffect(() => {
    // Whatever comes into the last message moves the end.
    last.value
    if (isFollowing.peek()) requestAnimationFrame(toEnd)
  })
  return (
    <>
      <div
        class="messages"
        ref={list}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label={t.chat}
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          isFollowing.value = scrollHeight - scrollTop - clientHeight < FOLLOW_DISTANCE
        }}
      >
        <div class="messages-column">{shown}</div>
      </div>
      {!isFollowing.value && (
        <button type="button" class="to-end" onClick={toEnd} aria-label={t.toEnd} title={t.toEnd}>
          <Icon name="down" />
        </button>
      )}
    </>
  )
}
