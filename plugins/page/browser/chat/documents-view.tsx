import { type Signal, useComputed, useSignal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Recommendation } from '../../../../core/contracts/native-records.ts'
import { announce, attempt, Dialog, IconButton, notify } from '../parts/controls.tsx'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { Button, Select } from '../parts/forms.tsx'
import { Icon } from '../parts/icons.tsx'
import { Card, Fault, joinFacts } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import {
  continueIndexing,
  documentsIn,
  documentsOf,
  embeddingModels,
  MAX_PASSAGES,
  removeDocument,
  tokensOf
} from '../state/chat-documents.ts'
import type { Attachment, Message } from '../state/chat-format.ts'
import { addMessage, chats, type OpenChat, openChat, projectOf } from '../state/chats.ts'
import { may } from '../state/me.ts'
import { indexStates, stopIndexing } from '../state/passage-index.ts'
import { estimateTokens } from '../state/passage-search.ts'
import { searchModel } from '../state/preferences.ts'
import { connection, pulls } from '../state/server-state.ts'
import { fill, plural, shownLanguage, texts } from '../texts/texts.ts'

/** Tokens of a passage, without tokens repeated from the previous passage. */
const TOKENS_PER_PASSAGE = 180

/** The documents of a chat or project, and the progress of preparing their search. */
export function DocumentLine({ id }: { id: string }) {
  const t = texts.value
  const [isOpen, setOpen] = useState(false)
  const chat = chats.value.get(id)!
  const project = projectOf(chat)
  const own = useDocuments(id)
  const shared = useDocuments(project)
  const count = own.size + shared.size
  if (count === 0 && !chat.isProject) return null
  return (
    <div class="document-line">
      {count > 0 && (
        <button type="button" class="menu-button" aria-haspopup="dialog" onClick={() => setOpen(true)}>
          <Icon name="clip" size={16} />
          <span>
            {t.documents}: {count}
          </span>
        </button>
      )}
      {chat.isProject && <AddDocuments project={id} />}
      <Progress chat={id} />
      <Progress chat={project} />
      {isOpen && (
        <Dialog title={t.documents} onClose={() => setOpen(false)}>
          <p class="quiet">{chat.isProject ? t.projectDocumentsNote : t.documentsNote}</p>
          {tokensOf(own) + tokensOf(shared) > MAX_PASSAGES * TOKENS_PER_PASSAGE && <Fault text={t.documentsTooLong} />}
          <ul class="plain-list">
            {[...own].map(([document, about]) => (
              <DocumentCard key={document} document={about} onRemove={() => removeDocument(id, document)} />
            ))}
            {[...shared].map(([document, about]) => (
              <DocumentCard key={document} document={about} project={chats.value.get(project)!.title} />
            ))}
          </ul>
          <Progress chat={id} />
          <SearchModel />
        </Dialog>
      )}
    </div>
  )
}

/** The documents attached to the messages of a chat or project, whose search is prepared. @param id may be empty */
function useDocuments(id: string): ReadonlyMap<string, Attachment> {
  const opened = useSignal<Signal<OpenChat> | undefined>(undefined)
  useEffect(() => {
    if (id) void openChat(id).then(found => (opened.value = found))
    else opened.value = undefined
  }, [id])
  const documents = useComputed(() => {
    // Only these messages have documents. Answers change with each token.
    const asked = [...(opened.value?.value.messages.values() ?? [])].filter(message => message.peek().role === 'user')
    return documentsIn(asked.map(message => message.value))
  }).value
  const { version } = embeddingModels.value
  const isReady = opened.value !== undefined && connection.value === 'online'
  useEffect(() => void (isReady && attempt(() => continueIndexing(id))), [id, version, documents.size, isReady])
  return documents
}

/** A button that adds documents to a project. */
function AddDocuments({ project }: { project: string }) {
  const t = texts.value
  const [isBusy, setBusy] = useState(false)
  const add = async (files: readonly File[]) => {
    setBusy(true)
    await attempt(async () => {
      const { readFiles } = await import('./attachments.ts')
      const { attachments, refused, told } = await readFiles(files, undefined, new AbortController().signal)
      if (attachments.length > 0) await addMessage({ chat: project, role: 'user', content: '', attachments })
      announce(told)
      if (refused.length > 0) notify(refused.join(' '), true)
    })
    setBusy(false)
  }
  return (
    <label class="button">
      {isBusy ? t.loading : t.addDocuments}
      <input
        type="file"
        multiple
        class="visually-hidden"
        disabled={isBusy}
        onChange={event => add([...(event.currentTarget.files ?? [])])}
      />
    </label>
  )
}

/** @param project title of the project that it belongs to. There it can be removed. */
function DocumentCard(props: { document: Attachment; onRemove?: () => Promise<void>; project?: string }) {
  const t = texts.value
  const { document, onRemove, project } = props
  const { name, data, size = data.length } = document
  const pages = data.split('\f').length
  const remove = async () => {
    await onRemove?.()
    window.document.querySelector<HTMLElement>('dialog[open] button')?.focus()
  }
  const facts = [
    project && fill(t.fromProject, { name: project }),
    formatSize(size),
    pages > 1 && plural(t.pageCount, pages),
    fill(t.aboutTokens, { count: formatNumber(estimateTokens(data)) })
  ]
  const button = <IconButton icon="trash" label={fill(t.removeFile, { name })} onClick={() => attempt(remove)} />
  return <Card title={name} facts={facts} actions={onRemove && button} />
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
  const all = documentsOf(message.chat).values()
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
