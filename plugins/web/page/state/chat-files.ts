import { texts } from '../texts/texts.ts'
import { readAll, storeAll } from './chats.ts'
import { branchTo, type Chat, type Message } from './conversation-tree.ts'
import { type Preset, presets, takePresets } from './presets.ts'
import { chatModels, defaultModel } from './server-state.ts'

/** What an export holds: everything, so that nothing is lost by an import. */
interface ChatFile {
  corral: 'chats'
  version: 1
  chats: Chat[]
  messages: Message[]
  presets?: readonly Preset[]
}

/** Offers a text as a file. */
function download(name: string, type: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }))
  const link = document.createElement('a')
  link.href = address
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(address), 10_000)
}

const today = () => new Date().toISOString().slice(0, 10)

/** Offers all chats, or one, as JSON with all branches. */
export async function exportChats(id?: string): Promise<void> {
  const all = await readAll()
  const file: ChatFile = {
    corral: 'chats',
    version: 1,
    chats: all.chats.filter(chat => id === undefined || chat.id === id),
    messages: all.messages.filter(({ chat }) => id === undefined || chat === id),
    ...(id === undefined && { presets: presets.peek() })
  }
  download(`corral-chats-${today()}.json`, 'application/json', JSON.stringify(file, undefined, 2))
}

/** Offers the branch of a chat that is shown, as Markdown. */
export async function exportMarkdown(chat: Chat, you: string): Promise<void> {
  const { messages } = await readAll()
  const own = new Map(messages.filter(message => message.chat === chat.id).map(message => [message.id, message]))
  const parts = branchTo(own, chat.leaf).map(({ role, model, content, at }) => {
    const who = role === 'assistant' ? (model ?? role) : role === 'user' ? you : role
    return `## ${who}, ${new Date(at).toISOString().slice(0, 16).replace('T', ' ')}\n\n${content}`
  })
  download(`${fileName(chat.title)}.md`, 'text/markdown', `# ${chat.title}\n\n${parts.join('\n\n')}\n`)
}

const fileName = (title: string) =>
  title
    .replace(/[^\p{L}\p{N}]+/gu, '-')
    .replace(/^-|-$/g, '')
    .slice(0, 60) || 'chat'

/**
 * Takes the chats of a file: those of an export of this page, or of another program. Those that are here already are
 * replaced.
 * @returns how many there were
 * @throws Error for a file that has none, or is broken
 */
export async function importChats(file: File): Promise<number> {
  const bytes = new Uint8Array(await file.arrayBuffer())
  const own = ownChatsOf(new TextDecoder().decode(bytes))
  if (own) {
    await storeAll(own)
    takePresets(own.presets ?? [])
    return own.chats.length
  }
  const { foreignChatsOf } = await import('./foreign-chats.ts')
  let found: ReturnType<typeof foreignChatsOf>
  try {
    found = foreignChatsOf(bytes, file.name)
  } catch (error) {
    throw new Error(`${texts.peek().noKnownChats(file.name)} (${(error as Error).message})`)
  }
  if (!found) throw new Error(texts.peek().noKnownChats(file.name))
  const here = new Set(chatModels.peek().map(({ name }) => name))
  // Who goes on with a chat has one of the models that are here answer.
  const taken = found.chats.map(({ model, ...chat }) => ({
    ...chat,
    model: model !== undefined && here.has(model) ? model : defaultModel.peek()
  }))
  await storeAll({ chats: taken, messages: found.messages })
  return taken.length
}

/** What an export of this page has; undefined for another file. @throws SyntaxError for one that was changed by hand */
function ownChatsOf(text: string): ChatFile | undefined {
  let file: Partial<ChatFile>
  try {
    file = JSON.parse(text)
  } catch {
    return undefined
  }
  if (file?.corral !== 'chats') return undefined
  if (!Array.isArray(file.chats) || !Array.isArray(file.messages)) throw new SyntaxError('chats, messages')
  const isChat = ({ id, title, createdAt }: Chat) =>
    typeof id === 'string' && typeof title === 'string' && Number.isFinite(createdAt)
  const isMessage = ({ id, chat, role, content, at }: Message) =>
    [id, chat, role, content].every(field => typeof field === 'string') && Number.isFinite(at)
  if (!file.chats.every(isChat) || !file.messages.every(isMessage)) throw new SyntaxError('chats, messages')
  return file as ChatFile
}
