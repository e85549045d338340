import { signal } from '@preact/signals'
import { type ComponentChildren, createContext } from 'preact'
import { useContext, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { route } from '../state/route.ts'
import { texts } from '../texts/texts.ts'
import { Actions, Button, type ButtonProps } from './forms.tsx'
import { Icon, type IconName } from './icons.tsx'

interface IconButtonProps extends ButtonProps {
  icon: IconName
  label: string
  class?: string
}

/** A button with an icon. Its label is announced and shown as a tooltip. */
export function IconButton({ icon, label, class: own = '', ...button }: IconButtonProps) {
  return (
    <button type="button" class={`icon-button ${own}`} aria-label={label} title={label} {...button}>
      <Icon name={icon} />
    </button>
  )
}

/** Number of open dialogs. Messages are shown inside the dialog, since it covers everything else. */
export const openDialogs = signal(0)

/** A field that filters a list. Its label is also its placeholder. */
export function SearchField(props: { label: string; value: string; onInput: (text: string) => void; class?: string }) {
  return (
    <input
      type="search"
      class={`field ${props.class ?? ''}`}
      aria-label={props.label}
      placeholder={props.label}
      value={props.value}
      onInput={event => props.onInput(event.currentTarget.value)}
    />
  )
}

/** A modal dialog. Escape closes it, and the focus returns to where it was. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; class?: string }) {
  const element = useRef<HTMLDialogElement>(null)
  // A layout effect, to run before the next key is pressed.
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null
    element.current?.showModal()
    openDialogs.value += 1
    return () => {
      openDialogs.value -= 1
      before?.focus()
    }
  }, [])
  return (
    <dialog
      ref={element}
      class={`dialog ${props.class ?? ''}`}
      aria-label={props.title}
      onClose={props.onClose}
      onClick={event => {
        // A click on the backdrop targets the dialog itself.
        if (event.target === element.current) element.current?.close()
      }}
    >
      <Toast />
      <div class="dialog-body">
        <header class="dialog-head">
          <h2>{props.title}</h2>
          <IconButton icon="close" label={texts.value.close} onClick={() => element.current?.close()} />
        </header>
        {props.children}
      </div>
    </dialog>
  )
}

/** Handles Escape, which then does nothing else. */
export const onEscape = (close: () => unknown) => (event: KeyboardEvent) => {
  if (event.key !== 'Escape') return
  event.stopPropagation()
  close()
}

const CloseMenu = createContext(() => {})

/** A button that opens a menu below it. Escape, a choice or a click elsewhere closes it. */
export function Menu(props: {
  label: string
  /** Shown on the button, after the icon if there is one. */
  title?: string
  icon?: IconName
  class?: string
  /** A function, so that the items of a closed menu are not rendered. */
  children: () => ComponentChildren
}) {
  const { title, icon } = props
  const [isOpen, setOpen] = useState(false)
  const element = useRef<HTMLDivElement>(null)
  const button = useRef<HTMLButtonElement>(null)
  // A layout effect, to run before the next key is pressed. Later, the focus could move to a menu that was already
  // closed.
  useLayoutEffect(() => {
    if (!isOpen) return
    const leave = (event: Event) => {
      if (!element.current?.contains(event.target as Node)) setOpen(false)
    }
    addEventListener('pointerdown', leave)
    const list = element.current?.querySelector('.menu-list')
    // A menu that opens upwards may not have enough space there.
    const top = element.current?.closest('.messages')?.getBoundingClientRect().top ?? 0
    if (list && list.getBoundingClientRect().top < top) list.classList.add('is-below')
    list?.querySelector<HTMLElement>(':is(input,button,a)')?.focus()
    return () => removeEventListener('pointerdown', leave)
  }, [isOpen])
  const close = () => {
    setOpen(false)
    button.current?.focus()
  }
  return (
    <div
      ref={element}
      class={`menu ${props.class ?? ''}`}
      onKeyDown={event => {
        if (!isOpen) return
        onEscape(close)(event)
        if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
          event.preventDefault()
          moveFocus(element.current!, event.key === 'ArrowDown' ? 1 : -1)
        }
      }}
    >
      <button
        ref={button}
        type="button"
        class={title === undefined ? 'icon-button' : 'menu-button'}
        aria-label={props.label}
        title={props.label}
        aria-expanded={isOpen}
        onClick={() => setOpen(!isOpen)}
      >
        {(icon || title === undefined) && <Icon name={icon ?? 'more'} />}
        {title !== undefined && <span>{title}</span>}
        {title !== undefined && !icon && <Icon name="down" size={16} />}
      </button>
      {isOpen && (
        <div class="menu-list">
          <CloseMenu.Provider value={close}>{props.children()}</CloseMenu.Provider>
        </div>
      )}
    </div>
  )
}

function moveFocus(list: HTMLElement, by: number): void {
  const all = [...list.querySelectorAll<HTMLElement>('.menu-list :is(input,button:not(:disabled),a)')]
  const at = all.indexOf(document.activeElement as HTMLElement)
  all[(at + by + all.length) % all.length]?.focus()
}

/** A choice in a menu. @param staysOpen whether the menu stays open after it */
export function MenuItem(props: {
  icon?: IconName
  onSelect: () => unknown
  text: string
  /** Shown after the text. */
  note?: ComponentChildren
  danger?: boolean
  checked?: boolean
  staysOpen?: boolean
}) {
  const close = useContext(CloseMenu)
  return (
    <button
      type="button"
      class={`menu-item ${props.danger ? 'is-danger' : ''}`}
      aria-pressed={props.checked}
      onClick={() => {
        if (!props.staysOpen) close()
        void props.onSelect()
      }}
    >
      {props.icon && <Icon name={props.icon} size={16} />}
      <span>
        {props.text}
        {props.note !== undefined && <small>{props.note}</small>}
      </span>
      {props.checked && <Icon name="check" size={16} />}
    </button>
  )
}

/** Copies a text, even over plain HTTP, where browsers provide no clipboard API. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text)
  const field = document.createElement('textarea')
  field.value = text
  field.className = 'visually-hidden'
  // Inside an open dialog, because everything outside is inert.
  const parent = document.querySelector('dialog[open]') ?? document.body
  parent.append(field)
  field.select()
  document.execCommand('copy')
  field.remove()
}

/** Copies a text and confirms it for a moment. */
export function CopyButton({ text, label }: { text: () => string; label?: string }) {
  const [done, setDone] = useState(false)
  return (
    <IconButton
      icon={done ? 'check' : 'copy'}
      label={done ? texts.value.copied : (label ?? texts.value.copy)}
      onClick={async () => {
        await copyText(text())
        setDone(true)
        setTimeout(() => setDone(false), 1500)
      }}
    />
  )
}

/** The next text for screen readers. Streamed text would be announced in fragments, so it is set at the end. */
export const announcement = signal('')

/** Announces something to screen readers. */
export function announce(text: string): void {
  // Add a space, so that the same text is announced again.
  announcement.value = announcement.value === text ? `${text} ` : text
}

interface ToastAction {
  text: string
  onClick: () => void
}

/** The current message at the top of the page. */
export const toast = signal<{ text: string; isError: boolean; action?: ToastAction | undefined } | undefined>(undefined)
let toastTimer: ReturnType<typeof setTimeout> | undefined

export function Toast() {
  if (!toast.value) return null
  const { text, isError, action } = toast.value
  return (
    <div
      ref={element => element?.scrollIntoView({ block: 'nearest' })}
      class={`toast ${isError ? 'is-error' : ''}`}
      role={isError ? 'alert' : 'status'}
    >
      <p>{text}</p>
      {action && (
        <Button
          text={action.text}
          onClick={() => {
            toast.value = undefined
            action.onClick()
          }}
        />
      )}
      <IconButton icon="close" label={texts.value.close} onClick={() => (toast.value = undefined)} />
    </div>
  )
}

/** Shows a message for a while. Errors and messages with an action stay until they are closed. */
export function notify(text: string, isError = false, action?: ToastAction): void {
  toast.value = { text, isError, action }
  clearTimeout(toastTimer)
  if (!isError && !action) toastTimer = setTimeout(() => (toast.value = undefined), 4000)
}

/** Runs a task and shows its error. @returns whether it succeeded */
export async function attempt(work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work()
    return true
  } catch (error) {
    notify((error as Error).message, true)
    return false
  }
}

/** A view with only one sentence. */
export function Note({ text }: { text: string }) {
  return (
    <main class="view is-centred">
      <h1>{text}</h1>
    </main>
  )
}

interface OpenDialog {
  title: string
  body: (close: () => void) => ComponentChildren
  class: string
  /** It closes when another view is shown. */
  route: readonly string[]
}

/** The last one is on top. */
const dialogs = signal<readonly OpenDialog[]>([])

/** Shows something in a dialog. */
export function openDialog(title: string, body: OpenDialog['body'], own: OpenDialog['class'] = ''): void {
  dialogs.value = [...dialogs.peek(), { title, body, class: own, route: route.peek() }]
}

export function OpenDialogs() {
  return (
    <>
      {dialogs.value
        .filter(dialog => dialog.route === route.value)
        .map(dialog => {
          const close = () => {
            dialogs.value = dialogs.peek().filter(other => other !== dialog)
          }
          return (
            <Dialog key={dialog} title={dialog.title} onClose={close} class={dialog.class}>
              {dialog.body(close)}
            </Dialog>
          )
        })}
    </>
  )
}

/** Asks for confirmation of something that cannot be undone. @param action text of the button that does it */
export function confirm(title: string, text: string, action: string, work: () => unknown): void {
  const body = (close: () => void) => {
    const run = () => {
      void work()
      close()
    }
    return (
      <>
        <p>{text}</p>
        <Actions>
          <Button onClick={close} text={texts.value.cancel} />
          <Button kind="danger" onClick={run} text={action} />
        </Actions>
      </>
    )
  }
  openDialog(title, body, 'dialog-small')
}
