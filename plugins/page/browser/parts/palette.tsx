import { useSignal } from '@preact/signals'
import { changeChat, chats, projects } from '../state/chats.ts'
import { may } from '../state/me.ts'
import { shownTheme, sidebarHidden, theme, toggleSidebar } from '../state/preferences.ts'
import { go, route } from '../state/route.ts'
import { chatModels } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { Dialog } from './controls.tsx'
import { useFoundChats } from './found-chats.tsx'
import { type Option, useOptions } from './option-list.tsx'

const MAX_COUNT = 40

/** The command palette: views, models, and chats found by their text. */
export function Palette({ onClose }: { onClose: () => void }) {
  const t = texts.value
  const wanted = useSignal('')
  const words = wanted.value.toLowerCase().trim()
  const found = useFoundChats(wanted.value)
  const current = route.value[0] === 'chat' ? chats.value.get(route.value[1] ?? '') : undefined
  const toggleTheme = () => (theme.value = shownTheme() === 'dark' ? 'light' : 'dark')
  const show = (...parts: string[]) => ({ id: parts.join(' '), run: () => go(parts) })
  const sidebar = sidebarHidden.value ? t.openSidebar : t.closeSidebar
  const commands: Option[] = [
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
  const options: Option[] = [
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
      text: [chat.title || title || t.untitled, chat.passage],
      run() {
        go(['chat', id])
        chat.seek()
      }
    }))
  ].slice(0, MAX_COUNT)
  const choose = ({ run }: Option) => {
    onClose()
    run()
  }
  const about = { class: 'menu-scroll', id: 'palette-list', label: t.palette }
  const { shown, current: option, press } = useOptions(about, options, words, choose)
  return (
    <Dialog title={t.palette} onClose={onClose} class="palette">
      <input
        type="text"
        class="field"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={option}
        aria-label={t.searchEverything}
        placeholder={t.searchEverything}
        value={wanted.value}
        ref={field => field?.focus()}
        onInput={event => (wanted.value = event.currentTarget.value)}
        onKeyDown={event => {
          if (!event.isComposing && press(event.key)) event.preventDefault()
        }}
      />
      {shown}
      <p class="quiet keys-help">
        <kbd>/</kbd> {t.keyWrite} · <kbd>Enter</kbd> {t.keySend} · <kbd>Shift Enter</kbd> {t.keyLine} · <kbd>Esc</kbd>{' '}
        {t.keyStop} · <kbd>↑</kbd> {t.keyEdit}
      </p>
    </Dialog>
  )
}
