import { type Signal, useComputed } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Recommendation } from '../../../../core/contracts/native-records.ts'
import { attempt, Dialog, IconButton } from '../parts/controls.tsx'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { Button, Select } from '../parts/forms.tsx'
import { Icon } from '../parts/icons.tsx'
import { Card, Fault, joinFacts } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import {
  continueIndexing,
  documentsIn,
  embeddingModels,
  MAX_PASSAGES,
  removeDocument,
  tokensOf
} from '../state/chat-documents.ts'
import type { Attachment, Message } from '../state/chat-format.ts'
import { messagesOf, type OpenChat } from '../state/chats.ts'
import { may } from '../state/me.ts'
import { indexStates, stopIndexing } from '../state/passage-index.ts'
import { estimateTokens } from '../state/passage-search.ts'
import { searchModel } from '../state/preferences.ts'
import { connection, pulls } from '../state/server-state.ts'
import { fill, plural, shownLanguage, texts } from '../texts/texts.ts'

/** Tokens of a passage, without tokens repeated from the previous passage. */
const TOKENS_PER_PASSAGE = 180

/** The documents of a chat, and the progress of preparing their search. */
export function DocumentLine({ id, opened }: { id: string; opened: Signal<OpenChat> }) {
  const t = texts.value
  const [isOpen, setOpen] = useState(false)
  const documents = useComputed(() => {
    // Only these messages have documents. Answers change with each token.
    const asked = [...opened.value.messages.values()].filter(message => message.peek().role === 'user')
    return documentsIn(asked.map(message => message.value))
  })
  const { version } = embeddingModels.value
  const count = documents.value.size
  const isOnline = connection.value === 'online'
  useEffect(() => void (isOnline && attempt(() => continueIndexing(id))), [id, version, count, isOnline])
  if (count === 0) return null
  return (
    <div class="document-line">
      <button type="button" class="menu-button" aria-haspopup="dialog" onClick={() => setOpen(true)}>
        <Icon name="clip" size={16} />
        <span>
          {t.documents}: {count}
        </span>
      </button>
      <Progress chat={id} />
      {isOpen && (
        <Dialog title={t.documents} onClose={() => setOpen(false)}>
          <p class="quiet">{t.documentsNote}</p>
          {tokensOf(documents.value) > MAX_PASSAGES * TOKENS_PER_PASSAGE && <Fault text={t.documentsTooLong} />}
          <ul class="plain-list">
            {[...documents.value].map(([document, about]) => (
              <DocumentCard key={document} document={about} onRemove={() => removeDocument(id, document)} />
            ))}
          </ul>
          <Progress chat={id} />
          <SearchModel />
        </Dialog>
      )}
    </div>
  )
}

function DocumentCard({ document, onRemove }: { document: Attachment; onRemove: () => Promise<void> }) {
  const t = texts.value
  const { name, data, size = data.length } = document
  const pages = data.split('\f').length
  const remove = async () => {
    await onRemove()
    window.document.querySelector<HTMLElement>('dialog[open] button')?.focus()
  }
  const facts = [
    formatSize(size),
    pages > 1 && plural(t.pageCount, pages),
    fill(t.aboutTokens, { count: formatNumber(estimateTokens(data)) })
  ]
  const button = <IconButton icon="trash" label={fill(t.removeFile, { name })} onClick={() => attempt(remove)} />
  return <Card title={name} facts={facts} actions={button} />
}

function Progress({ chat }: { chat: string }) {
  const t = texts.value
  const state = indexStates.value.get(chat)
  if (!state) return null
  const again = <Button text={t.resume} onClick={() => continueIndexing(chat, true)} />
  if (state.fault !== undefined || state.isStopped) {
    return (
      <>
        <Fault text={state.fault} />
        {again}
      </>
    )
  }
  return (
    <>
      <progress max={state.total || 1} value={state.done} aria-label={t.indexing} />
      <small>{t.indexing}</small>
      <IconButton icon="close" label={t.stopIndexing} onClick={() => stopIndexing(chat)} />
    </>
  )
}

/** The embedding model, or an offer to download one. */
function SearchModel() {
  const t = texts.value
  const { names, version } = embeddingModels.value
  if (!version) {
    return (
      <>
        <p class="note">{`${t.noSearchModel} ${may('operator') ? '' : t.askOperator}`}</p>
        {may('operator') && <ModelOffer />}
      </>
    )
  }
  if (names.length === 1) return null
  return (
    <Select
      label={t.capabilities.embedding}
      value={version.split(' ', 1)[0]}
      options={names.map(name => [name, name])}
      onChange={event => (searchModel.value = event.currentTarget.value)}
    />
  )
}

function ModelOffer() {
  const t = texts.value
  const { reply, fault } = useReply<{ models: Recommendation[] }>('api/recommended')
  const offered = (reply?.models ?? [])
    .filter(({ purpose, memory }) => purpose === 'embeddings' && memory.fits)
    .sort((a, b) => a.size - b.size)
  const pullOf = (model: string) => pulls.value.find(pull => pull.model.toLowerCase().startsWith(model.toLowerCase()))
  const download = (model: string) => attempt(() => ask('POST', 'api/pull', { body: { model, detach: true } }))
  return (
    <>
      <Fault text={fault?.message} />
      <ul class="plain-list">
        {offered.map(({ model, size, license, about }) => {
          const pull = pullOf(model)
          const begin = <Button text={fill(t.downloadOf, { size: formatSize(size) })} onClick={() => download(model)} />
          return (
            <Card key={model} title={model} facts={[license]} fault={pull?.reason} actions={!pull && begin}>
              <p>{about[shownLanguage.value] ?? about.en}</p>
              {pull && <progress max={pull.total || 1} value={pull.completed} aria-label={model} />}
            </Card>
          )
        })}
      </ul>
    </>
  )
}

/** Characters shown before and after a passage. */
const CONTEXT_LENGTH = 1500

/** A passage that an answer cites, marked in its context if the document is still in the chat. */
export function SourceDialog(props: { message: Message; index: number; onClose: () => void }) {
  const t = texts.value
  const { message, index, onClose } = props
  const { name, at, text, page, heading } = message.sources![index]!
  const all = documentsIn(messagesOf(message.chat).values()).values()
  const whole = [...all].find(each => each.name === name && each.data.startsWith(text, at))?.data ?? ''
  const mark = useRef<HTMLElement>(null)
  useEffect(() => mark.current?.scrollIntoView(), [])
  const end = at + text.length
  // Pages end with a form feed.
  const shown = (text: string) => text.replaceAll('\f', '\n\n')
  return (
    <Dialog title={fill(t.passage, { number: index + 1, place: name })} onClose={onClose}>
      <p class="quiet">{joinFacts([page !== undefined && fill(t.pageNumber, { page }), heading])}</p>
      <section class="passage" dir="auto" tabIndex={0} aria-label={name}>
        {shown(whole.slice(Math.max(0, at - CONTEXT_LENGTH), at))}
        <mark ref={mark}>{text}</mark>
        {shown(whole.slice(end, end + CONTEXT_LENGTH))}
      </section>
    </Dialog>
  )
}
