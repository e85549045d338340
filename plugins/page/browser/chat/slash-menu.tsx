import type { Signal } from '@preact/signals'
import { useEffect, useLayoutEffect, useState } from 'preact/hooks'
import { attempt, confirm, openDialog } from '../parts/controls.tsx'
import type { IconName } from '../parts/icons.tsx'
import { type Option, useOptions } from '../parts/option-list.tsx'
import { exportChats, exportMarkdown } from '../state/chat-files.ts'
import type { Settings } from '../state/chat-format.ts'
import { chats, deleteMessage, messagesOf } from '../state/chats.ts'
import { toolServers } from '../state/hosted-tools.ts'
import { fillPrompt, prompts, promptValues } from '../state/presets.ts'
import { go } from '../state/route.ts'
import { fillServerPrompt, loadServerPrompts, serverPrompts } from '../state/server-prompts.ts'
import { fill, texts } from '../texts/texts.ts'
import { ChatSettings } from './chat-settings.tsx'
import { exportHtml } from './html-file.tsx'
import { FillForm, type PromptField, Prompts } from './prompts-dialog.tsx'

type Command = readonly [name: string, icon: IconName, text: string, run: () => unknown]

/** The commands and prompts that match the text in the message field. */
export function SlashMenu(props: {
  /** Id of the list. */
  id: string
  chat: string | undefined
  text: Signal<string>
  isOpen: boolean
  /** Receives the function that handles keys of the message field. It returns whether it has used the key. */
  keys: { current: ((key: string) => boolean) | null }
  /** Receives the id of the current option. */
  current: Signal<string | undefined>
  field: { current: HTMLTextAreaElement | null }
  model: string
  settings: Settings
  onSettings: (change: Partial<Settings>) => unknown
  onAttach: (files: File[]) => void
}) {
  const { id, chat, text, field } = props
  const t = texts.value
  const [isDismissed, setDismissed] = useState(false)
  const isOpen = props.isOpen && !isDismissed
  const words = text.value.slice(1).toLowerCase()
  useEffect(() => {
    setDismissed(false)
    if (props.isOpen) loadServerPrompts()
  }, [props.isOpen])
  const press = (button: string) => () =>
    setTimeout(() => field.current?.form?.querySelector<HTMLButtonElement>(button)?.click())
  const insert = (said: string) => {
    // The user may have written something while a server filled the prompt.
    text.value = [text.peek(), said].filter(Boolean).join('\n\n')
    setTimeout(() => field.current?.focus())
  }
  const askFor = (title: string, fields: readonly PromptField[], use: (values: FormData) => unknown) => {
    if (fields.length === 0) return use(new FormData())
    const filled = (close: () => void) => (values: FormData) => {
      close()
      use(values)
    }
    openDialog(title, close => <FillForm fields={fields} onFilled={filled(close)} />)
  }
  const showSettings = () =>
    openDialog(t.chatSettings, close => (
      <ChatSettings model={props.model} settings={props.settings} onSave={props.onSettings} onDone={close} />
    ))
  const clear = async () => {
    const messages = messagesOf(chat!)
    for (const message of messages.values()) if (!messages.has(message.parent ?? '')) await deleteMessage(message)
  }
  const opened = chats.value.get(chat ?? '')
  const forChat: Command[] = opened
    ? [
        ['clear', 'trash', t.clear, () => confirm(t.clear, t.clearText, t.delete, clear)],
        ['export', 'download', t.saveMarkdown, () => exportMarkdown(opened)],
        ['export-html', 'download', t.saveHtml, () => exportHtml(opened)],
        ['export-json', 'download', t.saveJson, () => exportChats(opened.id)]
      ]
    : []
  const commands: Command[] = [
    ['new', 'plus', t.newChat, () => go(['chat'])],
    ['model', 'models', t.chooseModel, press('.model-picker button')],
    ['system', 'edit', t.system, showSettings],
    ['settings', 'settings', t.chatSettings, showSettings],
    ...(toolServers.value.length > 0 ? [['tools', 'tool', t.hostedTools, press('.tool-line')] as const] : []),
    ...forChat,
    ['prompts', 'chat', t.prompts, () => openDialog(t.prompts, () => <Prompts />)],
    ...prompts.value.map(({ name, text }): Command => {
      const fields = [...promptValues(text)].map(([name, value]) => ({ name, value }))
      return [name, 'send', t.savedPrompt, () => askFor(name, fields, values => insert(fillPrompt(text, values)))]
    }),
    ...Object.values(serverPrompts.value).flatMap(list =>
      list.map((prompt): Command => {
        const { server, name, description, arguments: fields } = prompt
        const title = `${server}.${name}`
        const use = (values: FormData) =>
          attempt(async () => {
            const filled = await fillServerPrompt(prompt, values)
            insert(filled.text)
            if (filled.files.length > 0) props.onAttach(filled.files)
          })
        return [title, 'tool', description || fill(t.serverPrompt, { server }), () => askFor(title, fields, use)]
      })
    )
  ]
  const found = isOpen ? commands.filter(([name, _, text]) => `${name} ${text}`.toLowerCase().includes(words)) : []
  const options = found.map(
    ([name, icon, about, run]): Option => ({
      id: name,
      icon,
      text: [<b key="name">/{name}</b>, ' ', <small key="about">{about}</small>],
      run
    })
  )
  const choose = ({ run }: Option) => {
    text.value = ''
    void run()
  }
  const list = useOptions({ id, label: t.commands, class: 'slash-list' }, options, words, choose)
  useLayoutEffect(() => {
    props.keys.current = key => {
      if (key !== 'Escape' || !isOpen) return list.press(key === 'Tab' ? 'Enter' : key)
      setDismissed(true)
      return true
    }
    props.current.value = list.current
  })
  return (
    <>
      {isOpen && found.length === 0 && <p class="slash-list menu-note">{t.noCommand}</p>}
      {found.length > 0 && list.shown}
    </>
  )
}
