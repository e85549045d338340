import { computed } from '@preact/signals'
import { ask, countTokens } from './api.ts'
import type { Attachment, Chat, Message, Source } from './chat-format.ts'
import { chats, editMessage, messagesOf, projectOf } from './chats.ts'
import { isDocument } from './conversation-tree.ts'
import {
  embed,
  forgetVectors,
  type Indexed,
  indexDocuments,
  indexingState,
  indexStates,
  vectorsOf
} from './passage-index.ts'
import {
  bestOf,
  estimateTokens,
  fitsByEstimate,
  passagesOf,
  promptRoom,
  scoreTerms,
  similarity,
  termCounter,
  termsOf,
  withPassages
} from './passage-search.ts'
import { searchModel } from './preferences.ts'
import { digest, models } from './server-state.ts'

/*
 * The documents of a chat are the texts attached to its messages and to its project. A question gets the whole texts if
 * they fit into the context, otherwise the passages that match the question best.
 */

/** Passages of all documents of a chat. A book has about 1000. */
export const MAX_PASSAGES = 10_000
const MAX_SENT = 8
/** Shorter questions are searched with the question before, which they may continue. */
const SHORT_QUESTION = 20
/** Time for one step, in milliseconds, so that no frame is late. */
const STEP_MS = 8

/** The models that make embeddings, and the one to use with its version: the chosen model, otherwise the first one. */
export const embeddingModels = computed(() => {
  const all = models.value.filter(({ capabilities }) => capabilities.includes('embedding'))
  const used = all.find(({ name }) => name === searchModel.value) ?? all[0]
  return { names: all.map(({ name }) => name), version: used && `${used.name} ${used.digest}` }
})

const ids = new WeakMap<Attachment, string>()

/** Identifies a document by its name and text. */
function idOf(document: Attachment): string {
  const { name, data } = document
  const id = ids.get(document) ?? `${data.length} ${digest(name + data)}`
  ids.set(document, id)
  return id
}

/** The documents in messages by id. */
export const documentsIn = (messages: Iterable<Message>): Map<string, Attachment> =>
  new Map(
    [...messages].flatMap(({ attachments = [] }) => attachments.filter(isDocument).map(each => [idOf(each), each]))
  )

/** The chats whose documents a chat uses: itself and its project. */
const homesOf = (chat: string) => [chat, projectOf(chats.peek().get(chat) ?? {})].filter(Boolean)

/** The documents that a chat uses, by id. */
export const documentsOf = (chat: string): Map<string, Attachment> =>
  documentsIn(homesOf(chat).flatMap(home => [...messagesOf(home).values()]))

/** About the tokens of documents. */
export const tokensOf = (documents: ReadonlyMap<string, Attachment>): number =>
  [...documents.values()].reduce((sum, { data }) => sum + estimateTokens(data), 0)

/** Removes a document from a chat. Its name stays in the message that it was attached to. */
export async function removeDocument(chat: string, id: string): Promise<void> {
  const isIt = (each: Attachment) => isDocument(each) && idOf(each) === id
  for (const message of messagesOf(chat).values()) {
    const { attachments = [] } = message
    const left = attachments.map(each => (isIt(each) ? { ...each, data: '' } : each))
    if (attachments.some(isIt)) await editMessage(message, { attachments: left })
  }
  await forgetVectors(chat, [...documentsIn(messagesOf(chat).values()).keys()])
}

/** Takes items in short steps, so that no frame is late. */
async function gradually<Item>(items: Iterable<Item>, take: (item: Item) => unknown): Promise<void> {
  let began = performance.now()
  for (const item of items) {
    take(item)
    if (performance.now() - began < STEP_MS) continue
    await new Promise(resolve => setTimeout(resolve))
    began = performance.now()
  }
}

const split = new WeakMap<Attachment, Source[]>()

/** The passages of documents. They are kept as long as a document is in memory. */
async function indexedOf(homes: readonly string[]): Promise<Indexed[]> {
  const all = new Map<string, Indexed>()
  let left = MAX_PASSAGES
  for (const chat of homes) {
    for (const [id, document] of documentsIn(messagesOf(chat).values())) {
      if (all.has(id)) continue
      const passages = split.get(document) ?? []
      if (!split.has(document)) await gradually(passagesOf(document.name, document.data), each => passages.push(each))
      split.set(document, passages)
      all.set(id, { chat, id, passages: passages.slice(0, left) })
      left = Math.max(0, left - passages.length)
    }
  }
  return [...all.values()]
}

/** Continues to index the documents of a chat that were searched before. @param again although the user stopped it */
export async function continueIndexing(chat: string, again = false): Promise<void> {
  const state = await indexingState(chat)
  const { version } = embeddingModels.peek()
  if (!version || state === 'none' || (state === 'stopped' && !again)) return
  const documents = await indexedOf([chat])
  await forgetVectors(
    chat,
    documents.map(({ id }) => id)
  )
  if (documents.length > 0) await indexDocuments(chat, documents, version)
}

/** Finds the passages for a question. `search`: whether they were compared by meaning, or only by words. */
async function find(documents: readonly Indexed[], question: string, signal: AbortSignal) {
  const passages = documents.flatMap(({ passages }) => passages)
  const count = termCounter(termsOf(question))
  const counts: number[][] = []
  await gradually(passages, ({ text, heading = '' }) => counts.push(count(`${heading}\n${text}`)))
  const lengths = passages.map(({ text }) => text.length)
  const scores = [scoreTerms(counts, lengths)]
  const { version = '' } = embeddingModels.peek()
  const rows = await Promise.all(documents.map(({ chat, id }) => vectorsOf(chat, id, version)))
  // Without its model, or if that fails, words are enough.
  const asked = rows.some(Boolean) ? await embed(version, [question], 'query', signal).catch(() => []) : []
  signal.throwIfAborted()
  const vector = asked[0]
  if (vector) {
    const meanings: number[] = []
    const places = documents.flatMap(({ passages }, at) => passages.map((_, index) => ({ row: rows[at], index })))
    await gradually(places, ({ row, index }) =>
      meanings.push(row && index < row.count ? similarity(vector, row.vectors, index) : 0)
    )
    scores.push(meanings)
  }
  const found = bestOf(scores, MAX_SENT)
  // Nothing matches: the beginnings tell at least what the documents are about.
  const best = found.length > 0 ? found.map(index => passages[index]!) : passages.slice(0, 2)
  return { sources: best, search: vector ? 'meaning' : 'words' } as const
}

interface Asked {
  chat: Chat
  /** The branch up to the question, and the answer to it. */
  branch: readonly Message[]
  answer: Message
  /** Makes a request from a branch. */
  bodyOf: (branch: readonly Message[]) => object
  change: (change: Partial<Message>) => void
  signal: AbortSignal
}

/** Puts the documents of a chat into the messages of a request: the whole texts, or passages for the question. */
export async function withDocuments({ chat, branch, answer, bodyOf, change, signal }: Asked): Promise<Message[]> {
  const documents = documentsOf(chat.id)
  const question = branch.findLast(({ role }) => role === 'user')
  if (!question) return [...branch]
  const searched = (sources: readonly Source[]) =>
    branch.map(message => {
      const { attachments = [], content } = message
      const others = attachments.filter(each => each.kind !== 'text')
      return {
        ...message,
        attachments: others,
        content: message === question ? withPassages(content, sources) : content
      }
    })
  // A continued answer keeps the numbers of its passages.
  if (answer.sources && answer.content !== '') return searched(answer.sources)
  const missing = new Map(documents)
  for (const id of documentsIn(branch).keys()) missing.delete(id)
  const first = branch.find(({ role }) => role === 'user')
  const whole = branch.map(message =>
    message === first ? { ...message, attachments: [...missing.values(), ...(message.attachments ?? [])] } : message
  )
  const window = await windowOf(answer.model ?? '', signal)
  const room = window === undefined ? Infinity : promptRoom(window, chat.options)
  const fits = async (branch: readonly Message[]) => {
    const body = bodyOf(branch)
    // Tokens of images and sounds do not depend on the length of their data.
    const text = JSON.stringify(body, (name, value) => (name === 'url' || name === 'data' ? '' : value))
    const tokens = estimateTokens(text)
    return fitsByEstimate(tokens, room) ?? (await tokensOrEstimate(body, tokens, answer, signal)) <= room
  }
  // Not even written as a request, since that would delay a frame.
  const isTooLong = fitsByEstimate(tokensOf(documents), room) === false
  if (!isTooLong && (await fits(whole))) {
    change({ sources: undefined, search: undefined })
    return whole
  }
  const homes = homesOf(chat.id)
  const indexed = await indexedOf(homes)
  const unfollow = indexStates.subscribe(states => {
    const sum = (field: 'done' | 'total') => homes.reduce((sum, home) => sum + (states.get(home)?.[field] ?? 0), 0)
    change({ status: `documents ${Math.floor((100 * sum('done')) / (sum('total') || 1))}%` })
  })
  // The user may stop indexing to get an answer sooner.
  const { version = '' } = embeddingModels.peek()
  const index = async (home: string) => {
    const own = version ? indexed.filter(({ chat }) => chat === home) : []
    if ((await indexingState(home)) !== 'stopped') await indexDocuments(home, own, version)
  }
  const stopped = new Promise<never>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
  await Promise.race([Promise.all(homes.map(index)), stopped]).finally(unfollow)
  const before = branch.findLast(each => each.role === 'user' && each !== question)
  const isShort = question.content.length < SHORT_QUESTION && before
  const wanted = isShort ? `${before.content.slice(0, 500)} ${question.content}` : question.content
  const { sources: found, search } = await find(indexed, wanted.slice(0, 2000), signal)
  let sources = found
  while (sources.length > 1 && !(await fits(searched(sources)))) sources = sources.slice(0, sources.length >> 1)
  change({ sources, search, status: '' })
  return searched(sources)
}

/** The largest context of a model. Undefined if the server does not know. */
async function windowOf(model: string, signal: AbortSignal): Promise<number | undefined> {
  const shown = ask<{ context_window?: number }>('POST', 'api/show', { body: { model }, signal })
  const { context_window: window } = await shown.catch(() => ({ context_window: undefined }))
  signal.throwIfAborted()
  return window || undefined
}

/** Lets the server count the tokens of a request, if it has the model's tokenizer. */
async function tokensOrEstimate(
  body: object,
  otherwise: number,
  { model }: Message,
  signal: AbortSignal
): Promise<number> {
  if (models.peek().some(({ name, format }) => name === model && format === 'remote')) return otherwise
  const counted = countTokens({ ...body, stream: false, stream_options: undefined }, { signal })
  const tokens = await counted.catch(() => otherwise)
  signal.throwIfAborted()
  return tokens
}
