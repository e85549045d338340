import { type HostedEvent, isAsked, isDecided, withEvent } from './answer-calls.ts'
import { ApiError, ask, type StreamItem, send, streamOf } from './api.ts'
import { openChannel } from './browser-storage.ts'
import type { Attachment, Chat, HostedCall, Message, Settings, ToolCall } from './chat-format.ts'
import { addMessage, changeChat, changeMessage, chats, messagesOf, openChat, projectOf } from './chats.ts'
import { branchTo, isDocument, isUnderWay, requestMessages, withSummary } from './conversation-tree.ts'
import { isAllowed, toolServers, usableTools } from './hosted-tools.ts'
import { lastModel } from './preferences.ts'
import { noteRequest } from './recent-requests.ts'
import { capabilitiesOf } from './server-state.ts'

/* Requests and receives answers, which survive lost connections and reloads of the page. */

/** Answers that this tab receives, by message id. */
const running = new Map<string, AbortController>()
/** Called with the chat when an answer that this tab received has ended. */
export const afterAnswers = new Set<(chat: string) => void>()
/** Answers that other tabs reported as theirs after the last request. */
const elsewhere = new Set<string>()

/** First and maximum delay before reconnecting to a stream. */
const RETRY_MS = 500
const MAX_RETRY_MS = 5000
/** How long to wait for other tabs to claim an answer. */
const CLAIM_MS = 200
/** After a reload, a request that the server has not started to answer is repeated within this time. */
const MAX_REPEAT_MS = 120_000
/** Calls of an answer after which the user is always asked. Each approval gives the model more calls on the server. */
const MAX_CALLS_UNASKED = 64

/** Messages between tabs. The server gives a stream to one connection, so one tab receives each answer. */
type Sign = { asking: true } | { taken: string[] } | { stop: string }
const { post } = openChannel<Sign>('corral-answers', sign => {
  if ('asking' in sign) post({ taken: [...running.keys()] })
  else if ('taken' in sign) for (const id of sign.taken) elsewhere.add(id)
  else running.get(sign.stop)?.abort()
})

/** Adds a message to a chat and requests an answer. */
export async function say(chat: string, content: string, files: Attachment[]): Promise<void> {
  const parent = chats.peek().get(chat)?.leaf
  const attachments = files.length > 0 ? files : undefined
  const message = await addMessage({ chat, parent, role: 'user', content, attachments })
  await answer(chat, message.id)
}

/** Requests an answer to a message, and shows the branch that ends with it. @param model if not the chat's */
export async function answer(chatId: string, parent: string, model?: string): Promise<void> {
  const chat = chats.peek().get(chatId)!
  const asked = model ?? chat.model ?? ''
  lastModel.value = asked
  if (asked !== chat.model) await changeChat(chatId, { model: asked })
  const fields = { role: 'assistant', content: '', model: asked, state: 'waiting' } as const
  await receive(await addMessage({ chat: chatId, parent, ...fields }))
}

export async function continueAnswer(message: Message): Promise<void> {
  changeMessage(message, { state: 'waiting', finish: undefined, error: undefined })
  await receive(messagesOf(message.chat).get(message.id)!)
}

/**
 * Decides about calls of an answer that wait for the user, and continues it once all are decided.
 * @param choose returns whether a call may run, or undefined if the user has not decided about it
 */
export async function decide(
  { chat, id }: Pick<Message, 'chat' | 'id'>,
  choose: (call: HostedCall) => boolean | undefined
): Promise<void> {
  const message = messagesOf(chat).get(id)
  if (!message?.calls?.some(isAsked)) return
  const calls = message.calls.map((call): HostedCall => {
    const mayRun = isAsked(call) ? choose(call) : undefined
    return mayRun === undefined ? call : { ...call, state: mayRun ? 'approved' : 'denied' }
  })
  changeMessage(message, { calls })
  if (!calls.some(isAsked)) await continueAnswer(message)
}

/** Stops an answer. The model stops, and the text so far is kept. */
export function stop(id: string): void {
  const own = running.get(id)
  if (own) own.abort()
  else post({ stop: id })
}

/** Resumes the answers of a chat that were unfinished when the page was closed and that no other tab receives. */
export async function resumeAnswers(chatId: string): Promise<void> {
  const left = () => [...messagesOf(chatId).values()].filter(each => isUnderWay(each) && !running.has(each.id))
  if (left().length === 0) return
  elsewhere.clear()
  post({ asking: true })
  // A random delay, so that two tabs that start together do not both take it.
  await pause(CLAIM_MS * (1 + Math.random()))
  for (const message of left()) {
    if (elsewhere.has(message.id)) continue
    if (message.stream || Date.now() - message.at < MAX_REPEAT_MS) void receive(message)
    else changeMessage(message, { state: 'stopped', status: '' })
  }
}

const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

/** Maximum characters shown per update: more than models write in that time, and few enough for one frame. */
const MAX_AT_ONCE = 1000
/** Duration of a frame in milliseconds. */
const FRAME = 16

/**
 * Schedules updates of the page. Each runs in its own task, apart from layout, since both together would delay frames.
 * The next one waits until the page had as much time for everything else, such as keys and clicks.
 * @param show returns false when there is nothing left to show
 * @returns a function to call when there is something to show
 */
function showing(show: () => boolean): () => void {
  let isBusy = false
  const work = async () => {
    await pause(0)
    let began = performance.now()
    while (show()) {
      // The page renders in microtasks.
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

/**
 * Requests and receives an answer, or resumes its stream. Text is stored together with the number of its last event, so
 * that nothing is lost or doubled when the stream is resumed.
 */
async function receive(message: Message): Promise<void> {
  const controller = new AbortController()
  const { signal: stopped } = controller
  running.set(message.id, controller)
  post({ taken: [message.id] })
  const began = performance.now()
  const chat = chats.peek().get(message.chat)!
  let current: Message = message
  /** Received text that is not shown yet. */
  let pending: Pending = { content: '', thinking: '' }
  let stream = message.stream
  const isRequest = !stream
  let isDone = false
  const change = (more: Partial<Message>, often: boolean) => {
    current = { ...current, ...more }
    // The message was deleted, so its answer is not needed.
    if (!changeMessage(message, more, often)) controller.abort()
  }
  const show = () => {
    const { content, thinking, toolCalls = current.toolCalls, calls = current.calls } = pending
    if (content === '' && thinking === '' && !pending.toolCalls && !pending.calls) return false
    pending = { content: '', thinking: '' }
    const { timing } = current
    const text = current.content + content
    const more: Partial<Message> = { state: 'answering', status: '', content: text, toolCalls, calls }
    if (thinking) more.thinking = (current.thinking ?? '') + thinking
    if (stream) more.stream = { ...stream }
    if (timing?.firstText === undefined) {
      const none = { promptTokens: 0, cachedTokens: 0, answerTokens: 0 }
      more.timing = { ...none, ...timing, firstText: performance.now() - began }
    }
    change(more, true)
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
    for (const report of event.mcp ?? []) {
      const length = current.content.length + pending.content.length
      pending.calls = withEvent(pending.calls ?? current.calls ?? [], report, length)
      // The model continues to think in another turn.
      if (current.thinking || pending.thinking) pending.thinking += '\n\n'
    }
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
      const timing = {
        ...current.timing,
        promptTokens: prompt_tokens,
        cachedTokens: prompt_tokens_details?.cached_tokens ?? 0,
        answerTokens: completion_tokens,
        ...(speed !== undefined && { speed }),
        ...(promptSpeed !== undefined && { promptSpeed })
      }
      change({ timing }, true)
    }
    showSoon()
    return false
  }
  try {
    let wait = RETRY_MS
    while (true) {
      try {
        const response = stream
          ? await send('GET', `v1/streams/${stream.id}?after=${stream.last}`, { signal: stopped })
          : await send('POST', 'v1/chat/completions', {
              signal: stopped,
              headers: { 'x-corral-resumable': 'true', ...toolHeaders(chat) },
              body: await requestBody(chat, message, more => change(more, true), stopped)
            })
        wait = RETRY_MS
        const id = response.headers.get('x-corral-stream-id')
        if (id && !stream) {
          stream = { id, last: 0 }
          // From here on the answer can be resumed after a reload.
          change({ stream: { ...stream } }, false)
        }
        const dropped = Number(response.headers.get('x-corral-dropped-messages') ?? 0)
        if (dropped > 0) change({ dropped }, true)
        for await (const items of streamOf(response, stopped)) {
          for (const item of items) {
            isDone = take(item) || isDone
            // A resumed answer arrives all at once.
            while (pending.content.length + pending.thinking.length > MAX_AT_ONCE && !stopped.aborted) {
              await pause(FRAME)
              if (document.hidden) show()
            }
          }
        }
        if (isDone) break
        throw new ApiError('The connection was lost.', 0, 'connection_lost')
      } catch (error) {
        // Only an answer with a stream can be resumed. Without one the request was never sent, or the server is a
        // different one.
        if (stopped.aborted || !(error instanceof ApiError) || error.status !== 0 || !stream) throw error
        change({ status: 'reconnecting' }, true)
        await pause(wait)
        wait = Math.min(2 * wait, MAX_RETRY_MS)
      }
    }
    show()
    changeMessage(message, { state: undefined, stream: undefined, status: '' })
  } catch (error) {
    show()
    const isExpired = error instanceof ApiError && /^mcp\.approvals/.test(`${paramOf(error)}`)
    const ended = { stream: undefined, status: '', calls: undecided(current.calls, isExpired) } as Partial<Message>
    if (isExpired) changeMessage(message, { ...ended, state: undefined })
    else if (stopped.aborted) {
      changeMessage(message, { ...ended, state: 'stopped' })
      if (stream) void ask('DELETE', `v1/streams/${stream.id}`).catch(() => undefined)
    } else {
      const { message: text, code } = error instanceof ApiError ? error : { message: String(error), code: 'page_error' }
      change({ ...ended, state: 'failed', error: { message: text, code } }, false)
    }
  } finally {
    const { model, timing, error } = current
    if (isRequest)
      noteRequest({
        at: Date.now(),
        route: 'POST /v1/chat/completions',
        model,
        status: error?.code ?? 200,
        total: performance.now() - began,
        firstByte: timing?.firstText,
        generation: timing?.speed && (1000 * timing.answerTokens) / timing.speed,
        tokens: timing?.answerTokens
      })
    running.delete(message.id)
    // The finished answer is a change of the chat that the server must store.
    void changeChat(message.chat, { updatedAt: Date.now() })
    const mayRun = (call: HostedCall) => isAllowed(call, message.chat) || undefined
    if (isDone && (current.calls ?? []).length < MAX_CALLS_UNASKED) void decide(message, mayRun)
    for (const tell of afterAnswers) tell(message.chat)
  }
}

/** What was received and is not shown yet. */
interface Pending {
  content: string
  thinking: string
  toolCalls?: ToolCall[]
  calls?: HostedCall[]
}

/** Calls about which the server did not learn the decision. The user may decide again, unless they have expired. */
const undecided = (calls: readonly HostedCall[] | undefined, isExpired: boolean) =>
  calls?.map((call): HostedCall => (isDecided(call) ? { ...call, state: isExpired ? 'expired' : 'asked' } : call))

const paramOf = ({ body }: ApiError) => (body.error as { param?: string } | undefined)?.param

/** The fields of an OpenAI chat chunk that the page reads. */
interface ChunkEvent {
  choices?: {
    delta?: {
      content?: string | null
      reasoning_content?: string | null
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[]
    }
    finish_reason?: string | null
  }[]
  usage?: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: { cached_tokens?: number } }
  timings?: { predicted_per_second?: number; prompt_per_second?: number }
  prompt_progress?: { total: number; processed: number }
  mcp?: HostedEvent[]
  error?: { message: string; code?: string }
}

/** The fields of a request that become its prompt. @param branch ends with the message to answer */
export function promptFields(settings: Settings, branch: readonly Message[], model: string): object {
  const { system, schema, tools, effort } = settings
  const capabilities = capabilitiesOf(model)
  const json_schema = schema?.trim() && { name: 'answer', strict: true, schema: JSON.parse(schema) }
  return {
    model,
    messages: requestMessages(branch, system, capabilities.includes('vision')),
    reasoning_effort: !capabilities.includes('thinking') ? undefined : effort === 'off' ? 'none' : effort,
    response_format: json_schema ? { type: 'json_schema', json_schema } : undefined,
    tools: tools?.trim() ? JSON.parse(tools) : undefined
  }
}

/** The header that offers the tools of the server to the model. */
export const toolHeaders = ({ mcp }: Settings): Record<string, string> => {
  const tools = usableTools(mcp)
  return tools.length > 0 ? { 'x-corral-tools': tools.join() } : {}
}

async function requestBody(
  asked: Chat,
  message: Message,
  change: (change: Partial<Message>) => void,
  signal: AbortSignal
): Promise<object> {
  const { chat, id, model = '', calls = [] } = message
  // The server adds the calls that the user has decided about.
  const own = { ...message, calls: calls.filter(call => !isDecided(call)) }
  const all = messagesOf(chat)
  const branch = withSummary(branchTo(all, id).slice(0, -1))
  const approvals = calls
    .filter(isDecided)
    .map(({ approval, state }) => ({ id: approval, approve: state === 'approved' }))
  const bodyOf = (branch: readonly Message[]) => ({
    ...promptFields(asked, [...branch, own], model),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    options: asked.options,
    mcp: toolServers.peek().length > 0 || approvals.length > 0 ? { approves: true, approvals } : undefined
  })
  const project = projectOf(asked)
  if (project) await openChat(project)
  const hasDocuments = [...all.values(), ...messagesOf(project).values()].some(each =>
    each.attachments?.some(isDocument)
  )
  if (!hasDocuments) return bodyOf(branch)
  const { withDocuments } = await import('./chat-documents.ts')
  return bodyOf(await withDocuments({ chat: asked, branch, answer: message, bodyOf, change, signal }))
}
