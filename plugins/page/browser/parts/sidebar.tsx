import { useComputed, useSignal } from '@preact/signals'
import type { ComponentChild } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { key } from '../state/api.ts'
import type { Chat } from '../state/chat-format.ts'
import { groupChats } from '../state/chat-groups.ts'
import { changeChat, chats, chatsByProject, projects, today } from '../state/chats.ts'
import { switchNotifications } from '../state/finished.ts'
import { allowedTools } from '../state/hosted-tools.ts'
import { deleteEverywhere, isOn } from '../state/kept-chats.ts'
import { signOut } from '../state/me.ts'
import {
  language,
  modelTitles,
  notifications,
  sidebarHidden,
  speechModels,
  theme,
  toggleSidebar
} from '../state/preferences.ts'
import { go, linkTo, route } from '../state/route.ts'
import { pulls, speechModel } from '../state/server-state.ts'
import { fill, LANGUAGES, loadLanguage, plural, shownLanguage, texts } from '../texts/texts.ts'
import { attempt, confirm, IconButton, Menu, MenuItem, notify, onEscape, openDialog, SearchField } from './controls.tsx'
import { formatNumber } from './formats.ts'
import { Form } from './forms.tsx'
import type { Found, FoundChat } from './found-chats.tsx'
import { Icon, type IconName } from './icons.tsx'
import { later } from './layout.tsx'
import { CHAT_DRAG, LINES_A_FRAME, useGradually } from './view-hooks.ts'

/** The views and chats, hidden behind a button on narrow screens. */
export function Sidebar() {
  const t = texts.value
  const isOpen = useSignal(false)
  const wanted = useSignal('')
  useEffect(() => {
    isOpen.value = false
  }, [route.value])
  const toggle = () => {
    if (matchMedia('(max-width: 760px)').matches) isOpen.value = !isOpen.value
    else toggleSidebar()
  }
  return (
    <>
      <IconButton icon="menu" label={t.openSidebar} class="sidebar-opener" onClick={toggle} />
      {isOpen.value && <div class="sidebar-shade" onClick={toggle} aria-hidden="true" />}
      <aside class={`sidebar ${isOpen.value ? 'is-open' : ''} ${sidebarHidden.value ? 'is-hidden' : ''}`}>
        <div class="sidebar-head">
          <a class="brand" href="#/chat">
            <Brand />
            corral
          </a>
          <IconButton icon="menu" label={t.closeSidebar} onClick={toggle} />
        </div>
        <nav aria-label={t.views}>
          <ViewLink view="chat" icon="plus" text={t.newChat} />
          {(['models', 'server', 'playground'] as const).map(view => (
            <ViewLink key={view} view={view} icon={view} text={t[view]} note={view === 'models' && <DownloadShare />} />
          ))}
        </nav>
        <div class="sidebar-title">
          <h2>{t.chats}</h2>
          <IconButton icon="folder" label={t.newProject} onClick={() => makeProject()} />
        </div>
        {chats.value.size > 5 && (
          <SearchField
            class="sidebar-search"
            label={t.searchChats}
            value={wanted.value}
            onInput={text => (wanted.value = text)}
          />
        )}
        {wanted.value === '' ? <ChatList /> : <FoundChats key={wanted.value} wanted={wanted.value} list={ChatList} />}
        {chats.value.size === 0 && <p class="sidebar-note">{t.noChats}</p>}
        <PageMenu />
      </aside>
    </>
  )
}

const chatFiles = () => import('../state/chat-files.ts')
const FoundChats = later(async () => (await import('./found-chats.tsx')).FoundChats)
const Links = later(async () => (await import('../chat/shared-chat.tsx')).Links)
const Projects = later(async () => (await import('./projects.tsx')).Projects)
const ProjectForm = later(async () => (await import('./projects.tsx')).ProjectForm)
const AllowedTools = later(async () => (await import('../chat/tool-picker.tsx')).AllowedTools)

/** Asks for the name of a new project. @param chat the chat that it is for */
const makeProject = (chat?: string) =>
  openDialog(texts.peek().newProject, close => <ProjectForm chat={chat} onDone={close} />, 'dialog-small')

/** Theme, language, import and export, and sign-out. */
function PageMenu() {
  const t = texts.value
  const picker = useRef<HTMLInputElement>(null)
  return (
    <div class="page-menu">
      <input
        ref={picker}
        type="file"
        accept=".json,.jsonl,.zip"
        multiple
        hidden
        aria-label={t.importChats}
        onChange={async event => {
          const field = event.currentTarget
          await attempt(async () => {
            const { importChats } = await chatFiles()
            let count = 0
            for (const file of field.files ?? []) count += await importChats(file)
            notify(plural(t.imported, count))
          })
          field.value = ''
        }}
      />
      <Menu label={t.pageSettings} class="menu-up" title={t.pageSettings} icon="settings">
        {() => (
          <>
            {THEMES.map(name => (
              <MenuItem
                key={name}
                icon="theme"
                checked={theme.value === name}
                staysOpen
                onSelect={() => (theme.value = name)}
                text={t.themes[name || 'system']}
              />
            ))}
            <hr />
            {Object.entries(LANGUAGES).map(([code, name]) => (
              <MenuItem
                key={code}
                checked={shownLanguage.value === code}
                staysOpen
                onSelect={() => {
                  language.value = code
                  void loadLanguage()
                }}
                text={name}
              />
            ))}
            <hr />
            <SpeechChoice task="transcribe" title={t.dictate} />
            <SpeechChoice task="speak" title={t.readAloud} />
            {'Notification' in globalThis && isSecureContext && (
              <MenuItem
                checked={notifications.value !== ''}
                staysOpen
                onSelect={switchNotifications}
                text={t.notifications}
              />
            )}
            <MenuItem
              checked={modelTitles.value === ''}
              staysOpen
              onSelect={() => (modelTitles.value = modelTitles.value ? '' : 'no')}
              text={t.modelTitles}
            />
            <MenuItem icon="download" onSelect={async () => (await chatFiles()).exportChats()} text={t.exportChats} />
            <MenuItem icon="plus" onSelect={() => picker.current?.click()} text={t.importChats} />
            {allowedTools.value.length > 0 && (
              <MenuItem
                icon="tool"
                onSelect={() => openDialog(t.allowedTools, () => <AllowedTools />)}
                text={t.allowedTools}
              />
            )}
            {key.value !== '' && <MenuItem icon="close" onSelect={signOut} text={t.signOut} />}
          </>
        )}
      </Menu>
    </div>
  )
}

/** A choice between several models that transcribe or speak. */
function SpeechChoice({ task, title }: { task: keyof typeof speechModels; title: string }) {
  const { names, name: used } = speechModel(task)
  if (names.length < 2) return null
  return (
    <>
      <p class="menu-note">{title}</p>
      {names.map(name => (
        <MenuItem
          key={name}
          checked={name === used}
          staysOpen
          onSelect={() => (speechModels[task].value = name)}
          text={name}
        />
      ))}
      <hr />
    </>
  )
}

const THEMES = ['', 'light', 'dark'] as const

/** The logo: three rails and three posts. */
function Brand() {
  return (
    <svg
      width="22"
      height="22"
      viewBox="0 0 32 32"
      fill="none"
      stroke="currentColor"
      stroke-width="3"
      stroke-linecap="round"
      aria-hidden="true"
    >
      <path d="M5 8v18M16 5v22M27 8v18M3 13h26M3 21h26" />
    </svg>
  )
}

/** The progress of running downloads. It is a component, so that its changes do not render the whole sidebar again. */
function DownloadShare() {
  const running = pulls.value.filter(({ state }) => state === 'downloading')
  const total = running.reduce((sum, pull) => sum + pull.total, 0)
  const completed = running.reduce((sum, pull) => sum + pull.completed, 0)
  return total > 0 ? <small>{formatNumber((100 * completed) / total, 0, 'percent')}</small> : null
}

function ViewLink(props: { view: string; icon: IconName; text: string; note?: ComponentChild }) {
  const { view, icon, text, note } = props
  const [name = 'chat', id] = route.value
  const isCurrent = name === view && (view !== 'chat' || id === undefined)
  return (
    <a class="view-link" href={linkTo(view)} aria-current={isCurrent ? 'page' : undefined}>
      <Icon name={icon} />
      {text}
      {note}
    </a>
  )
}

/** @param found the chats to list; absent for all chats */
function ChatList({ found }: { found?: Found }) {
  const t = texts.value
  const chats = found ? [...found.keys()] : (chatsByProject.value.get('') ?? [])
  const count = useGradually(chats.length, LINES_A_FRAME)
  const month = new Intl.DateTimeFormat(shownLanguage.value, { month: 'long', year: 'numeric' })
  return (
    <div
      class="chat-list"
      onDragOver={event => event.dataTransfer?.types.includes(CHAT_DRAG) && event.preventDefault()}
      onDrop={event => void changeChat(event.dataTransfer?.getData(CHAT_DRAG) ?? '', { project: undefined })}
    >
      {!found && projects.value.length > 0 && <Projects lineOf={lineOf} />}
      {groupChats(chats.slice(0, count), today.value).map(({ name, at, chats }) => (
        <section key={name === 'month' ? at : name}>
          <h3>{name === 'month' ? month.format(at) : t.chatGroups[name]}</h3>
          <ul>{chats.map(chat => lineOf(chat, found?.get(chat)))}</ul>
        </section>
      ))}
    </div>
  )
}

/** Cached lines. A line is rendered again only if its chat or what was found in it has changed. */
const lines = new WeakMap<Chat, { line: ComponentChild; found: FoundChat | undefined }>()

function lineOf(chat: Chat, found?: FoundChat): ComponentChild {
  const known = lines.get(chat)
  if (known && known.found === found) return known.line
  const line = <ChatLine key={chat.id} chat={chat} found={found} />
  lines.set(chat, { line, found })
  return line
}

function ChatLine({ chat, found }: { chat: Chat; found: FoundChat | undefined }) {
  const t = texts.value
  const [isRenaming, setRenaming] = useState(false)
  const title = chat.title || t.untitled
  // Computed per line, so that opening a chat updates only the affected lines out of a thousand.
  const isCurrent = useComputed(() => route.value[0] === 'chat' && route.value[1] === chat.id).value
  if (isRenaming) {
    return (
      <li>
        <Form
          onSubmit={text => {
            setRenaming(false)
            return text('title') && changeChat(chat.id, { title: text('title'), named: true })
          }}
        >
          <input
            class="field"
            name="title"
            aria-label={t.rename}
            defaultValue={chat.title}
            ref={field => field?.focus()}
            onKeyDown={onEscape(() => setRenaming(false))}
            onBlur={() => setRenaming(false)}
          />
        </Form>
      </li>
    )
  }
  const exports = [
    [t.saveMarkdown, async () => (await chatFiles()).exportMarkdown(chat)],
    [t.saveHtml, async () => (await import('../chat/html-file.tsx')).exportHtml(chat)],
    [t.saveJson, async () => (await chatFiles()).exportChats(chat.id)]
  ] as const
  const remove = () =>
    confirm(t.deleteChatTitle, fill(t.deleteChatText, { title }), t.delete, () => {
      if (isCurrent) go(['chat'], true)
      return deleteEverywhere(chat.id)
    })
  return (
    <li class={`chat-line ${isCurrent ? 'is-current' : ''}`}>
      <a
        href={linkTo('chat', chat.id)}
        aria-current={isCurrent ? 'page' : undefined}
        dir="auto"
        onClick={found?.seek}
        onDragStart={event => event.dataTransfer?.setData(CHAT_DRAG, chat.id)}
      >
        {chat.pinned && <Icon name="pin" size={14} />}
        {found?.title || title}
        {found?.passage}
      </a>
      <Menu label={`${t.more}: ${title}`}>
        {() => (
          <>
            <MenuItem
              icon="pin"
              onSelect={() => changeChat(chat.id, { pinned: !chat.pinned })}
              text={chat.pinned ? t.unpin : t.pin}
            />
            <MenuItem icon="edit" onSelect={() => setRenaming(true)} text={t.rename} />
            <p class="menu-note">{t.moveTo}</p>
            <div class="menu-scroll">
              {projects.value.map(({ id, title }) => (
                <MenuItem
                  key={id}
                  icon="folder"
                  checked={id === chat.project}
                  onSelect={() => changeChat(chat.id, { project: id === chat.project ? undefined : id })}
                  text={title}
                />
              ))}
              <MenuItem icon="plus" onSelect={() => makeProject(chat.id)} text={t.newProject} />
            </div>
            <hr />
            {exports.map(([text, save]) => (
              <MenuItem key={text} icon="download" onSelect={() => attempt(save)} text={text} />
            ))}
            {isOn && (
              <MenuItem icon="copy" onSelect={() => openDialog(t.share, () => <Links chat={chat} />)} text={t.share} />
            )}
            <MenuItem icon="trash" danger onSelect={remove} text={t.delete} />
          </>
        )}
      </Menu>
    </li>
  )
}
