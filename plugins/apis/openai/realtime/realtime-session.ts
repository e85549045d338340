import { randomUUID } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import { wavHeader } from '../../../../core/answers/wav-header.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { sendInternally } from '../../../../core/http/internal-request.ts'
import { toCorralError } from '../../../../core/http/native-error.ts'
import { merged } from '../../../../core/system/collections.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { SpeechDetector } from './speech-detector.ts'

/*
 * One session of the realtime API. Each step (hear, answer, speak) is a request to corral's own REST API on behalf of the
 * client, so keys, limits, usage and the audit log work as for every other request.
 */

const RATE = 24_000
const BYTES_PER_MS = (2 * RATE) / 1000
const MIN_COMMIT_MS = 100
/** Bytes of one recording, almost six minutes. */
const MAX_RECORDING_BYTES = 16 * 2 ** 20
/** Recordings whose transcripts are not complete. */
const MAX_UNHEARD = 4
const MAX_ITEMS = 500
const PARTS = ['input_text', 'output_text', 'text', 'input_audio', 'output_audio']
/** Characters of a text from the client, of its settings, and of all items together. */
const MAX_TEXT_LENGTH = 2 ** 18
const MAX_SETTINGS_LENGTH = 2 ** 18
const MAX_CONVERSATION_LENGTH = 2 ** 22
/** The sound of an event. */
const PIECE_BYTES = 32_768
/** Silence before detected speech that is kept. */
const PREFIX_MS = 300

type Fields = Record<string, unknown>

interface Item {
  id: string
  role: 'user' | 'assistant' | 'system'
  content: Fields[]
  /** Settles when a recording has its transcript. */
  heard?: Promise<void>
}

interface SessionDependencies {
  /** The request that opened the session. All further requests are made for its client. */
  request: FastifyRequest<{ Querystring: { model?: string; intent?: string } }>
  /** The models that the client may use. */
  models(): readonly Model[]
  send(event: Fields): void
}

const newId = (kind: string) => `${kind}_${randomUUID().replaceAll('-', '').slice(0, 21)}`
const invalid = (message: string, param?: string) =>
  new CorralError('invalid_request', message, param === undefined ? {} : { param })
const tooLong = (advice: string) =>
  new CorralError('over_limit', `The recording has more than ${MAX_RECORDING_BYTES} bytes. ${advice}`, {
    param: 'audio'
  })
const fields = (value: unknown): Fields => (isObject(value) ? value : {})

export class RealtimeSession {
  readonly #deps: SessionDependencies
  readonly #ended = new AbortController()
  readonly #detector = new SpeechDetector()
  readonly #items: Item[] = []
  #session: Fields
  #recording: Buffer[] = []
  #bytes = 0
  #unheard = 0
  #response: { id: string; stop: AbortController } | undefined

  constructor(deps: SessionDependencies) {
    this.#deps = deps
    const format = { type: 'audio/pcm', rate: RATE }
    const { model, intent } = deps.request.query
    const isTranscription = intent === 'transcription'
    const input = { format, transcription: null, turn_detection: { type: 'server_vad' }, noise_reduction: null }
    this.#session = {
      id: newId('sess'),
      object: 'realtime.session',
      type: isTranscription ? 'transcription' : 'realtime',
      ...(!isTranscription && { model, output_modalities: ['audio'], instructions: '' }),
      audio: isTranscription ? { input } : { input, output: { format, voice: 'alloy', speed: 1 } }
    }
  }

  begin(): void {
    this.#send('session.created', { session: this.#session })
  }

  end(): void {
    this.#ended.abort()
    this.#recording = []
  }

  /** Handles an event of the client. Sends an `error` event if it is invalid. */
  receive(text: string): void {
    let event: Fields = {}
    try {
      event = fields(JSON.parse(text))
      const handle = Object.hasOwn(this.#handlers, String(event.type)) && this.#handlers[String(event.type)]
      if (!handle)
        throw invalid(`There is no event of the type ${JSON.stringify(event.type)?.slice(0, 100)} here.`, 'type')
      handle(event)
    } catch (error) {
      const failure = error instanceof SyntaxError ? invalid('The event is not valid JSON.') : error
      const { event_id } = event
      this.#send('error', { error: { ...errorFields(failure), ...(typeof event_id === 'string' && { event_id }) } })
    }
  }

  readonly #handlers: Record<string, (event: Fields) => void> = {
    'session.update': ({ session }) => {
      const next = updated(this.#session, fields(session))
      const { input, output } = fields(next.audio)
      for (const [name, part] of Object.entries({ input, output })) {
        const { type, rate = RATE } = fields(fields(part).format ?? { type: 'audio/pcm' })
        if (type === 'audio/pcm' && rate === RATE) continue
        throw invalid(`Only the format audio/pcm with ${RATE} Hz is supported.`, `session.audio.${name}.format`)
      }
      if (Array.isArray(next.tools) && next.tools.length > 0) {
        throw invalid('Realtime sessions have no tools here. Leave them out.', 'session.tools')
      }
      if (JSON.stringify(next).length > MAX_SETTINGS_LENGTH) {
        throw invalid(`The settings have more than ${MAX_SETTINGS_LENGTH} characters. Send shorter ones.`, 'session')
      }
      this.#session = next
      this.#send('session.updated', { session: next })
    },
    'input_audio_buffer.append': ({ audio }) => this.#append(samples(audio, 'audio')),
    'input_audio_buffer.commit': () => {
      this.#commit()
      this.#detector.reset()
    },
    'input_audio_buffer.clear': () => {
      this.#clear()
      this.#detector.reset()
      this.#send('input_audio_buffer.cleared')
    },
    'conversation.item.create': ({ item }) => this.#create(fields(item)),
    'conversation.item.delete': ({ item_id }) => {
      const at = this.#items.findIndex(({ id }) => id === item_id)
      if (at === -1) throw invalid('There is no item with this id.', 'item_id')
      this.#items.splice(at, 1)
      this.#send('conversation.item.deleted', { item_id })
    },
    'response.create': ({ response }) => this.#respond(fields(response)),
    'response.cancel': () => {
      if (!this.#response) throw invalid('There is no response to cancel.')
      this.#response.stop.abort()
    }
  }

  #send(type: string, more: Fields = {}): void {
    this.#deps.send({ type, event_id: newId('event'), ...more })
  }

  #append(bytes: Buffer): void {
    const { turn_detection } = fields(fields(this.#session.audio).input)
    if (this.#bytes + bytes.length > MAX_RECORDING_BYTES) throw tooLong('Commit or clear it first.')
    this.#recording.push(bytes)
    this.#bytes += bytes.length
    try {
      const { request } = this.#deps
      request.server.bodyMemory.takeInAll(request, this.#bytes + this.#unheard * MAX_RECORDING_BYTES)
    } catch (error) {
      this.#clear()
      throw error
    }
    if (!isObject(turn_detection)) return
    this.#detector.add(bytes, turn_detection, () => this.#turn(turn_detection))
    if (this.#detector.isSpeaking || this.#bytes <= 4 * PREFIX_MS * BYTES_PER_MS) return
    this.#recording = [Buffer.from(this.#clear().subarray(-PREFIX_MS * BYTES_PER_MS))]
    this.#bytes = this.#recording[0]!.length
  }

  /** Someone began or stopped speaking. */
  #turn({ create_response, interrupt_response }: Fields): void {
    const isSpeaking = this.#detector.isSpeaking
    this.#send(`input_audio_buffer.speech_${isSpeaking ? 'started' : 'stopped'}`)
    if (isSpeaking && interrupt_response !== false) this.#response?.stop.abort()
    if (isSpeaking) return
    this.#commit()
    if (this.#session.type === 'realtime' && create_response !== false && !this.#response) this.#respond({})
  }

  #clear(): Buffer {
    const recording = Buffer.concat(this.#recording)
    this.#recording = []
    this.#bytes = 0
    return recording
  }

  #commit(): void {
    if (this.#bytes < MIN_COMMIT_MS * BYTES_PER_MS) {
      throw invalid(`The recording is shorter than ${MIN_COMMIT_MS} ms. Append more before you commit it.`)
    }
    this.#requireTime(1)
    const item: Item = { id: newId('item'), role: 'user', content: [{ type: 'input_audio', transcript: null }] }
    const previous_item_id = this.#items.at(-1)?.id ?? null
    this.#send('input_audio_buffer.committed', { previous_item_id, item_id: item.id })
    this.#add(item)
    item.heard = this.#hear(item, 0, this.#clear())
  }

  #requireTime(more: number): void {
    if (this.#unheard + more <= MAX_UNHEARD) return
    throw new CorralError('too_busy', `More than ${MAX_UNHEARD} recordings are not transcribed yet. Wait for them.`)
  }

  #add(item: Item, status = 'completed'): void {
    const previous_item_id = this.#items.at(-1)?.id ?? null
    this.#items.push(item)
    // The model could not read more either.
    let length = this.#items.reduce((sum, each) => sum + textLength(each), 0)
    while (this.#items.length > MAX_ITEMS || length > MAX_CONVERSATION_LENGTH)
      length -= textLength(this.#items.shift()!)
    this.#send('conversation.item.added', { previous_item_id, item: itemFields(item, status) })
    if (status === 'completed')
      this.#send('conversation.item.done', { previous_item_id, item: itemFields(item, status) })
  }

  #create({ id, type, role, content }: Fields): void {
    if (type !== 'message' || (role !== 'user' && role !== 'assistant' && role !== 'system')) {
      throw invalid('Only items of the type "message" by "user", "assistant" or "system" are supported.', 'item')
    }
    const recordings: [number, Buffer][] = []
    const parts = (Array.isArray(content) ? content : []).slice(0, MAX_ITEMS).map((part: unknown, at) => {
      const { type: kind, text, audio, transcript } = fields(part)
      const param = `item.content[${at}]`
      if (!PARTS.includes(String(kind))) throw invalid(`A part must be one of ${PARTS.join(', ')}.`, `${param}.type`)
      const isSound = kind === 'input_audio' || kind === 'output_audio'
      const words = isSound ? (transcript ?? '') : text
      if (typeof words !== 'string' || words.length > MAX_TEXT_LENGTH) {
        throw invalid(`A part must have a text of at most ${MAX_TEXT_LENGTH} characters.`, `${param}.text`)
      }
      if (!isSound) return { type: kind, text: words }
      if (typeof transcript !== 'string') recordings.push([at, samples(audio, `${param}.audio`)])
      return { type: kind, transcript: transcript ?? null }
    })
    this.#requireTime(recordings.length)
    const item: Item = { id: typeof id === 'string' ? id.slice(0, 100) : newId('item'), role, content: parts }
    this.#add(item)
    item.heard = Promise.all(recordings.map(([at, bytes]) => this.#hear(item, at, bytes))).then(() => undefined)
  }

  /** Asks corral's own API. @param take gets the events of a stream, or the bytes of a sound */
  async #ask(url: string, body: Fields, signal: AbortSignal, take: (piece: Buffer) => void): Promise<void> {
    const { server, caller } = this.#deps.request
    const asked = {
      url,
      body: JSON.stringify(body),
      signal: AbortSignal.any([signal, this.#ended.signal]),
      onPiece: take
    }
    const reply = await sendInternally(server, caller, asked)
    if (reply.status === 200) return
    const { error } = fields(JSON.parse(reply.body.toString()))
    throw new ApiError(fields(error))
  }

  async #askEvents(url: string, body: Fields, signal: AbortSignal, take: (event: Fields) => void): Promise<void> {
    const parser = new SseParser()
    let failure: Fields | undefined
    await this.#ask(url, { ...body, stream: true }, signal, piece => {
      for (const payload of parser.push(piece)) {
        const event = payload === '[DONE]' ? {} : fields(JSON.parse(payload))
        if (event.error) failure = fields(event.error)
        else take(event)
      }
    })
    if (failure) throw new ApiError(failure)
  }

  #modelFor(operation: 'transcribe' | 'speak', isMeant: (model: Model) => boolean = () => true): string {
    const able = this.#deps.models().filter(({ metadata }) => metadata.capabilities.includes(operation))
    const found = able.find(isMeant) ?? able[0]
    if (found) return found.publicName
    throw new CorralError('model_not_found', `This server has no model that can ${operation}. Pull one first.`)
  }

  /** Writes down a recording. A failure is reported, and the conversation continues. */
  async #hear(item: Item, content_index: number, recording: Buffer): Promise<void> {
    const about = { item_id: item.id, content_index }
    const kind = 'conversation.item.input_audio_transcription'
    this.#unheard++
    try {
      const { transcription } = fields(fields(this.#session.audio).input)
      const { model, language, prompt } = fields(transcription)
      const body = {
        model: model ?? this.#modelFor('transcribe'),
        file: Buffer.concat([wavHeader(RATE), recording]).toString('base64'),
        ...(language !== undefined && { language }),
        ...(prompt !== undefined && { prompt })
      }
      await this.#askEvents('/v1/audio/transcriptions', body, this.#ended.signal, ({ type, delta, text, usage }) => {
        if (type === 'transcript.text.delta' && delta) this.#send(`${kind}.delta`, { ...about, delta })
        if (type !== 'transcript.text.done') return
        item.content[content_index]!.transcript = text
        this.#send(`${kind}.completed`, { ...about, transcript: text, usage })
      })
    } catch (error) {
      if (!this.#ended.signal.aborted) this.#send(`${kind}.failed`, { ...about, error: errorFields(error) })
    } finally {
      this.#unheard--
    }
  }

  #respond(asked: Fields): void {
    if (this.#session.type !== 'realtime') throw invalid('A session for transcription has no responses.')
    if (this.#response) throw invalid('A response is in progress. Wait for its end, or cancel it.')
    const response = { id: newId('resp'), stop: new AbortController() }
    this.#response = response
    void this.#answer(updated(this.#session, asked), response).finally(() => {
      if (this.#response === response) this.#response = undefined
    })
  }

  async #answer(settings: Fields, { id: response_id, stop }: { id: string; stop: AbortController }): Promise<void> {
    const { model, instructions, output_modalities, max_output_tokens: most, metadata = null } = settings
    const isSpoken = !Array.isArray(output_modalities) || output_modalities.includes('audio')
    const item: Item = { id: newId('item'), role: 'assistant', content: [] }
    const about = { response_id, item_id: item.id, output_index: 0, content_index: 0 }
    let [text, spoken, usage]: [string, number, Fields] = ['', 0, {}]
    const part = () => (isSpoken ? { type: 'output_audio', transcript: text } : { type: 'output_text', text })
    const sendState = (event: string, status: string, details: Fields | null = null) => {
      const output = item.content.length > 0 ? [itemFields(item, status)] : []
      const response = {
        id: response_id,
        object: 'realtime.response',
        status,
        status_details: details,
        output,
        metadata
      }
      const more = { output_modalities: [isSpoken ? 'audio' : 'text'], usage: usageFields(usage) }
      this.#send(event, { response: { ...response, ...more } })
    }
    let speaking: Promise<void> = Promise.resolve()
    const speakUntil = (end: number) => {
      const input = text.slice(spoken, end)
      spoken = end
      if (input.trim() === '') return
      speaking = speaking.then(() => this.#speak(input, settings, about, stop.signal))
      // Awaited below.
      speaking.catch(() => {})
    }
    sendState('response.created', 'in_progress')
    try {
      await Promise.all(this.#items.map(({ heard }) => heard))
      const messages = chatMessages(instructions, this.#items)
      this.#add(item, 'in_progress')
      this.#send('response.output_item.added', { response_id, output_index: 0, item: itemFields(item, 'in_progress') })
      this.#send('response.content_part.added', { ...about, part: part() })
      const limit = typeof most === 'number' && { max_tokens: most }
      const body = { model, messages, stream_options: { include_usage: true }, ...limit }
      const kind = isSpoken ? 'response.output_audio_transcript' : 'response.output_text'
      await this.#askEvents('/v1/chat/completions', body, stop.signal, event => {
        usage = isObject(event.usage) ? event.usage : usage
        const [choice] = Array.isArray(event.choices) ? event.choices : []
        const delta = fields(fields(choice).delta).content
        if (typeof delta !== 'string' || delta === '') return
        text += delta
        this.#send(`${kind}.delta`, { ...about, delta })
        // Whole sentences are spoken while the model writes the next ones.
        const end = isSpoken ? text.slice(spoken).search(/[.!?…。！？]["')\]]*\s+\S*$/u) : -1
        if (end !== -1) speakUntil(spoken + end + 1)
      })
      if (isSpoken) speakUntil(text.length)
      await speaking
      this.#finish(item, about, part(), kind)
      sendState('response.done', 'completed')
    } catch (error) {
      if (this.#ended.signal.aborted) return
      const isCancelled = stop.signal.aborted
      stop.abort()
      if (text !== '') item.content = [part()]
      if (isCancelled) sendState('response.done', 'cancelled', { type: 'cancelled', reason: 'client_cancelled' })
      else sendState('response.done', 'failed', { type: 'failed', error: errorFields(error) })
    }
  }

  #finish(item: Item, about: Fields, part: Fields, kind: string): void {
    item.content = [part]
    const { response_id, output_index } = about
    if (part.type === 'output_audio') this.#send('response.output_audio.done', about)
    const { type: _, ...text } = part
    this.#send(`${kind}.done`, { ...about, ...text })
    this.#send('response.content_part.done', { ...about, part })
    const done = itemFields(item, 'completed')
    this.#send('response.output_item.done', { response_id, output_index, item: done })
    this.#send('conversation.item.done', { item: done })
  }

  async #speak(input: string, settings: Fields, about: Fields, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const { model, voice, speed } = fields(fields(settings.audio).output)
    const named = isObject(voice) ? voice.id : voice
    const isMeant = ({ metadata }: Model) => metadata.voices?.includes(String(named)) === true
    const body = { model: model ?? this.#modelFor('speak', isMeant), input, voice, speed, response_format: 'pcm' }
    await this.#ask('/v1/audio/speech', body, signal, bytes => {
      for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
        const delta = bytes.subarray(at, at + PIECE_BYTES).toString('base64')
        this.#send('response.output_audio.delta', { ...about, delta })
      }
    })
  }
}

/** An error that corral's own API answered with. */
class ApiError extends Error {
  readonly fields: Fields

  constructor(error: Fields) {
    super(String(error.message))
    this.fields = error
  }
}

function errorFields(error: unknown): Fields {
  if (error instanceof ApiError) return error.fields
  const { code, message, status, details } = toCorralError(error)
  return { type: status < 500 ? 'invalid_request_error' : 'server_error', code, message, param: details?.param ?? null }
}

/** Merges settings: objects field by field, and other values by the new one. */
function updated(before: Fields, change: Fields): Fields {
  const next = merged(before, {})
  for (const [name, value] of Object.entries(change)) {
    if (name === 'id' || name === 'object' || name === '__proto__') continue
    next[name] = isObject(value) && isObject(next[name]) ? updated(fields(next[name]), value) : value
  }
  return next
}

/** @throws CorralError `invalid_request` */
function samples(audio: unknown, param: string): Buffer {
  const bytes = Buffer.from(typeof audio === 'string' ? audio : '', 'base64')
  if (bytes.length === 0 || bytes.length % 2 === 1) throw invalid('Send samples of 16 bits in base64.', param)
  if (bytes.length <= MAX_RECORDING_BYTES) return bytes
  throw tooLong('Send a shorter one.')
}

const textLength = ({ content }: Item) =>
  content.reduce((sum, { text, transcript }) => sum + String(text ?? transcript ?? '').length, 0)

const itemFields = ({ id, role, content }: Item, status: string) => ({
  ...{ id, object: 'realtime.item', type: 'message', role, content },
  status: status === 'completed' || status === 'in_progress' ? status : 'incomplete'
})

function chatMessages(instructions: unknown, items: readonly Item[]): Fields[] {
  const system =
    typeof instructions === 'string' && instructions !== '' ? [{ role: 'system', content: instructions }] : []
  const messages = items.map(({ role, content }) => ({
    role,
    content: content.map(({ text, transcript }) => text ?? transcript ?? '').join('\n')
  }))
  return [...system, ...messages.filter(({ content }) => content !== '')]
}

const usageFields = ({ prompt_tokens = 0, completion_tokens = 0, total_tokens = 0 }: Fields) => ({
  ...{ input_tokens: prompt_tokens, output_tokens: completion_tokens, total_tokens }
})
