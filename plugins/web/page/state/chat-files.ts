import { readAll, storeAll } from './chats.ts'
import { branchTo, type Chat, type Message } from './conversation-tree.ts'

/** What an export holds: everything, so that nothing is lost by an import. */
interface ChatFile {
  corral: 'chats'
  version: 1
  chats: Chat[]
  messages: Message[]
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
    messages: all.messages.filter(({ chat }) => id === undefined || chat === id)
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
 * Takes the chats of an export. Those that are here already are replaced.
 * @returns how many there were
 * @throws Error for what is no export
 */
export async function importChats(text: string): Promise<number> {
  const file = JSON.parse(text) as Partial<ChatFile>
  if (file.corral !== 'chats' || !Array.isArray(file.chats) || !Array.isArray(file.messages)) {
    throw new SyntaxError('corral: "chats"')
  }
  const isChat = ({ id, title, createdAt }: Chat) =>
    typeof id === 'string' && typeof title === 'string' && Number.isFinite(createdAt)
  const isMessage = ({ id, chat, role, content, at }: Message) =>
    [id, chat, role, content].every(field => typeof field === 'string') && Number.isFinite(at)
  if (!file.chats.every(isChat) || !file.messages.every(isMessage)) throw new SyntaxError('chats, messages')
  await storeAll({ chats: file.chats, messages: file.messages })
  return file.chats.length
}
