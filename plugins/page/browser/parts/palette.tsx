import { useSignal } from '@preact/signals'
import type { ComponentChild } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { changeChat, chats, projects } from '../state/chats.ts'
import { may } from '../state/me.ts'
import { shownTheme, sidebarHidden, theme, toggleSidebar } from '../state/preferences.ts'
import { go, route } from '../state/route.ts'
import { chatModels } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { Dialog } from './controls.tsx'
import { useFoundChats } from './found-chats.tsx'
import { Icon, type IconName } from './icons.tsx'

interface Entry {
  id: string
  icon: IconName
  text: ComponentChild
  /** The keyboard shortcut for it. */
  keys?: string
  /** The text that was found in a chat. */
  passage?: ComponentChild
  run: () => void
}

const MAX_COUNT = 40

/** The command palette: views, models, and chats found by their text. */
export function Palette({ onClose }: { onClose: () => void }) {
  const t = texts.value
  const wanted = useSignal('')
  const [at, setAt] = useState(0)
  const list = useRef<HTMLDivElement>(null)
  const words = wanted.value.toLowerCase().trim()
  const found = useFoundChats(wanted.value)
  useEffect(() => setAt(0), [words])
  const current = route.value[0] === 'chat' ? chats.value.get(route.value[1] ?? '') : undefined
  const toggleTheme = () => (theme.value = shownTheme() === 'dark' ? 'light' : 'dark')
  const show = (...parts: string[]) => ({ id: parts.join(' '), run: () => go(parts) })
  const sidebar = sidebarHidden.value ? t.openSidebar : t.closeSidebar
  const commands: Entry[] = [
    { ...show('chat'), icon: 'plus', text: t.newChat, keys: 'Ctrl Shift O' },
    { ...show('models'), icon: 'models', text: t.models },
    ...(may('operator') ? [{ ...show('models', 'get'), icon: 'download', text: t.getModel } as const] : []),
    { ...show('server'), icon: 'server', text: t.server },
    { ...show('playground'), icon: 'playground', text: t.playground },
    ...projects.value.map(({ id, title }) => ({ ...show('project', id), icon: 'folder' as const, text: title })),
    { id: 'sidebar', icon: 'menu', text: sidebar, keys: 'Ctrl B', run: toggleSidebar },
    { id: 'theme', icon: 'theme', text: t.switchColours, run: toggleTheme }
  ]
  const models = current && words !== '' ? chatModels.value : []
  const entries: Entry[] = [
    ...commands.filter(({ text }) => String(text).toLowerCase().includes(words)),
    ...models
      .filter(({ name }) => name.toLowerCase().includes(words))
      .map(({ name: model }) => ({
        id: `model ${model}`,
        icon: 'models' as const,
        text: fill(t.useModel, { model }),
        run: () => void changeChat(current!.id, { model })
      })),
    ...[...found].slice(0, MAX_COUNT).map(([{ id, title }, chat]) => ({
      id,
      icon: 'chat' as const,
      text: chat.title || title || t.untitled,
      passage: chat.passage,
      run() {
        go(['chat', id])
        chat.seek()
      }
    }))
  ].slice(0, MAX_COUNT)
  const choose = (entry: Entry | undefined) => {
    if (!entry) return
    onClose()
    entry.run()
  }
  return (
    <Dialog title={t.palette} onClose={onClose} class="palette">
      <input
        type="text"
        class="field"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={entries[at] ? `palette-${at}` : undefined}
        aria-label={t.searchEverything}
        placeholder={t.searchEverything}
        value={wanted.value}
        ref={field => field?.focus()}
        onInput={event => (wanted.value = event.currentTarget.value)}
        onKeyDown={event => {
          if (event.isComposing) return
          const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0
          if (step !== 0) {
            event.preventDefault()
            const next = (at + step + entries.length) % Math.max(1, entries.length)
            setAt(next)
            list.current?.children[next]?.scrollIntoView({ block: 'nearest' })
          }
          if (event.key === 'Enter') {
            event.preventDefault()
            choose(entries[at])
          }
        }}
      />
      <div class="menu-scroll" id="palette-list" role="listbox" aria-label={t.palette} ref={list}>
        {entries.map((entry, index) => (
          <div
            key={entry.id}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === at}
            class={`menu-item ${index === at ? 'is-current' : ''}`}
            onClick={() => choose(entry)}
          >
            <Icon name={entry.icon} size={16} />
            <span dir="auto">
              {entry.text}
              {entry.passage}
            </span>
            {entry.keys && <kbd>{entry.keys}</kbd>}
          </div>
        ))}
      </div>
      <p class="quiet keys-help">
        <kbd>/</kbd> {t.keyWrite} · <kbd>Enter</kbd> {t.keySend} · <kbd>Shift Enter</kbd> {t.keyLine} · <kbd>Esc</kbd>{' '}
        {t.keyStop} · <kbd>↑</kbd> {t.keyEdit}
      </p>
    </Dialog>
  )
}
