import { type Signal, signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import { attempt, CopyButton, IconButton, Menu, MenuItem, onEscape } from '../parts/controls.tsx'
import { formatDuration, formatNumber } from '../parts/formats.ts'
import { Actions, Button, Form, TextField } from '../parts/forms.tsx'
import { InstallConverter } from '../parts/install-converter.tsx'
import { joinFacts, later } from '../parts/layout.tsx'
import { partsOf } from '../state/answer-calls.ts'
import { answer, continueAnswer } from '../state/answering.ts'
import type { Message, Timing, ToolCall } from '../state/chat-format.ts'
import {
  addMessage,
  changeChat,
  chats,
  deleteMessage,
  editMessage,
  forkChat,
  messagesOf,
  type OpenChat,
  showBranch
} from '../state/chats.ts'
import { getSiblings, isContextFull, isUnderWay } from '../state/conversation-tree.ts'
import { go } from '../state/route.ts'
import { chatModels, contextOf } from '../state/server-state.ts'
import { fill, labelFor, plural, statusText, texts } from '../texts/texts.ts'
import { Citation, CitedPassages, Markdown } from './markdown-view.tsx'
import { beingRead, readAloud, reader, stopReading } from './read-aloud.ts'

const SourceDialog = later(async () => (await import('./documents-view.tsx')).SourceDialog)
const AnswerSteps = later(async () => (await import('./tool-calls.tsx')).AnswerSteps)

/** Id of the message that is being edited, or empty. */
export const edited = signal('')

/** One message of the current branch. @param opened its chat; absent for messages that can only be read */
export function MessageView(props: { message: Signal<Message>; opened?: Signal<OpenChat> }) {
  const { opened } = props
  const message = props.message.value
  const t = texts.value
  const article = useRef<HTMLElement>(null)
  const isBusy = isUnderWay(message)
  useEffect(() => () => stopReading(message.id), [])
  const isRead = beingRead.value === message.id
  const read = () => readAloud(message.id, article.current)
  const readText = isRead ? t.stopReading : t.readAloud
  /** Answers have their own button if a model can read them. */
  const hasReader = message.role === 'assistant' && message.content !== '' && reader.value === 'model'
  const name = message.role === 'assistant' ? fill(t.answerOf, { model: message.model ?? '' }) : t.you
  if (edited.value === message.id) return <Editor message={message} />
  const fork = async () => go(['chat', (await forkChat(message.chat, {}, message.id)).id])
  return (
    <article
      ref={article}
      id={`m-${message.id}`}
      class={`message is-${message.role}`}
      aria-label={name}
      aria-busy={isBusy}
    >
      {message.role === 'assistant' ? <AnswerBody message={message} /> : <QuestionBody message={message} />}
      {!isBusy && opened && (
        <footer class="message-foot">
          <Versions message={message} opened={opened} />
          <CopyButton text={() => message.content} />
          <IconButton icon="edit" label={t.edit} onClick={() => (edited.value = message.id)} />
          {message.role === 'assistant' && <Again message={message} />}
          {hasReader && <IconButton icon={isRead ? 'stop' : 'sound'} label={readText} onClick={read} />}
          <Menu label={t.more}>
            {() => (
              <>
                {message.timing && <TokenNote timing={message.timing} />}
                {!hasReader && reader.value && message.content !== '' && (
                  <MenuItem icon="sound" onSelect={read} text={readText} />
                )}
                <MenuItem icon="plus" onSelect={() => attempt(fork)} text={t.forkHere} />
                <MenuItem icon="trash" danger onSelect={() => deleteMessage(message)} text={t.deleteMessage} />
              </>
            )}
          </Menu>
          {message.role === 'assistant' && <Figures message={message} />}
        </footer>
      )}
    </article>
  )
}

export function QuestionBody({ message: { content, attachments = [] } }: { message: Message }) {
  return (
    <div class="question" dir="auto">
      {attachments.map(({ name, kind, data }) =>
        kind === 'image' ? (
          <img key={name} src={data} alt={name} />
        ) : kind === 'audio' ? (
          // biome-ignore lint/a11y/useMediaCaption: what the user has given has no captions
          <audio key={name} src={data} controls />
        ) : (
          <span key={name} class="chip">
            {name}
          </span>
        )
      )}
      <p class="question-text">{content}</p>
    </div>
  )
}

function AnswerBody({ message }: { message: Message }) {
  const t = texts.value
  const { content, thinking, state, error, finish, dropped, calls, sources } = message
  const isBusy = isUnderWay(message)
  const [cited, open] = useState<number | undefined>(undefined)
  const last = calls?.at(-1)
  /** Whether nothing shows yet that the server works: neither text nor a running call. */
  const isSilent = partsOf(message).at(-1)!.text === '' && (!last || last.output !== undefined)
  return (
    <CitedPassages.Provider value={sources && { sources, open }}>
      {dropped !== undefined && dropped > 0 && <p class="note">{plural(t.droppedNote, dropped)}</p>}
      {thinking && (
        <details class="thoughts">
          <summary>{isBusy && content === '' ? t.thinking : t.thoughts}</summary>
          <Markdown text={thinking} isComplete={!isBusy} />
        </details>
      )}
      {calls ? <AnswerSteps message={message} /> : content !== '' && <Markdown text={content} isComplete={!isBusy} />}
      {message.toolCalls && <ToolCalls message={message} calls={message.toolCalls} />}
      {isBusy && (isSilent || message.status) && (
        <p class="status">
          <span class="pulse" aria-hidden="true" />
          {statusText(message.status)}
        </p>
      )}
      {(state === 'stopped' || (!state && finish === 'length')) && (
        <p class="note">
          {state ? t.stoppedNote : t.cutNote} {canGoOn(message) && <Continue message={message} />}
        </p>
      )}
      {error && <Failure message={message} error={error} />}
      {sources && !isBusy && (
        <p class="note">
          {t.passages}:{' '}
          {sources.map((_, index) => (
            <Citation key={index} index={index} />
          ))}
          {message.search === 'words' && t.wordsOnly}
        </p>
      )}
      {cited !== undefined && <SourceDialog message={message} index={cited} onClose={() => open(undefined)} />}
    </CitedPassages.Provider>
  )
}

/** Whether an interrupted answer has something to continue from. */
const canGoOn = ({ content, toolCalls, calls }: Message) => (content !== '' || calls !== undefined) && !toolCalls

function Continue({ message }: { message: Message }) {
  return (
    <button type="button" class="link" onClick={() => void continueAnswer(message)}>
      {texts.value.continue}
    </button>
  )
}

function Failure({ message, error }: { message: Message; error: NonNullable<Message['error']> }) {
  const t = texts.value
  const { message: text, code } = error
  const again = () => answer(message.chat, message.parent!, message.model)
  const shorten = async () => {
    const options = { ...chats.peek().get(message.chat)?.options, context_overflow: 'drop_oldest' }
    await changeChat(message.chat, { options })
    await again()
  }
  return (
    <div class="failure" role="alert">
      <p>{labelFor(t.failures, code, text)}</p>
      <p class="failure-code">{code}</p>
      <Button onClick={again} text={t.retry} />
      {code === 'conversion_not_installed' && <InstallConverter onDone={again} />}
      {canGoOn(message) && <Continue message={message} />}
      {isContextFull(message) && <Button onClick={shorten} text={t.tryShorter} />}
    </div>
  )
}

/** Tool calls, for which the user enters the results. The model continues once all are entered. */
function ToolCalls({ message: { id, chat, state }, calls }: { message: Message; calls: readonly ToolCall[] }) {
  const t = texts.value
  const isOpen = chats.value.get(chat)?.leaf === id && !state
  return (
    <Form
      onSubmit={async (_, fields) => {
        const results = fields.getAll('result').map(String)
        let parent = id
        for (const [index, call] of calls.entries()) {
          const content = results[index] ?? ''
          parent = (await addMessage({ chat, parent, role: 'tool', content, callId: call.id })).id
        }
        await answer(chat, parent)
      }}
    >
      {calls.map(({ name, arguments: given }, index) => (
        <div key={index} class="tool-call">
          <p>{fill(t.callsTool, { name })}</p>
          <pre tabIndex={0}>{given}</pre>
          {isOpen && <TextField label={fill(t.toolResult, { name })} name="result" rows={2} />}
        </div>
      ))}
      {isOpen && <Button type="submit" text={t.giveResult} />}
    </Form>
  )
}

function Versions({ message, opened }: { message: Message; opened: Signal<OpenChat> }) {
  const t = texts.value
  // Subscribes to the tree, to count new versions.
  opened.value
  const versions = getSiblings(messagesOf(message.chat), message)
  if (versions.length < 2) return null
  const at = versions.findIndex(({ id }) => id === message.id)
  const show = (index: number) => showBranch(versions[index]!)
  return (
    <span class="versions">
      <IconButton icon="left" label={t.previousVersion} disabled={at === 0} onClick={() => show(at - 1)} />
      <span>{fill(t.versionOf, { at: at + 1, count: versions.length })}</span>
      <IconButton
        icon="right"
        label={t.nextVersion}
        disabled={at === versions.length - 1}
        onClick={() => show(at + 1)}
      />
    </span>
  )
}

function Again({ message }: { message: Message }) {
  const t = texts.value
  if (message.parent === undefined) return null
  const again = (model = message.model) => answer(message.chat, message.parent!, model)
  const others = chatModels.value.filter(({ name }) => name !== message.model)
  return (
    <>
      <IconButton icon="again" label={t.regenerate} onClick={() => again()} />
      {others.length > 0 && (
        <Menu label={t.regenerateWith} icon="down">
          {() => others.map(({ name }) => <MenuItem key={name} onSelect={() => again(name)} text={name} />)}
        </Menu>
      )}
    </>
  )
}

/** The token counts of an answer, in more detail than the line below it has space for. */
function TokenNote({ timing: { promptTokens, cachedTokens, answerTokens, promptSpeed } }: { timing: Timing }) {
  const t = texts.value
  const values = {
    read: formatNumber(promptTokens),
    cached: formatNumber(cachedTokens),
    written: formatNumber(answerTokens)
  }
  return (
    <p class="menu-note">
      {fill(t.tookTokens, values)}{' '}
      {promptSpeed !== undefined && fill(t.promptSpeed, { speed: formatNumber(promptSpeed) })}
    </p>
  )
}

function Figures({ message: { timing, model } }: { message: Message }) {
  const t = texts.value
  if (!timing) return null
  const context = contextOf(model ?? '')
  const { speed, firstText, promptTokens, answerTokens } = timing
  const used = promptTokens + answerTokens
  const count = formatNumber(used)
  const fillLevel = context === undefined ? '' : fill(t.contextFill, { used: count, size: formatNumber(context) })
  const facts = [
    speed !== undefined && fill(t.speed, { tokens: formatNumber(speed, speed < 10 ? 1 : 0) }),
    firstText !== undefined && fill(t.firstText, { time: formatDuration(firstText) }),
    used > 0 && (fillLevel || fill(t.tokens, { count }))
  ]
  return (
    <span class="figures">
      {joinFacts(facts)}
      {context !== undefined && used > 0 && (
        <meter class="fill" min={0} max={1} high={0.8} value={used / context} aria-label={fillLevel} />
      )}
    </span>
  )
}

/** Edits a message. Sending creates a new version, saving replaces this one. */
function Editor({ message }: { message: Message }) {
  const t = texts.value
  const [text, setText] = useState(message.content)
  const isQuestion = message.role === 'user'
  const close = () => (edited.value = '')
  const save = async (send: boolean) => {
    close()
    if (!send) return editMessage(message, { content: text })
    const { id: _id, at: _at, ...rest } = message
    const added = await addMessage({ ...rest, content: text })
    return answer(message.chat, added.id)
  }
  return (
    <Form class={`message is-${message.role} is-edited`} onSubmit={() => save(isQuestion)}>
      <textarea
        class="editor"
        aria-label={t.edit}
        value={text}
        rows={Math.min(16, text.split('\n').length + 1)}
        ref={field => field?.focus()}
        onInput={event => setText(event.currentTarget.value)}
        onKeyDown={event => {
          onEscape(close)(event)
          if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void save(isQuestion)
        }}
      />
      <Actions>
        <Button onClick={close} text={t.cancel} />
        <Button onClick={() => save(false)} text={t.saveOnly} />
        {isQuestion && <Button kind="main" type="submit" text={t.saveAndSend} />}
      </Actions>
    </Form>
  )
}
