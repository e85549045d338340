import { effect } from '@preact/signals'
import { showApp } from './app.tsx'
import { notify } from './parts/controls.tsx'
import { formatNumber } from './parts/formats.ts'
import { openChats } from './state/chats.ts'
import { keepChats } from './state/kept-chats.ts'
import { followMe, me } from './state/me.ts'
import { chatsOwner } from './state/preferences.ts'
import { connection, followServer } from './state/server-state.ts'
import { redeemLink } from './state/session.ts'
import { loadLanguage } from './texts/texts.ts'

const [fault] = await Promise.all([redeemLink(), loadLanguage().catch(() => undefined)])
followServer()
followMe()
showApp()
if (fault) notify(fault, true)
// The first number that browsers format takes them longer than a frame: not at the end of an answer.
const idle = globalThis.requestIdleCallback ?? setTimeout
idle(() => formatNumber(0))
// Where the server is away, the chats of whoever was here last are shown.
await new Promise<void>(resolve => {
  effect(() => {
    if (me.value || connection.value === 'offline') resolve()
  })
})
if (me.value) chatsOwner.value = me.value.key?.name ?? ''
const owner = chatsOwner.value
await openChats(owner)
effect(() => {
  // Another person has come.
  if (me.value && (me.value.key?.name ?? '') !== owner) location.reload()
})
keepChats()
