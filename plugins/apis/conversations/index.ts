import { join } from 'node:path'
import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { ConversationStore } from './conversation-store.ts'
import { conversationRoutes } from './routes.ts'

export default definePlugin({
  name: 'api-conversations',
  api: 1,
  description: 'Stored conversations of the page under /api/conversations; the settings web.* say whether and where',
  optional: true,
  needs: ['access', 'web'],
  options: Type.Object({}, { restart: true }),
  setup({ paths, log, service }) {
    const [access, { conversations }] = [service('access'), service('web')]
    const { folder } = conversations()
    const store = new ConversationStore(folder || join(paths.home, 'conversations'), conversations, log, folder !== '')
    const hasOwner = (owner: string) => access.callerOf(owner) !== undefined
    return { routes: conversationRoutes(store, () => conversations().place === 'server', hasOwner) }
  }
})
