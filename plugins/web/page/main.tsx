import { showApp } from './app.tsx'
import { notify } from './parts/controls.tsx'
import { openChats } from './state/chats.ts'
import { followMe } from './state/me.ts'
import { followServer } from './state/server-state.ts'
import { redeemLink } from './state/session.ts'
import { loadLanguage } from './texts/texts.ts'

const [fault] = await Promise.all([redeemLink(), loadLanguage().catch(() => undefined)])
followServer()
followMe()
void openChats()
showApp()
if (fault) notify(fault, true)
