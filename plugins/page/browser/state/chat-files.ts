import { parseAnyJson } from '../../../../core/system/json-object.ts'
import { fill, texts } from '../texts/texts.ts'
import { partsOf } from './answer-calls.ts'
import type { Chat, HostedCall, Message, ResultFile } from './chat-format.ts'
import { readAll, readChat, storeAll } from './chats.ts'
import { branchTo } from './conversation-tree.ts'
import { type Preset, presets, prompts, type SavedPrompt, takePresets, takePrompts } from './presets.ts'
import { chatModels, defaultModel } from './server-state.ts'

/** An export contains everything, so that an import loses nothing. */
interface ChatFile {
  corral: 'chats'
  version: 1
  chats: Chat[]
  messages: Message[]
  presets?: readonly Preset[]
  prompts?: readonly SavedPrompt[]
}

export function download(name: string, type: string, content: BlobPart): void {
  const address = URL.createObjectURL(new Blob([content], { type }))
  const link = document.createElement('a')
  link.href = address
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(address), 10_000)
}

/** Decodes base64. */
export const bytesOf = (base64: string) => Uint8Array.from(atob(base64), letter => letter.charCodeAt(0))

/** Converts files of a tool server to the form of files that a user chooses. */
export const filesOf = (files: readonly ResultFile[]): File[] =>
  files.map(({ name, type, data }) => new File([bytesOf(data)], name, { type }))

const today = () => new Date().toISOString().slice(0, 10)

/** Exports one chat, or all, as JSON with all branches. */
export async function exportChats(id?: string): Promise<void> {
  const all = await readAll()
  const file: ChatFile = {
    corral: 'chats',
    version: 1,
    chats: all.chats.filter(chat => id === undefined || chat.id === id),
    messages: all.messages.filter(({ chat }) => id === undefined || chat === id),
    ...(id === undefined && { presets: presets.peek(), prompts: prompts.peek() })
  }
  download(`corral-chats-${today()}.json`, 'application/json', JSON.stringify(file, undefined, 2))
}

/** Reads the current branch of a chat. */
export async function readBranch({ id, leaf }: Chat): Promise<Message[]> {
  const { messages } = (await readChat(id))!
  return branchTo(new Map(messages.map(message => [message.id, message])), leaf)
}

/** Who wrote a message, and when. */
export function headingOf({ role, model = role, at }: Message): string {
  const who = role === 'assistant' ? model : role === 'user' ? texts.peek().you : role
  return `${who}, ${new Date(at).toISOString().slice(0, 16).replace('T', ' ')}`
}

/** Exports the current branch of a chat as Markdown. */
export async function exportMarkdown(chat: Chat): Promise<void> {
  const parts = (await readBranch(chat)).map(message => `## ${headingOf(message)}\n\n${markdownOf(message)}`)
  download(`${fileName(chat.title)}.md`, 'text/markdown', `# ${chat.title}\n\n${parts.join('\n\n')}\n`)
}

/** The text of a message with its calls and summary. */
export function markdownOf(message: Message): string {
  const steps = partsOf(message).flatMap(({ text, calls }) => [text, ...calls.map(callText)])
  if (message.summary) steps.push(`### ${texts.peek().summary}`, message.summary)
  return steps.filter(Boolean).join('\n\n')
}

/** A call and its result, indented so that no result can look like text of the chat. */
const callText = ({ server, tool, arguments: given, output = '' }: HostedCall) =>
  [`**${server} · ${tool}**`, indented(given), indented(output)].filter(Boolean).join('\n\n')

const indented = (text: string) => text.trimEnd().replace(/^/gm, '    ').trimEnd()

export const fileName = (title: string) =>
  title
    .replace(/[^\p{L}\p{N}]+/gu, '-')
    .replace(/^-|-$/g, '')
    .slice(0, 60) || 'chat'

/** Maximum size of a file, and of its unpacked contents. */
const MAX_FILE_BYTES = 512 * 2 ** 20

/** Imports all chats of a file, or none if any is broken. Replaces chats with the same ids. @returns the count */
export async function importChats(file: File): Promise<number> {
  const t = texts.peek()
  if (file.size > MAX_FILE_BYTES) throw new Error(fill(t.importTooLarge, { name: file.name }))
  const [{ checkedChats, ChatFault }, { arePresets, arePrompts }, { foreignChats }] = await Promise.all([
    import('./chat-check.ts'),
    import('./chat-format.ts'),
    import('./foreign-chats.ts')
  ])
  const bytes = new Uint8Array(await file.arrayBuffer())
  let own: ChatFile | undefined
  let found: { chats: Chat[]; messages: Message[] } | undefined
  try {
    own = ownChatsOf(new TextDecoder().decode(bytes))
    const given = own ?? foreignChats(bytes, file.name, MAX_FILE_BYTES)
    found = given && checkedChats(given.chats, given.messages, own !== undefined)
    if (!arePresets(own?.presets ?? [])) throw new ChatFault('', fill(t.chatFaults.field, { field: 'presets' }))
    if (!arePrompts(own?.prompts ?? [])) throw new ChatFault('', fill(t.chatFaults.field, { field: 'prompts' }))
  } catch (error) {
    const { message } = error as Error
    throw new Error(
      error instanceof ChatFault
        ? `${file.name}: ${message}`
        : `${fill(t.noKnownChats, { name: file.name })} (${message})`
    )
  }
  if (!found) throw new Error(fill(t.noKnownChats, { name: file.name }))
  const here = new Set(chatModels.peek().map(({ name }) => name))
  // Continue chats of other programs with an installed model.
  const modelOf = ({ model = '' }: Chat) => (here.has(model) ? model : defaultModel.peek())
  await storeAll({
    chats: own ? found.chats : found.chats.map(chat => ({ ...chat, model: modelOf(chat) })),
    messages: found.messages
  })
  takePresets(own?.presets ?? [])
  takePrompts(own?.prompts ?? [])
  return found.chats.filter(({ isProject }) => !isProject).length
}

/** Parses an export of this page. Returns undefined for other files. @throws SyntaxError if the lists are missing */
function ownChatsOf(text: string): ChatFile | undefined {
  const file = parseAnyJson(text) as Partial<ChatFile> | null | undefined
  if (file?.corral !== 'chats') return undefined
  if (!Array.isArray(file.chats) || !Array.isArray(file.messages)) throw new SyntaxError('chats, messages')
  return file as ChatFile
}
