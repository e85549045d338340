import { ApiError, ask, type StreamItem, send, streamOf } from './api.ts'
import { openChannel } from './browser-storage.ts'
import { addMessage, changeChat, changeMessage, chats, messagesOf } from './chats.ts'
import {
  type Attachment,
  branchTo,
  isUnderWay,
  type Message,
  requestMessages,
  type ToolCall
} from './conversation-tree.ts'
import { lastModel } from './preferences.ts'
import { noteRequest } from './recent-requests.ts'

/*
 * Asking a model, and taking its answer: over a connection that may be lost, and by a page that may be loaded again.
 */

/** Answers that this tab takes, by the ids of their messages. */
const running = new Map<string, { chat: string; controller: AbortController }>()
/** Answers that other tabs take, as far as they have said so since it was asked last. */
const elsewhere = new Set<string>()

/** Milliseconds between two tries to get back to a stream: the first, and the longest. */
const RETRY = 500
const MAX_RETRY = 5000
/** Milliseconds for other tabs to say that an answer is theirs. */
const CLAIM = 200
/** Milliseconds within which a question that the server has not begun to answer is asked again by a page that was loaded. */
const FRESH = 120_000

/** The server gives a stream to one connection, so that of all tabs one takes an answer, and tells the others. */
type Sign = { asking: true } | { taken: string[] } | { stop: string } | { left: string[] }
const { post } = openChannel<Sign>('corral-answers', sign => {
  if ('asking' in sign) post({ taken: [...running.keys()] })
  else if ('taken' in sign) for (const id of sign.taken) elsewhere.add(id)
  else if ('stop' in sign) running.get(sign.stop)?.controller.abort()
  // Only chats that are open here have messages to go on with.
  else for (const chat of sign.left) void resumeAnswers(chat)
})
addEventListener('pagehide', () => post({ left: [...new Set([...running.values()].map(({ chat }) => chat))] }))

/** Says something in a chat and has it answered. */
export async function say(
  chatId: string,
  text: string,
  attachments: Attachment[],
  parent = leafOf(chatId)
): Promise<void> {
  const message = await addMessage({
    chat: chatId,
    ...(parent !== undefined && { parent }),
    role: 'user',
    content: text,
    ...(attachments.length > 0 && { attachments })
  })
  await answer(chatId, message.id)
}

const leafOf = (chat: string) => chats.peek().get(chat)?.leaf

/**
 * Has a message answered; the answer becomes the end of the branch.
 * @param parent the message; the answer is a sibling of others that it has
 * @param model if not the chat's
 */
export async function answer(chatId: string, parent: string, model?: string): Promise<void> {
  const chat = chats.peek().get(chatId)!
  const asked = model ?? chat.model ?? ''
  lastModel.value = asked
  if (asked !== chat.model) await changeChat(chatId, { model: asked })
  const branch = branchTo(messagesOf(chatId), parent)
  const message = await addMessage({
    chat: chatId,
    parent,
    role: 'assistant',
    content: '',
    model: asked,
    state: 'waiting'
  })
  await receive(message, requestMessages(branch, chat.system))
}

/** Goes on with an answer that was cut off. */
export async function continueAnswer(message: Message): Promise<void> {
  const { system } = chats.peek().get(message.chat)!
  const branch = branchTo(messagesOf(message.chat), message.id)
  changeMessage(message, { state: 'waiting', finish: undefined, error: undefined })
  await receive(message, requestMessages(branch, system))
}

/** Ends an answer: the model stops, and what it has said stays. */
export function stop(id: string): void {
  const own = running.get(id)
  if (own) own.controller.abort()
  else post({ stop: id })
}

/** Takes up the answers of a chat that were under way when the page was left, and that no other tab takes. */
export async function resumeAnswers(chatId: string): Promise<void> {
  const left = () => [...messagesOf(chatId).values()].filter(each => isUnderWay(each) && !running.has(each.id))
  if (left().length === 0) return
  elsewhere.clear()
  post({ asking: true })
  // Two tabs that begin at the same moment do not end at the same one.
  await pause(CLAIM * (1 + Math.random()))
  for (const message of left()) {
    if (elsewhere.has(message.id)) continue
    if (message.stream) void receive(message, undefined)
    else if (Date.now() - message.at < FRESH) {
      const { parent = '', content, id } = message
      const branch = branchTo(messagesOf(chatId), content === '' ? parent : id)
      void receive(message, requestMessages(branch, chats.peek().get(chatId)?.system))
    } else changeMessage(message, { state: 'stopped', status: '' })
  }
}

const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

/** Characters that are shown at a time: more than models write meanwhile, and less than makes a frame late. */
const MAX_AT_ONCE = 1000
/** Milliseconds of a frame. */
const FRAME = 16

/**
 * Shows what comes: in tasks apart from those in which browsers lay it out, since both together make frames late; and
 * after each of them not before the page has had as much time for everything else, such as keys and clicks.
 * @param show returns false once there is nothing more to show
 * @returns what is called when there is something to show
 */
function showing(show: () => boolean): () => void {
  let isBusy = false
  const work = async () => {
    await pause(0)
    let began = performance.now()
    while (show()) {
      // The page does its own part of it in microtasks.
      await undefined
      let took = performance.now() - began
      began = await new Promise<number>(resolve =>
        requestAnimationFrame(() => {
          const began = performance.now()
          setTimeout(() => resolve(began))
        })
      )
      took += performance.now() - began
      await pause(took)
      began = performance.now()
    }
    isBusy = false
  }
  return () => {
    // Hidden tabs have no frames.
    if (document.hidden) show()
    else if (!isBusy) {
      isBusy = true
      void work()
    }
  }
}

/** What has come and is not shown yet. */
interface Pending {
  content: string
  thinking: string
  toolCalls: ToolCall[] | undefined
}

/**
 * Takes an answer. What comes is shown, and written down together with the number of its last event, so that
 * nothing is lost or doubled when the stream is taken up again.
 * @param messages what is asked; undefined where the answer is under way already
 */
async function receive(message: Message, messages: unknown[] | undefined): Promise<void> {
  const controller = new AbortController()
  const { signal: stopped } = controller
  running.set(message.id, { chat: message.chat, controller })
  post({ taken: [message.id] })
  const began = performance.now()
  const chat = chats.peek().get(message.chat)!
  let current: Message = message
  const pending: Pending = { content: '', thinking: '', toolCalls: undefined }
  let stream = message.stream
  const change = (more: Partial<Message>, often: boolean) => {
    current = { ...current, ...more }
    // What was deleted needs no answer.
    if (!changeMessage(message, more, often)) controller.abort()
  }
  const show = () => {
    const { content, thinking, toolCalls } = pending
    if (content === '' && thinking === '' && !toolCalls) return false
    pending.content = ''
    pending.thinking = ''
    pending.toolCalls = undefined
    change(
      {
        state: 'answering',
        status: '',
        content: current.content + content,
        ...(thinking && { thinking: (current.thinking ?? '') + thinking }),
        ...(toolCalls && { toolCalls }),
        ...(stream && { stream: { ...stream } }),
        ...(current.timing?.firstText === undefined && {
          timing: {
            promptTokens: 0,
            cachedTokens: 0,
            answerTokens: 0,
            ...current.timing,
            firstText: performance.now() - began
          }
        })
      },
      true
    )
    return true
  }
  const showSoon = showing(show)
  const take = (item: StreamItem): boolean => {
    if ('comment' in item) {
      if (item.comment && current.state === 'waiting') change({ status: item.comment }, true)
      return false
    }
    if (item.id && stream) stream.last = Number(item.id)
    if (item.data === '[DONE]') return true
    const event: ChunkEvent = JSON.parse(item.data)
    if (event.error) throw new ApiError(event.error.message, 200, event.error.code ?? 'unknown')
    const progress = event.prompt_progress
    if (progress && progress.processed < progress.total) {
      change({ status: `prompt ${Math.floor((100 * progress.processed) / progress.total)}%` }, true)
    }
    const choice = event.choices?.[0]
    const delta = choice?.delta ?? {}
    pending.content += delta.content ?? ''
    pending.thinking += delta.reasoning_content ?? ''
    for (const call of delta.tool_calls ?? []) {
      pending.toolCalls ??= (current.toolCalls ?? []).map(call => ({ ...call }))
      pending.toolCalls[call.index] ??= { id: '', name: '', arguments: '' }
      const known = pending.toolCalls[call.index]!
      known.id ||= call.id ?? ''
      known.name += call.function?.name ?? ''
      known.arguments += call.function?.arguments ?? ''
    }
    if (choice?.finish_reason) change({ finish: choice.finish_reason }, true)
    if (event.usage) {
      const { prompt_tokens, completion_tokens, prompt_tokens_details } = event.usage
      const { predicted_per_second: speed, prompt_per_second: promptSpeed } = event.timings ?? {}
      change(
        {
          timing: {
            ...current.timing,
            promptTokens: prompt_tokens,
            cachedTokens: prompt_tokens_details?.cached_tokens ?? 0,
            answerTokens: completion_tokens,
            ...(speed !== undefined && { speed }),
            ...(promptSpeed !== undefined && { promptSpeed })
          }
        },
        true
      )
    }
    showSoon()
    return false
  }
  try {
    let wait = RETRY
    while (true) {
      try {
        const response = stream
          ? await send('GET', `v1/streams/${stream.id}?after=${stream.last}`, { signal: stopped })
          : await send('POST', 'v1/chat/completions', {
              signal: stopped,
              headers: { 'x-corral-resumable': 'true' },
              body: bodyOf(chat, current, messages!)
            })
        wait = RETRY
        const id = response.headers.get('x-corral-stream-id')
        if (id && !stream) {
          stream = { id, last: 0 }
          // From now on a page that is loaded again can go on.
          change({ stream: { ...stream } }, false)
        }
        const dropped = Number(response.headers.get('x-corral-dropped-messages') ?? 0)
        if (dropped > 0) change({ dropped }, true)
        let isDone = false
        for await (const items of streamOf(response, stopped)) {
          for (const item of items) {
            isDone = take(item) || isDone
            // An answer that is taken up again comes all at once.
            while (pending.content.length + pending.thinking.length > MAX_AT_ONCE && !stopped.aborted) {
              await pause(FRAME)
              if (document.hidden) show()
            }
          }
        }
        if (isDone) break
        throw new ApiError('The connection was lost.', 0, 'connection_lost')
      } catch (error) {
        // What has a stream can be taken up again; what has none was never asked, or its server is another one now.
        if (stopped.aborted || !(error instanceof ApiError) || error.status !== 0 || !stream) throw error
        change({ status: 'reconnecting' }, true)
        await pause(wait)
        wait = Math.min(2 * wait, MAX_RETRY)
      }
    }
    show()
    changeMessage(message, { state: undefined, stream: undefined, status: '' })
  } catch (error) {
    show()
    const ended = { stream: undefined, status: '' } as Partial<Message>
    if (stopped.aborted) {
      changeMessage(message, { ...ended, state: 'stopped' })
      if (stream) void ask('DELETE', `v1/streams/${stream.id}`).catch(() => undefined)
    } else {
      const { message: text, code } = error instanceof ApiError ? error : { message: String(error), code: 'page_error' }
      change({ ...ended, state: 'failed', error: { message: text, code } }, false)
    }
  } finally {
    if (messages) noteAnswer(current, performance.now() - began)
    running.delete(message.id)
    // The chat has changed once more, which those who keep it must know.
    void changeChat(message.chat, { updatedAt: Date.now() })
  }
}

/** Keeps where an answer's time went. @param total ms */
function noteAnswer({ model, timing, error }: Message, total: number): void {
  noteRequest({
    at: Date.now(),
    route: 'POST /v1/chat/completions',
    ...(model !== undefined && { model }),
    status: error?.code ?? 200,
    total,
    ...(timing?.firstText !== undefined && { firstByte: timing.firstText }),
    ...(timing?.speed && { generation: (1000 * timing.answerTokens) / timing.speed }),
    ...(timing && { tokens: timing.answerTokens })
  })
}

/** A chunk of a hosted-chat stream, as far as the page reads it. */
interface ChunkEvent {
  choices?: {
    delta?: {
      content?: string | null
      reasoning_content?: string | null
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[]
    }
    finish_reason?: string | null
  }[]
  usage?: {
    prompt_tokens: number
    completion_tokens: number
    prompt_tokens_details?: { cached_tokens?: number }
  }
  timings?: { predicted_per_second?: number; prompt_per_second?: number }
  prompt_progress?: { total: number; processed: number }
  error?: { message: string; code?: string }
}

function bodyOf(
  { options, schema, tools }: { options?: Record<string, unknown>; schema?: string; tools?: string },
  { model }: Message,
  messages: unknown[]
): object {
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    ...(options && { options }),
    ...(schema?.trim() && {
      response_format: {
        type: 'json_schema',
        json_schema: { name: 'answer', strict: true, schema: JSON.parse(schema) }
      }
    }),
    ...(tools?.trim() && { tools: JSON.parse(tools) })
  }
}
