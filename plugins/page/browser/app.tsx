import { effect, signal } from '@preact/signals'
import { Component, type ComponentChildren, type ComponentType, render } from 'preact'
import { ChatView } from './chat/chat-view.tsx'
import { announcement, attempt, Note, notify, OpenDialogs, openDialogs, Toast } from './parts/controls.tsx'
import { Button, Field, Form } from './parts/forms.tsx'
import { Fault, later } from './parts/layout.tsx'
import { Sidebar } from './parts/sidebar.tsx'
import { useWindowEvents } from './parts/view-hooks.ts'
import { isKeyWanted, key } from './state/api.ts'
import { storageFault } from './state/browser-storage.ts'
import { chats } from './state/chats.ts'
import { isUnseen, tellFinished, watchDownloads } from './state/finished.ts'
import { keepFault } from './state/kept-chats.ts'
import { signIn } from './state/me.ts'
import { lastModel, toggleSidebar } from './state/preferences.ts'
import { previewed } from './state/preview.ts'
import { go, route } from './state/route.ts'
import { chatModels, connection, server } from './state/server-state.ts'
import { fill, texts } from './texts/texts.ts'

type View = ComponentType<{ path: string[] }>

const laterView = (load: () => Promise<View>) =>
  later(
    load,
    () => <main class="view" aria-busy="true" />,
    () => <Note text={texts.value.viewFailed} />
  )

/** The views, by the first part of the route. */
const VIEWS: Record<string, View> = {
  chat: ({ path }) => <ChatView ids={path} />,
  project: ({ path: [id = ''] }) => <ChatView key={id} ids={[]} project={id} />,
  shared: laterView(async () => (await import('./chat/shared-chat.tsx')).SharedChat),
  models: laterView(async () => (await import('./models/models-view.tsx')).ModelsView),
  server: laterView(async () => (await import('./machine/server-view.tsx')).ServerView),
  playground: laterView(async () => (await import('./playground/playground-view.tsx')).PlaygroundView)
}

const isPaletteOpen = signal(false)
const PaletteLater = later(async () => (await import('./parts/palette.tsx')).Palette)

const PreviewLater = later(async () => (await import('./chat/preview-panel.tsx')).PreviewPanel)

/** Handles the keyboard shortcuts of the page. Single keys are ignored in fields. */
function onKey(event: KeyboardEvent): void {
  const { altKey, shiftKey, target } = event
  const withControl = event.ctrlKey || event.metaKey
  const pressed = event.key.toLowerCase()
  const isField = target instanceof HTMLElement && target.matches('input, textarea, select, [contenteditable]')
  const isSingle = !withControl && !altKey && !isField
  if ((withControl && pressed === 'k') || (isSingle && pressed === '?')) isPaletteOpen.value = true
  else if (withControl && shiftKey && pressed === 'o') go(['chat'])
  else if (withControl && pressed === 'b') toggleSidebar()
  else if (isSingle && pressed === '/') document.getElementById('message')?.focus()
  else return
  event.preventDefault()
}

function App() {
  const t = texts.value
  useWindowEvents({ keydown: onKey })
  const [name = 'chat', ...path] = route.value
  const View = Object.hasOwn(VIEWS, name) ? VIEWS[name] : undefined
  return (
    <>
      <div class="app" inert={isKeyWanted.value}>
        <a class="skip-link" href="#content" onClick={skip}>
          {t.skipToContent}
        </a>
        <Sidebar />
        <div class="stage" id="content" tabIndex={-1}>
          <Banner />
          {openDialogs.value === 0 && <Toast />}
          <Guard key={name}>{View ? <View path={path} /> : <Note text={t.noSuchView} />}</Guard>
        </div>
        {previewed.value && <PreviewLater />}
        <OpenDialogs />
        <div class="visually-hidden" role="status">
          {announcement.value}
        </div>
      </div>
      {isKeyWanted.value && <KeyDialog />}
      {isPaletteOpen.value && <PaletteLater onClose={() => (isPaletteOpen.value = false)} />}
    </>
  )
}

/** Shows a message if a view throws, so that the other views can still be used. */
class Guard extends Component<{ children: ComponentChildren }, { fault: string }> {
  override state = { fault: '' }
  override componentDidCatch(error: unknown) {
    console.error(error)
    this.setState({ fault: String(error) })
  }
  render() {
    if (!this.state.fault) return this.props.children
    return <Note text={`${texts.value.viewFailed} ${this.state.fault}`} />
  }
}

/** The hash is the route, so an in-page link must not change it. */
function skip(event: MouseEvent): void {
  event.preventDefault()
  const field = document.getElementById('message') ?? document.getElementById('content')
  field?.focus()
}

/** Asks for a key and covers the page, which does not work without a key. */
function KeyDialog() {
  const t = texts.value
  return (
    <div class="key-dialog" role="dialog" aria-modal="true" aria-label={t.keyTitle}>
      <Form
        class="dialog-body"
        onSubmit={(text, fields) => text('key') && attempt(() => signIn(text('key'), fields.has('stays')))}
      >
        <h2>{t.keyTitle}</h2>
        {key.value !== '' && <Fault text={t.keyWrong} isAnnounced />}
        <p>{t.keyText}</p>
        <Field
          label={t.keyField}
          type="password"
          name="key"
          required
          autocomplete="off"
          ref={field => field?.focus()}
        />
        <label class="row">
          <input type="checkbox" name="stays" />
          {t.staySignedIn}
        </label>
        <Button kind="main" type="submit" text={t.keyUse} />
      </Form>
    </div>
  )
}

function Banner() {
  const t = texts.value
  const fault = keepFault.value
  const text =
    connection.value === 'offline'
      ? t.offline
      : server.value?.draining
        ? t.restarting
        : storageFault.value
          ? fill(t.storageFault, { reason: storageFault.value })
          : fault?.code === 'insufficient_storage'
            ? t.serverFull
            : fault && fill(t.keepFault, { reason: fault.message })
  return text ? (
    <p class="banner" role="status">
      {text}
    </p>
  ) : null
}

/** Sets the tab title to the view or the open chats. */
function nameTab(): void {
  const [name = 'chat', ...ids] = route.value
  const t = texts.value
  const titles = { models: t.models, server: t.server, playground: t.playground } as Record<string, string>
  const shown = ['chat', 'project'].includes(name)
    ? ids.flatMap(id => chats.value.get(id)?.title || [])
    : [titles[name] ?? '']
  const title = [shown.join(' · '), 'corral'].filter(part => part !== '').join(' – ')
  document.title = isUnseen.value ? `● ${title}` : title
}

/** Offers a chat with a model that has just been downloaded. */
function offerChat(model: string): void {
  const t = texts.peek()
  const text = fill(t.downloaded, { model })
  tellFinished(text)
  const chat = () => {
    lastModel.value = model
    go(['chat'])
  }
  const canChat = chatModels.peek().some(({ name }) => name === model)
  notify(text, false, canChat ? { text: t.chat, onClick: chat } : undefined)
}

export function showApp(): void {
  effect(nameTab)
  watchDownloads(offerChat)
  render(<App />, document.getElementById('page')!)
}
