import { effect } from '@preact/signals'
import { showApp } from './app.tsx'
import { MARKDOWN_STEPS } from './chat/markdown-view.tsx'
import { notify } from './parts/controls.tsx'
import { formatNumber } from './parts/formats.ts'
import { afterAnswers } from './state/answering.ts'
import { openChats } from './state/chats.ts'
import { watchTools } from './state/hosted-tools.ts'
import { keepChats } from './state/kept-chats.ts'
import { me, redeemLink, watchIdentity } from './state/me.ts'
import { chatsOwner, modelTitles } from './state/preferences.ts'
import { connection, followServer } from './state/server-state.ts'
import { loadLanguage } from './texts/texts.ts'

const [fault] = await Promise.all([redeemLink(), loadLanguage().catch(() => undefined)])
followServer()
watchIdentity()
showApp()
if (fault) notify(fault, true)
// If the server cannot be reached, show the chats of the last user.
await new Promise<void>(resolve => {
  effect(() => {
    if (me.value || connection.value === 'offline') resolve()
  })
})
if (me.value) chatsOwner.value = me.value.key?.name ?? ''
const owner = chatsOwner.value
await openChats(owner)
effect(() => {
  // Another user has signed in.
  if (me.value && (me.value.key?.name ?? '') !== owner) location.reload()
})
keepChats()
afterAnswers.add(chat => {
  // Without a title of the model, a chat keeps the first line of its first message.
  if (modelTitles.peek() === '')
    import('./state/model-texts.ts').then(({ writeTitle }) => writeTitle(chat)).catch(() => undefined)
})
watchTools()
// Run slow first-time browser work before an answer needs it, step by step.
const atIdle = globalThis.requestIdleCallback ?? setTimeout
const keepPage = async () => (await import('./chat/start-worker.ts')).keepPage()
for (const step of [() => formatNumber(0), ...MARKDOWN_STEPS, () => import('./parts/found-chats.tsx'), keepPage]) {
  await new Promise(resolve => atIdle(resolve))
  try {
    await step()
  } catch {
    // The next use tries again.
  }
}
// Visible in the browser's developer tools.
performance.mark('corral-ready')
