import { type Signal, useComputed, useSignal, useSignalEffect } from '@preact/signals'
import { useEffect, useLayoutEffect, useMemo, useRef } from 'preact/hooks'
import { announce, attempt, IconButton, Menu, MenuItem, Note, openDialog } from '../parts/controls.tsx'
import { Icon } from '../parts/icons.tsx'
import { later } from '../parts/layout.tsx'
import { useGradually, useWindowEvents } from '../parts/view-hooks.ts'
import { isAsked } from '../state/answer-calls.ts'
import { resumeAnswers, say, stop } from '../state/answering.ts'
import type { Attachment, Chat, Message, Settings } from '../state/chat-format.ts'
import {
  changeChat,
  chats,
  copyChat,
  createChat,
  forkChat,
  isReady,
  messagesOf,
  type OpenChat,
  openChat,
  projectOf,
  sought
} from '../state/chats.ts'
import { branchTo, isContextFull, isDocument, isUnderWay, summaryIndex } from '../state/conversation-tree.ts'
import { tellFinished } from '../state/finished.ts'
import { may } from '../state/me.ts'
import { lastModel } from '../state/preferences.ts'
import { type Preset, presets } from '../state/presets.ts'
import { go, linkTo } from '../state/route.ts'
import { chatModels, connection, contextOf, defaultModel } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { Composer } from './composer.tsx'
import { edited, MessageView } from './message-view.tsx'

const ChatSettings = later(async () => (await import('./chat-settings.tsx')).ChatSettings)
const QueueView = later(async () => (await import('./queue-view.tsx')).QueueView)

const DocumentLine = later(async () => (await import('./documents-view.tsx')).DocumentLine)
const CompactOffer = later(async () => (await import('./compaction.tsx')).CompactOffer)
const Summary = later(async () => (await import('./compaction.tsx')).Summary)

const MAX_PANES = 4

/** Sends a message, or queues it while an answer is received. */
async function sayNext(chat: string, text: string, attachments: Attachment[]): Promise<void> {
  const leaf = messagesOf(chat).get(chats.peek().get(chat)?.leaf ?? '')
  if (!leaf || !isUnderWay(leaf)) return say(chat, text, attachments)
  const { enqueue } = await import('../state/queue.ts')
  await enqueue(chat, text, attachments)
  announce(texts.peek().queued)
}

/** Shows chats side by side. @param ids of the chats; empty for a new chat. @param project of a new chat */
export function ChatView({ ids, project }: { ids: string[]; project?: string }) {
  const t = texts.value
  const isLinked = useSignal(true)
  if (!isReady.value) return <main class="view" aria-busy="true" />
  const shown = project === undefined ? undefined : chats.value.get(project)
  if (project !== undefined && !shown?.isProject) return <Note text={t.chatGone} />
  if (ids.length === 0) return <NewChat project={shown} />
  const isChat = (chat: Chat | undefined) => chat !== undefined && !chat.isProject
  const panes = ids.slice(0, MAX_PANES).filter(id => isChat(chats.value.get(id)))
  if (panes.length === 0) return <Note text={t.chatGone} />
  const close = (id: string) => go(['chat', ...panes.filter(other => other !== id)])
  return (
    <main class="view panes">
      {panes.length > 1 && (
        <label class="linked">
          <input
            type="checkbox"
            checked={isLinked.value}
            onChange={event => (isLinked.value = event.currentTarget.checked)}
          />
          {t.sendToAll}
        </label>
      )}
      <div class="pane-row">
        {panes.map((id, index) => (
          <OldChat
            key={id}
            id={id}
            place={index + 1}
            {...(panes.length > 1 && { onClose: () => close(id) })}
            {...(panes.length < MAX_PANES && {
              onCompare: async () => {
                const current = chats.peek().get(id)!
                const other = chatModels.peek().find(({ name }) => name !== current.model)
                const fork = await forkChat(id, { model: other?.name ?? current.model ?? '' })
                go(['chat', ...panes, fork.id])
              }
            })}
            onSend={(text, attachments) => {
              const targets = isLinked.peek() ? panes : [id]
              return Promise.all(targets.map(target => sayNext(target, text, attachments)))
            }}
          />
        ))}
      </div>
    </main>
  )
}

/** Fields of a project that its new chats do not have. */
const NO_PROJECT = { isProject: undefined, title: '' }

/** A new chat. In a project, the controls change the settings of the project. */
function NewChat({ project }: { project: Chat | undefined }) {
  const t = texts.value
  const chosen = useSignal('')
  const settings = useSignal<Settings>({})
  /** Name of the preset that the settings come from. */
  const preset = useSignal('')
  const isHere = chatModels.value.some(({ name }) => name === project?.model)
  const model = chosen.value || (isHere && project?.model) || defaultModel.value
  const choose = (name: string) => {
    chosen.value = name
    if (project) void changeChat(project.id, { model: name })
    else lastModel.value = name
  }
  const current = project ?? settings.value
  const change = (next: Settings) => {
    if (project) return changeChat(project.id, next)
    settings.value = { ...settings.peek(), ...next }
  }
  return (
    <main class="view chat is-new">
      <header class="view-head">
        {!project && (
          <PresetMenu
            name={preset.value}
            onChoose={({ name, ...chosen }) => {
              preset.value = name
              settings.value = chosen
            }}
          />
        )}
        <span class="chat-title" />
        <SettingsButton
          model={model}
          settings={current}
          onSave={next => {
            preset.value = ''
            return change(next)
          }}
        />
      </header>
      <div class="greeting">
        <h1>{project?.title ?? t.greeting}</h1>
        {project && <p class="quiet">{t.projectNote}</p>}
        {connection.value === 'online' && chatModels.value.length === 0 && (
          <p class="quiet">
            {t.noModels} {may('operator') && <a href={linkTo('models', 'get')}>{t.getModel}</a>}
          </p>
        )}
      </div>
      {project && <DocumentLine id={project.id} />}
      <Composer
        id={undefined}
        busyWith={undefined}
        model={model}
        onModel={choose}
        settings={current}
        onSettings={change}
        onSend={async (text, attachments) => {
          const chat = await (project
            ? copyChat({ ...project, ...NO_PROJECT, project: project.id, model }, [])
            : createChat({ model, ...settings.peek() }))
          go(['chat', chat.id])
          await say(chat.id, text, attachments)
        }}
      />
    </main>
  )
}

function PresetMenu({ name, onChoose }: { name: string; onChoose: (preset: Preset) => void }) {
  const t = texts.value
  if (presets.value.length === 0) return null
  return (
    <Menu label={`${t.preset}: ${name || t.noPreset}`} title={name || t.preset} class="preset-picker">
      {() => (
        <div class="menu-scroll">
          {[{ name: '' }, ...presets.value].map(preset => (
            <MenuItem
              key={preset.name}
              checked={preset.name === name}
              onSelect={() => onChoose(preset)}
              text={preset.name || t.noPreset}
            />
          ))}
        </div>
      )}
    </Menu>
  )
}

function SettingsButton(props: { model: string; settings: Settings; onSave: (settings: Settings) => unknown }) {
  const title = texts.value.chatSettings
  const open = () => openDialog(title, close => <ChatSettings {...props} onDone={close} />)
  return <IconButton icon="settings" label={title} onClick={open} />
}

function OldChat(props: {
  id: string
  /** Index among the chats side by side. */
  place: number
  onSend: (text: string, attachments: Attachment[]) => Promise<unknown>
  onCompare?: () => Promise<void>
  onClose?: () => void
}) {
  const t = texts.value
  const { id, onCompare, onClose } = props
  const opened = useSignal<Signal<OpenChat> | undefined>(undefined)
  useEffect(() => {
    void openChat(id).then(found => {
      opened.value = found
      void resumeAnswers(id)
    })
  }, [id])
  const busyWith = useComputed(() => {
    const leaf = opened.value?.value.messages.get(chats.value.get(id)?.leaf ?? '')?.value
    return leaf && isUnderWay(leaf) ? leaf.id : undefined
  })
  const hasDocuments = useComputed(() =>
    [...(opened.value?.value.messages.values() ?? [])].some(each => each.peek().attachments?.some(isDocument))
  )
  const isBusy = busyWith.value !== undefined
  useEffect(() => {
    if (!isBusy) return
    // The tab that was receiving the answer may have been closed.
    const timer = setInterval(() => void resumeAnswers(id), 3000)
    return () => clearInterval(timer)
  }, [id, isBusy])
  const section = useRef<HTMLElement>(null)
  useWindowEvents({
    keydown({ key, isComposing, target }) {
      // Escape closes open dialogs first. With several chats side by side, it stops the focused chat.
      if (key !== 'Escape' || isComposing || !busyWith.value || document.querySelector('dialog[open]')) return
      const focused = (target as Element).closest?.('section.chat') ?? section.current
      if (focused === section.current) stop(busyWith.value)
    }
  })
  const chat = chats.value.get(id)!
  return (
    <section ref={section} class="view chat" aria-label={`${props.place}. ${chat.title || t.untitled}`}>
      <header class="view-head">
        <h1 class="chat-title">{chat.title || t.untitled}</h1>
        {onCompare && <IconButton icon="columns" label={t.compare} onClick={() => attempt(onCompare)} />}
        <SettingsButton model={chat.model ?? ''} settings={chat} onSave={settings => changeChat(id, settings)} />
        {onClose && <IconButton icon="close" label={t.close} onClick={onClose} />}
      </header>
      {opened.value && <Conversation id={id} opened={opened.value} />}
      {(hasDocuments.value || projectOf(chat)) && <DocumentLine id={id} />}
      <Composer
        id={id}
        busyWith={busyWith.value}
        model={chat.model ?? ''}
        onModel={model => changeChat(id, { model })}
        settings={chat}
        onSettings={change => changeChat(id, change)}
        onSend={props.onSend}
        onEditLast={() => {
          const branch = branchTo(messagesOf(id), chats.peek().get(id)?.leaf)
          edited.value = branch.findLast(({ role }) => role === 'user')?.id ?? ''
        }}
      />
    </section>
  )
}

/** Characters of an answer that are announced to screen readers automatically. */
const SAID = 400

/** The server's default. It loads the model with a larger context when this one is full, unless its admin forbids it. */
const USUAL_CONTEXT = 4096
/** Share of the context from which the page offers to compact the chat. */
const COMPACT_FROM = 0.75

/** Messages rendered at first, from the end, and added in each following frame. */
const MESSAGES_A_FRAME = 6

/** Distance from the end, in pixels, within which the view follows new text. */
const FOLLOW_DISTANCE = 40

function Conversation({ id, opened }: { id: string; opened: Signal<OpenChat> }) {
  const t = texts.value
  const list = useRef<HTMLDivElement>(null)
  const isFollowing = useSignal(true)
  const branch = useComputed(() => {
    const leaf = chats.value.get(id)?.leaf
    const messages = new Map<string, Message>()
    // This effect depends only on the tree: each message subscribes to its own signal.
    for (const [id, message] of opened.value.messages) messages.set(id, message.peek())
    return branchTo(messages, leaf).map(message => opened.value.messages.get(message.id)!)
  })
  /** Messages that a summary replaces in requests. They are shown on demand, or if one of them was found. */
  const replaced = useComputed(() => summaryIndex(branch.value.map(message => message.value)) + 1)
  const showsAll = useSignal(false)
  const count = useGradually(branch.value.length, MESSAGES_A_FRAME)
  const shown = useMemo(() => {
    const views = branch.value.map((message, at) =>
      at < branch.value.length - count ||
      (at < replaced.value && (!showsAll.value || message.peek().content === '')) ? null : (
        <MessageView key={message.peek().id} message={message} opened={opened} />
      )
    )
    if (replaced.value > 0) {
      const toggle = () => (showsAll.value = !showsAll.peek())
      const message = branch.value[replaced.value - 1]!.value
      views.splice(
        replaced.value,
        0,
        <Summary key="summary" message={message} count={replaced.value} isOpen={showsAll.value} onToggle={toggle} />
      )
    }
    return views
  }, [branch.value, count, replaced.value, showsAll.value])
  useEffect(() => {
    const at = branch.value.findIndex(message => message.peek().id === sought.value)
    if (at < 0) return
    if (at < replaced.value) showsAll.value = true
    const article = document.getElementById(`m-${sought.value}`)
    if (!article) return
    sought.value = ''
    isFollowing.value = false
    article.scrollIntoView()
    article.animate({ background: ['var(--accent-wash)', 'transparent'] }, 3000)
  }, [shown, sought.value])
  const last = useComputed(() => branch.value.at(-1)?.value)
  /** The share of the context that the last request and its answer used, or 0 if the chat was compacted since. */
  const fullShare = useComputed(() => {
    if (!last.value) return 0
    const { timing, model = '', at, state, dropped = 0 } = last.value
    const { rev = 0 } = branch.value[replaced.value - 1]?.value ?? {}
    if (rev > at || (state && state !== 'failed')) return 0
    if (isContextFull(last.value) || dropped > 0) return 1
    const size = contextOf(model) ?? 0
    const isFixed = size !== USUAL_CONTEXT || chats.value.get(id)?.options?.num_ctx !== undefined
    return timing && size > 0 && isFixed ? (timing.promptTokens + timing.answerTokens) / size : 0
  })
  /** The scroll position that was set to follow the text. */
  const followed = useRef(0)
  const toEnd = () => {
    isFollowing.value = true
    list.current!.scrollTop = list.current!.scrollHeight
    followed.current = list.current!.scrollTop
  }
  const answering = useRef('')
  useSignalEffect(() => {
    const message = last.value
    const isBusy = message !== undefined && isUnderWay(message)
    if (isBusy && answering.current !== message.id) announce(texts.peek().answering)
    if (!isBusy && message && answering.current === message.id) {
      const asked = message.calls?.find(isAsked)
      const told = asked
        ? fill(texts.peek().asksFor, { tool: `${asked.server} · ${asked.tool}` })
        : fill(texts.peek().answered, { text: message.content.slice(0, SAID) })
      const text = message.error?.message ?? told
      announce(text)
      tellFinished(text)
    }
    answering.current = isBusy ? message.id : ''
  })
  const end = useRef<HTMLDivElement>(null)
  useLayoutEffect(() => {
    // Runs after layout, when the chat is first shown and whenever it grows. The end is known then without another
    // layout.
    const observer = new ResizeObserver(() => isFollowing.peek() && toEnd())
    observer.observe(end.current!)
    observer.observe(list.current!)
    return () => observer.disconnect()
  }, [])
  return (
    <>
      <div
        class={isFollowing.value ? 'messages is-following' : 'messages'}
        ref={list}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label={t.chat}
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          // New text has moved the end away. The reader did not scroll, so keep following.
          if (scrollTop === followed.current) return
          isFollowing.value = scrollHeight - scrollTop - clientHeight < FOLLOW_DISTANCE
        }}
      >
        <div ref={end}>
          <div class="messages-column" children={shown} />
          <QueueView chat={id} last={last} />
        </div>
      </div>
      {fullShare.value > COMPACT_FROM && <CompactOffer last={last.value!} share={fullShare.value} />}
      {!isFollowing.value && (
        <button type="button" class="to-end" onClick={toEnd} aria-label={t.toEnd} title={t.toEnd}>
          <Icon name="down" />
        </button>
      )}
    </>
  )
}
