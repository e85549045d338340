import { showApp } from './app.tsx'
import { openChats } from './state/chats.ts'
import { followMe } from './state/me.ts'
import { followServer } from './state/server-state.ts'
import { loadLanguage } from './texts/texts.ts'

followServer()
followMe()
void openChats()
await loadLanguage().catch(() => undefined)
showApp()
