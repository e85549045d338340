import { Fragment } from 'preact'
import { useState } from 'preact/hooks'
import { printable } from '../../../../core/system/printable.ts'
import { CopyButton } from '../parts/controls.tsx'
import { formatNumber } from '../parts/formats.ts'
import { Actions, Button } from '../parts/forms.tsx'
import { Icon } from '../parts/icons.tsx'
import { isAsked, partsOf } from '../state/answer-calls.ts'
import { decide } from '../state/answering.ts'
import { bytesOf, download } from '../state/chat-files.ts'
import type { HostedCall, Message, ResultFile } from '../state/chat-format.ts'
import { chats } from '../state/chats.ts'
import { isUnderWay } from '../state/conversation-tree.ts'
import { allowTool, isAllowed } from '../state/hosted-tools.ts'
import { fill, texts } from '../texts/texts.ts'
import { Markdown } from './markdown-view.tsx'

/** An answer with the calls of tools that the server ran for it. */
export function AnswerSteps({ message }: { message: Message }) {
  const isBusy = isUnderWay(message)
  const isLast = chats.value.get(message.chat)?.leaf === message.id
  const parts = partsOf(message)
  return (
    <>
      {parts.map(({ text, calls }, index) => (
        <Fragment key={index}>
          {text.trim() !== '' && <Markdown text={text} isComplete={!isBusy || index < parts.length - 1} />}
          {calls.map((call, place) =>
            isAsked(call) && isLast && !isBusy ? (
              <Approval key={place} message={message} call={call} />
            ) : (
              <Call key={place} call={call} isBusy={isBusy} />
            )
          )}
        </Fragment>
      ))}
    </>
  )
}

function stateOf({ state, output, failed }: HostedCall, isBusy: boolean) {
  if (output !== undefined) return failed ? 'failed' : 'done'
  if (state === undefined) return isBusy ? 'running' : 'stopped'
  return isBusy || state === 'expired' ? state : 'undecided'
}

function Call({ call, isBusy }: { call: HostedCall; isBusy: boolean }) {
  const t = texts.value
  const { server, tool, output, files = [] } = call
  const state = stateOf(call, isBusy)
  return (
    <details class={`tool-call is-${state}`}>
      <summary>
        <Icon name="tool" size={16} />
        <span class="mono">
          {server} · {tool}
        </span>
        <span class={state === 'done' ? 'chip is-good' : 'chip'}>
          {state === 'running' && <span class="pulse" aria-hidden="true" />}
          {t.callStates[state]}
        </span>
        <Icon name="down" size={16} />
      </summary>
      {state === 'expired' && <p class="note">{t.approvalExpired}</p>}
      <LongText label={t.callArguments} text={argumentsText(call)} />
      {output !== undefined && output !== '' && <LongText label={t.result} text={output} />}
      {files.map((file, index) => (
        <File key={index} file={file} />
      ))}
    </details>
  )
}

/** Asks whether a call may run. Its arguments are shown whole. */
function Approval({ message, call }: { message: Message; call: HostedCall }) {
  const t = texts.value
  const title = fill(t.asksFor, { tool: `${call.server} · ${call.tool}` })
  const answer = (mayRun: boolean, remember?: () => void) => () => {
    remember?.()
    // The buttons disappear.
    document.getElementById('message')?.focus()
    void decide(message, other => {
      if (other.approval === call.approval) return mayRun
      return isAllowed(other, message.chat) || undefined
    })
  }
  return (
    <section class="tool-call is-asked" aria-label={title}>
      <h2>{title}</h2>
      <LongText label={t.callArguments} text={argumentsText(call)} isWhole />
      <Actions>
        <Button text={t.deny} onClick={answer(false)} />
        <Button text={t.allowAlways} onClick={answer(true, () => allowTool(call))} />
        <Button text={t.allowInChat} onClick={answer(true, () => allowTool(call, message.chat))} />
        <Button kind="main" text={t.allowOnce} onClick={answer(true)} />
      </Actions>
    </section>
  )
}

/** The arguments for reading, without characters that could hide or reorder others. */
function argumentsText({ arguments: given }: HostedCall): string {
  let text = given
  try {
    text = JSON.stringify(JSON.parse(given), null, 2)
  } catch {
    // The model wrote something else.
  }
  return text
    .split('\n')
    .map(line => printable(line))
    .join('\n')
}

/** Longer texts are truncated at first. */
const MAX_SHOWN = 4000

function LongText(props: { label: string; text: string; isWhole?: boolean }) {
  const { label, text } = props
  const [isWhole, setWhole] = useState(props.isWhole || text.length <= MAX_SHOWN)
  return (
    <figure class="code">
      <figcaption>
        {label}
        <CopyButton text={() => text} label={`${texts.value.copy}: ${label}`} />
      </figcaption>
      <pre tabIndex={0}>{isWhole ? text : `${text.slice(0, MAX_SHOWN)}…`}</pre>
      {!isWhole && (
        <button type="button" class="link" onClick={() => setWhole(true)}>
          {fill(texts.value.showAll, { count: formatNumber(text.length) })}
        </button>
      )}
    </figure>
  )
}

/** Formats that can contain neither scripts nor addresses. */
const SAFE_IMAGES = /^image\/(png|jpeg|gif|webp)$/

/** A file of a result: an image, or a button that stores it. It is never opened on the page. */
function File({ file: { name, type, data } }: { file: ResultFile }) {
  return (
    <p class="result-file">
      {SAFE_IMAGES.test(type) && <img src={`data:${type};base64,${data}`} alt={name} />}
      <Button icon="download" text={name} onClick={() => download(name, 'application/octet-stream', bytesOf(data))} />
    </p>
  )
}
